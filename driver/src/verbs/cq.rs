//! Completion queues.

use super::{Completion, Device};
use crate::{
    dma::{DmaMem, DmaRing, Spin, page_list},
    error::Error,
    poll::{QpQueues, QpTable, convert},
    records::Record,
    transport::{Bar, Scope, Transport},
};
use hwspec::{
    cmd::{Opcode, cq::*},
    context::cq::CqContext,
    cqe::{Cqe64, CqeOpcode, OP_OWN},
    doorbell::CQ_DOORBELL,
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// Halves of the doorbell record.
const CONSUMER: usize = 0;
const ARM: usize = 1;

/// A completion queue.
pub struct Cq {
    ring: DmaRing,
    record: Option<Record>,
    log_size: u32,
    /// As in `consumer`, for a look without the lock.
    ci: AtomicU32,
    consumer: Spin<Consumer>,
    transport: Arc<dyn Transport>,
    bar: Bar,
    arm_register: u32,
    arm_sn: Arc<AtomicU32>,
    cqn: u32,
    device: Arc<Device>,
    mem: Arc<DmaMem>,
    live: bool,
}

struct Consumer {
    ci: u32,
    qps: QpTable,
}

impl Cq {
    /// Creates a queue of at least `entries`; `cookie` comes back in its events.
    pub fn create(device: &Arc<Device>, entries: u32, cookie: u64) -> Result<Arc<Cq>, Error> {
        let max = device.attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(Error::invalid(format!(
                "a CQ of {entries} entries was asked for, 1 to {max} can be had"
            )));
        }
        // One entry more than asked for, so that a full queue is not an empty one.
        let count = (entries + 1).next_power_of_two();
        let function = &device.function;
        let len = count as usize * Cqe64::SIZE;
        let mem = Arc::new(DmaMem::alloc(&function.transport, len, Scope::Opener)?);
        let ring = DmaRing::new(mem.clone(), 0, count, Cqe64::SIZE);
        let mut empty = Cqe64::zeroed();
        empty.set().opcode(CqeOpcode::Invalid);
        for index in 0..count {
            ring.put64(index, empty.as_bytes());
        }
        let record = device.records.alloc(&function.transport)?;
        let (log_page_size, pages) = page_list(mem.iova(), len);
        let mut context = CqContext::zeroed();
        context
            .set()
            .log_cq_size(count.trailing_zeros() as u8)
            .uar_page(device.opener.uar())
            .c_eqn_or_apu_element(device.eqn().into())
            .log_page_size(log_page_size)
            .dbr_addr(record.iova());
        let mut input = CreateCqIn::zeroed();
        input.set().cq_context(context);
        let created: Result<CreateCqOut, Error> =
            function.call_with(Opcode::CreateCq, device.opener.uid(), &input, &pages);
        let cqn = match created {
            Ok(out) => out.cqn(),
            Err(error) => {
                if error.is_uncertain() {
                    std::mem::forget((mem, record)); // the queue may yet come to life
                }
                return Err(error);
            }
        };
        let arm_sn = Arc::new(AtomicU32::new(0));
        device.registry.add_cq(cqn, cookie, arm_sn.clone());
        Ok(Arc::new(Cq {
            ring,
            record: Some(record),
            log_size: count.trailing_zeros(),
            ci: AtomicU32::new(0),
            consumer: Spin::new(Consumer { ci: 0, qps: QpTable::default() }),
            transport: function.transport.clone(),
            bar: function.bar.clone(),
            arm_register: device.uar_register(CQ_DOORBELL),
            arm_sn,
            cqn,
            device: device.clone(),
            mem,
            live: true,
        }))
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Completions that fit.
    pub fn entries(&self) -> u32 {
        self.ring.entries() - 1
    }

    /// Whether the last byte of the entry at `ci` says that the device has finished it in this round.
    #[inline(always)]
    fn ours(&self, ci: u32, last: u8) -> bool {
        u32::from(last & 1) == ci >> self.log_size & 1 && last >> 4 != 0xf
    }

    /// Takes completions; returns how many.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        let ci = self.ci.load(Relaxed);
        if !self.ours(ci, self.ring.last_byte(ci)) {
            self.transport.idle();
            if !self.ours(ci, self.ring.last_byte(ci)) {
                return 0;
            }
        }
        self.take(out)
    }

    fn take(&self, out: &mut [Completion]) -> usize {
        let mut consumer = self.consumer.lock();
        let begin = consumer.ci;
        let mut ci = begin;
        let mut found = 0;
        // A device that writes rubbish faster than we read must not keep us here: one round at most.
        while found < out.len() && ci.wrapping_sub(begin) < self.ring.entries() {
            let Some(bytes) = self.ring.take64(ci, |last| self.ours(ci, last)) else { break };
            ci = ci.wrapping_add(1);
            if let Some(completion) = convert(&consumer.qps, &Cqe64::from_bytes(bytes)) {
                out[found] = completion;
                found += 1;
            }
        }
        if ci != begin {
            consumer.ci = ci;
            self.consumed(ci);
        }
        found
    }

    #[inline(always)]
    fn consumed(&self, ci: u32) {
        self.ci.store(ci, Relaxed);
        if let Some(record) = &self.record {
            record.set(CONSUMER, ci & 0xff_ffff);
        }
    }

    /// Asks for one event at the next completion (or the next solicited or failed one). Completions that came since the
    /// last event and that nobody has taken yet raise it at once.
    pub fn arm(&self, solicited_only: bool) {
        let ci = self.ci.load(Relaxed) & 0xff_ffff;
        let request = (self.arm_sn.load(Relaxed) & 3) << 28 | u32::from(solicited_only) << 24 | ci;
        if let Some(record) = &self.record {
            record.set(ARM, request);
        }
        self.bar.doorbell(self.arm_register, u64::from(request) << 32 | u64::from(self.cqn));
    }

    /// A QP begins to report here.
    pub(crate) fn attach(&self, qp: Arc<QpQueues>) {
        self.consumer.lock().qps.insert(qp);
    }

    /// A QP that is gone reports here no more; what it reported and nobody took is removed.
    pub(crate) fn detach(&self, qpn: u32) {
        self.remove_completions(qpn);
        self.consumer.lock().qps.remove(qpn);
    }

    /// Removes the completions of `qpn` that nobody has taken, closing the gaps.
    pub(crate) fn remove_completions(&self, qpn: u32) {
        let mut consumer = self.consumer.lock();
        let begin = consumer.ci;
        let mut end = begin;
        while end.wrapping_sub(begin) < self.ring.entries() && self.ours(end, self.ring.last_byte(end)) {
            end = end.wrapping_add(1);
        }
        let mut removed = 0;
        // From the newest to the oldest, each that stays moves up over those that go.
        while end != begin {
            end = end.wrapping_sub(1);
            let Some(bytes) = self.ring.take64(end, |_| true) else { break };
            if Cqe64::from_bytes(bytes).qpn().0 == qpn {
                removed += 1;
            } else if removed > 0 {
                let to = end.wrapping_add(removed);
                let mut bytes = bytes;
                bytes[OP_OWN] = bytes[OP_OWN] & !1 | (to >> self.log_size & 1) as u8;
                self.ring.put64(to, &bytes);
            }
        }
        if removed > 0 {
            consumer.ci = begin.wrapping_add(removed);
            self.consumed(consumer.ci);
        }
    }

    /// Destroys it; EBUSY while QPs use it (it goes with the last of them). Dropping the last reference does the same
    /// silently.
    pub fn destroy(self: Arc<Self>) -> Result<(), Error> {
        match Arc::into_inner(self) {
            None => Err(Error::Invalid { what: "the CQ is in use".into(), errno: libc::EBUSY }),
            Some(mut cq) => cq.release(),
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.live) {
            return Ok(());
        }
        let mut input = DestroyCqIn::zeroed();
        input.set().cqn(self.cqn);
        let result = self.device.function.order(Opcode::DestroyCq, self.device.opener.uid(), &input);
        self.device.registry.remove_cq(self.cqn);
        if result.is_err() {
            // The device may still write: its memory is kept for ever.
            std::mem::forget((self.mem.clone(), self.record.take()));
        }
        result
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(cqn = self.cqn, %error, "a CQ could not be destroyed");
        }
    }
}
