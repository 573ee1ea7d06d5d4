//! Duplicate requests: answered again, never executed again (IBTA 9.7.5.1.4, 9.7.4.4).

use super::{
    Event, ReadResource, Rights,
    responder::{Packet, Responses},
};
use hwspec::{
    handle::Psn,
    wire::{NakCode, Operation},
};

/// Answers a request with a PSN before the expected one.
#[cold]
pub(super) fn answer<X: Responses>(x: &mut X, packet: &X::Packet<'_>) {
    x.note(Event::Duplicate);
    let psn = packet.bth().psn();
    match packet.bth().opcode().operation() {
        Some(Operation::Send | Operation::Write) => {
            // A pending NAK or RNR NAK implies the acknowledgement.
            if !x.responder().owes_ack() {
                x.responder_mut().owe_ack();
            }
        }
        Some(Operation::ReadRequest) => read(x, packet, psn),
        Some(Operation::CompareSwap | Operation::FetchAdd) => {
            if let Some((at, _)) = find(x, ReadResource::ATOMIC, psn) {
                again(x, at, 0, 0);
            }
        }
        Some(Operation::ReadResponse | Operation::Ack | Operation::AtomicAck | Operation::Cnp) | None => {}
    }
}

/// The resource that remembers `psn`, unless it has been reused since.
fn find<X: Responses>(x: &X, kind: u32, psn: Psn) -> Option<(u32, ReadResource)> {
    let q = x.responder();
    // Places not used since the connection began hold stale resources of an earlier connection.
    (1..=q.resources().min(q.tail)).find_map(|back| {
        let at = q.tail.wrapping_sub(back);
        let one = x.resource(at);
        (one.kind == kind && one.covers(psn)).then_some((at, one))
    })
}

/// Repeats a READ or a part of it: checks the key and reads the memory again. The party that copies a response may find that its memory is
/// gone since it was registered, and then sends no response; this is detected when the request is repeated.
fn read<X: Responses>(x: &mut X, packet: &X::Packet<'_>, psn: Psn) {
    let Some(reth) = packet.reth() else { return };
    let Some((at, one)) = find(x, ReadResource::READ, psn) else { return };
    let start = psn.ahead_of(Psn::new(one.psn)) as u32 * x.mtu().max(256);
    let len = reth.dma_len();
    let end = u64::from(start) + u64::from(len);
    let same = reth.rkey() == one.rkey && reth.va() == one.va.wrapping_add(start.into());
    if !same || end > one.length.into() {
        return;
    }
    let may = |x: &mut X| {
        x.reaches(reth.rkey(), reth.va(), len, Rights::READ)
            && x.is_there(reth.rkey(), reth.va(), len.min(x.mtu().max(256)))
    };
    if len > 0 && !may(x) {
        // At this request's own PSN: with a later one the requester would see a missing response and retry once more.
        return x.responder_mut().refuse_at(psn.get(), NakCode::RemoteAccess, None);
    }
    again(x, at, start, end as u32);
}

/// Repeats the response kept at `at`.
fn again<X: Responses>(x: &mut X, at: u32, start: u32, end: u32) {
    let one = x.resource_mut(at);
    if one.answered == ReadResource::ANSWERED {
        one.answered = ReadResource::AGAIN;
    }
    (one.start, one.end) = (start, end);
    let q = x.responder_mut();
    if (at.wrapping_sub(q.send) as i32) <= 0 {
        q.send = at;
        q.packet = 0;
    }
}
