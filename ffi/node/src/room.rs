//! Room in shared memory. It is allocated ahead, so that a full file system shows up as an error.
//!
//! The node's file is sparse. Touching a page without memory does not kill a program (`file::Mapped`), but costs it its devices. So the
//! pages that every use of a function touches are allocated when the function is opened, and the model allocates rows and payloads as they
//! come into use (`devmodel::region::Memory`).

use super::{NodeError, dir};
use std::path::Path;

/// Bytes that must be free in the file system to create a node.
pub const ROOM_TO_CREATE: u64 = 16 << 20;
/// Bytes that must stay free when a function is opened or a driver allocates: for pages that are touched later, and for the tables of
/// programs that already have a function open.
pub const RESERVE: u64 = 4 << 20;

/// Approximate number of bytes that a function with one program takes: registers, receive ring, a journal.
pub const FUNCTION: u64 = 192 << 10;
/// Lending leaves this part of the file system free, within the bounds below.
const KEPT_PART: u64 = 4;
const KEPT: std::ops::RangeInclusive<u64> = (16 << 20)..=(256 << 20);

/// True if the file system has enough room for queues left after `len` more bytes.
pub fn leaves_enough(space: dir::Space, len: u64) -> bool {
    let kept = (space.total / KEPT_PART).clamp(*KEPT.start(), *KEPT.end());
    space.free.checked_sub(len).is_some_and(|left| left >= kept)
}

/// Fails unless `need` bytes are free in the file system of `at`.
pub fn room(at: &Path, need: u64) -> Result<(), NodeError> {
    match dir::free_bytes(at) {
        Some(free) if free < need => Err(no_room(at, need)),
        _ => Ok(()),
    }
}

/// The error for an allocation of `need` bytes in the file system of `at`.
pub fn no_room(at: &Path, need: u64) -> NodeError {
    let free = dir::free_bytes(at).unwrap_or(0);
    NodeError::NoRoom { dir: at.into(), need: need >> 10, free: free >> 10 }
}

/// The message of a program that lost a page of the adapter in `at`.
pub fn lost_notice(at: &Path) -> String {
    format!(
        "ironverbs: no room left in shared memory for the adapter in {}: this program has lost its devices\n",
        at.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lending_leaves_room_for_queues() {
        let mib = 1 << 20;
        let most = |total: u64, free: u64| {
            (0..=free)
                .step_by(mib as usize)
                .take_while(|len| leaves_enough(dir::Space { total, free }, *len))
                .last()
        };
        assert_eq!(most(24 * mib, 22 * mib), Some(6 * mib));
        assert_eq!(most(64 * mib, 60 * mib), Some(44 * mib));
        assert_eq!(most(64 * mib, 15 * mib), None);
        assert_eq!(most(512 * mib, 500 * mib), Some(372 * mib));
        assert_eq!(most(32 << 30, 300 * mib), Some(44 * mib));
    }
}
