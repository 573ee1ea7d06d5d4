//! Completions of the send queue, in order (IBTA 10.8.5.1).

use super::{
    completion, event, flush, requester, service,
    work::{Failure, Work},
};
use crate::state::{QpFlags, SendRecord};
use hwspec::{
    cqe::{CqeFormat, CqeOpcode, CqeSyndrome, INLINE_32},
    eqe::EventType,
    handle::{Psn, Qpn},
};

/// Completes the requests at the head that are done. `inline` is the answer of the one just answered, if it goes into
/// the CQE.
pub(crate) fn settle(w: &mut Work<'_, '_, '_>, inline: Option<&[u8; INLINE_32]>) {
    while w.q.sr_head != w.q.sr_tail {
        let record = *w.func.send_record(w.qp, w.q.sr_head);
        if record.status != 0 {
            let failure = Failure::new(CqeSyndrome::from_raw(record.status), record.vendor);
            return fail(w, failure);
        }
        let end = Psn::new(record.psn).add(record.packets);
        if record.packets != 0 && Psn::new(w.q.una_psn).ahead_of(end) < 0 {
            break;
        }
        w.q.sr_head = w.q.sr_head.wrapping_add(1);
        w.q.sq_ci = record.wqe_index.wrapping_add(record.wqebbs.into());
        let answered = requester::is_answered(record.opcode);
        w.q.sq_reads -= u16::from(answered && w.q.sq_reads > 0);
        if record.flags & 1 != 0 && !complete(w, &record, inline.filter(|_| answered)) {
            return;
        }
    }
    // What is acknowledged need not be sent again.
    if (w.q.sr_send.wrapping_sub(w.q.sr_head) as i32) < 0 {
        w.q.sr_send = w.q.sr_head;
        w.q.sr_packet = 0;
    }
    if w.q.sr_send == w.q.sr_head && w.q.sr_head != w.q.sr_tail {
        let first = Psn::new(w.func.send_record(w.qp, w.q.sr_head).psn);
        let done = Psn::new(w.q.una_psn).ahead_of(first).max(0) as u32;
        w.q.sr_packet = w.q.sr_packet.max(done);
    }
    if w.q.una_psn == w.q.max_psn {
        w.q.ack_deadline = 0;
        if w.q.has(QpFlags::DRAINING) {
            drained(w);
        }
    }
}

/// In SQD: says that the send queue has drained, when it has (IBTA 10.3.1.6).
#[cold]
pub(crate) fn drained(w: &mut Work<'_, '_, '_>) {
    let done = w.q.sr_head == w.q.sr_tail;
    w.q.set(QpFlags::DRAINING, !done);
    if done {
        let (uid, qpn) = (w.q.head.uid, w.qpn());
        event::queue(w.func, uid, EventType::SqDrained, qpn);
    }
}

/// A completion without error. False if the CQ took it no more and the QP is in error.
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
        .byte_cnt(record.length)
        .timestamp(now)
        .sop(record.opcode)
        .qpn(Qpn(qpn))
        .wqe_counter(record.wqe_index)
        .opcode(CqeOpcode::Req)
        .cqe_format(format);
    true
}

/// A completion could not be reported: a catastrophic error of the queue pair (IBTA 11.6.3.2).
#[cold]
pub(crate) fn unreported(w: &mut Work<'_, '_, '_>) {
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    event::queue(w.func, uid, EventType::WqCatasError, qpn);
    flush::enter_error(w);
}

/// The request at the head fails: its completion says why, everything behind it is flushed (IBTA 10.3.1.5).
pub(crate) fn fail(w: &mut Work<'_, '_, '_>, failure: Failure) {
    if w.q.sr_head == w.q.sr_tail {
        return;
    }
    let record = *w.func.send_record(w.qp, w.q.sr_head);
    w.q.sr_head = w.q.sr_head.wrapping_add(1);
    w.q.sq_ci = record.wqe_index.wrapping_add(record.wqebbs.into());
    w.q.set(QpFlags::SQ_FAILED, true);
    let cqe = completion::error(w, CqeOpcode::ReqErr, failure, record.wqe_index, record.opcode);
    completion::push(w, w.q.cqn_snd, cqe, true);
    service::stop(w);
}
