//! Programs that become others or start some: those begin with the processor's counter as it is, for their loader reads it before this
//! library is there. It takes the counter again in each.

use super::{counter, own::own};
use libc::{FILE, c_char, c_int, c_void, pid_t};

/// The next function of this name, which is libc's, called while the counter may be read.
macro_rules! next {
    ($name:ident: fn($($arg:ident: $kind:ty),*) -> $result:ty, else $none:expr) => {
        /// # Safety
        /// As of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: libc's function is of this type, and the caller's promise is its own.
            unsafe { counter::with_ours(|| own!($name($($arg => $kind),*) -> $result, else $none)) }
        }
    };
}

/// A list of strings that ends with null.
type Strings = *const *const c_char;

next!(execve: fn(path: *const c_char, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(execv: fn(path: *const c_char, args: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(execvp: fn(file: *const c_char, args: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(execvpe: fn(file: *const c_char, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(fexecve: fn(fd: c_int, args: Strings, env: Strings) -> c_int, else super::fail(libc::ENOSYS));
next!(posix_spawn: fn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings,
    env: Strings) -> c_int, else libc::ENOSYS);
next!(posix_spawnp: fn(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, args: Strings,
    env: Strings) -> c_int, else libc::ENOSYS);
next!(system: fn(command: *const c_char) -> c_int, else super::fail(libc::ENOSYS));
next!(popen: fn(command: *const c_char, how: *const c_char) -> *mut FILE, else std::ptr::null_mut());
