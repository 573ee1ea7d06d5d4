//! Converts CQEs to work completions. Hot: no allocation, no system call.

mod entry;
mod failed;
mod table;
mod trackers;

pub use entry::Entry;
pub use table::{QpTable, is_spread};
pub use trackers::{QpQueues, RecvTracker, SendTracker};

use crate::{
    shared_receive::SharedReceives,
    verbs::{Completion, CompletionSlot, WcFlags, WcOpcode, WcStatus},
};
use failed::{failed, plain, send_opcode};
use hwspec::cqe::{Cqe64, CqeFormat, CqeOpcode, INLINE_32, eth};

/// Converts a CQE to a work completion and writes it to `slot`. Returns false if the CQE names a QP that does not exist
/// (any more), or is not a completion.
///
/// Completions of sends, WRITEs, READs and plain messages are inlined; all others take a call.
#[inline(always)]
pub fn convert(table: &QpTable, entry: Entry<'_>, slot: &mut impl CompletionSlot) -> bool {
    let end = entry.end();
    let qpn = end.qpn().0;
    let Some(qp) = table.get(qpn) else { return put(slot, table, entry, by_index) };
    let kind = end.opcode();
    if kind == CqeOpcode::Req {
        if let Some(opcode) = plain(end.sop()) {
            if let Some(wr_id) = qp.sq.complete(end.wqe_counter()) {
                let byte_len = entry.sent().byte_cnt();
                slot.put(Completion { wr_id, opcode, byte_len, qpn, ..Completion::default() });
                return true;
            }
        }
    } else if kind == CqeOpcode::RespSend && end.cqe_format() == CqeFormat::NoInline && !qp.extended {
        if let Some(wr_id) = qp.rq.complete(end.wqe_counter()) {
            let cqe = entry.received();
            let flags = if cqe.grh() == 0 { WcFlags::empty() } else { WcFlags::GRH };
            let (byte_len, src_qp) = (cqe.byte_cnt(), cqe.rqpn().0);
            let opcode = WcOpcode::Recv;
            slot.put(Completion { wr_id, opcode, byte_len, qpn, src_qp, flags, ..Completion::default() });
            return true;
        }
    }
    put(slot, &**qp, entry, other)
}

/// Converts a CQE with `of`, given the table or queue in question, and writes the result. Cold, so that the hot path
/// keeps its registers.
#[cold]
#[inline(never)]
fn put<T>(
    slot: &mut impl CompletionSlot,
    what: &T,
    entry: Entry<'_>,
    of: impl FnOnce(&T, &Cqe64) -> Option<Completion>,
) -> bool {
    of(what, &entry.whole()).map(|found| slot.put(found)).is_some()
}

/// A completion of a known queue that is not plain.
#[inline(always)]
fn other(qp: &QpQueues, cqe: &Cqe64) -> Option<Completion> {
    match cqe.opcode() {
        CqeOpcode::Req => Some(sent(qp, cqe)),
        CqeOpcode::RespSend | CqeOpcode::RespSendImm | CqeOpcode::RespSendInv | CqeOpcode::RespWrImm => {
            if cqe.cqe_format() != CqeFormat::Inline32 {
                return Some(scattered(qp, cqe));
            }
            let mut wc = message(cqe);
            (wc.wr_id, wc.status) = received_inline(qp, cqe);
            Some(wc)
        }
        _ => error(qp, cqe),
    }
}

/// The completion of a send that is not plain, or was never posted.
#[inline(never)]
fn sent(qp: &QpQueues, cqe: &Cqe64) -> Completion {
    let counter = cqe.wqe_counter();
    let mut wc = Completion { qpn: qp.qpn, byte_len: cqe.byte_cnt(), ..Completion::default() };
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
    wc
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

/// A received message: kind, length, and immediate data or invalidated key.
#[inline(always)]
fn message(cqe: &Cqe64) -> Completion {
    let mut wc = Completion {
        opcode: WcOpcode::Recv,
        byte_len: cqe.byte_cnt(),
        qpn: cqe.qpn().0,
        ..Completion::default()
    };
    match cqe.opcode() {
        CqeOpcode::RespSend => return wc,
        CqeOpcode::RespSendInv => wc.flags = WcFlags::WITH_INV,
        imm => {
            wc.flags = WcFlags::WITH_IMM;
            if imm == CqeOpcode::RespWrImm {
                wc.opcode = WcOpcode::RecvRdmaWithImm;
            }
        }
    }
    wc.imm_or_inv = cqe.imm_inval_pkey();
    wc
}

/// The source of a message. A message inline in the CQE occupies the same bytes.
#[inline(always)]
fn addresses(cqe: &Cqe64, wc: &mut Completion) {
    wc.src_qp = cqe.rqpn().0;
    if cqe.grh() != 0 {
        wc.flags |= WcFlags::GRH;
    }
}

/// Completes a receive of a shared queue.
#[inline(never)]
fn from_shared(srq: Option<&SharedReceives>, cqe: &Cqe64) -> (u64, WcStatus) {
    let inline = cqe.cqe_format() == CqeFormat::Inline32;
    let bytes = cqe.as_bytes().get(..cqe.byte_cnt() as usize).filter(|b| b.len() <= INLINE_32);
    let given = if inline { Some(bytes.unwrap_or_default()) } else { None };
    match srq.and_then(|srq| srq.complete(cqe.wqe_counter(), given)) {
        Some((wr_id, fits)) if !fits || inline && bytes.is_none() => (wr_id, WcStatus::LocProtErr),
        Some((wr_id, _)) => (wr_id, WcStatus::Success),
        None => (0, WcStatus::GeneralErr),
    }
}

/// The completion of a CQE that names its queue by user index: a receive by an XRC target QP, with a CQE that names the
/// SRQ; a receive of a work queue; or a flushed receive of a raw packet QP, with the QP number as index.
#[cold]
fn by_index(table: &QpTable, cqe: &Cqe64) -> Option<Completion> {
    if is_spread(cqe) {
        let wq = table.wq(cqe)?;
        return Some(scattered(wq, cqe));
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
            let mut wc = message(cqe);
            wc.src_qp = cqe.rqpn().0;
            (wc.wr_id, wc.status) = from_shared(Some(srq), cqe);
            Some(wc)
        }
        _ => None,
    }
}

/// The source of a datagram. On RoCE the service level field holds the IP version, and is passed on unchanged: UCX is
/// used to rdma-core's mlx5, and reads from it which header precedes the payload.
#[inline]
fn source(cqe: &Cqe64, wc: &mut Completion) {
    (wc.slid, wc.path_bits, wc.sl) = (cqe.slid(), cqe.ml_path(), cqe.sl());
}

/// The flag for a frame with checksums verified by the device, which implies IPv4 with TCP or UDP.
#[inline]
fn checked(cqe: &Cqe64, wc: &mut Completion) {
    const BOTH: u8 = eth::L3_OK | eth::L4_OK;
    if cqe.hds_ip_ext() & BOTH == BOTH && cqe.l3_hdr_type() == eth::L3_IPV4 {
        wc.flags |= WcFlags::IP_CSUM;
    }
}

/// The completion of a receive with a message that the device has scattered.
#[inline(never)]
fn scattered(qp: &QpQueues, cqe: &Cqe64) -> Completion {
    let mut wc = Completion { qpn: qp.qpn, ..message(cqe) };
    addresses(cqe, &mut wc);
    match (qp.extended, qp.raw) {
        (true, false) => source(cqe, &mut wc),
        (true, true) => checked(cqe, &mut wc),
        (false, _) => {}
    }
    (wc.wr_id, wc.status) = match qp.rq.complete(cqe.wqe_counter()) {
        Some(wr_id) => (wr_id, WcStatus::Success),
        None => from_shared(qp.srq.as_deref(), cqe),
    };
    wc
}

/// Completes a receive with the message in the CQE, in place of the sender's addresses.
#[inline(always)]
fn received_inline(qp: &QpQueues, cqe: &Cqe64) -> (u64, WcStatus) {
    let Some(number) = qp.rq.number(cqe.wqe_counter()) else {
        return from_shared(qp.srq.as_deref(), cqe);
    };
    let bytes = cqe.as_bytes().get(..cqe.byte_cnt() as usize).filter(|b| b.len() <= INLINE_32);
    // Must precede the retirement of the entry, since a post may overwrite it afterwards.
    let fits = bytes.zip(qp.inbox.as_ref()).is_some_and(|(bytes, inbox)| inbox.put(number, bytes));
    (qp.rq.retire(number), if fits { WcStatus::Success } else { WcStatus::LocProtErr })
}

#[cfg(test)]
mod tests;
