//! Children of fork. They would share migrated pages with their parent, so each gets private memory instead, with what
//! was there at the fork. The parent waits until the child has copied it.

use super::{Area, Pages, areas, copy, put, table};
use std::{
    cell::Cell,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Once,
};

/// Milliseconds after which a parent goes on even if its child has not copied.
const PATIENCE: i32 = 5_000;

static HANDLERS: Once = Once::new();

thread_local! {
    /// Ends to read and to write of a pipe that the forking thread made. The child closes its ends when it has copied.
    static PIPE: Cell<Option<[RawFd; 2]>> = const { Cell::new(None) };
}

/// Registers the handlers.
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

/// Takes the ends of this thread's pipe.
fn ends() -> Option<[OwnedFd; 2]> {
    // SAFETY: descriptors made in `before`, which nothing else owns.
    PIPE.take().map(|ends| ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

extern "C" fn in_parent() {
    let Some([read, write]) = ends() else { return };
    drop(write);
    let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Until the last process that could write has closed its end: at once if the fork failed.
    // SAFETY: one structure of ours.
    while unsafe { libc::poll(&raw mut poll, 1, PATIENCE) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

extern "C" fn in_child() {
    // Dropped, and so closed, on return.
    let _ends = ends();
    if table::all().next().is_none() {
        return;
    }
    if let Ok(areas) = areas::all() {
        for one in table::all() {
            one.mapped_in(&areas).for_each(|area| make_private(&area, one.address(&area)));
        }
    }
    table::clear();
}

/// Replaces `area`, whose bytes can be read at `from`, by a private copy.
fn make_private(area: &Area, from: usize) {
    let readable = from != area.start || area.protection & libc::PROT_READ != 0;
    let done = Pages::private(area.size()).ok().filter(|_| readable).is_some_and(|own| {
        // SAFETY: memory of the program and a mapping of our own as long; a child has one thread.
        unsafe {
            copy(from, own.ptr().as_ptr(), area.size());
            put(own, area).is_ok()
        }
    });
    if !done {
        // There is no memory for a copy. To lose it is better than to write into the parent's.
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
