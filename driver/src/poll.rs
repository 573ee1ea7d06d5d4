//! From CQEs to work completions. Hot: no allocation, no system call.

use crate::{
    inline::Inbox,
    shared_receive::SharedReceives,
    verbs::{Completion, WcFlags, WcOpcode, WcStatus},
};
use hwspec::{
    cqe::{Cqe64, CqeFormat, CqeOpcode, CqeSyndrome, INLINE_32, eth},
    wqe::WqeOpcode,
};
use std::sync::{
    Arc,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// What a QP keeps of posted work requests, for whoever polls. Written by posts (under the queue's lock) before the
/// doorbell, read by polls (under the CQ's lock) after the CQE.
pub struct QpQueues {
    pub qpn: u32,
    /// Whether completions say more than what came: from whom, as messages come from whoever knows the number; or of raw
    /// packets, what was found right.
    pub tells_more: bool,
    /// Whether it is of raw packets, two queues on the device.
    pub raw: bool,
    pub sq: SendTracker,
    pub rq: RecvTracker,
    /// Where the receives point, for messages that come in the CQE.
    pub inbox: Option<Inbox>,
    /// Where they come from, if not from an own queue.
    pub srq: Option<Arc<SharedReceives>>,
}

/// Send work requests under way.
pub struct SendTracker {
    /// By first basic block: the caller's id, and `number << 32 | first basic block behind it`.
    slots: Box<[(AtomicU64, AtomicU64)]>,
    mask: u32,
    /// Work requests posted.
    head: AtomicU32,
    /// `work requests done << 32 | basic blocks done`.
    tail: AtomicU64,
}

impl SendTracker {
    /// For a ring of `blocks` basic blocks (a power of two; 0: no send queue).
    pub fn new(blocks: u32) -> Self {
        let slots = (0..blocks.max(1)).map(|_| Default::default()).collect();
        Self { slots, mask: blocks.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU64::new(0) }
    }

    /// Writes down a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, block: u32, wr_id: u64, number: u32, end: u32) {
        let slot = &self.slots[(block & self.mask) as usize];
        slot.0.store(wr_id, Relaxed);
        slot.1.store(u64::from(number) << 32 | u64::from(end), Relaxed);
    }

    /// Notes that the work request at `block`, of several blocks, binds a memory window, or does not: the device's
    /// completion tells changes of keys not apart.
    pub fn mark(&self, block: u32, binds: bool) {
        self.slots[(block.wrapping_add(1) & self.mask) as usize].0.store(binds.into(), Relaxed);
    }

    /// What a change of a key was, of the work request whose completion names block `counter`.
    #[cold]
    fn change(&self, counter: u16) -> WcOpcode {
        let slot = (u32::from(counter).wrapping_add(1) & self.mask) as usize;
        if self.slots[slot].0.load(Relaxed) == 0 { WcOpcode::LocalInv } else { WcOpcode::BindMw }
    }

    /// Makes all up to `head` count.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Work requests and basic blocks done.
    #[inline(always)]
    pub fn done(&self) -> (u32, u32) {
        let tail = self.tail.load(Acquire);
        ((tail >> 32) as u32, tail as u32)
    }

    /// The work request at basic block `counter` is done, and all before it. `None` if nothing is under way there.
    #[inline(always)]
    fn complete(&self, counter: u16) -> Option<u64> {
        let slot = &self.slots[(u32::from(counter) & self.mask) as usize];
        let meta = slot.1.load(Relaxed);
        let (number, tail) = ((meta >> 32) as u32, (self.tail.load(Relaxed) >> 32) as u32);
        if number.wrapping_sub(tail) >= self.head.load(Acquire).wrapping_sub(tail) {
            return None;
        }
        let wr_id = slot.0.load(Relaxed);
        self.tail.store(u64::from(number.wrapping_add(1)) << 32 | meta & 0xffff_ffff, Release);
        Some(wr_id)
    }

    /// Forgets everything (the QP is reset).
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
    }
}

/// Receive work requests under way.
pub struct RecvTracker {
    wr_ids: Box<[AtomicU64]>,
    mask: u32,
    head: AtomicU32,
    tail: AtomicU32,
}

impl RecvTracker {
    /// For a ring of `entries` (a power of two; 0: no receive queue).
    pub fn new(entries: u32) -> Self {
        let wr_ids = (0..entries.max(1)).map(|_| AtomicU64::new(0)).collect();
        Self { wr_ids, mask: entries.max(1) - 1, head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }

    /// Writes down a work request before the device can see it.
    #[inline(always)]
    pub fn put(&self, number: u32, wr_id: u64) {
        self.wr_ids[(number & self.mask) as usize].store(wr_id, Relaxed);
    }

    /// Makes all up to `head` count.
    #[inline(always)]
    pub fn publish(&self, head: u32) {
        self.head.store(head, Release);
    }

    /// Work requests done.
    #[inline(always)]
    pub fn done(&self) -> u32 {
        self.tail.load(Acquire)
    }

    /// The receive that `counter` names, if it is under way.
    #[inline(always)]
    fn number(&self, counter: u16) -> Option<u32> {
        let tail = self.tail.load(Relaxed);
        let ahead = u32::from(counter.wrapping_sub(tail as u16));
        (ahead < self.head.load(Acquire).wrapping_sub(tail)).then_some(tail.wrapping_add(ahead))
    }

    /// Receive `number` is done, and all before it: its entry may be used again.
    #[inline(always)]
    fn retire(&self, number: u32) -> u64 {
        let wr_id = self.wr_ids[(number & self.mask) as usize].load(Relaxed);
        self.tail.store(number.wrapping_add(1), Release);
        wr_id
    }

    #[inline(always)]
    fn complete(&self, counter: u16) -> Option<u64> {
        Some(self.retire(self.number(counter)?))
    }

    /// Forgets everything (the QP is reset).
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Release);
    }
}

/// QP number to queues in three steps of 8 bits, without hashing. Small for few QPs, whatever their numbers.
#[derive(Default)]
pub struct QpTable {
    root: Vec<Option<Box<Branch>>>,
    /// SRQs of XRC: their receives complete here whatever target QP they came by.
    srqs: Vec<Arc<SharedReceives>>,
    /// Work queues by user index: frames that were spread by a hash name them by nothing else.
    wqs: Vec<WqSlot>,
}

/// A user index of work queues.
#[derive(Default)]
enum WqSlot {
    #[default]
    Free,
    /// The queue is being created.
    Claimed,
    Taken(Arc<QpQueues>),
}

type Branch = [Option<Box<Leaf>>; 256];
type Leaf = [Option<Arc<QpQueues>>; 256];

/// Positions in root, branch and leaf.
#[inline(always)]
fn steps(qpn: u32) -> [usize; 3] {
    [qpn >> 16 & 0xff, qpn >> 8 & 0xff, qpn & 0xff].map(|step| step as usize)
}

impl QpTable {
    /// The queues of `qpn`.
    #[inline(always)]
    pub fn get(&self, qpn: u32) -> Option<&Arc<QpQueues>> {
        let [root, branch, leaf] = steps(qpn);
        self.root.get(root)?.as_ref()?[branch].as_ref()?[leaf].as_ref()
    }

    /// The SRQ of XRC `srqn`.
    pub fn srq(&self, srqn: u32) -> Option<&Arc<SharedReceives>> {
        self.srqs.iter().find(|srq| srq.srqn == srqn)
    }

    /// Enters an SRQ of XRC.
    pub fn insert_srq(&mut self, srq: Arc<SharedReceives>) {
        self.srqs.push(srq);
    }

    /// Removes an SRQ of XRC.
    pub fn remove_srq(&mut self, srqn: u32) {
        self.srqs.retain(|srq| srq.srqn != srqn);
    }

    /// A user index for a work queue that is about to be created.
    pub fn claim_wq(&mut self) -> u32 {
        let free = self.wqs.iter().position(|slot| matches!(slot, WqSlot::Free));
        let index = free.unwrap_or(self.wqs.len());
        if index == self.wqs.len() {
            self.wqs.push(WqSlot::Free);
        }
        self.wqs[index] = WqSlot::Claimed;
        index as u32
    }

    /// Enters a work queue, under its number too: its failed receives name that.
    pub fn insert_wq(&mut self, index: u32, wq: Arc<QpQueues>) {
        if let Some(slot) = self.wqs.get_mut(index as usize) {
            *slot = WqSlot::Taken(wq.clone());
            self.insert(wq);
        }
    }

    /// Gives a user index back, and removes the work queue that has it.
    pub fn remove_wq(&mut self, index: u32) {
        let slot = self.wqs.get_mut(index as usize).map(std::mem::take);
        if let Some(WqSlot::Taken(wq)) = slot {
            self.remove(wq.qpn);
        }
        while matches!(self.wqs.last(), Some(WqSlot::Free)) {
            self.wqs.pop();
        }
    }

    /// The work queue that a CQE names by its user index, if it is of a frame that a hash spread.
    fn wq(&self, cqe: &Cqe64) -> Option<&QpQueues> {
        match self.wqs.get((cqe.srqn_uidx() & 0xff_ffff) as usize) {
            Some(WqSlot::Taken(wq)) if is_spread(cqe) => Some(wq),
            _ => None,
        }
    }

    /// The shared queue whose receive a CQE completes: that of its QP, or the one it names itself (XRC).
    pub fn shared(&self, cqe: &Cqe64) -> Option<&Arc<SharedReceives>> {
        match self.get(cqe.qpn().0) {
            Some(qp) => qp.srq.as_ref(),
            None if is_spread(cqe) => None,
            None => self.srq(cqe.srqn_uidx() & 0xff_ffff),
        }
    }

    /// Enters a QP. Its number has 24 bits.
    pub fn insert(&mut self, qp: Arc<QpQueues>) {
        let [root, branch, leaf] = steps(qp.qpn);
        if self.root.len() <= root {
            self.root.resize_with(root + 1, || None);
        }
        let branches = self.root[root].get_or_insert_with(|| Box::new([const { None }; 256]));
        let leaves = branches[branch].get_or_insert_with(|| Box::new([const { None }; 256]));
        leaves[leaf] = Some(qp);
    }

    /// Removes a QP, and what is empty without it.
    pub fn remove(&mut self, qpn: u32) {
        let [root, branch, leaf] = steps(qpn);
        let Some(Some(branches)) = self.root.get_mut(root) else { return };
        let Some(leaves) = &mut branches[branch] else { return };
        leaves[leaf] = None;
        if leaves.iter().all(Option::is_none) {
            branches[branch] = None;
            if branches.iter().all(Option::is_none) {
                self.root[root] = None;
            }
        }
        while self.root.last().is_some_and(Option::is_none) {
            self.root.pop();
        }
    }
}

/// Whether a CQE is of a frame that a hash spread over work queues: flows to these have no tag, which is what the CQE has in
/// the place of a QP number; and no QP has number 0.
pub fn is_spread(cqe: &Cqe64) -> bool {
    cqe.qpn().0 == 0 && cqe.opcode() == CqeOpcode::RespSend
}

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

/// A completion of a work request nobody posted is the device's error; the caller hears of it.
fn known(mut wc: Completion, wr_id: Option<u64>) -> Completion {
    match wr_id {
        Some(wr_id) => wc.wr_id = wr_id,
        None => wc.status = WcStatus::GeneralErr,
    }
    wc
}

#[inline(always)]
fn send_opcode(sop: u8) -> WcOpcode {
    match WqeOpcode::from_raw(sop) {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::AtomicCs | WqeOpcode::AtomicMaskedCs => WcOpcode::CompSwap,
        WqeOpcode::AtomicFa | WqeOpcode::AtomicMaskedFa => WcOpcode::FetchAdd,
        WqeOpcode::Umr | WqeOpcode::LocalInval => WcOpcode::LocalInv,
        WqeOpcode::BindMw => WcOpcode::BindMw,
        _ => WcOpcode::Send,
    }
}

#[cold]
#[inline(never)]
fn failed(cqe: &Cqe64, wr_id: Option<u64>) -> Completion {
    let error = cqe.as_error();
    let sent = cqe.opcode() == CqeOpcode::ReqErr;
    let status = match error.syndrome() {
        CqeSyndrome::LocalLengthErr => WcStatus::LocLenErr,
        CqeSyndrome::LocalQpOpErr => WcStatus::LocQpOpErr,
        CqeSyndrome::LocalProtErr => WcStatus::LocProtErr,
        CqeSyndrome::WrFlushErr => WcStatus::WrFlushErr,
        CqeSyndrome::MwBindErr => WcStatus::MwBindErr,
        CqeSyndrome::BadRespErr => WcStatus::BadRespErr,
        CqeSyndrome::LocalAccessErr => WcStatus::LocAccessErr,
        CqeSyndrome::RemoteInvalReqErr => WcStatus::RemInvReqErr,
        CqeSyndrome::RemoteAccessErr => WcStatus::RemAccessErr,
        CqeSyndrome::RemoteOpErr => WcStatus::RemOpErr,
        CqeSyndrome::TransportRetryExcErr => WcStatus::RetryExcErr,
        CqeSyndrome::RnrRetryExcErr => WcStatus::RnrRetryExcErr,
        CqeSyndrome::RemoteAbortedErr => WcStatus::RemAbortErr,
        _ => WcStatus::GeneralErr,
    };
    let wc = Completion {
        status,
        opcode: if sent { send_opcode(error.s_wqe_opcode()) } else { WcOpcode::Recv },
        vendor_err: error.vendor_err_synd().into(),
        qpn: cqe.qpn().0,
        ..Completion::default()
    };
    known(wc, wr_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hwspec::handle::Qpn;

    fn convert(table: &QpTable, cqe: &Cqe64) -> Option<Completion> {
        let mut wc = Completion::default();
        super::convert(table, cqe, &mut wc).then_some(wc)
    }

    fn queues(qpn: u32) -> Arc<QpQueues> {
        Arc::new(QpQueues {
            qpn,
            tells_more: false,
            raw: false,
            sq: SendTracker::new(8),
            rq: RecvTracker::new(4),
            inbox: None,
            srq: None,
        })
    }

    fn cqe(opcode: CqeOpcode, qpn: u32, counter: u16) -> Cqe64 {
        let mut cqe = Cqe64::zeroed();
        cqe.set()
            .opcode(opcode)
            .qpn(Qpn(qpn))
            .wqe_counter(counter)
            .sop(WqeOpcode::RdmaRead.raw())
            .byte_cnt(9);
        cqe
    }

    #[test]
    fn completion_finds_its_work_request_and_retires_those_before() {
        let mut table = QpTable::default();
        let qp = queues(0x12345);
        table.insert(qp.clone());
        qp.sq.put(0, 100, 0, 2);
        qp.sq.put(2, 101, 1, 3);
        qp.sq.publish(2);
        let wc = convert(&table, &cqe(CqeOpcode::Req, 0x12345, 2)).unwrap();
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode, wc.byte_len),
            (101, WcStatus::Success, WcOpcode::RdmaRead, 9)
        );
        assert_eq!(qp.sq.done(), (2, 3));
    }

    #[test]
    fn unknown_qp_is_skipped() {
        let mut table = QpTable::default();
        table.insert(queues(7));
        for qpn in [0, 8, 0xff_ffff] {
            assert_eq!(convert(&table, &cqe(CqeOpcode::Req, qpn, 0)), None);
        }
    }

    #[test]
    fn counters_nobody_posted_are_errors_and_move_nothing() {
        let mut table = QpTable::default();
        let qp = queues(7);
        table.insert(qp.clone());
        for counter in [0, 1, 7, 0xffff] {
            for opcode in [CqeOpcode::Req, CqeOpcode::RespSend, CqeOpcode::RespErr] {
                let wc = convert(&table, &cqe(opcode, 7, counter)).unwrap();
                assert_eq!(wc.status, WcStatus::GeneralErr);
            }
        }
        assert_eq!((qp.sq.done(), qp.rq.done()), ((0, 0), 0));
    }

    #[test]
    fn a_frame_that_a_hash_spread_finds_its_work_queue_by_user_index() {
        let mut table = QpTable::default();
        let (first, second) = (queues(0xc0_0001), queues(0xc0_0002));
        assert_eq!((table.claim_wq(), table.claim_wq()), (0, 1));
        let mut frame = cqe(CqeOpcode::RespSend, 0, 0);
        frame.set().srqn_uidx(1);
        assert_eq!(convert(&table, &frame), None, "claimed, and not there yet");
        table.insert_wq(0, first);
        table.insert_wq(1, second.clone());
        second.rq.put(0, 77);
        second.rq.publish(1);
        let wc = convert(&table, &frame).unwrap();
        assert_eq!((wc.wr_id, wc.qpn, wc.status, wc.byte_len), (77, 0xc0_0002, WcStatus::Success, 9));
        frame.set().srqn_uidx(2);
        assert_eq!(convert(&table, &frame), None, "nobody's");
        table.remove_wq(0);
        assert!(table.get(0xc0_0001).is_none() && table.get(0xc0_0002).is_some());
        assert_eq!(table.claim_wq(), 0, "given again");
        table.remove_wq(1);
        table.remove_wq(0);
        assert!(table.wqs.is_empty() && table.root.is_empty());
    }

    #[test]
    fn unknown_opcodes_are_skipped() {
        let mut table = QpTable::default();
        table.insert(queues(7));
        for raw in [5, 6, 7, 9, 12, 15] {
            assert_eq!(convert(&table, &cqe(CqeOpcode::from_raw(raw), 7, 0)), None);
        }
    }

    #[test]
    fn receive_counters_wrap_at_sixteen_bits() {
        let tracker = RecvTracker::new(4);
        for number in 0..70_000u32 {
            tracker.put(number, number.into());
            tracker.publish(number + 1);
            assert_eq!(tracker.complete(number as u16), Some(number.into()));
        }
        assert_eq!(tracker.complete(70_000u32 as u16), None);
    }

    #[test]
    fn error_cqe_says_why() {
        let mut table = QpTable::default();
        let qp = queues(7);
        table.insert(qp.clone());
        qp.sq.put(0, 5, 0, 1);
        qp.sq.publish(1);
        let mut error = hwspec::cqe::CqeError::zeroed();
        error
            .set()
            .opcode(CqeOpcode::ReqErr)
            .qpn(Qpn(7))
            .syndrome(CqeSyndrome::RemoteAccessErr)
            .vendor_err_synd(0x88);
        let wc = convert(&table, &Cqe64::from_bytes(*error.as_bytes())).unwrap();
        assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (5, WcStatus::RemAccessErr, 0x88));
    }

    #[test]
    fn inline_data_for_a_receive_that_cannot_hold_them_is_an_error() {
        let mut table = QpTable::default();
        let qp = queues(7);
        table.insert(qp.clone());
        qp.rq.put(0, 42);
        qp.rq.publish(1);
        let mut short = cqe(CqeOpcode::RespSend, 7, 0);
        short.set().cqe_format(CqeFormat::Inline32);
        let wc = convert(&table, &short).unwrap();
        assert_eq!((wc.wr_id, wc.status), (42, WcStatus::LocProtErr));
        assert_eq!(qp.rq.done(), 1);
    }

    #[test]
    fn table_shrinks_when_qps_go() {
        let mut table = QpTable::default();
        table.insert(queues(3));
        table.insert(queues(0xff_0003));
        assert!(table.get(0xff_0003).is_some());
        table.remove(0xff_0003);
        table.remove(0x9_0000);
        assert_eq!(table.root.len(), 1);
        assert!(table.get(3).is_some() && table.get(0xff_0003).is_none());
    }
}
