//! Scatter and gather lists, and the payload transferred with them. A list or a key is resolved to the pieces in the step's buffers.

use super::{
    fetch::Wqe,
    step::{Buffers, Payload, Step},
    work::{Failure, QpStage},
};
use crate::{
    host::{Abort, Rid},
    region::{Func, Piece, SlotPayload, memic},
    translate::{self, Domain, Fault, RESERVED_LKEY, User, access},
};
use hwspec::{
    cqe::{CqeSyndrome, vendor_err},
    layout::Layout,
    wqe::{DataSeg, INVALID_LKEY, WQE_DS, ZERO_BYTE_COUNT},
};

/// Payload up to this length travels by value: this is cheaper than a reference, and independent of the sender's memory.
pub(crate) const BY_VALUE: usize = 256;

/// The reason why a list cannot hold or provide the requested data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListFault {
    /// The list is shorter than the data.
    Short,
    /// An entry was refused.
    Entry(Fault),
}

impl ListFault {
    /// The error in the completion of the work request (IBTA 10.10.3; vendor codes as measured).
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Short => Failure::new(CqeSyndrome::LocalLengthErr, vendor_err::SGE_LENGTH),
            Self::Entry(Fault::Bounds) => Failure::new(CqeSyndrome::LocalProtErr, vendor_err::SGE_LENGTH),
            Self::Entry(Fault::Permission) => {
                Failure::new(CqeSyndrome::LocalProtErr, vendor_err::READ_SCATTER)
            }
            Self::Entry(_) => Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY),
        }
    }
}

/// Entries of a list up to its terminator: (lkey, address, bytes).
#[inline]
pub(crate) fn entries(list: &[u8]) -> impl Iterator<Item = (u32, u64, u32)> + '_ {
    list.chunks_exact(WQE_DS)
        .map(DataSeg::read)
        .take_while(|seg| !(seg.byte_count() == 0 && seg.lkey() == INVALID_LKEY))
        .map(|seg| {
            (seg.lkey(), seg.addr(), if seg.byte_count() == 0 { ZERO_BYTE_COUNT } else { seg.byte_count() })
        })
}

/// Number of bytes that a list can hold.
pub(crate) fn capacity(list: &[u8]) -> u64 {
    entries(list).map(|(_, _, len)| u64::from(len)).sum()
}

/// Checks that every entry of a list is accessible with `need` as a whole.
#[inline]
pub(crate) fn check(func: &Func<'_>, domain: Domain, list: &[u8], need: u8) -> Result<(), ListFault> {
    for (lkey, addr, len) in entries(list) {
        if lkey == RESERVED_LKEY && domain.rlky {
            continue;
        }
        translate::check(func, domain.user, lkey, addr, len.into(), need).map_err(ListFault::Entry)?;
    }
    Ok(())
}

/// Resolves bytes `from..from + len` of a list to pieces in `out`.
#[inline(always)]
pub(crate) fn resolve(
    func: &Func<'_>,
    domain: Domain,
    list: &[u8],
    from: u32,
    len: u32,
    need: u8,
    out: &mut Vec<Piece>,
) -> Result<(), ListFault> {
    out.clear();
    let (mut skip, mut left) = (from, len);
    for (lkey, addr, bytes) in entries(list) {
        if left == 0 {
            break;
        }
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let here = left.min(bytes - skip);
        let at = addr.wrapping_add(skip.into());
        if lkey == RESERVED_LKEY && domain.rlky {
            translate::push(out, at, here);
        } else {
            translate::pieces(func, domain.user, lkey, at, here, need, out).map_err(ListFault::Entry)?;
        }
        (skip, left) = (0, left - here);
    }
    if left == 0 { Ok(()) } else { Err(ListFault::Short) }
}

impl QpStage<'_, '_, '_> {
    /// Resolves bytes `from..from + len` of the receive WQE's list.
    #[inline(always)]
    pub(crate) fn resolve_receive(&mut self, domain: Domain, from: u32, len: u32) -> Result<(), ListFault> {
        let Buffers { receive, pieces, .. } = &mut *self.step.buffers;
        resolve(self.func, domain, receive, from, len, SCATTER, pieces)
    }

    /// The domain of a send WQE's keys. The reserved key in a mixed list is the model's own.
    pub(crate) fn sender(&self, wqe: &Wqe) -> Domain {
        let domain = self.domain();
        Domain { rlky: domain.rlky || wqe.mixed, ..domain }
    }

    /// Resolves bytes `from..from + len` of the send WQE's list.
    #[inline(always)]
    pub(crate) fn resolve_send(&mut self, wqe: &Wqe, from: u32, len: u32, need: u8) -> Result<(), ListFault> {
        let domain = self.sender(wqe);
        let Buffers { wqe: bytes, pieces, .. } = &mut *self.step.buffers;
        resolve(self.func, domain, wqe.list(bytes), from, len, need, pieces)
    }

    /// Resolves `len` bytes at `va` of a key that the peer named, in protection domain `pd`.
    #[inline(always)]
    pub(crate) fn resolve_key(
        &mut self,
        pd: u32,
        (rkey, va): (u32, u64),
        len: u32,
        need: u8,
    ) -> Result<(), Fault> {
        let user = User { pd, qpn: self.qpn() };
        let pieces = &mut self.step.buffers.pieces;
        pieces.clear();
        translate::pieces(self.func, user, rkey, va, len, need, pieces)
    }
}

/// Turns the pieces of local memory into the payload of a packet.
#[inline]
pub(crate) fn payload(step: &mut Step<'_>, rid: Rid, value: bool) -> Result<Payload, Abort> {
    let pieces = &step.buffers.pieces;
    let len = Piece::sum(pieces);
    if len == 0 {
        return Ok(Payload::Empty);
    }
    let inside = pieces.iter().any(|piece| memic::is_within(piece.at));
    if pieces.len() > 4 || value && len <= BY_VALUE || inside {
        return by_value(step, rid);
    }
    let mut four = [Piece::default(); 4];
    four[..pieces.len()].copy_from_slice(pieces);
    Ok(Payload::Pieces(pieces.len() as u8, four))
}

/// Maximum number of packets in a train. The journal has room for the notes of a job that handles them one by one.
pub(crate) const LONGEST_TRAIN: u32 = 32;

/// The largest number of packets of `mtu` bytes that fit in a payload by reference, starting with the first of `pieces`, and that payload.
/// `None` for fewer than two packets or memory that cannot be referenced.
#[inline]
pub(crate) fn of_whole(pieces: &[Piece], mtu: u32) -> Option<(u16, Payload)> {
    let mut four = [Piece::default(); 4];
    let used = pieces.len().min(four.len());
    four[..used].copy_from_slice(&pieces[..used]);
    if four.iter().any(|piece| memic::is_within(piece.at)) {
        return None;
    }
    let packets = u16::try_from(Piece::sum(&four) as u32 / mtu).ok().filter(|packets| *packets > 1)?;
    Some((packets, Payload::Pieces(used as u8, four).part(0, u32::from(packets) * mtu)))
}

/// Copies the pieces of local memory into the payload of a packet.
pub(crate) fn by_value(step: &mut Step<'_>, rid: Rid) -> Result<Payload, Abort> {
    let (mut start, mut len) = (None, 0);
    for i in 0..step.buffers.pieces.len() {
        let piece = step.buffers.pieces[i];
        let at = step.stage_from(rid, piece.at, piece.len as usize)?;
        start.get_or_insert(at);
        len += piece.len;
    }
    Ok(start.map_or(Payload::Empty, |start| Payload::Staged(start, len)))
}

/// Copies the payload of a frame to the pieces, which have the same length.
#[inline]
pub(crate) fn place(step: &mut Step<'_>, data: &SlotPayload<'_>, rid: Rid) -> Result<(), Abort> {
    let mut dst = 0..step.buffers.pieces.len();
    match *data {
        SlotPayload::Bytes(bytes) => {
            let mut rest = bytes;
            for i in dst {
                let piece = step.buffers.pieces[i];
                let (here, after) = rest.split_at((piece.len as usize).min(rest.len()));
                step.write((rid, piece.at), here)?;
                rest = after;
            }
        }
        SlotPayload::Pieces(from, pieces) => {
            let mut src = pieces.iter().copied();
            let (mut s, mut d) = (Piece::default(), Piece::default());
            loop {
                if s.len == 0 {
                    let Some(next) = src.next() else { break };
                    s = next;
                }
                if d.len == 0 {
                    let Some(next) = dst.next() else { break };
                    d = step.buffers.pieces[next];
                }
                let n = s.len.min(d.len);
                step.copy((from, s.at), (rid, d.at), n)?;
                s = Piece { at: s.at.wrapping_add(n.into()), len: s.len - n, reserved: 0 };
                d = Piece { at: d.at.wrapping_add(n.into()), len: d.len - n, reserved: 0 };
            }
        }
    }
    Ok(())
}

/// True if the memory of the pieces is present: a program may have unmapped memory after registering it. A piece spans at most two
/// pages, so checking its ends is sufficient.
#[cold]
pub(crate) fn are_there(step: &mut Step<'_>, rid: Rid) -> bool {
    (0..step.buffers.pieces.len()).all(|i| {
        let piece = step.buffers.pieces[i];
        let ends = [piece.at, piece.at.wrapping_add(u64::from(piece.len).saturating_sub(1))];
        let mut there = |at| !matches!(step.read(rid, at, &mut [0]), Err(Abort::Source | Abort::Destination));
        piece.len == 0 || ends.into_iter().all(&mut there)
    })
}

/// Reads the bytes of a payload into the start of `into`.
pub(crate) fn bytes(step: &mut Step<'_>, data: &SlotPayload<'_>, into: &mut [u8]) -> Result<(), Abort> {
    match *data {
        SlotPayload::Bytes(bytes) => {
            let n = bytes.len().min(into.len());
            into[..n].copy_from_slice(&bytes[..n]);
        }
        SlotPayload::Pieces(from, pieces) => {
            let mut rest = into;
            for piece in pieces {
                let (here, after) = rest.split_at_mut((piece.len as usize).min(rest.len()));
                step.host.read(from, piece.at, here)?;
                rest = after;
            }
        }
    }
    Ok(())
}

/// Access required for a gather list.
pub(crate) const GATHER: u8 = access::LOCAL_READ;
/// Access required for a scatter list.
pub(crate) const SCATTER: u8 = access::LOCAL_WRITE;
