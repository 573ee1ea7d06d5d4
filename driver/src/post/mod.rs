//! Converts work requests to WQEs. Hot: no allocation, no system call.
//!
//! A work request is checked completely before the ring is touched. The order after that is the hardware's: WQE,
//! doorbell record, doorbell.

mod plan;
mod queues;
mod writer;

pub use queues::{RecvQueue, SendQueue};
use writer::{INLINE_IN_ONE, inline_segment};
pub(crate) use writer::{data_segment, in_order};

use crate::{
    error::PostError,
    umr::Change,
    verbs::{Qp, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target},
};
use hwspec::{
    doorbell::{RCV_DBR, SND_DBR},
    handle::{Qpn, Srqn},
    wqe::*,
};
use plan::Plan;
use queues::MAX_MESSAGE;
use std::sync::atomic::Ordering::Relaxed;
use sync::BiasedGuard;
use writer::Writer;

/// Send work requests being built. The device sees none of them before [`SendBatch::commit`]. A batch holds the send
/// queue's lock; dropping it discards the requests.
pub struct SendBatch<'a> {
    qp: &'a Qp,
    queue: BiasedGuard<'a, SendQueue>,
    /// Copies of the queue's fields, written back when the doorbell is rung.
    block: u32,
    number: u32,
    small_fence: bool,
    /// First 8 bytes of the last control segment, written to the doorbell.
    bell: u64,
}

impl<'a> SendBatch<'a> {
    #[inline]
    pub(crate) fn new(qp: &'a Qp) -> Self {
        let queue = qp.sq.lock_biased();
        let (block, number, small_fence) = (queue.block, queue.number, queue.small_fence);
        Self { qp, queue, block, number, small_fence, bell: 0 }
    }

    /// Adds one work request. If it is refused, the earlier ones stay in the batch. EINVAL: not valid for this QP or
    /// its state; ENOMEM: the queue is full, or a WQE has no room for so many SGEs or inline bytes.
    ///
    /// # Safety
    /// With [`SendFlags::INLINE`], the memory that `wr.sge` names is readable. It may be changed afterwards.
    #[inline(always)]
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn push(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        self.put(wr)
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        match wr.sge {
            [one] if wr.flags.contains(SendFlags::INLINE) => self.push_inline(wr, one),
            [one] if self.put_plain(wr.wr_id, &wr.op, *one, wr.flags) => Ok(()),
            _ => self.push_other(wr),
        }
    }

    /// Adds a SEND or WRITE with a single SGE and no inline data, as most requests are. Returns false, and adds
    /// nothing, for a request that needs [`push`](Self::push).
    #[inline(always)]
    pub fn put_plain(&mut self, wr_id: u64, op: &SendOp, sge: Sge, flags: SendFlags) -> bool {
        let data = data_segment(&sge);
        (1..=MAX_MESSAGE as u32).contains(&sge.length) && self.put_block(wr_id, op, data.as_bytes(), flags)
    }

    /// Like [`push`](Self::push), for a single SGE sent inline.
    #[inline(never)]
    fn push_inline(&mut self, wr: &SendWr<'_>, sge: &Sge) -> Result<(), i32> {
        let fits = sge.length != 0 && sge.length as usize <= self.queue.max_inline.min(INLINE_IN_ONE);
        match fits && self.put_block(wr.wr_id, &wr.op, &inline_segment(sge), wr.flags) {
            true => Ok(()),
            false => self.push_other(wr),
        }
    }

    /// Like [`push`](Self::push), for a request that did not take the fast path.
    #[inline(never)]
    fn push_other(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        match self.queue.plain == 0 && self.may_be_plain(wr) && self.look_for_room() {
            true => self.put(wr),
            false => self.push_any(wr),
        }
    }

    /// True if the request can take the fast path, given room in the queue.
    fn may_be_plain(&self, wr: &SendWr<'_>) -> bool {
        let most = match wr.flags.contains(SendFlags::INLINE) {
            true => self.queue.max_inline.min(INLINE_IN_ONE),
            false => MAX_MESSAGE as usize,
        };
        let [one] = wr.sge else { return false };
        self.queue.service == Service::Rc
            && matches!(wr.op, SendOp::Send | SendOp::Write { .. })
            && (1..=most).contains(&(one.length as usize))
    }

    /// Writes a SEND or WRITE with one data segment: its WQE is one basic block. Returns false if the request is
    /// neither, or the allowance of plain requests is used up.
    #[inline(always)]
    fn put_block(&mut self, wr_id: u64, op: &SendOp, data: &[u8; WQE_DS], flags: SendFlags) -> bool {
        let queue = &mut *self.queue;
        if queue.plain == 0 {
            return false;
        }
        let (start, number) = (self.block, self.number);
        // The block is not read before the doorbell, so it may be written in any order.
        let block = queue.ring.block(start);
        let put = |segment: usize, bytes: &[u8; WQE_DS]| {
            let [low, high] = [0, 8].map(|at| u64::from_ne_bytes(hwspec::layout::prefix(&bytes[at..])));
            block[2 * segment].store(low, Relaxed);
            block[2 * segment + 1].store(high, Relaxed);
        };
        let (opcode, segments) = match *op {
            SendOp::Send => {
                put(1, data);
                (WqeOpcode::Send, 2)
            }
            SendOp::Write { raddr, rkey } => {
                let remote = RaddrSeg::with(|s| s.raddr(raddr).rkey(rkey));
                put(1, remote.as_bytes());
                put(2, data);
                (WqeOpcode::RdmaWrite, 3)
            }
            _ => return false,
        };
        queue.plain -= 1;
        (self.block, self.number) = (start.wrapping_add(1), number.wrapping_add(1));
        self.qp.queues.sq.put(start, wr_id, number, self.block);
        let signaled = queue.signal_all || flags.contains(SendFlags::SIGNALED);
        let mut ctrl = CtrlSeg::zeroed();
        ctrl.set()
            .wqe_idx(start as u16)
            .opcode(opcode)
            .qpn(Qpn(queue.qpn))
            .ds(segments)
            .fm(if flags.contains(SendFlags::FENCE) { FenceMode::Fence } else { FenceMode::None })
            .ce(if signaled { CqeMode::Always } else { CqeMode::OnError })
            .se(flags.contains(SendFlags::SOLICITED));
        put(0, ctrl.as_bytes());
        self.bell = u64::from_be_bytes(hwspec::layout::prefix(ctrl.as_bytes()));
        true
    }

    /// Computes the number of plain requests that may now be posted. Returns false if there are none.
    #[cold]
    #[inline(never)]
    fn look_for_room(&mut self) -> bool {
        let queue = &mut *self.queue;
        let (done, blocks_done) = self.qp.queues.sq.done();
        let requests = queue.max_wr.saturating_sub(self.number.wrapping_sub(done));
        let blocks = queue.ring.entries().saturating_sub(self.block.wrapping_sub(blocks_done));
        let takes =
            queue.service == Service::Rc && queue.max_sge != 0 && !self.small_fence && self.qp.may_send();
        queue.plain = if takes { requests.min(blocks) } else { 0 };
        queue.plain != 0
    }

    /// Adds any kind of work request.
    #[inline(never)]
    fn push_any(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        match self.queue.service {
            Service::Rc => match wr.op {
                SendOp::LocalInv(_) | SendOp::BindMw { .. } => self.put_to(wr, &Target::Peer),
                _ => self.build(wr, Plan::of(&wr.op), &[]),
            },
            _ => self.put_to(wr, &Target::Peer),
        }
    }

    /// Like [`SendBatch::push`], for services with a target in each work request.
    ///
    /// # Safety
    /// As for [`SendBatch::push`].
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn push_to(&mut self, wr: &SendWr<'_>, target: &Target<'_>) -> Result<(), i32> {
        self.put_to(wr, target)
    }

    fn put_to(&mut self, wr: &SendWr<'_>, target: &Target<'_>) -> Result<(), i32> {
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
            // The frame's headers are not inlined in the segment.
            (Service::RawPacket, Target::Peer) => {
                let segment = EthSeg::with(|s| s.l3_csum(checksums).l4_csum(checksums));
                self.build(wr, plan, &[*segment.as_bytes()])
            }
            (Service::XrcIni, Target::Srq(srqn)) => {
                let segment = XrcSeg::with(|s| s.xrc_srqn(Srqn(srqn & 0xff_ffff)));
                self.build(wr, plan, &[*segment.as_bytes()])
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Adds a work request that changes an mkey.
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
        let block = self.block;
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

    /// Adds a change of mkey `key`, on the driver's own queue.
    pub(crate) fn change(&mut self, key: u32, change: &Change) -> Result<(), i32> {
        let wr = SendWr { wr_id: 0, op: SendOp::LocalInv(key), sge: &[], flags: SendFlags::SIGNALED };
        self.put_change(&wr, Plan::of(&wr.op), change)
    }

    /// Checks the work request and writes its WQE. `head` holds the segments between control and remote address.
    #[inline(always)]
    fn build(&mut self, wr: &SendWr<'_>, plan: Plan, head: &[[u8; WQE_DS]]) -> Result<(), i32> {
        if !self.qp.may_send() {
            return Err(libc::EINVAL);
        }
        let queue = &mut *self.queue;

        // Check the request.
        let inline = wr.flags.contains(SendFlags::INLINE);
        let (bytes, data_segments) = queue.measure(wr.sge, inline)?;
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
        if self.number.wrapping_sub(done) >= queue.max_wr
            || self.block.wrapping_sub(blocks_done) + blocks > queue.ring.entries()
        {
            return Err(libc::ENOMEM);
        }

        // Build the WQE. Its blocks are subtracted from the allowance of plain requests.
        queue.plain = if invalidate { 0 } else { queue.plain.saturating_sub(blocks) };
        let start = self.block;
        let signaled = queue.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        let fence = match (wr.flags.contains(SendFlags::FENCE), self.small_fence) {
            (false, false) => FenceMode::None,
            (false, true) => FenceMode::InitiatorSmall,
            (true, false) => FenceMode::Fence,
            (true, true) => FenceMode::SmallAndFence,
        };
        self.small_fence = invalidate;
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
        let mut writer = Writer::new(&queue.ring, start);
        writer.put(ctrl.as_bytes());
        head.iter().for_each(|segment| writer.put(segment));
        if let Some((raddr, rkey)) = plan.remote {
            writer.remote(raddr, rkey, plan.atomic);
        }
        match inline {
            true => writer.inline(&mut queue.scratch, wr.sge, bytes as usize),
            false => wr.sge.iter().filter(|sge| sge.length != 0).for_each(|sge| writer.data(sge)),
        }
        self.block = start.wrapping_add(blocks);
        self.qp.queues.sq.put(start, wr.wr_id, self.number, self.block);
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    /// Rings one doorbell for the whole batch.
    #[inline]
    pub fn commit(mut self) {
        self.flush();
    }

    /// Like [`commit`](Self::commit), then begins the next batch.
    #[inline(always)]
    pub fn flush(&mut self) {
        if self.number != self.queue.number {
            let queue = &mut *self.queue;
            let first = queue.block;
            (queue.block, queue.number, queue.small_fence) = (self.block, self.number, self.small_fence);
            self.qp.queues.sq.publish(self.number);
            self.qp.record(SND_DBR, self.block & 0xffff);
            match &mut queue.blueflame {
                None => self.qp.bar.doorbell(self.qp.doorbell, self.bell),
                Some(register) => register.ring(&queue.ring, first, self.bell),
            }
        }
    }

    /// Discards the batch.
    pub fn abort(self) {}
}

/// The request, unless it is inline: without `unsafe` the caller guarantees no memory at an address.
#[inline(always)]
fn outline(wr: SendWr<'_>) -> Result<SendWr<'_>, i32> {
    if wr.flags.contains(SendFlags::INLINE) { Err(libc::EINVAL) } else { Ok(wr) }
}

impl Qp {
    /// Posts in order, with one doorbell. On an error, the earlier requests are posted. EINVAL: [`SendFlags::INLINE`], for which there is
    /// [`Qp::post_inline`].
    #[inline]
    pub fn post_send<'w>(&self, wrs: impl IntoIterator<Item = SendWr<'w>>) -> Result<(), PostError> {
        self.post_each(wrs, |batch, wr| batch.put(&outline(wr)?))
    }

    /// Like [`Qp::post_send`], for services with a target in each work request.
    pub fn post_send_to<'w, 't>(
        &self,
        wrs: impl IntoIterator<Item = (SendWr<'w>, Target<'t>)>,
    ) -> Result<(), PostError> {
        self.post_each(wrs, |batch, (wr, target)| batch.put_to(&outline(wr)?, &target))
    }

    /// Like [`Qp::post_send`], also for [`SendFlags::INLINE`].
    ///
    /// # Safety
    /// As for [`SendBatch::push`].
    #[inline]
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn post_send_raw<'w>(
        &self,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
    ) -> Result<(), PostError> {
        self.post_each(wrs, |batch, wr| batch.put(&wr))
    }

    /// Like [`Qp::post_send_to`], also for [`SendFlags::INLINE`].
    ///
    /// # Safety
    /// As for [`SendBatch::push`].
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn post_send_to_raw<'w, 't>(
        &self,
        wrs: impl IntoIterator<Item = (SendWr<'w>, Target<'t>)>,
    ) -> Result<(), PostError> {
        self.post_each(wrs, |batch, (wr, target)| batch.put_to(&wr, &target))
    }

    /// Posts one request with `data` instead of `wr.sge`, sent inline: `data` may be changed once this returns.
    pub fn post_inline(&self, wr: SendWr<'_>, target: &Target<'_>, data: &[u8]) -> Result<(), PostError> {
        let length = u32::try_from(data.len()).map_err(|_| PostError { index: 0, errno: libc::ENOMEM })?;
        let sge = [Sge { addr: data.as_ptr() as u64, length, lkey: 0 }];
        self.post_each([SendWr { sge: &sge, flags: wr.flags | SendFlags::INLINE, ..wr }], |batch, wr| {
            match target {
                Target::Peer => batch.put(&wr),
                _ => batch.put_to(&wr, target),
            }
        })
    }

    #[inline(always)]
    fn post_each<T>(
        &self,
        all: impl IntoIterator<Item = T>,
        mut put: impl FnMut(&mut SendBatch<'_>, T) -> Result<(), i32>,
    ) -> Result<(), PostError> {
        let mut batch = SendBatch::new(self);
        let result = in_order(all, |one| put(&mut batch, one));
        batch.commit();
        result
    }

    /// Begins a batch (`ibv_wr_start`).
    #[inline]
    pub fn begin(&self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// Posts receives in order. On an error, the earlier ones are posted.
    #[inline]
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item = RecvWr<'w>>) -> Result<(), PostError> {
        let mut queue = self.rq.lock_biased();
        let begin = queue.number;
        let result = in_order(wrs, |wr| self.receive(&mut queue, &wr));
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
