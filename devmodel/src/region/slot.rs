//! A place of a receive ring, and the frame in it.

use crate::host::{Iova, Rid};
use std::sync::atomic::AtomicU16;

/// Bytes of headers a slot holds.
pub(super) const HEADERS: usize = 128;
/// Pieces of payload a slot may refer to.
pub(super) const PIECES: usize = 4;

/// Payload that still lies in the sender's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Where, in the sending function's address space.
    pub at: Iova,
    /// Bytes.
    pub len: u32,
    /// Padding.
    pub reserved: u32,
}

impl Piece {
    /// Bytes of all.
    #[inline(never)]
    pub(crate) fn sum(pieces: &[Self]) -> usize {
        pieces.iter().map(|piece| piece.len as usize).sum()
    }
}

/// One frame in a ring: headers as bytes; payload (and ICRC) behind them or by reference. The first line holds an
/// acknowledgement, or a message of a few bytes.
#[repr(C, align(64))]
pub struct Slot {
    /// Which frame is in it, see [`sync::Ring`].
    pub(super) lap: AtomicU16,
    pub(super) header_len: u8,
    /// Pieces; 0 is by value.
    pub(super) pieces: u8,
    /// [`SEALED`], [`SHORT`].
    pub(super) form: u8,
    /// Bytes of a short payload.
    pub(super) short_len: u8,
    pub(super) headers: [u8; HEADERS],
    /// Function the pieces belong to.
    pub(super) from: u8,
    /// Bytes of a payload that is not short.
    pub(super) payload_len: u32,
    pub(super) piece: [Piece; PIECES],
}

/// The payload is by value and followed by pad and ICRC.
pub(super) const SEALED: u8 = 1;
/// The payload is so short that it lies in `headers`, behind the headers.
pub(super) const SHORT: u8 = 2;

/// The payload that a frame carries behind its headers.
#[derive(Clone, Copy, Debug)]
pub enum SlotPayload<'a> {
    /// The bytes themselves; pad and ICRC behind them if the frame is sealed.
    Bytes(&'a [u8]),
    /// Where they lie in the memory of function `0`, and how many they are.
    Pieces(Rid, &'a [Piece]),
}

impl Slot {
    /// True if pad and ICRC follow the payload, to be checked.
    pub fn is_sealed(&self) -> bool {
        self.form & SEALED != 0
    }
    /// Ethernet to the last extension header.
    pub fn headers(&self) -> &[u8] {
        &self.headers[..(self.header_len as usize).min(HEADERS)]
    }
}
