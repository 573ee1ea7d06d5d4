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

/// The work completion a CQE means, in its place. False: it names a QP that is not there (any more), or is none.
#[inline(always)]
pub fn convert(table: &QpTable, cqe: &Cqe64, wc: &mut Completion) -> bool {
    let Some(qp) = table.get(cqe.qpn().0) else { return put(wc, by_index(table, cqe)) };
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
        _ => put(wc, error(qp, cqe)),
    }
}

fn put(wc: &mut Completion, found: Option<Completion>) -> bool {
    found.map(|found| *wc = found).is_some()
}

/// An error's.
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

/// What came with a receive: which kind of message, and the four bytes beside it.
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

/// A receive of a shared queue.
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

/// A receive that came by a target QP of XRC, which is not this queue's to know, and whose CQE names the SRQ; one of a work
/// queue; or one that a receive queue of raw packets flushed, whose CQE has the QP's number as user index.
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

/// Where a datagram came from. On RoCE the place of the service level says which IP version it was, and it is handed on
/// as it stands: UCX, used to rdma-core's mlx5, looks there to know which header lies before the payload.
#[inline]
fn from_whom(cqe: &Cqe64, wc: &mut Completion) {
    (wc.slid, wc.path_bits, wc.sl) = (cqe.slid(), cqe.ml_path(), cqe.sl());
}

/// What the device says of the checksums of a frame: the flag means IPv4, and TCP or UDP in it.
#[inline]
fn checked(cqe: &Cqe64, wc: &mut Completion) {
    const BOTH: u8 = eth::L3_OK | eth::L4_OK;
    if cqe.hds_ip_ext() & BOTH == BOTH && cqe.l3_hdr_type() == eth::L3_IPV4 {
        wc.flags |= WcFlags::IP_CSUM;
    }
}

/// A message whose bytes are where they belong.
#[inline(never)]
fn received(qp: &QpQueues, cqe: &Cqe64, wc: &mut Completion) {
    wc.src_qp = cqe.rqpn().0;
    if cqe.grh() != 0 {
        wc.flags |= WcFlags::GRH;
    }
    if qp.tells_more {
        match qp.raw {
            false => from_whom(cqe, wc),
            true => checked(cqe, wc),
        }
    }
    match qp.rq.complete(cqe.wqe_counter()) {
        Some(wr_id) => wc.wr_id = wr_id,
        None => from_shared(qp.srq.as_deref(), cqe, wc),
    }
}

/// A message whose bytes stand in the CQE, where others have the sender's addresses.
#[inline(always)]
fn received_inline(qp: &QpQueues, cqe: &Cqe64, wc: &mut Completion) {
    let Some(number) = qp.rq.number(cqe.wqe_counter()) else {
        return from_shared(qp.srq.as_deref(), cqe, wc);
    };
    let bytes = cqe.as_bytes().get(..wc.byte_len as usize).filter(|b| b.len() <= INLINE_32);
    // Before the entry is retired: a post may then write over it.
    let fits = bytes.zip(qp.inbox.as_ref()).is_some_and(|(bytes, inbox)| inbox.put(number, bytes));
    wc.wr_id = qp.rq.retire(number);
    if !fits {
        wc.status = WcStatus::LocProtErr;
    }
}

#[cfg(test)]
mod tests;
