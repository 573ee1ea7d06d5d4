//! Completions of the send queue, and the adapter's other services for the transport's requester.

use super::{
    completion, counter_of, event, flush,
    work::{Failure, Work},
};
use crate::{
    Profile,
    state::{QpFlags, SendRecord},
    transport::{self, AckTimer, Congestion, Dcqcn, Event, Request, Requester, Requests, Status},
};
use hwspec::{
    context::QpState,
    cqe::{CqeFormat, CqeOpcode, CqeSyndrome, INLINE_32},
    eqe::EventType,
    handle::Qpn,
};

impl Requests for Work<'_, '_, '_> {
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
            Profile::Cx5 => {
                AckTimer { least: config.min_ack_timeout & 0x1f, hundredths: config.ack_timeouts }
            }
            Profile::Ibta => AckTimer { least: 0, hundredths: [100; 3] },
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
        let cqe = completion::error(self, CqeOpcode::ReqErr, failure, record.wqe_index, record.opcode);
        completion::push(self, self.q.cqn_snd, cqe, true);
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
pub(crate) fn mark_failed(w: &mut Work<'_, '_, '_>, at: u32, failure: Failure) {
    let record = w.func.send_record_mut(w.qp, at);
    record.request.failed = 1;
    record.status = failure.syndrome.raw();
    record.vendor = failure.vendor;
    w.q.set(QpFlags::SQ_FAILED, true);
    transport::settle(w, None);
}

/// In SQD: reports the send queue as drained once it is (IBTA 10.3.1.6).
#[cold]
pub(crate) fn drained(w: &mut Work<'_, '_, '_>) {
    let done = w.q.requester.head == w.q.requester.tail;
    w.q.set(QpFlags::DRAINING, !done);
    if done {
        let (uid, qpn) = (w.q.head.uid, w.qpn());
        event::queue(w.func, uid, EventType::SqDrained, qpn);
    }
}

/// Reports a successful completion. False if the CQ could not take it and the QP is in error.
pub(crate) fn complete(
    w: &mut Work<'_, '_, '_>,
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
pub(crate) fn unreported(w: &mut Work<'_, '_, '_>) {
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    event::queue(w.func, uid, EventType::WqCatasError, qpn);
    flush::enter_error(w);
}
