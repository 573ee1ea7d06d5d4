//! Changes of completion queues: resizing, and moderation of events.

use super::{
    Cq, Device,
    cq::{MAX_LOG, clear, empty_ring, ours},
    pd::queue_memory,
};
use crate::{
    dma::{BlockRing, page_list},
    error::Error,
};
use hwspec::{
    cmd::{CmdOut, Opcode, cq::*},
    context::cq::CqContext,
    cqe::{Cqe64, CqeOpcode, OP_OWN},
};
use std::sync::{Arc, OnceLock};

/// Number of ring entries for `entries` completions: at least one more, so that a full queue differs from an empty
/// one. EINVAL: more than the device supports.
pub(super) fn entries_for(device: &Device, entries: u32) -> Result<u32, Error> {
    let max = device.attr().max_cqe;
    if entries == 0 || entries > max {
        return Err(Error::invalid(format!(
            "a CQ of {entries} entries was asked for, 1 to {max} can be had"
        )));
    }
    Ok((entries + 1).next_power_of_two())
}

impl Cq {
    /// Makes room for at least `entries` completions (`ibv_resize_cq`). Unpolled completions are kept, in order; if
    /// there are more of them than `entries`, fails with EINVAL and changes nothing. Other threads may poll
    /// concurrently.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let count = entries_for(&self.device, entries)?;
        if !self.device.function.caps.general.cq_resize() {
            return Err(Error::unsupported("the device does not resize CQs"));
        }
        let _alone = self.resizing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let log = count.trailing_zeros();
        let now = self.place().1;
        let waiting = self.waiting();
        if waiting > count - 1 {
            return Err(Error::invalid(format!("{waiting} completions wait, {entries} are to fit")));
        }
        if log == now {
            return Ok(());
        }
        let (ring, mem) = self.ring_of(log)?;
        clear(ring);
        let (log_page_size, pages) = page_list(mem, count as usize * Cqe64::SIZE);
        let context = CqContext::with(|s| s.log_cq_size(log as u8).log_page_size(log_page_size));
        self.change(RESIZE, RESIZE_FIELDS, context, &pages)?;
        self.move_over(now, log);
        Ok(())
    }

    /// Moderates events: one comes after `count` completions or `period` microseconds, whichever is first. If either
    /// is 0, events come at once.
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), Error> {
        let attr = self.device.attr();
        if attr.max_cq_count == 0 {
            return Err(Error::unsupported("the device does not moderate events"));
        }
        if count > attr.max_cq_count || period > attr.max_cq_period {
            return Err(Error::invalid(format!(
                "{count} completions or {period} us were asked for, {} and {} are the most",
                attr.max_cq_count, attr.max_cq_period
            )));
        }
        let context = CqContext::with(|s| s.cq_max_count(count).cq_period(period));
        self.change(FIELDS, PERIOD | COUNT, context, &[])
    }

    fn change(&self, op_mod: u16, fields: u32, context: CqContext, pages: &[u64]) -> Result<(), Error> {
        let input = ModifyCqIn::with(|s| {
            s.op_mod(op_mod)
                .cqn(self.cqn)
                .modify_field_select_resize_field_select(fields.to_be_bytes())
                .cq_context(context)
        });
        let device = &self.device;
        let _: CmdOut = device.function.call_with(Opcode::ModifyCq, device.opener.uid(), &input, pages)?;
        Ok(())
    }

    /// Number of unpolled completions in the ring.
    fn waiting(&self) -> u32 {
        let _entries = self.qps.lock();
        let (ci, log) = self.place();
        let ring = self.ring(log);
        let done = |n: &u32| {
            let at = ci.wrapping_add(*n);
            ours(at, ring, ring.last_byte(at))
        };
        (0..ring.entries()).take_while(done).count() as u32
    }

    /// Returns the ring of `1 << log` entries and its IOVA. Rings are kept until the CQ is destroyed, since a thread
    /// may still be reading one.
    fn ring_of(&self, log: u32) -> Result<(&BlockRing, u64), Error> {
        if log == self.first_log {
            return Ok((&self.first, self.first.iova()));
        }
        let rings = self.others.get_or_init(|| Box::new([const { OnceLock::new() }; MAX_LOG + 1]));
        let place = &rings[(log as usize).min(MAX_LOG)];
        if place.get().is_none() {
            let count = 1u32 << log;
            let len = count as usize * Cqe64::SIZE;
            let mem = Arc::new(queue_memory(&self.device, self.buffers.as_ref(), len)?);
            let _ = place.set(empty_ring(&mem, count));
        }
        let ring = place.get().unwrap_or(&self.first);
        Ok((ring, ring.iova()))
    }

    /// Copies the rest of the ring of `1 << old` entries to that of `1 << new`, shifted by one, since the entry that
    /// marks the end of the old ring counts too.
    fn move_over(&self, old: u32, new: u32) {
        let (from, to) = (self.ring(old), self.ring(new));
        let _entries = self.qps.lock();
        let (ci, _) = self.place();
        let mut at = ci;
        while at.wrapping_sub(ci) < from.entries() {
            let Some(mut bytes) = from.take64(at, |last| ours(at, from, last)) else { break };
            at = at.wrapping_add(1);
            if Cqe64::from_bytes(bytes).opcode() == CqeOpcode::ResizeCq {
                break;
            }
            bytes[OP_OWN] = bytes[OP_OWN] & !1 | (at >> new & 1) as u8;
            to.put64(at, &bytes);
        }
        self.move_to(ci.wrapping_add(1), new);
    }
}
