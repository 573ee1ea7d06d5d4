//! An event queue: entries that the device writes, and a consumer index that the driver reports to it (PRM: event
//! queues).

use crate::{
    dma::{DmaMem, DmaRing, page_list},
    error::Error,
    function::Function,
    transport::{Bar, Scope},
};
use hwspec::{
    cmd::{Opcode, eq::*},
    context::eq::EqContext,
    doorbell::{EQ_ARM, EQ_CI, UAR_SIZE},
    eqe::{Eqe, EventType},
};
use std::sync::Arc;

/// Entries after which the consumer index is reported, at the latest.
const REPORT_EVERY: u32 = 64;

/// Offset of the event bitmask in the input of `CREATE_EQ`: 64 bits, event type n in bit n.
const BITMASK_WORDS: usize = 0x20;

/// An event queue and its consumer index.
pub struct EventQueue {
    ring: DmaRing,
    mem: Arc<DmaMem>,
    bar: Bar,
    eqn: u8,
    uar: u32,
    ci: u32,
    reported: u32,
}

/// The events besides completions that an opener's EQ subscribes to.
const EVENTS: [EventType; 14] = [
    EventType::PathMig,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::PathMigFailed,
    EventType::InternalError,
    EventType::PortChange,
    EventType::PageRequest,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
];

impl EventQueue {
    /// Creates the queue. Its events signal `vector`, and its consumer index is reported through UAR page `uar`.
    pub fn create(function: &Function, uid: u16, uar: u32, vector: u16, entries: u32) -> Result<Self, Error> {
        let most = 1u32 << function.caps.general.log_max_eq_sz().min(22);
        let entries = entries.clamp(64, most.max(64)).next_power_of_two();
        let len = entries as usize * Eqe::SIZE;
        let mem = Arc::new(DmaMem::alloc(&function.transport, len, Scope::Opener)?);
        let ring = DmaRing::new(mem.clone(), 0, entries, Eqe::SIZE);
        let mut empty = Eqe::zeroed();
        empty.set().owner(true);
        (0..entries).for_each(|index| ring.put64(index, empty.as_bytes()));

        let (log_page_size, pages) = page_list(mem.iova(), len);
        let mut context = EqContext::zeroed();
        context
            .set()
            .log_eq_size(entries.trailing_zeros() as u8)
            .uar_page(uar)
            .intr(vector)
            .log_page_size(log_page_size);
        let mask = EVENTS.iter().fold(0u64, |mask, event| mask | 1 << event.raw());
        let mut bitmask = [0; BITMASK_WORDS];
        bitmask[..8].copy_from_slice(&mask.to_be_bytes());
        let mut input = CreateEqIn::zeroed();
        input.set().eq_context_entry(context).event_bitmask(bitmask);
        let out: CreateEqOut = match function.call_with(Opcode::CreateEq, uid, &input, &pages) {
            Ok(out) => out,
            Err(error) => {
                if error.is_uncertain() {
                    std::mem::forget(ring); // keeps the memory: the device may still make the queue
                }
                return Err(error);
            }
        };
        let eq = Self { ring, mem, bar: function.bar.clone(), eqn: out.eq_number(), uar, ci: 0, reported: 0 };
        eq.report(EQ_ARM);
        Ok(eq)
    }

    /// Its number.
    pub fn eqn(&self) -> u8 {
        self.eqn
    }

    /// The next entry, if the device has written one.
    pub fn next(&mut self) -> Option<Eqe> {
        let wrap = (self.ci / self.ring.entries()) & 1;
        let bytes = self.ring.take64(self.ci, |last| u32::from(last & 1) == wrap)?;
        self.ci = self.ci.wrapping_add(1);
        if self.ci.wrapping_sub(self.reported) >= REPORT_EVERY {
            self.reported = self.ci;
            self.report(EQ_CI);
        }
        Some(Eqe::from_bytes(bytes))
    }

    /// Reports the consumer index and asks for an interrupt at the next entry.
    pub fn arm(&mut self) {
        self.reported = self.ci;
        self.report(EQ_ARM);
    }

    fn report(&self, register: usize) {
        let offset = self.uar as usize * UAR_SIZE + register;
        self.bar.write32(offset as u32, u32::from(self.eqn) << 24 | self.ci & 0xff_ffff);
    }

    /// Destroys it. Unless the device confirms that, its memory is kept forever.
    pub fn destroy(self, function: &Function, uid: u16) -> Result<(), Error> {
        let mut input = DestroyEqIn::zeroed();
        input.set().eq_number(self.eqn);
        function.order(Opcode::DestroyEq, uid, &input).inspect_err(|_| std::mem::forget(self.mem))
    }
}
