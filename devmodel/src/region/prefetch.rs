//! Hints to the processor.

/// Asks the processor to bring the cache line at `at` near, if it can be asked.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that touches nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`prefetch`], of a line that is about to be written.
#[inline(always)]
pub(super) fn prefetch_to_write(at: *const u8) {
    // The intrinsic for it asks for the line to read where the target is not said to know better. A processor that does not know
    // it does nothing. Miri runs no assembly.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that touches nothing, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
