//! Prefetch hints.

/// Prefetches the cache line at `at`, on targets that can.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, without memory access at any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`prefetch`] for a line that is about to be written.
#[inline(always)]
pub(super) fn prefetch_to_write(at: *const u8) {
    // The intrinsic falls back to a read prefetch unless the target features include PREFETCHW, hence the assembly; processors
    // without the instruction ignore it. Miri runs no assembly.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, without memory access at any address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
