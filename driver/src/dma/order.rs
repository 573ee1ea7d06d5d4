//! Ordering of memory accesses between the device and this process.
//!
//! `Release` and `Acquire` order accesses among processors. The device is not one: on aarch64 it is in the outer
//! shareable domain, which needs separate barriers. On x86 only [`around_combined`] emits an instruction.

use std::sync::atomic::{
    Ordering::{Acquire, Release},
    fence,
};

/// Orders stores to memory before a later store that notifies the device of them (a doorbell record, a register, an
/// owner bit).
#[inline(always)]
pub fn before_device_looks() {
    fence(Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier accesses no memory.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders the load that shows that the device has written something (an owner bit) before the loads of the data.
#[inline(always)]
pub fn after_device_wrote() {
    fence(Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier accesses no memory.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Goes before and after stores to write-combining memory. Before: orders them after all earlier stores, which such
/// memory guarantees on no processor by itself. After: flushes them to the device, so that nothing later is combined
/// with them.
#[inline(always)]
pub fn around_combined() {
    fence(Release);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a barrier accesses no memory.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier accesses no memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}
