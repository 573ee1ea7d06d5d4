//! Children of fork: what was moved to files they would share with their parent. Each gets memory of its own instead, with
//! what was there when it was made: the parent waits until the child has copied.

use super::{Stretch, areas, copy, moved, put};
use crate::transport::mapped::Mapped;
use std::{
    cell::RefCell,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{MutexGuard, Once},
};

/// A parent goes on after so many milliseconds, whatever its child does.
const PATIENCE: i32 = 5_000;

static HANDLERS: Once = Once::new();

/// What a forking thread holds: nobody moves memory meanwhile.
struct Held {
    moved: MutexGuard<'static, Vec<Stretch>>,
    /// Ends to read and to write: closed by the child when it has copied.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Begins to notice forks.
pub fn watch() {
    // SAFETY: the handlers keep to what is allowed in them: the allocator's and the standard library's locks are free in a child.
    HANDLERS.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

extern "C" fn before() {
    let moved = moved();
    let pipe = (!moved.is_empty()).then(pipe).flatten();
    let _ = HELD.try_with(|held| held.replace(Some(Held { moved, pipe })));
}

extern "C" fn in_parent() {
    let Ok(Some(held)) = HELD.try_with(RefCell::take) else { return };
    if let Some((read, write)) = held.pipe {
        drop(write);
        let mut poll = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Until the last who could write has closed its end; if there is no child, at once.
        // SAFETY: one structure of ours.
        while unsafe { libc::poll(&raw mut poll, 1, PATIENCE) } < 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
}

extern "C" fn in_child() {
    let Ok(Some(mut held)) = HELD.try_with(RefCell::take) else { return };
    if held.moved.is_empty() {
        return;
    }
    // What cannot be copied stays shared.
    let Ok(areas) = areas::all() else { return };
    for area in held.moved.iter().flat_map(|one| one.shown(&areas)) {
        if area.protection & libc::PROT_READ == 0 {
            continue;
        }
        let Ok(own) = Mapped::private(area.size()) else { continue };
        // SAFETY: memory of the program's and our own as long; a child has one thread.
        let _ = unsafe {
            copy(area.start, own.ptr().as_ptr(), area.size());
            put(own, &area)
        };
    }
    held.moved.clear();
}

fn pipe() -> Option<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: two descriptors are written, which are then ours.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Some((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => None,
        }
    }
}
