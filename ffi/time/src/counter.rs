//! The processor's cycle counter (TSC). Programs read it by an instruction, which the kernel can make fail with a signal.

use super::{
    fail,
    own::{instead, own},
    player,
};
use clock::CYCLE;
use libc::{c_int, c_void, sigaction as Action, siginfo_t};
use std::{
    cell::UnsafeCell,
    mem::zeroed,
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering::*},
};

/// The program's own handler of SIGSEGV. The program does not see that ours is installed.
struct Theirs {
    busy: AtomicBool,
    action: UnsafeCell<Option<Action>>,
}
// SAFETY: only the thread that has set `busy` touches the action, see `with`.
unsafe impl Sync for Theirs {}

static THEIRS: Theirs = Theirs { busy: AtomicBool::new(false), action: UnsafeCell::new(None) };

impl Theirs {
    fn with<R>(&self, f: impl FnOnce(&mut Option<Action>) -> R) -> R {
        while self.busy.swap(true, Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: `busy` is ours.
        let result = f(unsafe { &mut *self.action.get() });
        self.busy.store(false, Release);
        result
    }
}

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

own!(sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int, or fail(libc::ENOSYS));

/// Makes the counter's instruction fail in this thread and in threads that it creates, so that the handler emulates it.
#[cfg(target_arch = "x86_64")]
pub fn take() {
    // SAFETY: all bytes zero are an action; the handler takes what such an action gives it.
    unsafe {
        let (mut ours, mut before): (Action, Action) = (zeroed(), zeroed());
        ours.sa_sigaction = segv as Handler as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        if own(libc::SIGSEGV, &raw const ours, &raw mut before) == 0 {
            THEIRS.with(|theirs| *theirs = Some(before));
            libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
        }
    }
}

/// Other processors have no such counter; programs use the clocks.
#[cfg(not(target_arch = "x86_64"))]
pub fn take() {}

/// Calls `f` while this thread, and what it starts, reads the real counter.
#[cfg(target_arch = "x86_64")]
pub fn with_ours<R>(f: impl FnOnce() -> R) -> R {
    let taken = super::BOARD.get().is_some_and(Option::is_some);
    let read = |how: c_int| {
        if taken {
            // SAFETY: it changes an attribute of the calling thread alone.
            unsafe { libc::prctl(libc::PR_SET_TSC, how) };
        }
    };
    read(libc::PR_TSC_ENABLE);
    let result = f();
    read(libc::PR_TSC_SIGSEGV);
    result
}

/// Does nothing.
#[cfg(not(target_arch = "x86_64"))]
pub fn with_ours<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn segv(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the context of its thread, and the instruction it stopped at can be read unless
    // that is what failed: then the address is that of the fault.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        // A general protection fault has no address.
        if (*info).si_code == libc::SI_KERNEL && (*info).si_addr().is_null() {
            let len = match (at.read(), at.add(1).read()) {
                (0x0f, 0x31) => 2,
                (0x0f, 0x01) if at.add(2).read() == 0xf9 => 3,
                _ => 0,
            };
            if len != 0 {
                let cycles = match player() {
                    Some((board, player)) => player.spend(board.costs().counter) / CYCLE,
                    None => clock::monotonic_ns() * 1000 / CYCLE,
                };
                registers[libc::REG_RAX as usize] = (cycles & 0xffff_ffff) as i64;
                registers[libc::REG_RDX as usize] = (cycles >> 32) as i64;
                if len == 3 {
                    registers[libc::REG_RCX as usize] = 0;
                }
                registers[libc::REG_RIP as usize] += len;
                return;
            }
        }
        let theirs = THEIRS.with(|theirs| *theirs);
        match theirs.map(|theirs| (theirs.sa_sigaction, theirs.sa_flags & libc::SA_SIGINFO != 0)) {
            Some((handler, true)) if handler > libc::SIG_IGN => {
                let call: Handler = std::mem::transmute(handler);
                call(signal, info, context);
            }
            Some((handler, false)) if handler > libc::SIG_IGN => {
                let call: unsafe extern "C" fn(c_int) = std::mem::transmute(handler);
                call(signal);
            }
            // The instruction fails again, now with the program's own handling.
            _ => {
                let mut default: Action = zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                own(signal, &raw const default, null_mut());
            }
        }
    }
}

instead! {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        if signal != libc::SIGSEGV || super::BOARD.get().is_none_or(Option::is_none) {
            return own(signal, new, old);
        }
        // Read before the lock, which a handler of a fault here would wait for.
        let new = new.as_ref().copied();
        let before = THEIRS.with(|theirs| match new {
            Some(new) => theirs.replace(new),
            None => *theirs,
        });
        if !old.is_null() {
            // All bytes zero are an action.
            old.write(before.unwrap_or(zeroed()));
        }
        0
    }
}
