//! Children of fork: what was moved to files they would share with their parent. Each gets memory of its own instead, with
//! what was there when it was made: the parent waits until the child has copied.

use super::{Area, areas, copy, put, table};
use crate::transport::mapped::Mapped;
use std::{
    cell::Cell,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Once,
};

/// A parent goes on after so many milliseconds, whatever its child does.
const PATIENCE: i32 = 5_000;

static HANDLERS: Once = Once::new();

thread_local! {
    /// Ends to read and to write, of a thread that forks: closed by the child when it has copied.
    static PIPE: Cell<Option<[RawFd; 2]>> = const { Cell::new(None) };
}

/// Begins to notice forks.
pub fn watch() {
    // SAFETY: the handlers take no lock, and in a child the allocator's are free.
    HANDLERS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

extern "C" fn before() {
    if table::all().next().is_some() {
        PIPE.set(pipe());
    }
}

/// The ends of the pipe.
fn ends() -> Option<[OwnedFd; 2]> {
    // SAFETY: descriptors made in `before`, which nobody else has.
    PIPE.take().map(|ends| ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

extern "C" fn in_parent() {
    let Some([read, write]) = ends() else { return };
    drop(write);
    let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Until the last who could write has closed its end; if there is no child, at once.
    // SAFETY: one structure of ours.
    while unsafe { libc::poll(&raw mut poll, 1, PATIENCE) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

extern "C" fn in_child() {
    // Closed when this ends.
    let _ends = ends();
    if table::all().next().is_none() {
        return;
    }
    if let Ok(areas) = areas::all() {
        for one in table::all() {
            one.shown(&areas).for_each(|area| part(&area, one.address(&area)));
        }
    }
    table::clear();
}

/// Parts with the parent over `area`, whose bytes can be read at `from`.
fn part(area: &Area, from: usize) {
    let readable = from != area.start || area.protection & libc::PROT_READ != 0;
    let done = Mapped::private(area.size()).ok().filter(|_| readable).is_some_and(|own| {
        // SAFETY: memory of the program's and our own as long; a child has one thread.
        unsafe {
            copy(from, own.ptr().as_ptr(), area.size());
            put(own, area).is_ok()
        }
    });
    if !done {
        // There is no room for a copy. Not to have it is better than to write into the parent's.
        // SAFETY: a mapping of the program's.
        unsafe { libc::mprotect(area.start as *mut libc::c_void, area.size(), libc::PROT_NONE) };
    }
}

fn pipe() -> Option<[RawFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: two descriptors are written.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    made.then_some(ends)
}
