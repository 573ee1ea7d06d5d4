//! Children of fork. They would share migrated pages with their parent, so each child gets private memory instead,
//! with the contents at the time of the fork. The parent waits until the child has copied them.

use super::{Area, Pages, areas, copy, put, table};
use std::{
    cell::Cell,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Once,
};

/// Milliseconds after which a parent continues even if its child has not finished copying.
const PATIENCE: i32 = 5_000;

static HANDLERS: Once = Once::new();

thread_local! {
    /// Read and write end of a pipe created by the forking thread. The child closes its ends when it has finished
    /// copying.
    static PIPE: Cell<Option<[RawFd; 2]>> = const { Cell::new(None) };
}

/// Registers the fork handlers.
pub fn watch() {
    // SAFETY: the handlers take no lock, and in a child the allocator's locks are free.
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
    // SAFETY: descriptors created in `before`, without another owner.
    PIPE.take().map(|ends| ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

extern "C" fn in_parent() {
    let Some([read, write]) = ends() else { return };
    drop(write);
    let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Waits until the last process that could write has closed its end, which is at once if the fork failed.
    // SAFETY: one structure of ours.
    while unsafe { libc::poll(&raw mut poll, 1, PATIENCE) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

extern "C" fn in_child() {
    // Closed on return.
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

/// Replaces `area` with a private copy; its bytes can be read at `from`.
fn make_private(area: &Area, from: usize) {
    let readable = from != area.start || area.protection & libc::PROT_READ != 0;
    let done = Pages::private(area.size()).ok().filter(|_| readable).is_some_and(|own| {
        // SAFETY: memory of the program, and a mapping of our own of the same length; a child has one thread.
        unsafe {
            copy(from, own.ptr().as_ptr(), area.size());
            put(own, area).is_ok()
        }
    });
    if !done {
        // There is no memory for a copy. Losing the contents is better than writing to the parent's memory.
        // SAFETY: a mapping of the program.
        unsafe { libc::mprotect(area.start as *mut libc::c_void, area.size(), libc::PROT_NONE) };
    }
}

fn pipe() -> Option<[RawFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: the call writes two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    made.then_some(ends)
}
