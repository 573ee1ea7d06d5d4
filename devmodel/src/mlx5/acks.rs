//! The requester's other half: responses are evaluated by the transport, their data is placed as the WQE requires, and finished work
//! requests complete in order.

use super::{
    completion, counter_of, flush, lists,
    packet::Packet,
    requester,
    work::{Failure, QpStage},
};
use crate::{
    Conformance,
    host::Abort,
    region::SlotPayload,
    state::{QpFlags, SendRecord},
    transport::{self, AckTimer, Congestion, Dcqcn, Event, Request, Requester, Requests, Status},
};
use hwspec::{
    context::QpState,
    cqe::{CqeFormat, CqeOpcode, CqeSyndrome, INLINE_32, vendor_err},
    eqe::EventType,
    handle::{Psn, Qpn},
    wire::{BthOpcode, Operation},
};

/// Handles a response.
pub(crate) fn answer(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
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
fn read_response(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let (mtu, last) = (u32::from(w.q.mtu.max(256)), packet.headers.bth().opcode().is_last());
    if let Some((at, from)) = transport::read_response(w, psn, mtu, (packet.len, last, packet.padded)) {
        deliver(w, at, &packet.data, from, packet.len, psn);
    }
}

/// Handles a train of READ responses. False, without any effect, if they must be handled one by one.
pub(crate) fn answer_train(w: &mut QpStage<'_, '_, '_>, packets: &Packet<'_>) -> bool {
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
fn atomic_answer(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, psn: Psn) {
    let Some((at, _)) = transport::answered(w, psn, false) else { return };
    let Some(eth) = packet.headers.atomic_ack() else { return };
    // The value is stored in the byte order of the host's words.
    let bytes = eth.original().to_le_bytes();
    deliver(w, at, &SlotPayload::Bytes(&bytes), 0, 8, psn);
}

/// Places a response as required by the oldest work request, at `at`, and completes finished requests.
fn deliver(w: &mut QpStage<'_, '_, '_>, at: u32, data: &SlotPayload<'_>, from: u32, len: u32, psn: Psn) {
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
            Err(Some(failure)) => return mark_failed(w, at, failure),
        }
    }
    transport::deliver(w, psn, in_cqe.then_some(&inline));
}

/// Scatters a response into the list of its WQE. `Err(None)`: the response is treated as lost.
fn scatter(
    w: &mut QpStage<'_, '_, '_>,
    record: &SendRecord,
    data: &SlotPayload<'_>,
    from: u32,
    len: u32,
) -> Result<(), Option<Failure>> {
    let wqe = requester::refetch(w, record).map_err(Some)?;
    w.resolve_send(&wqe, from, len, lists::SCATTER).map_err(|fault| Some(fault.failure()))?;
    let rid = w.func.rid();
    lists::place(w.step, data, rid).map_err(|abort| {
        let failure = Failure::new(CqeSyndrome::LocalProtErr, vendor_err::READ_SCATTER);
        (abort == Abort::Destination).then_some(failure)
    })
}

impl Requests for QpStage<'_, '_, '_> {
    #[inline(always)]
    fn requester(&self) -> &Requester {
        &self.q.requester
    }
    #[inline(always)]
    fn requester_mut(&mut self) -> &mut Requester {
        &mut self.q.requester
    }
    #[inline(always)]
    fn request(&self, at: u32) -> Request {
        self.func.send_record(self.qp, at).request
    }
    #[inline(always)]
    fn is_sending(&self) -> bool {
        matches!(self.state(), QpState::Rts | QpState::SqDrained)
    }
    #[inline(always)]
    fn has_ended(&self) -> bool {
        self.state() == QpState::Err
    }
    #[inline(always)]
    fn now(&self) -> u64 {
        self.step.now
    }
    #[inline(always)]
    fn ack_timer(&self) -> AckTimer {
        let config = self.step.config;
        match self.profile() {
            Conformance::Cx5 => {
                AckTimer { least: config.min_ack_timeout & 0x1f, hundredths: config.ack_timeouts }
            }
            Conformance::Ibta => AckTimer { least: 0, hundredths: [100; 3] },
        }
    }
    #[cold]
    fn congestion(&mut self) -> (&mut Congestion, &Dcqcn) {
        (self.func.congestion_mut(self.qp), self.step.dcqcn())
    }
    #[inline(always)]
    fn complete(&mut self, at: u32, answer: Option<&[u8; INLINE_32]>) -> bool {
        let record = *self.func.send_record(self.qp, at);
        self.q.sq_ci = record.wqe_index.wrapping_add(record.wqebbs.into());
        record.flags & SendRecord::SIGNALED == 0 || complete(self, &record, answer)
    }
    /// Its completion reports the reason; all later requests are flushed (IBTA 10.3.1.5).
    #[cold]
    fn fail(&mut self, at: u32, status: Option<Status>) {
        let record = *self.func.send_record(self.qp, at);
        if let Some(counter) = status.and_then(counter_of) {
            self.count(counter);
        }
        let failure = match status {
            Some(status) => Failure::of(status),
            None => Failure::new(CqeSyndrome::from_raw(record.status), record.vendor),
        };
        self.q.sq_ci = record.wqe_index.wrapping_add(record.wqebbs.into());
        self.q.set(QpFlags::SQ_FAILED, true);
        completion::fail(self, CqeOpcode::ReqErr, failure, record.wqe_index, record.opcode);
        flush::stop(self);
    }
    #[inline(always)]
    fn acknowledged(&mut self) {
        if self.q.has(QpFlags::DRAINING) {
            drained(self);
        }
    }
    fn note(&mut self, event: Event) {
        self.count_event(event);
    }
}

/// Marks record `at` as failed locally; it completes with that error when all earlier requests have
/// completed.
#[cold]
pub(crate) fn mark_failed(w: &mut QpStage<'_, '_, '_>, at: u32, failure: Failure) {
    let record = w.func.send_record_mut(w.qp, at);
    record.request.failed = 1;
    record.status = failure.syndrome.raw();
    record.vendor = failure.vendor;
    w.q.set(QpFlags::SQ_FAILED, true);
    transport::settle(w, None);
}

/// In SQD: reports the send queue as drained once it is (IBTA 10.3.1.6).
#[cold]
pub(crate) fn drained(w: &mut QpStage<'_, '_, '_>) {
    let done = w.q.requester.head == w.q.requester.tail;
    w.q.set(QpFlags::DRAINING, !done);
    if done {
        w.raise(EventType::SqDrained);
    }
}

/// Reports a successful completion. False if the CQ could not take it and the QP is in error.
pub(crate) fn complete(
    w: &mut QpStage<'_, '_, '_>,
    record: &SendRecord,
    inline: Option<&[u8; INLINE_32]>,
) -> bool {
    let (index, qpn, now) = (completion::user_index(w, false), w.qpn(), completion::timestamp(w.step.now));
    let Some(cqe) = completion::place(w.func, w.step, w.q.cqn_snd, false) else {
        unreported(w);
        return false;
    };
    let mut format = CqeFormat::NoInline;
    if let Some(inline) = inline {
        cqe.as_bytes_mut()[..INLINE_32].copy_from_slice(inline);
        format = CqeFormat::Inline32;
    }
    cqe.set()
        .srqn_uidx(index)
        .byte_cnt(record.request.length)
        .timestamp(now)
        .sop(record.opcode)
        .qpn(Qpn(qpn))
        .wqe_counter(record.wqe_index)
        .opcode(CqeOpcode::Req)
        .cqe_format(format);
    true
}

/// Handles a completion that could not be reported: a catastrophic error of the queue pair (IBTA 11.6.3.2).
#[cold]
pub(crate) fn unreported(w: &mut QpStage<'_, '_, '_>) {
    w.raise(EventType::WqCatasError);
    flush::enter_error(w);
}
