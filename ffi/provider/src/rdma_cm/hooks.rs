//! Intercepts librdmacm's calls by replacing its own imports of `open`, `fstat`, `write` and `close`, and those of no other object.
//!
//! Like libibverbs' completion channels this is an interface without provider operations. librdmacm may be loaded with the program, before
//! the provider, or after it, so the provider searches for it whenever a libibverbs gets a call that librdmacm makes first.

use super::commands::{self, Step};
use super::manager::Shared;
use super::open_files;
use crate::abi::probe::Library;
use crate::abi::{got, objects};
use crate::guard::{guard, lock, set_errno};
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

/// The device, as librdmacm names it.
pub const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

/// An address inside each librdmacm whose imports were replaced.
static JOINED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Number of objects that the process had loaded at the last check.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

type SocketAlloc = unsafe extern "C" fn() -> *mut c_void;

/// `nl_socket_alloc` of each libibverbs. Wheels bundle their own libnl, and its sockets only work with that copy.
static NETLINK: [AtomicUsize; MOST_LIBRARIES] = [const { AtomicUsize::new(0) }; MOST_LIBRARIES];
/// The replacement function for each libibverbs. It identifies the calling library.
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
/// Maximum number of libibverbs that are watched for a librdmacm that is loaded later; a process with more has never been seen.
const MOST_LIBRARIES: usize = 8;

/// Hooks a libibverbs at calls by which librdmacm may have been loaded, and checks now.
pub fn watch(library: &Library) {
    // SAFETY: the function has the type of the one it replaces. A missing import is never called.
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

/// Hooks every librdmacm, from the system or from a wheel, that was loaded since the last check.
fn look() {
    let loaded = objects::loaded_so_far();
    if LOOKED_AT.swap(loaded, AcqRel) == loaded {
        return;
    }
    for object in objects::defining(c"rdma_create_id") {
        {
            // Not held across a call to the dynamic linker: constructors take it with the linker's lock held.
            let mut joined = lock(&JOINED);
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

/// Replaces the imports by which the librdmacm around `inside` accesses its device.
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
/// As for opendir(3).
unsafe extern "C" fn opendir(name: *const c_char) -> *mut libc::DIR {
    look_again();
    // SAFETY: the argument is the caller's, unchanged.
    unsafe { libc::opendir(name) }
}

/// # Safety
/// As for `nl_socket_alloc` of libnl.
unsafe extern "C" fn nl_socket_alloc<const LIBRARY: usize>() -> *mut c_void {
    look_again();
    // SAFETY: set before this hook was installed, to the function of that name and type in the libnl of this library.
    unsafe { std::mem::transmute::<usize, SocketAlloc>(NETLINK[LIBRARY].load(Acquire))() }
}

/// # Safety
/// As for open(2): `mode` is present if `flags` require it, and is passed like every argument after the second.
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: open(2): `path` is null or a terminated string; the real open checks other pointers.
    let ours = !path.is_null() && unsafe { CStr::from_ptr(path) } == DEVICE;
    if !ours {
        // SAFETY: the arguments are the caller's, unchanged.
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
/// As for close(2).
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if open_files::holds(fd) {
        let _whole = Uncancelled::new();
        guard((), || let_in(fd));
        open_files::leave(fd);
        guard((), || Shared::here().lock().close(fd));
    }
    // SAFETY: the argument is the caller's, unchanged.
    unsafe { libc::close(fd) }
}

/// Lets a program's event thread that has acknowledged the last event request the next one, where it then waits forever. If the channel
/// were closed before that, the thread would get EBADF. With the kernel, which takes its time to destroy IDs, that does not happen, and
/// programs exit on that error.
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

/// Reports the channel as a character device, as librdmacm requires.
///
/// # Safety
/// As for fstat(2).
unsafe extern "C" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the caller's, unchanged.
    unsafe { if open_files::holds(fd) { libc::stat(DEVICE.as_ptr(), stat) } else { libc::fstat(fd, stat) } }
}

/// fstat(2) under the name that glibc before 2.33 uses.
///
/// # Safety
/// As for fstat(2).
unsafe extern "C" fn fxstat(_version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: fstat(2): the arguments are the caller's, unchanged.
    unsafe { fstat(fd, stat) }
}

/// Disables cancellation of this thread while it exists: callers do not expect it in these calls, and unwinding would have to pass Rust
/// frames.
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
        // SAFETY: restores the earlier state.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

// These calls are cancellation points: cancellation unwinds through the caller.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn pause() -> c_int;
    #[link_name = "write"]
    fn real_write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
}

/// Executes a command without cancellation.
///
/// # Safety
/// As for [`commands::run`].
pub unsafe fn command(fd: c_int, buffer: *const c_void, length: size_t) -> Step {
    let _whole = Uncancelled::new();
    // SAFETY: guaranteed by the caller, as [`commands::run`] requires.
    guard(Step::Failed(libc::EIO), || unsafe { commands::run(fd, buffer.cast(), length) })
}

/// Replaces write(2) in librdmacm.
///
/// Nothing in this frame needs to be dropped: a thread that waits for an event may be cancelled there, as in write(2).
///
/// # Safety
/// As for write(2). librdmacm built any command that is written to one of the provider's descriptors.
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    if !open_files::holds(fd) {
        // SAFETY: the arguments are the caller's, unchanged.
        return unsafe { real_write(fd, buffer, length) };
    }
    let mut waited = false;
    loop {
        // SAFETY: takes no arguments.
        unsafe { pthread_testcancel() };
        // SAFETY: write(2): `buffer` is readable for `length` bytes, and librdmacm built any command for one of the provider's descriptors.
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

/// Waits until a channel may have an event. Returns false and sets errno on failure.
///
/// # Safety
/// The thread may be cancelled there.
pub unsafe extern "C-unwind" fn wait_for_event(fd: c_int) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte to fill; it is not removed from the socket.
    let got = unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    // Another thread has closed the channel. In the kernel this thread would wait forever, and programs rely on that: their event thread
    // ends with the process.
    if got == 0 || (got < 0 && !open_files::holds(fd)) {
        // SAFETY: guaranteed by the caller: the thread may be cancelled here.
        unsafe { wait_for_ever() };
    }
    got > 0
}

/// # Safety
/// As for [`wait_for_event`].
unsafe extern "C-unwind" fn wait_for_ever() {
    loop {
        // SAFETY: takes no arguments.
        unsafe { pause() };
    }
}
