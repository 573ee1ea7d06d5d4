//! Answers from the responder (IBTA 9.7.5.2, 9.7.6, 9.7.7): what they acknowledge, what they ask to be sent again.

use super::{
    arrive::Packet,
    lists, requester, settle,
    work::{Failure, Work},
};
use crate::{
    host::Abort,
    region::SlotPayload,
    state::{Counters, QpFlags, SendRecord},
};
use hwspec::{
    context::QpState,
    cqe::{CqeSyndrome, INLINE_32, vendor_err},
    handle::Psn,
    wire::{NakCode, Operation, Syndrome, aeth},
    wqe::{MAX_DS, WqeOpcode},
};

const PS_PER_NS: u64 = 1000;
/// Vendor error of a remote operational error, and of an answer that makes no sense.
const REMOTE_OPERATION: u8 = 0x89;
const BAD_RESPONSE: u8 = 0x34;

/// An answer.
pub(crate) fn answer(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let psn = packet.headers.bth().psn();
    // Of a PSN never sent, or long settled (IBTA 9.7.5.1.1: ghost acknowledges).
    let settled = psn.ahead_of(una(w)) < 0;
    if !matches!(w.state(), QpState::Rts | QpState::SqDrained)
        || psn.ahead_of(Psn::new(w.q.max_psn)) >= 0
        || settled
    {
        return;
    }
    let before = w.q.una_psn;
    match packet.headers.bth().opcode().operation() {
        Some(Operation::Ack) => {
            let Some(aeth) = packet.headers.aeth() else { return };
            acknowledge(w, psn, aeth.syndrome());
        }
        Some(Operation::ReadResponse) => read_response(w, packet, psn),
        Some(Operation::AtomicAck) => atomic_answer(w, packet, psn),
        _ => return,
    }
    let waits = w.q.una_psn == w.q.max_psn || w.q.has(QpFlags::RNR_WAIT);
    if w.q.una_psn != before && w.state() != QpState::Err && !waits {
        requester::start_timer(w);
    }
    let more = w.q.sr_send != w.q.sr_tail || w.q.sq_next != w.q.sq_pi;
    if more && w.state() != QpState::Err && !w.q.has(QpFlags::RNR_WAIT) {
        w.execute = true;
    }
}

fn una(w: &Work<'_, '_, '_>) -> Psn {
    Psn::new(w.q.una_psn)
}

/// An outstanding request was acknowledged: both retry counters start anew (IBTA 9.9.2). What else the answer says is
/// charged to the counters after that. An RNR NAK acknowledges nothing but what was sent before its PSN, so by itself it does
/// not restore the transport's counter (row 64 of the conformance table).
#[inline(always)]
fn reload(w: &mut Work<'_, '_, '_>) {
    w.q.retries_left = w.q.retry_count;
    w.q.rnr_left = w.q.rnr_retry;
    w.q.set(QpFlags::GAP, false);
}

fn acknowledge(w: &mut Work<'_, '_, '_>, psn: Psn, syndrome: Syndrome) {
    // A NAK acknowledges all before it (IBTA 9.7.5.1.2).
    let upto = match syndrome {
        Syndrome::Ack(_) => psn.add(1),
        Syndrome::Reserved(_) => return,
        _ => psn,
    };
    let reached = advance(w, upto);
    settle::settle(w, None);
    if w.state() == QpState::Err {
        return;
    }
    if !reached {
        // An acknowledgement past a READ or atomic without its answer: implied NAK (IBTA 9.7.5.1.1).
        return gap(w);
    }
    if !matches!(syndrome, Syndrome::Ack(_)) {
        refused(w, syndrome);
    }
}

/// The responder did not execute what is now the oldest request.
#[cold]
fn refused(w: &mut Work<'_, '_, '_>, syndrome: Syndrome) {
    match syndrome {
        // Everything will be sent again when the wait is over. What asks for it earlier was sent before the RNR NAK, or
        // is a copy of it (row 65 of the conformance table).
        Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence) if w.q.has(QpFlags::RNR_WAIT) => {}
        Syndrome::RnrNak(code) => not_ready(w, code),
        Syndrome::Nak(NakCode::PsnSequence) => {
            w.count(Counters::PacketSeqErr);
            go_back(w);
        }
        Syndrome::Nak(code) => {
            let failure = match code {
                NakCode::InvalidRequest => {
                    w.count(Counters::ReqRemoteInvalidRequest);
                    Failure::new(CqeSyndrome::RemoteInvalReqErr, vendor_err::REMOTE_QP_ACCESS)
                }
                NakCode::RemoteAccess => {
                    w.count(Counters::ReqRemoteAccessErrors);
                    Failure::new(CqeSyndrome::RemoteAccessErr, vendor_err::RKEY)
                }
                _ => Failure::new(CqeSyndrome::RemoteOpErr, REMOTE_OPERATION),
            };
            settle::fail(w, failure);
        }
        _ => {}
    }
}

/// Acknowledges all before `upto`, as far as READs and atomics without an answer allow. False if one stands in the way.
#[inline(always)]
fn advance(w: &mut Work<'_, '_, '_>, upto: Psn) -> bool {
    let before = w.q.una_psn;
    let reached = acknowledge_until(w, upto);
    if w.q.una_psn != before {
        reload(w);
    }
    reached
}

/// [`advance`], but for the counters.
#[inline(always)]
fn acknowledge_until(w: &mut Work<'_, '_, '_>, upto: Psn) -> bool {
    let mut at = w.q.sr_head;
    while at != w.q.sr_tail {
        let record = w.func.send_record(w.qp, at);
        let first = Psn::new(record.psn);
        if record.status != 0 || upto.ahead_of(first) <= 0 {
            break;
        }
        if record.packets != 0 && requester::is_answered(record.opcode) {
            if first.ahead_of(una(w)) > 0 {
                w.q.una_psn = first.get();
            }
            return false;
        }
        let end = first.add(record.packets);
        let reached = if upto.ahead_of(end) < 0 { upto } else { end };
        if reached.ahead_of(una(w)) > 0 {
            w.q.una_psn = reached.get();
        }
        at = at.wrapping_add(1);
    }
    true
}

/// Something is missing among the answers: goes back once, until there is progress. While an RNR NAK is waited out
/// everything is to be sent again anyway.
#[cold]
fn gap(w: &mut Work<'_, '_, '_>) {
    if w.q.has(QpFlags::GAP) || w.q.has(QpFlags::RNR_WAIT) {
        return;
    }
    w.q.set(QpFlags::GAP, true);
    w.count(Counters::ImpliedNakSeqErr);
    go_back(w);
}

/// Goes back to the oldest PSN not acknowledged; costs a retry (IBTA 9.7.6.1.1).
pub(crate) fn go_back(w: &mut Work<'_, '_, '_>) {
    if w.q.retries_left == 0 {
        w.count(Counters::ReqTransportRetriesExceeded);
        return settle::fail(w, Failure::new(CqeSyndrome::TransportRetryExcErr, vendor_err::RETRY));
    }
    w.q.retries_left -= 1;
    rewind(w);
    requester::start_timer(w);
}

/// What is sent next is the oldest PSN not acknowledged.
fn rewind(w: &mut Work<'_, '_, '_>) {
    w.q.sr_send = w.q.sr_head;
    w.q.sr_packet = 0;
    if w.q.sr_head != w.q.sr_tail {
        let first = Psn::new(w.func.send_record(w.qp, w.q.sr_head).psn);
        w.q.sr_packet = una(w).ahead_of(first).max(0) as u32;
    }
    w.q.unasked = 0;
}

/// RNR NAK: waits at least the time it names, then sends from there again (IBTA 9.7.5.2.8).
fn not_ready(w: &mut Work<'_, '_, '_>, code: u8) {
    if w.q.rnr_retry != 7 {
        if w.q.rnr_left == 0 {
            w.count(Counters::ReqRnrRetriesExceeded);
            return settle::fail(w, Failure::new(CqeSyndrome::RnrRetryExcErr, vendor_err::RNR_RETRY));
        }
        w.q.rnr_left -= 1;
    }
    w.count(Counters::RnrNakRetryErr);
    rewind(w);
    w.q.set(QpFlags::RNR_WAIT, true);
    w.q.ack_deadline = 0;
    w.q.rnr_deadline = w.step.now + aeth::rnr_ns(code) * PS_PER_NS;
}

/// The READ or atomic that an answer with `psn` belongs to: it is the oldest request once what it acknowledges is done.
/// `None` if it answers nothing, or an earlier answer is missing.
fn answered(w: &mut Work<'_, '_, '_>, psn: Psn, read: bool) -> Option<SendRecord> {
    let mut at = w.q.sr_head;
    let record = loop {
        if at == w.q.sr_tail {
            return None;
        }
        let record = *w.func.send_record(w.qp, at);
        let ahead = psn.ahead_of(Psn::new(record.psn));
        if record.packets != 0 && ahead >= 0 && (ahead as u32) < record.packets {
            break record;
        }
        at = at.wrapping_add(1);
    };
    let opcode = WqeOpcode::from_raw(record.opcode);
    let fits = if read { opcode == WqeOpcode::RdmaRead } else { opcode.is_atomic() };
    if !fits || record.status != 0 {
        return None;
    }
    if !advance(w, Psn::new(record.psn)) || psn.ahead_of(una(w)) > 0 {
        settle::settle(w, None);
        if w.state() != QpState::Err {
            gap(w);
        }
        return None;
    }
    settle::settle(w, None);
    (w.state() != QpState::Err && psn == una(w)).then_some(record)
}

#[inline(never)]
fn read_response(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let Some(record) = answered(w, psn, true) else { return };
    let mtu = u32::from(w.q.mtu.max(256));
    let i = psn.ahead_of(Psn::new(record.psn)) as u32;
    let from = i * mtu;
    let last = i + 1 == record.packets;
    let expected = mtu.min(record.length.saturating_sub(from));
    let opcode = packet.headers.bth().opcode();
    if packet.len != expected || opcode.is_last() != last || !packet.padded {
        return settle::fail(w, Failure::new(CqeSyndrome::BadRespErr, BAD_RESPONSE));
    }
    deliver(w, &record, &packet.data, from, expected, psn);
}

#[inline(never)]
fn atomic_answer(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let Some(record) = answered(w, psn, false) else { return };
    let Some(eth) = packet.headers.atomic_ack() else { return };
    // In memory the value has the order of the host's words.
    let bytes = eth.original().to_le_bytes();
    deliver(w, &record, &SlotPayload::Bytes(&bytes), 0, 8, psn);
}

/// Puts an answer where its work request wants it, and completes what is done.
fn deliver(
    w: &mut Work<'_, '_, '_>,
    record: &SendRecord,
    data: &SlotPayload<'_>,
    from: u32,
    len: u32,
    psn: Psn,
) {
    let in_cqe = w.q.has(QpFlags::SCATTER_REQ) && record.flags & 1 != 0 && record.length <= INLINE_32 as u32;
    let mut inline = [0; INLINE_32];
    if in_cqe {
        if lists::bytes(w.step, data, &mut inline).is_err() {
            return;
        }
    } else if len > 0 {
        match scatter(w, record, data, from, len) {
            Ok(()) => {}
            Err(None) => return,
            Err(Some(failure)) => return settle::fail(w, failure),
        }
    }
    w.q.una_psn = psn.add(1).get();
    reload(w);
    settle::settle(w, in_cqe.then_some(&inline));
}

/// Scatters an answer into the list of its WQE. `Err(None)`: the answer counts as lost.
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
    let found = lists::resolve(w.func, requester::domain(w), list, from, len, lists::SCATTER, &mut pieces);
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
