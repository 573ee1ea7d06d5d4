//! The order in which the device and this process see each other's memory accesses.
//!
//! `Release` and `Acquire` order them among processors. The device is none of those: on aarch64 it lies in the outer
//! shareable domain, for which there are barriers of its own. On x86 only [`around_combined`] is an instruction.

use std::sync::atomic::{
    Ordering::{Acquire, Release},
    fence,
};

/// Between stores to memory, and a later store by which the device learns of them (a doorbell record, a register, an
/// owner bit).
#[inline(always)]
pub fn before_device_looks() {
    fence(Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier: touches nothing.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Between the load that shows that the device has written something (an owner bit), and the loads of that.
#[inline(always)]
pub fn after_device_wrote() {
    fence(Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier: touches nothing.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Before and after stores to memory that combines writes. Before: they come behind all earlier stores, which such memory
/// promises on no processor by itself. After: they go to the device now, and nothing later is combined with them.
#[inline(always)]
pub fn around_combined() {
    fence(Release);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier: touches nothing.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier: touches nothing.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}
