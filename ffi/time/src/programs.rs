//! Programs that become others or start some: those begin with the processor's counter as it is, for their loader reads it before this
//! library is there. It takes the counter again in each.

use super::{alarms, counter, own::own};
use libc::{FILE, c_char, c_int, c_void, pid_t};

/// The next function of this name, which is libc's, called by `$around`.
macro_rules! next {
    ($around:path: $name:ident: fn($($arg:ident: $kind:ty),*) -> $result:ty, else $none:expr) => {
        /// # Safety
        /// As of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: libc's function is of this type, and the caller's promise is its own.
            unsafe { $around(|| own!($name($($arg => $kind),*) -> $result, else $none)) }
        }
    };
}

/// Calls `f`, which makes the process another program, while the counter may be read.
fn become_another<R>(f: impl FnOnce() -> R) -> R {
    alarms::hand_over(|| counter::with_ours(f))
}

/// A list of strings that ends with null.
type Strings = *const *const c_char;

next!(become_another: execve: fn(path: *const c_char, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(become_another: execv: fn(path: *const c_char, args: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(become_another: execvp: fn(file: *const c_char, args: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(become_another: execvpe: fn(file: *const c_char, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(become_another: fexecve: fn(fd: c_int, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(counter::with_ours: posix_spawn: fn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings,
    env: Strings) -> c_int, else libc::ENOSYS);
next!(counter::with_ours: posix_spawnp: fn(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings,
    env: Strings) -> c_int, else libc::ENOSYS);
next!(counter::with_ours: system: fn(command: *const c_char) -> c_int, else super::fail(libc::ENOSYS));
next!(counter::with_ours: popen: fn(command: *const c_char, how: *const c_char) -> *mut FILE, else std::ptr::null_mut());
