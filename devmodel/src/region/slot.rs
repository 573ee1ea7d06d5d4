//! A slot of a receive ring, and the frame in it.

use crate::host::{Iova, Rid};
use std::sync::atomic::AtomicU16;

/// Bytes of headers that a slot holds.
pub(super) const HEADERS: usize = 128;
/// Pieces of payload that a slot may refer to.
pub(super) const PIECES: usize = 4;

/// Payload that is still in the sender's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Address, in the sending function's address space.
    pub at: Iova,
    /// Bytes.
    pub len: u32,
    /// Padding.
    pub reserved: u32,
}

impl Piece {
    /// Total bytes of all pieces.
    #[inline(never)]
    pub(crate) fn sum(pieces: &[Self]) -> usize {
        pieces.iter().map(|piece| piece.len as usize).sum()
    }
}

/// One frame in a ring: the headers as bytes; the payload (and ICRC) after them or by reference. An acknowledgement, or a
/// message of a few bytes, fits the first cache line.
#[repr(C, align(64))]
pub struct Slot {
    /// Tells which frame the slot holds, as defined by [`sync::Ring`].
    pub(super) lap: AtomicU16,
    pub(super) header_len: u8,
    /// Number of pieces; 0 means payload by value.
    pub(super) pieces: u8,
    /// Bits [`SEALED`] and [`SHORT`].
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
/// The payload is short enough to be stored in `headers`, after the headers.
pub(super) const SHORT: u8 = 2;

/// The payload of a frame, which follows its headers.
#[derive(Clone, Copy, Debug)]
pub enum SlotPayload<'a> {
    /// The bytes themselves, followed by pad and ICRC if the frame is sealed.
    Bytes(&'a [u8]),
    /// References to the memory of the given function.
    Pieces(Rid, &'a [Piece]),
}

impl SlotPayload<'_> {
    /// Length in bytes.
    #[inline(always)]
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(_, pieces) => Piece::sum(pieces),
        }
    }
}

impl Slot {
    /// True if pad and ICRC follow the payload and must be checked.
    pub fn is_sealed(&self) -> bool {
        self.form & SEALED != 0
    }
    /// The headers, from Ethernet to the last extension header.
    pub fn headers(&self) -> &[u8] {
        &self.headers[..(self.header_len as usize).min(HEADERS)]
    }
}
