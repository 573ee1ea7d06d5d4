//! Resizing a CQ, as its owner does it.

use super::{
    Bed, Cq,
    command::CommandError,
    objects::{ENTRY, page_list},
};
use hwspec::{
    cmd::{CmdOut, Opcode, cq::*},
    context::cq::CqContext,
    cqe::{self, Cqe64, CqeOpcode},
    layout::Layout,
};

impl Bed {
    /// Gives a CQ a new ring of `1 << log` entries. Unpolled entries move by one place, because the resize CQE at the end of the old ring
    /// counts as well.
    pub fn resize_cq(&mut self, cq: Cq, log: u8) -> Result<(), CommandError> {
        let old = self.queues.cqs[&cq];
        let len = ENTRY << log;
        let at = self.memory.alloc(cq.fid, len);
        for i in 0..1u64 << log {
            let own = CqeOpcode::Invalid.raw() << 4 | 1;
            self.memory.put(at + i * ENTRY as u64 + cqe::OP_OWN as u64, &[own]);
        }
        let context = CqContext::with(|s| s.log_cq_size(log));
        let mut input = ModifyCqIn::zeroed();
        input.set().cqn(cq.cqn).cq_context(context);
        input.set().modify_field_select_resize_field_select(RESIZE_FIELDS.to_be_bytes());
        let pages = page_list(at, len);
        if let Err(e) = self.command_with(cq.fid, Opcode::ModifyCq, RESIZE, &input, &pages, CmdOut::SIZE) {
            self.memory.free(at);
            return Err(e);
        }
        let mut ci = old.ci;
        loop {
            let slot = u64::from(ci) & ((1 << old.log) - 1);
            let mut entry = Cqe64::read(self.memory.get(old.at + slot * ENTRY as u64, ENTRY));
            assert_eq!(entry.owner(), ci >> old.log & 1 == 1, "an entry of this round");
            ci = ci.wrapping_add(1);
            if entry.opcode() == CqeOpcode::ResizeCq {
                break;
            }
            entry.set().owner(ci >> log & 1 == 1);
            let slot = u64::from(ci) & ((1 << log) - 1);
            self.memory.put(at + slot * ENTRY as u64, entry.as_bytes());
        }
        self.memory.free(old.at);
        if let Some(ring) = self.queues.cqs.get_mut(&cq) {
            (ring.at, ring.log, ring.ci) = (at, log, old.ci.wrapping_add(1));
        }
        Ok(())
    }
}
