//! Copies that return an error when memory is missing, where an ordinary copy ends the program with a signal.
//!
//! A program may unmap, protect or truncate the memory that it has registered. Only the instructions below touch such memory: the handler
//! of SIGSEGV and SIGBUS (`missing.rs`) knows their addresses and resumes the thread behind them.
#![allow(unsafe_code)]

/// The result of the assembly routine, in two registers.
#[repr(C)]
struct Done {
    /// 0: all bytes were copied.
    failed: usize,
    /// The address that was missing, if `failed`.
    at: usize,
}

// Copies so that the last byte becomes visible last, and each aligned word of 2, 4 or 8 bytes at once. Before `last`, nothing is on the
// stack and only caller-saved registers are used. `missing` reports failure and leaves the second register unchanged.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.ironverbs_guarded,\"ax\",@progbits",
    ".globl ironverbs_guarded_copy, ironverbs_guarded_last, ironverbs_guarded_missing",
    ".hidden ironverbs_guarded_copy, ironverbs_guarded_last, ironverbs_guarded_missing",
    ".type ironverbs_guarded_copy,@function",
    "ironverbs_guarded_copy:",
    ".cfi_startproc",
    "cmp rdx, 8",
    "je 5f",
    "cmp rdx, 4",
    "je 4f",
    "cmp rdx, 2",
    "je 3f",
    "2:",
    "mov rcx, rdx",
    "sub rcx, 1",
    "jb ironverbs_guarded_last",
    "rep movsb",
    "mov al, byte ptr [rsi]",
    "mov byte ptr [rdi], al",
    "jmp ironverbs_guarded_last",
    "3:",
    "test dil, 1",
    "jne 2b",
    "mov ax, word ptr [rsi]",
    "mov word ptr [rdi], ax",
    "jmp ironverbs_guarded_last",
    "4:",
    "test dil, 3",
    "jne 2b",
    "mov eax, dword ptr [rsi]",
    "mov dword ptr [rdi], eax",
    "jmp ironverbs_guarded_last",
    "5:",
    "test dil, 7",
    "jne 2b",
    "mov rax, qword ptr [rsi]",
    "mov qword ptr [rdi], rax",
    "ironverbs_guarded_last:",
    "xor eax, eax",
    "ret",
    "ironverbs_guarded_missing:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size ironverbs_guarded_copy, . - ironverbs_guarded_copy",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.ironverbs_guarded,\"ax\",@progbits",
    ".globl ironverbs_guarded_copy, ironverbs_guarded_last, ironverbs_guarded_missing",
    ".hidden ironverbs_guarded_copy, ironverbs_guarded_last, ironverbs_guarded_missing",
    ".type ironverbs_guarded_copy,@function",
    "ironverbs_guarded_copy:",
    ".cfi_startproc",
    "cmp x2, #8",
    "b.eq 5f",
    "cmp x2, #4",
    "b.eq 4f",
    "cmp x2, #2",
    "b.eq 3f",
    "2:",
    "cbz x2, ironverbs_guarded_last",
    "sub x2, x2, #1",
    "6:",
    "cmp x2, #8",
    "b.lo 7f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "sub x2, x2, #8",
    "b 6b",
    "7:",
    "cbz x2, 8f",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 7b",
    "8:",
    "ldrb w3, [x1]",
    "stlrb w3, [x0]",
    "b ironverbs_guarded_last",
    "3:",
    "tst x0, #1",
    "b.ne 2b",
    "ldrh w3, [x1]",
    "stlrh w3, [x0]",
    "b ironverbs_guarded_last",
    "4:",
    "tst x0, #3",
    "b.ne 2b",
    "ldr w3, [x1]",
    "stlr w3, [x0]",
    "b ironverbs_guarded_last",
    "5:",
    "tst x0, #7",
    "b.ne 2b",
    "ldr x3, [x1]",
    "stlr x3, [x0]",
    "ironverbs_guarded_last:",
    "mov x0, #0",
    "ret",
    "ironverbs_guarded_missing:",
    "mov x0, #1",
    "ret",
    ".cfi_endproc",
    ".size ironverbs_guarded_copy, . - ironverbs_guarded_copy",
    ".popsection",
);

unsafe extern "C" {
    fn ironverbs_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> Done;
    safe static ironverbs_guarded_last: u8;
    safe static ironverbs_guarded_missing: u8;
}

/// Copies `len` bytes so that the last one becomes visible last, and each aligned word at once. The error is the address that is missing;
/// some bytes may have been copied by then.
///
/// # Safety
/// Mapped memory in both ranges may be read and written: it holds no Rust objects. The ranges do not overlap, unless the caller ignores the
/// result in the overlap.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), usize> {
    // SAFETY: the caller upholds the contract above; the signal handler deals with missing memory.
    let done = unsafe { ironverbs_guarded_copy(to, from, len) };
    if done.failed == 0 { Ok(()) } else { Err(done.at) }
}

/// Resumes a thread that touched `at` in [`copy`] behind the copy. False if the thread was elsewhere.
///
/// # Safety
/// `context` is the context that the kernel passed to a signal handler of this thread.
pub(crate) unsafe fn leave(context: *mut libc::c_void, at: usize) -> bool {
    let guarded = ironverbs_guarded_copy as *const () as usize..(&raw const ironverbs_guarded_last) as usize;
    let missing = (&raw const ironverbs_guarded_missing) as usize;
    // SAFETY: by the contract of this function, `context` is a valid `ucontext_t`.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        if !guarded.contains(&(machine.gregs[libc::REG_RIP as usize] as usize)) {
            return false;
        }
        machine.gregs[libc::REG_RIP as usize] = missing as i64;
        machine.gregs[libc::REG_RDX as usize] = at as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        if !guarded.contains(&(machine.pc as usize)) {
            return false;
        }
        machine.pc = missing as u64;
        machine.regs[1] = at as u64;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::missing::watch;

    const PAGE: usize = 4096;

    /// Maps two pages and sets the protection of the second to `prot`.
    fn pages(prot: libc::c_int) -> *mut u8 {
        let (all, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping that is never unmapped and that no other code refers to.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, all, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, prot), 0);
            at.cast()
        }
    }

    #[test]
    fn all_lengths_are_copied_at_all_alignments() {
        let from: Vec<u8> = (1..=80).collect();
        for (len, skip) in (0..=40).flat_map(|len| (0..8).map(move |skip| (len, skip))) {
            let mut to = [0_u8; 64];
            // SAFETY: both ranges lie within their buffers.
            unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(8 - skip), len) }.expect("memory");
            assert_eq!(to[8 - skip..8 - skip + len], from[skip..skip + len], "{len} bytes");
            assert!(to[..8 - skip].iter().chain(&to[8 - skip + len..]).all(|byte| *byte == 0), "{len} bytes");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_that_says_where() {
        watch();
        let (gone, fixed) = (pages(libc::PROT_NONE), pages(libc::PROT_READ));
        let mut here = [7_u8; 64];
        for len in [1, 2, 4, 8, 40, 64] {
            // SAFETY: the test's own memory, and a page that is missing.
            unsafe {
                for back in 0..len {
                    let edge = gone.add(PAGE - back);
                    let found = copy(edge, here.as_mut_ptr(), len).expect_err("the page cannot be read");
                    assert!((gone as usize + PAGE..edge as usize + len).contains(&found), "{len}, {back}");
                }
                let second = fixed.add(PAGE);
                copy(second, here.as_mut_ptr(), len).expect("it can be read");
                let found = copy(here.as_ptr(), second, len).expect_err("it cannot be written");
                assert!((second as usize..second as usize + len).contains(&found), "{len}");
                copy(here.as_ptr(), gone, len).expect("the first page is there");
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_short_is_not_there() {
        use std::os::fd::AsRawFd;
        watch();
        // SAFETY: a new mapping that is never unmapped.
        unsafe {
            let file = testkit::memfd(PAGE as u64);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), PAGE, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
            file.set_len(0).unwrap();
            assert_eq!(copy(at.cast::<u8>().add(100), [0_u8; 8].as_mut_ptr(), 8), Err(at as usize + 100));
        }
    }
}
