//! The responses that a responder owes for READs and atomics, in the order of the requests (IBTA 9.7.5.1, 9.7.7).

use super::{ReadResource, responder::Responses};
use hwspec::{
    handle::Psn,
    wire::{BthOpcode, NakCode},
};

/// An outgoing response packet to a READ or an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub opcode: BthOpcode,
    pub psn: Psn,
    /// The range of a READ's bytes that it carries.
    pub from: u32,
    pub len: u32,
    /// The READ or atomic that it answers.
    pub resource: ReadResource,
    /// Number of later packets of the same response.
    behind: u32,
}

impl Reply {
    /// Number of MIDDLE packets from this one on.
    pub(crate) fn middles(&self) -> u32 {
        if self.opcode == BthOpcode::RcReadRespMiddle { self.behind } else { 0 }
    }
}

/// The next pending response packet, if any.
#[inline(always)]
pub(crate) fn next_reply<X: Responses>(x: &mut X) -> Option<Reply> {
    let mtu = x.mtu().max(256);
    while x.responder().owes_answers() {
        let (at, i) = (x.responder().send, x.responder().packet);
        let one = x.resource(at);
        if one.answered != ReadResource::ANSWERED && one.kind != ReadResource::READ {
            let (opcode, psn) = (BthOpcode::RcAtomicAck, Psn::new(one.psn));
            return Some(Reply { opcode, psn, from: 0, len: 0, resource: one, behind: 0 });
        }
        let packets = (one.end - one.start).div_ceil(mtu).max(1);
        if one.answered != ReadResource::ANSWERED && i < packets {
            return Some(response(&one, i, packets, mtu));
        }
        finish(x);
    }
    None
}

/// Packet `i` of the `packets` in a READ response.
#[inline(always)]
fn response(one: &ReadResource, i: u32, packets: u32, mtu: u32) -> Reply {
    let from = one.start + i * mtu;
    let last = i + 1 == packets;
    let opcode = match (i == 0, last) {
        (true, true) => BthOpcode::RcReadRespOnly,
        (true, false) => BthOpcode::RcReadRespFirst,
        (false, false) => BthOpcode::RcReadRespMiddle,
        (false, true) => BthOpcode::RcReadRespLast,
    };
    let psn = Psn::new(one.psn).add(one.start / mtu).add(i);
    Reply { opcode, psn, from, len: mtu.min(one.end - from), resource: *one, behind: packets - 1 - i }
}

/// Records that `reply` was sent, or a train of `packets` that begins with it.
#[inline(always)]
pub(crate) fn replied<X: Responses>(x: &mut X, reply: &Reply, packets: u32) {
    match reply.behind {
        0 => finish(x),
        _ => x.responder_mut().packet += packets,
    }
}

/// Ends the current response.
pub(crate) fn finish<X: Responses>(x: &mut X) {
    let at = x.responder().send;
    x.resource_mut(at).answered = ReadResource::ANSWERED;
    let q = x.responder_mut();
    q.send = at.wrapping_add(1);
    q.packet = 0;
}

/// Refuses a READ and all later requests, because the memory no longer allows `reply`.
#[cold]
pub(crate) fn refuse_reply<X: Responses>(x: &mut X, reply: &Reply) {
    let q = x.responder_mut();
    q.refuse_at(reply.psn.get(), NakCode::RemoteAccess, None);
    q.send = q.tail;
    q.packet = 0;
}
