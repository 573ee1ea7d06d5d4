//! Calls that execute or start programs. A new program starts with the real counter, because its loader reads the counter before this
//! library is loaded; the library takes the counter over again in each program.

use super::{alarms, counter::with_ours, fail, own::instead};
use libc::{ENOSYS, FILE, c_char, c_int, c_void, pid_t};

/// Calls `f`, which replaces the process's program, while the real counter can be read.
fn become_another<R>(f: impl FnOnce() -> R) -> R {
    alarms::hand_over(|| with_ours(f))
}

/// A list of strings that ends with null.
type Strings = *const *const c_char;
/// File actions or attributes of posix_spawn(3).
type Options = *const c_void;

instead! {
    fn execve(path: *const c_char, args: Strings, env: Strings) -> c_int, or fail(ENOSYS); {
        become_another(|| own(path, args, env))
    }
    fn execv(path: *const c_char, args: Strings) -> c_int, or fail(ENOSYS); { become_another(|| own(path, args)) }
    fn execvp(file: *const c_char, args: Strings) -> c_int, or fail(ENOSYS); { become_another(|| own(file, args)) }
    fn execvpe(file: *const c_char, args: Strings, env: Strings) -> c_int, or fail(ENOSYS); {
        become_another(|| own(file, args, env))
    }
    fn fexecve(fd: c_int, args: Strings, env: Strings) -> c_int, or fail(ENOSYS); { become_another(|| own(fd, args, env)) }
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: Options, attributes: Options, args: Strings, env: Strings) -> c_int, or ENOSYS; {
        with_ours(|| own(pid, path, actions, attributes, args, env))
    }
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: Options, attributes: Options, args: Strings, env: Strings) -> c_int, or ENOSYS; {
        with_ours(|| own(pid, file, actions, attributes, args, env))
    }
    fn system(command: *const c_char) -> c_int, or fail(ENOSYS); { with_ours(|| own(command)) }
    fn popen(command: *const c_char, how: *const c_char) -> *mut FILE, or std::ptr::null_mut(); { with_ours(|| own(command, how)) }
}
