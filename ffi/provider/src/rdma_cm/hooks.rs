//! How librdmacm's calls reach us: we replace its own imports of `open`, `fstat`, `write` and `close`, and nobody
//! else's.
//!
//! Like libibverbs' completion channels this is an interface without a provider operation. librdmacm may be loaded
//! before us, with the program, or after us: it is looked for whenever a libibverbs is asked for something that
//! librdmacm asks first.

use super::commands::{self, Step};
use super::manager::Shared;
use super::open_files;
use crate::abi::probe::Library;
use crate::abi::{got, objects};
use crate::guard::{guard, set_errno};
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

/// The device, as librdmacm names it.
pub const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

/// An address inside each librdmacm whose imports were replaced.
static JOINED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// How many objects the process had loaded at the last check.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

type SocketAlloc = unsafe extern "C" fn() -> *mut c_void;

/// `nl_socket_alloc` of each libibverbs. Wheels bring their own libnl, whose sockets others cannot use.
static NETLINK: [AtomicUsize; MOST_LIBRARIES] = [const { AtomicUsize::new(0) }; MOST_LIBRARIES];
/// The function that each libibverbs calls instead. Which of them is called says which library it is.
const NETLINK_HOOKS: [SocketAlloc; MOST_LIBRARIES] = [
    nl_socket_alloc::<0>,
    nl_socket_alloc::<1>,
    nl_socket_alloc::<2>,
    nl_socket_alloc::<3>,
    nl_socket_alloc::<4>,
    nl_socket_alloc::<5>,
    nl_socket_alloc::<6>,
    nl_socket_alloc::<7>,
];
/// Most libibverbs of a process that are watched for a librdmacm that comes later; more have never been seen.
const MOST_LIBRARIES: usize = 8;

/// Watches a libibverbs for moments at which librdmacm may have been loaded, and checks now.
pub fn watch(library: &Library) {
    // SAFETY: the function has the type of the one it replaces. One that is not imported is not called.
    let _ = unsafe { got::replace_import(library.inside, c"opendir", opendir as *const c_void) };
    let real = library.find(c"nl_socket_alloc") as usize;
    let free = |slot: &AtomicUsize| slot.compare_exchange(0, real, AcqRel, Relaxed).is_ok();
    if real != 0 {
        if let Some(slot) = NETLINK.iter().position(free) {
            let hook = NETLINK_HOOKS[slot] as *const c_void;
            // SAFETY: the hook of the slot has the type of the function that it replaces.
            let _ = unsafe { got::replace_import(library.inside, c"nl_socket_alloc", hook) };
        }
    }
    look();
}

/// Hooks every librdmacm that was loaded since the last check, the system's or one of a wheel.
fn look() {
    let loaded = objects::loaded_so_far();
    if LOOKED_AT.swap(loaded, AcqRel) == loaded {
        return;
    }
    for object in objects::defining(c"rdma_create_id") {
        {
            // Not held while the dynamic linker is called: constructors come here with its lock held.
            let mut joined = JOINED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if joined.contains(&object.at) {
                continue;
            }
            joined.push(object.at);
        }
        if let Err(what) = join(object.at) {
            eprintln!(
                "ironverbs: this librdmacm cannot be answered, connections will not come about: {what}"
            );
        }
    }
}

/// Replaces the imports by which the librdmacm around `inside` reaches its device.
fn join(inside: usize) -> Result<usize, String> {
    // SAFETY: the functions have the types of those they replace.
    unsafe {
        got::replace_import(inside, c"write", write as *const c_void)?;
        got::replace_import(inside, c"open", open as *const c_void)
            .or_else(|_| got::replace_import(inside, c"open64", open as *const c_void))?;
        got::replace_import(inside, c"close", close as *const c_void)?;
        got::replace_import(inside, c"fstat", fstat as *const c_void)
            .or_else(|_| got::replace_import(inside, c"fstat64", fstat as *const c_void))
            .or_else(|_| got::replace_import(inside, c"__fxstat", fxstat as *const c_void))
    }
}

fn look_again() {
    static LOOKING: AtomicBool = AtomicBool::new(false);
    // One thread at a time, and never recursively.
    if !LOOKING.swap(true, Acquire) {
        guard((), look);
        LOOKING.store(false, Release);
    }
}

/// # Safety
/// As opendir(3).
unsafe extern "C" fn opendir(name: *const c_char) -> *mut libc::DIR {
    look_again();
    // SAFETY: the caller's own argument.
    unsafe { libc::opendir(name) }
}

/// # Safety
/// As `nl_socket_alloc` of libnl.
unsafe extern "C" fn nl_socket_alloc<const LIBRARY: usize>() -> *mut c_void {
    look_again();
    // SAFETY: set before anybody could call this, to the function of that name and type in the libnl of this library.
    unsafe { std::mem::transmute::<usize, SocketAlloc>(NETLINK[LIBRARY].load(Acquire))() }
}

/// # Safety
/// As open(2): `mode` is there if `flags` ask for it, and is passed as every argument after the second is.
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: open(2): `path` is null or a terminated string; of others the real open finds out.
    let ours = !path.is_null() && unsafe { CStr::from_ptr(path) } == DEVICE;
    if !ours {
        // SAFETY: the caller's own arguments.
        return unsafe { libc::open(path, flags, mode) };
    }
    let _whole = Uncancelled::new();
    let opened = guard(Err(libc::EIO), || Shared::here().lock().open(flags & libc::O_NONBLOCK != 0));
    match opened {
        Ok(fd) => {
            open_files::enter(fd);
            fd
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// # Safety
/// As close(2).
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if open_files::holds(fd) {
        let _whole = Uncancelled::new();
        guard((), || let_in(fd));
        open_files::leave(fd);
        guard((), || Shared::here().lock().close(fd));
    }
    // SAFETY: the caller's own argument.
    unsafe { libc::close(fd) }
}

/// A program's event thread that has acknowledged the last event is about to ask for the next, and then waits for ever. If the
/// channel were closed before that it would hear of a bad descriptor instead: with the kernel, which takes its time to end
/// ids, that does not happen, and programs exit by it.
fn let_in(fd: c_int) {
    const TRIES: u32 = 20;
    let outside = || Shared::here().lock().file(fd).is_ok_and(|file| file.is_to_be_asked());
    for _ in 0..TRIES {
        if !outside() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// librdmacm wants its device to be a character device.
///
/// # Safety
/// As fstat(2).
unsafe extern "C" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { if open_files::holds(fd) { libc::stat(DEVICE.as_ptr(), stat) } else { libc::fstat(fd, stat) } }
}

/// fstat(2) as glibc before 2.33 spells it.
///
/// # Safety
/// As fstat(2).
unsafe extern "C" fn fxstat(_version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: fstat(2): the caller's arguments are handed on as they are.
    unsafe { fstat(fd, stat) }
}

/// While it lives, this thread is not cancelled: callers don't expect it in system calls of ours, and unwinding would
/// end in our frames.
struct Uncancelled(c_int);

impl Uncancelled {
    fn new() -> Self {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: an int to fill.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as it was.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

// A thread may be cancelled in these calls, which unwinds through the caller.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn pause() -> c_int;
    #[link_name = "write"]
    fn real_write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
}

/// Does a command, whole.
///
/// # Safety
/// As [`commands::run`].
pub unsafe fn command(fd: c_int, buffer: *const c_void, length: size_t) -> Step {
    let _whole = Uncancelled::new();
    // SAFETY: guaranteed by the caller: see [`commands::run`].
    guard(Step::Failed(libc::EIO), || unsafe { commands::run(fd, buffer.cast(), length) })
}

/// The function that librdmacm calls instead of write(2).
///
/// Nothing in this frame needs to be dropped: a thread that waits for an event may be cancelled there, as in write(2).
///
/// # Safety
/// As write(2); a command for one of our descriptors is one librdmacm built.
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    if !open_files::holds(fd) {
        // SAFETY: the caller's own arguments.
        return unsafe { real_write(fd, buffer, length) };
    }
    let mut waited = false;
    loop {
        // SAFETY: takes nothing.
        unsafe { pthread_testcancel() };
        // SAFETY: write(2): `buffer` is readable for `length` bytes, and a command for one of our descriptors is
        // librdmacm's.
        match unsafe { command(fd, buffer, length) } {
            Step::Done => return length as ssize_t,
            Step::Failed(errno) => {
                if waited && !open_files::holds(fd) {
                    // SAFETY: nothing here needs to be dropped.
                    unsafe { wait_for_ever() };
                }
                set_errno(errno);
                return -1;
            }
            // SAFETY: nothing here needs to be dropped.
            Step::Wait if unsafe { wait_for_event(fd) } => waited = true,
            Step::Wait => return -1,
        }
    }
}

/// Waits until an event may have come at a channel. False: errno says why not.
///
/// # Safety
/// The thread may be cancelled there.
pub unsafe extern "C-unwind" fn wait_for_event(fd: c_int) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte to fill; it stays where it is.
    let got = unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    // Another thread has closed the channel. In the kernel this thread would wait forever, and programs rely on that:
    // their event thread ends with the process.
    if got == 0 || (got < 0 && !open_files::holds(fd)) {
        // SAFETY: guaranteed by the caller: the thread may be cancelled here.
        unsafe { wait_for_ever() };
    }
    got > 0
}

/// # Safety
/// As [`wait_for_event`].
unsafe extern "C-unwind" fn wait_for_ever() {
    loop {
        // SAFETY: takes nothing.
        unsafe { pause() };
    }
}
