//! From CQEs to work completions. Hot: no allocation, no system call.

mod failed;
mod table;
mod trackers;

pub use table::{QpTable, is_spread};
pub use trackers::{QpQueues, RecvTracker, SendTracker};

use crate::{
    shared_receive::SharedReceives,
    verbs::{Completion, WcFlags, WcOpcode, WcStatus},
};
use failed::{failed, send_opcode};
use hwspec::cqe::{Cqe64, CqeFormat, CqeOpcode, INLINE_32, eth};

/// Converts a CQE to a work completion, in place. False: it names a QP that does not exist (any more), or is no
/// completion.
#[inline(always)]
pub fn convert(table: &QpTable, cqe: &Cqe64, wc: &mut Completion) -> bool {
    let Some(qp) = table.get(cqe.qpn().0) else { return replace(wc, by_index(table, cqe)) };
    let counter = cqe.wqe_counter();
    match cqe.opcode() {
        CqeOpcode::Req => {
            *wc = Completion { qpn: qp.qpn, byte_len: cqe.byte_cnt(), ..Completion::default() };
            wc.opcode = send_opcode(cqe.sop());
            match wc.opcode {
                WcOpcode::CompSwap | WcOpcode::FetchAdd => wc.byte_len = 8,
                WcOpcode::LocalInv => wc.opcode = qp.sq.change(counter),
                _ => {}
            }
            match qp.sq.complete(counter) {
                Some(wr_id) => wc.wr_id = wr_id,
                None => wc.status = WcStatus::GeneralErr,
            }
            true
        }
        CqeOpcode::RespSend | CqeOpcode::RespSendImm | CqeOpcode::RespSendInv | CqeOpcode::RespWrImm => {
            *wc = Completion { qpn: qp.qpn, byte_len: cqe.byte_cnt(), ..Completion::default() };
            message(cqe, wc);
            match cqe.cqe_format() {
                CqeFormat::Inline32 => received_inline(qp, cqe, wc),
                _ => received(qp, cqe, wc),
            }
            true
        }
        _ => replace(wc, error(qp, cqe)),
    }
}

fn replace(wc: &mut Completion, found: Option<Completion>) -> bool {
    found.map(|found| *wc = found).is_some()
}

/// The completion of an error CQE.
#[cold]
fn error(qp: &QpQueues, cqe: &Cqe64) -> Option<Completion> {
    let counter = cqe.wqe_counter();
    match cqe.opcode() {
        CqeOpcode::ReqErr => Some(failed(cqe, qp.sq.complete(counter))),
        CqeOpcode::RespErr => {
            let shared = || qp.srq.as_ref()?.complete(counter, None).map(|(wr_id, _)| wr_id);
            Some(failed(cqe, qp.rq.complete(counter).or_else(shared)))
        }
        _ => None,
    }
}

/// The kind of a received message, and its immediate data or invalidated key.
#[inline(always)]
fn message(cqe: &Cqe64, wc: &mut Completion) {
    wc.opcode = WcOpcode::Recv;
    match cqe.opcode() {
        CqeOpcode::RespSend => {}
        CqeOpcode::RespSendInv => wc.flags = WcFlags::WITH_INV,
        imm => {
            wc.flags = WcFlags::WITH_IMM;
            if imm == CqeOpcode::RespWrImm {
                wc.opcode = WcOpcode::RecvRdmaWithImm;
            }
        }
    }
    wc.imm_or_inv = if wc.flags.is_empty() { 0 } else { cqe.imm_inval_pkey() };
}

/// Completes a receive of a shared queue.
#[inline(never)]
fn from_shared(srq: Option<&SharedReceives>, cqe: &Cqe64, wc: &mut Completion) {
    let inline = cqe.cqe_format() == CqeFormat::Inline32;
    let bytes = cqe.as_bytes().get(..wc.byte_len as usize).filter(|b| b.len() <= INLINE_32);
    let given = if inline { Some(bytes.unwrap_or_default()) } else { None };
    match srq.and_then(|srq| srq.complete(cqe.wqe_counter(), given)) {
        Some((wr_id, fits)) => {
            wc.wr_id = wr_id;
            if !fits || inline && bytes.is_none() {
                wc.status = WcStatus::LocProtErr;
            }
        }
        None => wc.status = WcStatus::GeneralErr,
    }
}

/// The completion of a CQE that names its queue by user index: a receive by a target QP of XRC, whose CQE names the
/// SRQ; a receive of a work queue; or a receive that a queue of raw packets flushed, where the index is the QP's
/// number.
#[cold]
fn by_index(table: &QpTable, cqe: &Cqe64) -> Option<Completion> {
    if is_spread(cqe) {
        let wq = table.wq(cqe)?;
        let mut wc = Completion { qpn: wq.qpn, byte_len: cqe.byte_cnt(), ..Completion::default() };
        message(cqe, &mut wc);
        received(wq, cqe, &mut wc);
        return Some(wc);
    }
    let index = cqe.srqn_uidx() & 0xff_ffff;
    let Some(srq) = table.srq(index) else {
        let qp = table.get(index).filter(|qp| qp.raw && cqe.opcode() == CqeOpcode::RespErr)?;
        return Some(Completion { qpn: qp.qpn, ..failed(cqe, qp.rq.complete(cqe.wqe_counter())) });
    };
    let qpn = cqe.qpn().0;
    match cqe.opcode() {
        CqeOpcode::RespErr => {
            let wr_id = srq.complete(cqe.wqe_counter(), None).map(|(wr_id, _)| wr_id);
            Some(Completion { qpn, ..failed(cqe, wr_id) })
        }
        CqeOpcode::RespSend | CqeOpcode::RespSendImm | CqeOpcode::RespSendInv | CqeOpcode::RespWrImm => {
            let mut wc = Completion { qpn, byte_len: cqe.byte_cnt(), ..Completion::default() };
            message(cqe, &mut wc);
            wc.src_qp = cqe.rqpn().0;
            from_shared(Some(srq), cqe, &mut wc);
            Some(wc)
        }
        _ => None,
    }
}

/// The source of a datagram. On RoCE the field of the service level has the IP version, and is passed on unchanged:
/// UCX, used to rdma-core's mlx5, reads there which header precedes the payload.
#[inline]
fn source(cqe: &Cqe64, wc: &mut Completion) {
    (wc.slid, wc.path_bits, wc.sl) = (cqe.slid(), cqe.ml_path(), cqe.sl());
}

/// The flag of a frame whose checksums the device verified, which stands for IPv4 with TCP or UDP.
#[inline]
fn checked(cqe: &Cqe64, wc: &mut Completion) {
    const BOTH: u8 = eth::L3_OK | eth::L4_OK;
    if cqe.hds_ip_ext() & BOTH == BOTH && cqe.l3_hdr_type() == eth::L3_IPV4 {
        wc.flags |= WcFlags::IP_CSUM;
    }
}

/// Completes a receive whose message the device has scattered.
#[inline(never)]
fn received(qp: &QpQueues, cqe: &Cqe64, wc: &mut Completion) {
    wc.src_qp = cqe.rqpn().0;
    if cqe.grh() != 0 {
        wc.flags |= WcFlags::GRH;
    }
    if qp.extended {
        match qp.raw {
            false => source(cqe, wc),
            true => checked(cqe, wc),
        }
    }
    match qp.rq.complete(cqe.wqe_counter()) {
        Some(wr_id) => wc.wr_id = wr_id,
        None => from_shared(qp.srq.as_deref(), cqe, wc),
    }
}

/// Completes a receive whose message is in the CQE, in place of the sender's addresses.
#[inline(always)]
fn received_inline(qp: &QpQueues, cqe: &Cqe64, wc: &mut Completion) {
    let Some(number) = qp.rq.number(cqe.wqe_counter()) else {
        return from_shared(qp.srq.as_deref(), cqe, wc);
    };
    let bytes = cqe.as_bytes().get(..wc.byte_len as usize).filter(|b| b.len() <= INLINE_32);
    // Before the entry is retired, since a post may overwrite it then.
    let fits = bytes.zip(qp.inbox.as_ref()).is_some_and(|(bytes, inbox)| inbox.put(number, bytes));
    wc.wr_id = qp.rq.retire(number);
    if !fits {
        wc.status = WcStatus::LocProtErr;
    }
}

#[cfg(test)]
mod tests;
