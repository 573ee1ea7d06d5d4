//! Requests seen before: answered again, never executed again (IBTA 9.7.5.1.4, 9.7.4.4).

use super::{arrive::Packet, responder, work::Work};
use crate::{
    state::{Counters, QpFlags, ReadResource},
    translate::{self, access},
};
use hwspec::{
    handle::Psn,
    wire::{NakCode, Operation},
};

/// `ReadResource::kind`.
pub(crate) const READ: u32 = 1;
/// `ReadResource::kind`.
pub(crate) const ATOMIC: u32 = 2;

/// `ReadResource::answered`.
pub(crate) const ANSWERED: u32 = 1;
/// `ReadResource::answered`: and asked for again.
pub(crate) const AGAIN: u32 = 2;

/// A request whose PSN lies behind the one expected.
#[cold]
pub(crate) fn answer(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    w.count(Counters::DuplicateRequest);
    let psn = packet.headers.bth().psn();
    match packet.headers.bth().opcode().operation() {
        // A NAK or RNR NAK that is still owed says as much and more.
        Some(Operation::Send | Operation::Write) if w.q.has(QpFlags::ACK_OWED) => {}
        Some(Operation::Send | Operation::Write) => responder::owe_ack(w),
        Some(Operation::ReadRequest) => read(w, packet, psn),
        Some(Operation::CompareSwap | Operation::FetchAdd) => {
            if let Some((at, _)) = find(w, ATOMIC, psn) {
                again(w, at, 0, 0);
            }
        }
        _ => {}
    }
}

/// The resource that remembers `psn`, if it was not taken for another since.
fn find(w: &Work<'_, '_, '_>, kind: u32, psn: Psn) -> Option<(u32, ReadResource)> {
    // Places not used since the QP was reset hold what an earlier connection left.
    (1..=responder::resources(w).min(w.q.rr_tail)).find_map(|back| {
        let at = w.q.rr_tail.wrapping_sub(back);
        let one = *w.func.read_resource(w.qp, at);
        let ahead = psn.ahead_of(Psn::new(one.psn));
        (one.kind == kind && ahead >= 0 && (ahead as u32) < one.packets).then_some((at, one))
    })
}

/// A READ again, or a part of it: the memory is read again, the key checked again.
fn read(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let Some(reth) = packet.headers.reth() else { return };
    let Some((at, one)) = find(w, READ, psn) else { return };
    let start = psn.ahead_of(Psn::new(one.psn)) as u32 * u32::from(w.q.mtu.max(256));
    let end = u64::from(start) + u64::from(reth.dma_len());
    let same = reth.rkey() == one.rkey && reth.va() == one.va.wrapping_add(start.into());
    if !same || end > one.length.into() {
        return;
    }
    let len = reth.dma_len();
    if len > 0
        && translate::check(w.func, w.user(), reth.rkey(), reth.va(), len.into(), access::REMOTE_READ)
            .is_err()
    {
        return responder::refuse(w, NakCode::RemoteAccess, None);
    }
    again(w, at, start, end as u32);
}

/// Sends the answer kept at `at` again.
fn again(w: &mut Work<'_, '_, '_>, at: u32, start: u32, end: u32) {
    let one = w.func.read_resource_mut(w.qp, at);
    if one.answered == ANSWERED {
        one.answered = AGAIN;
    }
    (one.start, one.end) = (start, end);
    if (at.wrapping_sub(w.q.rr_send) as i32) <= 0 {
        w.q.rr_send = at;
        w.q.rr_packet = 0;
    }
}
