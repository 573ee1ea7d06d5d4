//! Responses from the peer's responder: the transport evaluates what they acknowledge; their data is placed as the WQE
//! requires.

use super::{
    lists,
    received::Packet,
    requester, settle,
    work::{Failure, Work},
};
use crate::{
    host::Abort,
    region::SlotPayload,
    state::{QpFlags, SendRecord},
    transport,
};
use hwspec::{
    cqe::{CqeSyndrome, INLINE_32, vendor_err},
    handle::Psn,
    wire::{BthOpcode, Operation},
    wqe::MAX_DS,
};

/// Handles a response.
pub(crate) fn answer(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let psn = packet.headers.bth().psn();
    let goes_on = transport::answer(w, psn, |w| match packet.headers.bth().opcode().operation() {
        Some(Operation::Ack) => {
            if let Some(aeth) = packet.headers.aeth() {
                transport::acknowledge(w, psn, aeth.syndrome());
            }
        }
        Some(Operation::ReadResponse) => read_response(w, packet, psn),
        Some(Operation::AtomicAck) => atomic_answer(w, packet, psn),
        Some(
            Operation::Send
            | Operation::Write
            | Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Cnp,
        )
        | None => {}
    });
    if goes_on && requester::waiting(w) {
        w.execute = true;
    }
}

#[inline(never)]
fn read_response(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let (mtu, last) = (u32::from(w.q.mtu.max(256)), packet.headers.bth().opcode().is_last());
    if let Some((at, from)) = transport::read_response(w, psn, mtu, (packet.len, last, packet.padded)) {
        deliver(w, at, &packet.data, from, packet.len, psn);
    }
}

/// Handles a train of READ responses. False, without any effect, if they must be handled one by one.
pub(crate) fn answer_train(w: &mut Work<'_, '_, '_>, packets: &Packet<'_>) -> bool {
    let (psn, mtu) = (packets.headers.bth().psn(), u32::from(w.q.mtu.max(256)));
    if packets.headers.bth().opcode() != BthOpcode::RcReadRespMiddle || packets.len != packets.packets * mtu {
        return false;
    }
    let mut done = false;
    let goes_on = transport::answer(w, psn, |w| {
        let Some((at, from)) = transport::read_responses(w, psn, mtu, packets.packets) else { return };
        let record = *w.func.send_record(w.qp, at);
        done = scatter(w, &record, &packets.data, from, packets.len).is_ok();
        if done {
            transport::deliver(w, psn.add(packets.packets - 1), None);
        }
    });
    if done && goes_on && requester::waiting(w) {
        w.execute = true;
    }
    done
}

#[inline(never)]
fn atomic_answer(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let Some((at, _)) = transport::answered(w, psn, false) else { return };
    let Some(eth) = packet.headers.atomic_ack() else { return };
    // The value is stored in the byte order of the host's words.
    let bytes = eth.original().to_le_bytes();
    deliver(w, at, &SlotPayload::Bytes(&bytes), 0, 8, psn);
}

/// Places a response as required by the oldest work request, at `at`, and completes finished requests.
fn deliver(w: &mut Work<'_, '_, '_>, at: u32, data: &SlotPayload<'_>, from: u32, len: u32, psn: Psn) {
    let record = *w.func.send_record(w.qp, at);
    let small = record.request.length <= INLINE_32 as u32;
    let in_cqe = w.q.has(QpFlags::SCATTER_REQ) && record.flags & SendRecord::SIGNALED != 0 && small;
    let mut inline = [0; INLINE_32];
    if in_cqe {
        if lists::bytes(w.step, data, &mut inline).is_err() {
            return;
        }
    } else if len > 0 {
        match scatter(w, &record, data, from, len) {
            Ok(()) => {}
            Err(None) => return,
            Err(Some(failure)) => return settle::mark_failed(w, at, failure),
        }
    }
    transport::deliver(w, psn, in_cqe.then_some(&inline));
}

/// Scatters a response into the list of its WQE. `Err(None)`: the response is treated as lost.
fn scatter(
    w: &mut Work<'_, '_, '_>,
    record: &SendRecord,
    data: &SlotPayload<'_>,
    from: u32,
    len: u32,
) -> Result<(), Option<Failure>> {
    let wqe = requester::again(w, record).map_err(Some)?;
    debug_assert!(usize::from(wqe.ds) <= MAX_DS);
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    let list = &w.step.buffers.wqe[usize::from(wqe.data[0])..usize::from(wqe.data[1])];
    let found = lists::resolve(w.func, w.domain(), list, from, len, lists::SCATTER, &mut pieces);
    let rid = w.func.rid();
    let result = match found {
        Ok(()) => lists::place(w.step, data, rid, &pieces).map_err(|abort| match abort {
            Abort::Source | Abort::Gone => None,
            Abort::Destination => Some(Failure::new(CqeSyndrome::LocalProtErr, vendor_err::READ_SCATTER)),
        }),
        Err(fault) => Err(Some(fault.failure())),
    };
    w.step.buffers.pieces = pieces;
    result
}
