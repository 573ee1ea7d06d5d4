//! From work requests to WQEs. Hot: no allocation, no system call.
//!
//! A work request is checked whole before the ring is touched. The order after that is the hardware's: WQE, doorbell
//! record, doorbell.

use crate::{
    dma::{DmaRing, copy_from_caller, few_from_caller},
    error::PostError,
    poll::RecvTracker,
    umr::Change,
    verbs::{Qp, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target},
};
use hwspec::{
    doorbell::{RCV_DBR, SND_DBR},
    handle::{Qpn, Srqn},
    wqe::*,
};
use sync::BiasedGuard;

/// Largest message that is sent, as `max_msg_sz` says.
const MAX_MESSAGE: u64 = 1 << 30;
/// Most that one segment of a receive takes (IBTA 9.7.6.1.4.1).
const MAX_RECEIVE: u64 = 1 << 31;

/// Producer side of a send queue.
pub struct SendQueue {
    pub ring: DmaRing,
    pub qpn: u32,
    pub service: Service,
    /// Next basic block; counts on, the ring takes it modulo its size.
    pub block: u32,
    /// Work requests posted.
    pub number: u32,
    pub max_wr: u32,
    pub max_sge: usize,
    pub max_inline: usize,
    pub signal_all: bool,
    /// The last WQE changed a key: the next one waits for it.
    pub small_fence: bool,
    /// Room in which inline data are put together: the segment of `max_inline` bytes.
    pub scratch: Box<[u8]>,
}

/// Producer side of a receive queue.
pub struct RecvQueue {
    pub ring: DmaRing,
    /// Work requests posted.
    pub number: u32,
    pub max_wr: u32,
    pub max_sge: usize,
    /// Segments in one entry.
    pub segments: usize,
}

impl SendQueue {
    /// Room for inline segments of up to `max_inline` bytes.
    pub fn scratch(max_inline: usize) -> Box<[u8]> {
        vec![0; InlineSeg::span(max_inline)].into_boxed_slice()
    }

    /// Starts over (the QP is reset).
    pub fn reset(&mut self) {
        (self.block, self.number, self.small_fence) = (0, 0, false);
    }
}

/// What a work request becomes: opcode, immediate field of the control segment, remote address, and how the data are
/// given.
struct Plan {
    opcode: WqeOpcode,
    imm: u32,
    remote: Option<(u64, u32)>,
    atomic: Option<(u64, u64)>,
}

impl Plan {
    #[inline(always)]
    fn of(op: &SendOp) -> Self {
        match *op {
            SendOp::Send => Self::plain(WqeOpcode::Send, 0),
            SendOp::Write { raddr, rkey } => Self::rdma(WqeOpcode::RdmaWrite, 0, raddr, rkey),
            _ => Self::of_another(op),
        }
    }

    #[inline(always)]
    fn plain(opcode: WqeOpcode, imm: u32) -> Self {
        Self { opcode, imm, remote: None, atomic: None }
    }

    #[inline(always)]
    fn rdma(opcode: WqeOpcode, imm: u32, raddr: u64, rkey: u32) -> Self {
        Self { opcode, imm, remote: Some((raddr, rkey)), atomic: None }
    }

    /// [`of`](Self::of), which sees to the commonest itself.
    #[inline(never)]
    fn of_another(op: &SendOp) -> Self {
        let (plain, rdma) = (Self::plain, Self::rdma);
        match *op {
            SendOp::Send | SendOp::Write { .. } => Self::of(op),
            SendOp::SendImm(imm) => plain(WqeOpcode::SendImm, imm),
            SendOp::SendInv(rkey) => plain(WqeOpcode::SendInval, rkey),
            SendOp::WriteImm { raddr, rkey, imm } => rdma(WqeOpcode::RdmaWriteImm, imm, raddr, rkey),
            SendOp::Read { raddr, rkey } => rdma(WqeOpcode::RdmaRead, 0, raddr, rkey),
            SendOp::CmpSwap { raddr, rkey, compare, swap } => {
                Self { atomic: Some((swap, compare)), ..rdma(WqeOpcode::AtomicCs, 0, raddr, rkey) }
            }
            SendOp::FetchAdd { raddr, rkey, add } => {
                Self { atomic: Some((add, 0)), ..rdma(WqeOpcode::AtomicFa, 0, raddr, rkey) }
            }
            SendOp::LocalInv(key) | SendOp::BindMw { mw: key, .. } => plain(WqeOpcode::Umr, key),
        }
    }

    /// Whether a service has this operation (IBTA table 46).
    fn fits(&self, service: Service) -> bool {
        let sends = matches!(self.opcode, WqeOpcode::Send | WqeOpcode::SendImm);
        let writes = matches!(self.opcode, WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm);
        match service {
            Service::Rc | Service::XrcIni => true,
            Service::Uc => sends || writes || self.opcode == WqeOpcode::Umr,
            Service::Ud | Service::Gsi => sends,
            Service::RawPacket => self.opcode == WqeOpcode::Send,
            Service::Keys => self.opcode == WqeOpcode::Umr,
            Service::XrcTgt => false,
        }
    }

    /// Whether data may be given inline.
    #[inline(always)]
    fn takes_inline(&self) -> bool {
        !matches!(self.opcode, WqeOpcode::RdmaRead | WqeOpcode::Umr) && self.atomic.is_none()
    }
}

/// Send work requests in the making: nothing is visible to the device before [`SendBatch::commit`]. Holds the send
/// queue's lock; dropping it forgets them.
pub struct SendBatch<'a> {
    qp: &'a Qp,
    queue: BiasedGuard<'a, SendQueue>,
    begin: (u32, u32, bool),
    /// First 8 bytes of the last control segment: what the doorbell carries.
    bell: u64,
}

impl<'a> SendBatch<'a> {
    #[inline]
    pub(crate) fn new(qp: &'a Qp) -> Self {
        let queue = qp.sq.lock_biased();
        let begin = (queue.block, queue.number, queue.small_fence);
        Self { qp, queue, begin, bell: 0 }
    }

    /// Adds one work request; those before it stay in the batch if it is refused. EINVAL: not valid for this QP or its
    /// state; ENOMEM: the queue is full.
    #[inline]
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        match self.queue.service {
            Service::Rc => match wr.op {
                SendOp::LocalInv(_) | SendOp::BindMw { .. } => self.push_to(wr, &Target::Peer),
                _ => self.build(wr, Plan::of(&wr.op), &[]),
            },
            _ => self.push_to(wr, &Target::Peer),
        }
    }

    /// As [`SendBatch::push`], for services whose work requests say whom they are for.
    pub fn push_to(&mut self, wr: &SendWr<'_>, target: &Target<'_>) -> Result<(), i32> {
        let plan = Plan::of(&wr.op);
        let service = self.queue.service;
        if !plan.fits(service) {
            return Err(libc::EINVAL);
        }
        if plan.opcode == WqeOpcode::Umr {
            return self.change_of(wr, plan);
        }
        let checksums = wr.flags.contains(SendFlags::IP_CSUM);
        if checksums && !(service == Service::RawPacket && self.qp.pd.device().attr().raw_checksums) {
            return Err(libc::EINVAL);
        }
        match (service, *target) {
            (Service::Rc | Service::Uc, Target::Peer) => self.build(wr, plan, &[]),
            (Service::Ud | Service::Gsi, Target::Datagram { ah, qpn, qkey }) => {
                let vector = ah.vector(qpn, qkey);
                let [a, b, c] = [0, 16, 32].map(|at| hwspec::layout::prefix(&vector.as_bytes()[at..]));
                self.build(wr, plan, &[a, b, c])
            }
            // Headers are not inline.
            (Service::RawPacket, Target::Peer) => {
                let mut segment = EthSeg::zeroed();
                segment.set().l3_csum(checksums).l4_csum(checksums);
                self.build(wr, plan, &[*segment.as_bytes()])
            }
            (Service::XrcIni, Target::Srq(srqn)) => {
                let mut segment = XrcSeg::zeroed();
                segment.set().xrc_srqn(Srqn(srqn & 0xff_ffff));
                self.build(wr, plan, &[*segment.as_bytes()])
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// A work request that changes a key.
    #[cold]
    fn change_of(&mut self, wr: &SendWr<'_>, plan: Plan) -> Result<(), i32> {
        let change = match wr.op {
            SendOp::BindMw { variant, tied, lkey, addr, len, access, .. } => {
                Change::bind(variant, tied.then_some(self.queue.qpn), (lkey, addr, len), access)
            }
            _ => Change::invalidate(plan.imm),
        };
        self.put_change(wr, plan, &change)
    }

    fn put_change(&mut self, wr: &SendWr<'_>, plan: Plan, change: &Change) -> Result<(), i32> {
        let block = self.queue.block;
        let mut head = [[0; WQE_DS]; Change::SEGMENTS];
        let mut count = 0;
        for (to, segment) in head.iter_mut().zip(change.segments()) {
            *to = segment;
            count += 1;
        }
        self.build(wr, plan, &head[..count])?;
        self.qp.queues.sq.mark(block, matches!(wr.op, SendOp::BindMw { .. }));
        Ok(())
    }

    /// Adds a change of key `key`: for the driver's own queue.
    pub(crate) fn change(&mut self, key: u32, change: &Change) -> Result<(), i32> {
        let wr = SendWr { wr_id: 0, op: SendOp::LocalInv(key), sge: &[], flags: SendFlags::SIGNALED };
        self.put_change(&wr, Plan::of(&wr.op), change)
    }

    /// Checks and writes the WQE; `head` are the segments between control and remote address.
    #[inline(always)]
    fn build(&mut self, wr: &SendWr<'_>, plan: Plan, head: &[[u8; WQE_DS]]) -> Result<(), i32> {
        if !self.qp.may_send() {
            return Err(libc::EINVAL);
        }
        let queue = &mut *self.queue;

        // Check.
        let inline = wr.flags.contains(SendFlags::INLINE);
        let (bytes, data_segments) = measure(queue, wr.sge, inline)?;
        let invalidate = plan.opcode == WqeOpcode::Umr;
        if inline && !plan.takes_inline()
            || plan.atomic.is_some() && (bytes != 8 || data_segments != 1)
            || invalidate && data_segments != 0
        {
            return Err(libc::EINVAL);
        }
        let segments = 1
            + head.len()
            + usize::from(plan.remote.is_some())
            + usize::from(plan.atomic.is_some())
            + data_segments;
        let blocks = segments.div_ceil(DS_PER_BB) as u32;
        let (done, blocks_done) = self.qp.queues.sq.done();
        if queue.number.wrapping_sub(done) >= queue.max_wr
            || queue.block.wrapping_sub(blocks_done) + blocks > queue.ring.entries()
        {
            return Err(libc::ENOMEM);
        }

        // Build.
        let start = queue.block;
        let signaled = queue.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        let fence = match (wr.flags.contains(SendFlags::FENCE), queue.small_fence) {
            (false, false) => FenceMode::None,
            (false, true) => FenceMode::InitiatorSmall,
            (true, false) => FenceMode::Fence,
            (true, true) => FenceMode::SmallAndFence,
        };
        queue.small_fence = invalidate;
        let mut ctrl = CtrlSeg::zeroed();
        ctrl.set()
            .wqe_idx(start as u16)
            .opcode(plan.opcode)
            .qpn(Qpn(queue.qpn))
            .ds(segments as u8)
            .fm(fence)
            .ce(if signaled { CqeMode::Always } else { CqeMode::OnError })
            .se(wr.flags.contains(SendFlags::SOLICITED))
            .imm(plan.imm);
        self.bell = u64::from_be_bytes(hwspec::layout::prefix(ctrl.as_bytes()));
        let mut writer = Writer { ring: &queue.ring, block: start, segment: 0 };
        writer.put(ctrl.as_bytes());
        head.iter().for_each(|segment| writer.put(segment));
        if let Some((raddr, rkey)) = plan.remote {
            writer.remote(raddr, rkey, plan.atomic);
        }
        match inline {
            true => writer.inline(&mut queue.scratch, wr.sge, bytes as usize),
            false => wr.sge.iter().filter(|sge| sge.length != 0).for_each(|sge| writer.data(sge)),
        }
        queue.block = start.wrapping_add(blocks);
        self.qp.queues.sq.put(start, wr.wr_id, queue.number, queue.block);
        queue.number = queue.number.wrapping_add(1);
        Ok(())
    }

    /// Rings the doorbell, once for all.
    #[inline]
    pub fn commit(mut self) {
        self.flush();
    }

    /// As [`commit`](Self::commit): what is pushed from here on is the next batch.
    #[inline]
    pub fn flush(&mut self) {
        let (block, number) = (self.queue.block, self.queue.number);
        if number != self.begin.1 {
            self.begin = (block, number, self.queue.small_fence);
            self.qp.queues.sq.publish(number);
            self.qp.ring_send(block, self.bell);
        }
    }

    /// Forgets all of the batch.
    pub fn abort(self) {}
}

impl Drop for SendBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        (self.queue.block, self.queue.number, self.queue.small_fence) = self.begin;
    }
}

/// Total bytes and number of 16-byte segments of a work request's data.
#[inline(always)]
fn measure(queue: &SendQueue, list: &[Sge], inline: bool) -> Result<(u64, usize), i32> {
    let (bytes, pieces) = match list {
        [one] => (one.length.into(), usize::from(one.length != 0)),
        _ => sums(list),
    };
    if inline {
        if bytes > queue.max_inline as u64 {
            return Err(libc::EINVAL);
        }
        let segments = if bytes == 0 { 0 } else { InlineSeg::span(bytes as usize) / WQE_DS };
        return Ok((bytes, segments));
    }
    if bytes > MAX_MESSAGE || list.len() > queue.max_sge {
        return Err(libc::EINVAL);
    }
    Ok((bytes, pieces))
}

/// Bytes, and pieces that are not empty.
#[inline(never)]
fn sums(list: &[Sge]) -> (u64, usize) {
    list.iter().fold((0, 0), |(bytes, pieces), sge| {
        (bytes + u64::from(sge.length), pieces + usize::from(sge.length != 0))
    })
}

/// Writes segments one after the other, around the end of the ring.
struct Writer<'a> {
    ring: &'a DmaRing,
    block: u32,
    segment: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8; 16]) {
        self.ring.put_segment(self.block, self.segment, bytes);
        self.segment += 1;
        if self.segment == DS_PER_BB {
            self.segment = 0;
            self.block = self.block.wrapping_add(1);
        }
    }

    /// What an operation on the peer's memory is told: where, and the operands of an atomic.
    #[inline(never)]
    fn remote(&mut self, raddr: u64, rkey: u32, atomic: Option<(u64, u64)>) {
        let mut segment = RaddrSeg::zeroed();
        segment.set().raddr(raddr).rkey(rkey);
        self.put(segment.as_bytes());
        if let Some((swap_add, compare)) = atomic {
            let mut segment = AtomicSeg::zeroed();
            segment.set().swap_add(swap_add).compare(compare);
            self.put(segment.as_bytes());
        }
    }

    #[inline(always)]
    fn data(&mut self, sge: &Sge) {
        self.put(data_segment(sge).as_bytes());
    }

    /// The data themselves, behind a 4-byte head, padded with zeros.
    #[inline(always)]
    fn inline(&mut self, scratch: &mut [u8], list: &[Sge], bytes: usize) {
        if bytes == 0 {
            return;
        }
        let head = InlineSeg::SIZE;
        if let ([one], true) = (list, bytes + head <= WQE_DS) {
            let first = u32::from_le_bytes(*InlineSeg::new(bytes as u16).as_bytes());
            let segment = u128::from(first) | few_from_caller(one.addr, bytes) << (8 * head);
            return self.put(&segment.to_le_bytes());
        }
        self.long_inline(scratch, list, bytes);
    }

    #[inline(never)]
    fn long_inline(&mut self, scratch: &mut [u8], list: &[Sge], bytes: usize) {
        let head = InlineSeg::SIZE;
        let span = InlineSeg::span(bytes);
        scratch[..head].copy_from_slice(InlineSeg::new(bytes as u16).as_bytes());
        let mut at = head;
        for sge in list {
            let to = at + sge.length as usize;
            copy_from_caller(sge.addr, &mut scratch[at..to]);
            at = to;
        }
        scratch[at..span].fill(0);
        for segment in scratch[..span].chunks_exact(WQE_DS) {
            self.put(&hwspec::layout::prefix(segment));
        }
    }
}

#[inline(always)]
pub(crate) fn data_segment(sge: &Sge) -> DataSeg {
    let mut segment = DataSeg::zeroed();
    segment.set().byte_count(sge.length & !INLINE_BIT).lkey(sge.lkey).addr(sge.addr);
    segment
}

impl Qp {
    /// Posts in order, one doorbell for all. On an error those before it are posted.
    #[inline]
    pub fn post_send<'w>(&self, wrs: impl IntoIterator<Item = SendWr<'w>>) -> Result<(), PostError> {
        let mut batch = SendBatch::new(self);
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(errno) = batch.push(&wr) {
                result = Err(PostError { index, errno });
                break;
            }
        }
        batch.commit();
        result
    }

    /// As [`Qp::post_send`], for services whose work requests say whom they are for.
    pub fn post_send_to<'w, 't>(
        &self,
        wrs: impl IntoIterator<Item = (SendWr<'w>, Target<'t>)>,
    ) -> Result<(), PostError> {
        let mut batch = SendBatch::new(self);
        let mut result = Ok(());
        for (index, (wr, target)) in wrs.into_iter().enumerate() {
            if let Err(errno) = batch.push_to(&wr, &target) {
                result = Err(PostError { index, errno });
                break;
            }
        }
        batch.commit();
        result
    }

    /// Begins a batch (`ibv_wr_start`).
    #[inline]
    pub fn begin(&self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// The doorbell record, then the doorbell.
    #[inline(always)]
    fn ring_send(&self, block: u32, bell: u64) {
        self.record(SND_DBR, block & 0xffff);
        self.bar.doorbell(self.doorbell, bell);
    }

    /// Posts receives in order. On an error those before it are posted.
    #[inline]
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item = RecvWr<'w>>) -> Result<(), PostError> {
        let mut queue = self.rq.lock_biased();
        let begin = queue.number;
        let mut result = Ok(());
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(errno) = self.receive(&mut queue, &wr) {
                result = Err(PostError { index, errno });
                break;
            }
        }
        if queue.number != begin {
            self.queues.rq.publish(queue.number);
            self.record(RCV_DBR, queue.number & 0xffff);
        }
        result
    }

    #[inline(always)]
    fn receive(&self, queue: &mut RecvQueue, wr: &RecvWr<'_>) -> Result<(), i32> {
        if !self.may_receive() {
            return Err(libc::EINVAL);
        }
        queue.put(&self.queues.rq, wr)
    }
}

impl RecvQueue {
    /// Writes a receive behind those posted, and notes it for who polls. EINVAL: pieces that the queue cannot have;
    /// ENOMEM: it is full.
    #[inline(always)]
    pub fn put(&mut self, tracker: &RecvTracker, wr: &RecvWr<'_>) -> Result<(), i32> {
        if wr.sge.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        if self.number.wrapping_sub(tracker.done()) >= self.max_wr {
            // Without a receive queue of its own a QP takes none here.
            return Err(if self.max_wr == 0 { libc::EINVAL } else { libc::ENOMEM });
        }
        let mut segment = 0;
        for sge in wr.sge.iter().filter(|sge| sge.length != 0) {
            if u64::from(sge.length) > MAX_RECEIVE {
                return Err(libc::EINVAL);
            }
            self.ring.put_segment(self.number, segment, data_segment(sge).as_bytes());
            segment += 1;
        }
        if segment < self.segments {
            let mut end = DataSeg::zeroed();
            end.set().lkey(INVALID_LKEY);
            self.ring.put_segment(self.number, segment, end.as_bytes());
        }
        tracker.put(self.number, wr.wr_id);
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}
