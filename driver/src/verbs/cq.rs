//! Completion queues.

use super::{CompletionSlot, Device, ends::ends, pd::queue_memory, resize::entries_for};
use crate::{
    dma::{BlockRing, Buffers, DmaMem, page_list},
    error::Error,
    poll::{Entry, QpQueues, QpTable, convert, is_spread},
    records::Record,
    registry::KnownCq,
    shared_receive::SharedReceives,
    transport::{Bar, Transport},
};
use hwspec::{
    cmd::{Opcode, cq::*},
    context::cq::CqContext,
    cqe::{Cqe64, CqeOpcode, OP_OWN},
    doorbell::CQ_DOORBELL,
};
use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};
use sync::{BiasedGuard, BiasedMutex};

/// Halves of the doorbell record.
const CONSUMER: usize = 0;
const ARM: usize = 1;

/// The attributes of a new CQ.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit {
    /// Minimum number of completions that fit.
    pub entries: u32,
    /// Returned in its events.
    pub cookie: u64,
    /// The completion vector that signals its events, below [`DeviceAttr::num_comp_vectors`](super::DeviceAttr).
    pub vector: u32,
    /// True if the device ignores overruns: it silently overwrites completions that were not polled.
    pub ignore_overrun: bool,
}

/// A completion queue.
pub struct Cq {
    /// The initial ring. A resize replaces it with one of the `others`, which has one per size.
    pub(super) first: BlockRing,
    pub(super) first_log: u32,
    pub(super) others: OnceLock<Rings>,
    record: Option<Record>,
    /// The next entry, and log2 of the size of the current ring: `ci << 32 | log`. It changes under the lock of `qps`,
    /// and may be read without.
    seen: AtomicU64,
    /// The queues that entries name. The lock also protects the consumption of entries.
    pub(super) qps: BiasedMutex<QpTable>,
    /// Held while the ring is replaced.
    pub(super) resizing: Mutex<()>,
    transport: Arc<dyn Transport>,
    bar: Bar,
    arm_register: u32,
    arm_sn: Arc<AtomicU32>,
    pub(super) cqn: u32,
    pub(super) device: Arc<Device>,
    /// The source of memory for its rings, if it is not the transport.
    pub(super) buffers: Option<Arc<dyn Buffers>>,
    mem: Arc<DmaMem>,
    live: bool,
}

/// Rings by log2 of their size.
pub(super) type Rings = Box<[OnceLock<BlockRing>; MAX_LOG + 1]>;
/// The maximum for any device (`log_max_cq_sz` has 5 bits).
pub(super) const MAX_LOG: usize = 31;

/// Exclusive access to the queues of a CQ, and therefore to its entries.
type Locked<'a> = BiasedGuard<'a, QpTable>;

/// One entry in [`Cq::seen`].
const ONE: u64 = 1 << 32;

/// The parts of [`Cq::seen`].
#[inline(always)]
fn place(seen: u64) -> (u32, u32) {
    ((seen >> 32) as u32, seen as u32)
}

/// True if the owner bit in the last byte of an entry matches this round of `ring`, i.e. the device has written the
/// entry.
#[inline(always)]
pub(super) fn ours(ci: u32, ring: &BlockRing, last: u8) -> bool {
    let owner = u8::from(ci & ring.entries() != 0);
    (last ^ owner) & 1 == 0 && last < 0xf0
}

/// An empty ring, and its memory.
pub(super) fn empty_ring(mem: &Arc<DmaMem>, count: u32) -> BlockRing {
    let ring = BlockRing::new(mem.clone(), 0, count);
    clear(&ring);
    ring
}

/// Marks all entries as invalid.
pub(super) fn clear(ring: &BlockRing) {
    let empty = Cqe64::with(|s| s.opcode(CqeOpcode::Invalid));
    (0..ring.entries()).for_each(|index| ring.put64(index, empty.as_bytes()));
}

impl Cq {
    /// Creates a queue of at least `entries`. Its events contain `cookie`.
    pub fn create(device: &Arc<Device>, entries: u32, cookie: u64) -> Result<Arc<Cq>, Error> {
        Self::create_with(device, &CqInit { entries, cookie, ..CqInit::default() }, None)
    }

    /// Creates a queue in memory supplied by `buffers`.
    pub fn create_with(
        device: &Arc<Device>,
        init: &CqInit,
        buffers: Option<&Arc<dyn Buffers>>,
    ) -> Result<Arc<Cq>, Error> {
        let count = entries_for(device, init.entries)?;
        let function = &device.function;
        if init.ignore_overrun && !function.caps.general.cq_oi() {
            return Err(Error::unsupported("the device does not ignore overruns of a CQ"));
        }
        let len = count as usize * Cqe64::SIZE;
        let mem = Arc::new(queue_memory(device, buffers, len)?);
        let ring = empty_ring(&mem, count);
        let record = device.records.alloc(&function.transport)?;
        let (log_page_size, pages) = page_list(mem.iova(), len);
        let mut context = CqContext::zeroed();
        context
            .set()
            .oi(init.ignore_overrun)
            .log_cq_size(count.trailing_zeros() as u8)
            .uar_page(device.opener.uar())
            .c_eqn_or_apu_element(device.eqn(init.vector)?.into())
            .log_page_size(log_page_size)
            .dbr_addr(record.iova());
        let input = CreateCqIn::with(|s| s.cq_context(context));
        let created = function.call_with(Opcode::CreateCq, device.opener.uid(), &input, &pages);
        let (out, (mem, record)): (CreateCqOut, _) = Error::or_keep(created, (mem, record))?;
        let cqn = out.cqn();
        let arm_sn = Arc::new(AtomicU32::new(0));
        device.registry.cqs.add(cqn, KnownCq(init.cookie, arm_sn.clone()));
        let log = count.trailing_zeros();
        Ok(Arc::new(Cq {
            first: ring,
            first_log: log,
            others: OnceLock::new(),
            record: Some(record),
            seen: AtomicU64::new(u64::from(log)),
            qps: BiasedMutex::new(QpTable::default()),
            resizing: Mutex::new(()),
            transport: function.transport.clone(),
            bar: function.bar.clone(),
            arm_register: device.uar_register(CQ_DOORBELL),
            arm_sn,
            cqn,
            device: device.clone(),
            buffers: buffers.cloned(),
            mem,
            live: true,
        }))
    }

    /// The ring of `1 << log` entries.
    #[inline(always)]
    pub(super) fn ring(&self, log: u32) -> &BlockRing {
        if log == self.first_log { &self.first } else { self.other(log) }
    }

    #[cold]
    fn other(&self, log: u32) -> &BlockRing {
        let ring = self.others.get().and_then(|rings| rings.get(log as usize)?.get());
        ring.unwrap_or(&self.first)
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The next entry, and log2 of the size of the current ring.
    #[inline(always)]
    pub(super) fn place(&self) -> (u32, u32) {
        place(self.seen.load(Relaxed))
    }

    /// Number of completions that fit.
    pub fn entries(&self) -> u32 {
        (1 << self.place().1) - 1
    }

    /// The next entry, if the device has written it and the queue has not moved on from `seen`, a value of
    /// [`seen`](Self::seen).
    #[inline(always)]
    fn look(&self, seen: u64) -> Option<Entry<'_>> {
        let (ci, log) = place(seen);
        let ring = self.ring(log);
        Entry::take(ring, ci, |last| ours(ci, ring, last))
    }

    /// True if there seems to be a completion. If there is none, first runs a device in this process.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.look(self.seen.load(Relaxed)).is_some() || {
            self.transport.empty_poll();
            let found = self.look(self.seen.load(Relaxed)).is_some();
            if found {
                self.transport.noticed();
            }
            found
        }
    }

    /// True if no further completion can come, because the device was given up or the connection to it is gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.device.function.shared.is_lost() || self.transport.is_gone()
    }

    /// Takes completions and returns their number. If there are none, first runs a device in this process.
    #[inline(always)]
    pub fn poll(&self, out: &mut [impl CompletionSlot]) -> usize {
        let seen = self.seen.load(Relaxed);
        match self.look(seen) {
            Some(entry) => self.take(seen, entry, out),
            None => self.poll_after_idle(out),
        }
    }

    #[inline(never)]
    fn poll_after_idle(&self, out: &mut [impl CompletionSlot]) -> usize {
        self.transport.empty_poll();
        let seen = self.seen.load(Relaxed);
        match self.look(seen) {
            Some(entry) => {
                self.transport.noticed();
                self.take(seen, entry, out)
            }
            None => 0,
        }
    }

    /// Takes available completions. `first` is the next one, unless the queue has moved on from `seen`. No loop for a
    /// caller that asks for one.
    #[inline(always)]
    fn take(&self, seen: u64, first: Entry<'_>, out: &mut [impl CompletionSlot]) -> usize {
        let [slot, more @ ..] = &mut *out else { return 0 };
        let qps = self.qps.lock_biased();
        if self.seen.load(Relaxed) != seen || !convert(&qps, first, slot) {
            return self.take_more(qps, out);
        }
        self.consumed(seen.wrapping_add(ONE));
        if more.is_empty() { 1 } else { 1 + self.take_more(qps, more) }
    }

    /// Takes available completions.
    #[inline(never)]
    fn take_more<'a>(&'a self, qps: Locked<'a>, out: &mut [impl CompletionSlot]) -> usize {
        let (begin, log) = self.place();
        let ring = self.ring(log);
        let (mut ci, mut strange) = (begin, false);
        for slot in &mut *out {
            let Some(entry) = Entry::take(ring, ci, |last| ours(ci, ring, last)) else { break };
            if !convert(&qps, entry, slot) {
                strange = true;
                break;
            }
            ci = ci.wrapping_add(1);
        }
        if ci != begin {
            self.move_to(ci, log);
        }
        let taken = ci.wrapping_sub(begin) as usize;
        if strange { taken + self.take_past(qps, &mut out[taken..]) } else { taken }
    }

    /// Takes completions after an entry that is not one.
    #[cold]
    #[inline(never)]
    fn take_past<'a>(&'a self, qps: Locked<'a>, out: &mut [impl CompletionSlot]) -> usize {
        self.drain(qps, out, |entry, qps, slot| convert(qps, entry, slot))
    }

    /// Takes one completion along with its CQE, which has more information than a [`Completion`](super::Completion).
    #[inline(never)]
    pub fn poll_raw<S: CompletionSlot>(&self, out: &mut S, raw: &mut Cqe64) -> bool {
        let take = |entry: Entry<'_>, qps: &QpTable, slot: &mut S| {
            *raw = entry.whole();
            convert(qps, entry, slot)
        };
        self.is_ready() && self.drain(self.qps.lock_biased(), std::slice::from_mut(out), take) == 1
    }

    /// Takes completions until `out` is full. `take` converts an entry, or returns false if it is not a completion.
    #[inline(always)]
    fn drain<'a, S>(
        &'a self,
        mut qps: Locked<'a>,
        out: &mut [S],
        mut take: impl FnMut(Entry<'_>, &QpTable, &mut S) -> bool,
    ) -> usize {
        let mut waited = None;
        loop {
            let (begin, log) = self.place();
            let ring = self.ring(log);
            let mut slots = out.iter_mut();
            let mut next = slots.next();
            let (mut ci, mut strange, mut ends) = (begin, 0, false);
            while let Some(slot) = &mut next {
                let Some(entry) = Entry::take(ring, ci, |last| ours(ci, ring, last)) else { break };
                if take(entry, &qps, slot) {
                    next = slots.next();
                } else if entry.whole().opcode() == CqeOpcode::ResizeCq && waited != Some((ci, log)) {
                    ends = true;
                    break;
                } else {
                    strange += 1;
                    // A device that writes garbage faster than we read must not keep us here.
                    if strange == ring.entries() {
                        ci = ci.wrapping_add(1);
                        break;
                    }
                }
                ci = ci.wrapping_add(1);
            }
            if ci != begin {
                self.move_to(ci, log);
            }
            let found = ci.wrapping_sub(begin).wrapping_sub(strange);
            if found > 0 || !ends {
                return found as usize;
            }
            drop(qps);
            // A resize may have moved the queue to another ring.
            drop(self.resizing.lock());
            waited = Some((ci, log));
            qps = self.qps.lock_biased();
        }
    }

    /// Makes entry `ci` of the ring of `1 << log` entries the next one. The caller holds the lock of `qps`.
    pub(super) fn move_to(&self, ci: u32, log: u32) {
        self.consumed(u64::from(ci) << 32 | u64::from(log));
    }

    #[inline(always)]
    fn consumed(&self, seen: u64) {
        self.seen.store(seen, Relaxed);
        if let Some(record) = &self.record {
            record.set(CONSUMER, place(seen).0 & 0xff_ffff);
        }
    }

    /// Requests one event for the next completion (or the next solicited or failed one). Unpolled completions since the
    /// last event raise it at once.
    pub fn arm(&self, solicited_only: bool) {
        let ci = self.place().0 & 0xff_ffff;
        let request = (self.arm_sn.load(Relaxed) & 3) << 28 | u32::from(solicited_only) << 24 | ci;
        if let Some(record) = &self.record {
            record.set(ARM, request);
        }
        self.bar.doorbell(self.arm_register, u64::from(request) << 32 | u64::from(self.cqn));
    }

    /// Adds a QP with completions on this CQ.
    pub(crate) fn attach(&self, qp: Arc<QpQueues>) {
        self.qps.lock().insert(qp);
    }

    /// Removes a destroyed QP and its unpolled completions.
    pub(crate) fn detach(&self, qpn: u32) {
        self.remove_completions(qpn);
        self.qps.lock().remove(qpn);
    }

    /// Removes the unpolled completions of `qpn`, and closes the gaps. Frees their receives in shared queues.
    pub(crate) fn remove_completions(&self, qpn: u32) {
        // A raw packet receive queue has its own number, and its CQEs name the QP by user index.
        let raw = self.qps.lock().get(qpn).is_some_and(|qp| qp.raw);
        let failed = |cqe: &Cqe64| cqe.opcode() == CqeOpcode::RespErr && cqe.srqn_uidx() & 0xff_ffff == qpn;
        self.remove(|cqe| cqe.qpn().0 == qpn || raw && failed(cqe));
    }

    /// Reserves a user index for a new work queue on this CQ.
    pub(crate) fn claim_wq(&self) -> u32 {
        self.qps.lock().claim_wq()
    }

    /// Adds a work queue with completions on this CQ.
    pub(crate) fn attach_wq(&self, index: u32, wq: Arc<QpQueues>) {
        self.qps.lock().insert_wq(index, wq);
    }

    /// Removes the unpolled completions of work queue `wqn`.
    pub(crate) fn remove_wq_completions(&self, index: u32, wqn: u32) {
        self.remove(|cqe| cqe.qpn().0 == wqn || is_spread(cqe) && cqe.srqn_uidx() & 0xff_ffff == index);
    }

    /// Frees the user index of a work queue that is destroyed, or was never created.
    pub(crate) fn detach_wq(&self, index: u32) {
        self.qps.lock().remove_wq(index);
    }

    /// Adds an XRC SRQ with receives that complete here.
    pub(crate) fn attach_srq(&self, srq: Arc<SharedReceives>) {
        self.qps.lock().insert_srq(srq);
    }

    /// Removes a destroyed XRC SRQ and its unpolled completions.
    pub(crate) fn detach_srq(&self, srqn: u32) {
        self.remove(|cqe| is_receive(cqe) && cqe.srqn_uidx() & 0xff_ffff == srqn);
        self.qps.lock().remove_srq(srqn);
    }

    fn remove(&self, goes: impl Fn(&Cqe64) -> bool) {
        // Not during a resize, when entries are in two rings.
        let _whole = self.resizing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let qps = self.qps.lock();
        let (begin, log) = self.place();
        let ring = self.ring(log);
        let mut end = begin;
        while end.wrapping_sub(begin) < ring.entries() && ours(end, ring, ring.last_byte(end)) {
            end = end.wrapping_add(1);
        }
        let mut removed = 0;
        // From newest to oldest, each remaining entry moves up over the removed ones.
        while end != begin {
            end = end.wrapping_sub(1);
            let Some(bytes) = ring.take64(end, |_| true) else { break };
            let cqe = Cqe64::from_bytes(bytes);
            if goes(&cqe) {
                removed += 1;
                if is_receive(&cqe) {
                    if let Some(srq) = qps.shared(&cqe) {
                        srq.complete(cqe.wqe_counter(), None);
                    }
                }
            } else if removed > 0 {
                let to = end.wrapping_add(removed);
                let mut bytes = bytes;
                bytes[OP_OWN] = bytes[OP_OWN] & !1 | (to >> log & 1) as u8;
                ring.put64(to, &bytes);
            }
        }
        if removed > 0 {
            self.move_to(begin.wrapping_add(removed), log);
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        let device = &self.device;
        let result = device.function.destroy_object(Opcode::DestroyCq, device.opener.uid(), self.cqn);
        self.device.registry.cqs.remove(self.cqn);
        // The device may still write to the memory, so it is kept forever.
        result.inspect_err(|_| std::mem::forget((self.mem.clone(), self.record.take(), self.others.take())))
    }
}

ends! {
    /// Destroys the CQ. EBUSY while QPs use it (it then lives until the last of them is gone). Dropping the last
    /// reference does the same without reporting errors.
    Cq.destroy: "the CQ is in use", "a CQ could not be destroyed", cqn = cqn
}

/// True if it completes a receive.
fn is_receive(cqe: &Cqe64) -> bool {
    matches!(
        cqe.opcode(),
        CqeOpcode::RespSend
            | CqeOpcode::RespSendImm
            | CqeOpcode::RespSendInv
            | CqeOpcode::RespWrImm
            | CqeOpcode::RespErr
    )
}
