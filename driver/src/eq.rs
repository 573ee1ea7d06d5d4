//! Event queues: entries written by the device, and a consumer index that the driver reports to it (PRM: event queues).

use crate::{
    dma::{BlockRing, DmaMem, page_list},
    error::Error,
    function::Function,
    transport::{Bar, Scope},
};
use hwspec::{
    cmd::{Opcode, Status, eq::*},
    context::eq::EqContext,
    doorbell::{EQ_ARM, EQ_CI, UAR_SIZE},
    eqe::Eqe,
};
use std::sync::Arc;

/// Maximum number of entries between reports of the consumer index.
const REPORT_EVERY: u32 = 64;

/// Offset of the event bitmask in the input of `CREATE_EQ`: 64 bits, event type n in bit n.
const BITMASK_WORDS: usize = 0x20;

/// An opener's queue of completion events, and its consumer index.
pub struct EventQueue {
    ring: BlockRing,
    mem: Arc<DmaMem>,
    bar: Bar,
    eqn: u8,
    uar: u32,
    ci: u32,
    reported: u32,
}

/// The attributes of a new event queue.
pub struct Wanted {
    /// User context of its owner.
    pub uid: u16,
    /// The doorbell page for its consumer index.
    pub uar: u32,
    /// The interrupt vector.
    pub vector: u16,
    /// Minimum number of entries.
    pub entries: u32,
    /// The events besides completions.
    pub mask: u64,
    /// The owner of its memory.
    pub scope: Scope,
}

/// Creates an event queue (`CREATE_EQ`). Returns its memory, its entries and its number.
pub fn create(function: &Function, wanted: &Wanted) -> Result<(Arc<DmaMem>, u32, u8), Error> {
    let most = 1u32 << function.caps.general.log_max_eq_sz().min(22);
    let entries = wanted.entries.clamp(64, most.max(64)).next_power_of_two();
    let len = entries as usize * Eqe::SIZE;
    let mem = Arc::new(DmaMem::alloc(&function.transport, len, wanted.scope)?);
    let ring = BlockRing::new(mem.clone(), 0, entries);
    let empty = Eqe::with(|s| s.owner(true));
    (0..entries).for_each(|index| ring.put64(index, empty.as_bytes()));

    let (log_page_size, pages) = page_list(mem.iova(), len);
    let context = EqContext::with(|s| {
        s.log_eq_size(entries.trailing_zeros() as u8)
            .uar_page(wanted.uar)
            .intr(wanted.vector)
            .log_page_size(log_page_size)
    });
    let mut bitmask = [0; BITMASK_WORDS];
    bitmask[..8].copy_from_slice(&wanted.mask.to_be_bytes());
    let input = CreateEqIn::with(|s| s.eq_context_entry(context).event_bitmask(bitmask));
    let created = function.call_with(Opcode::CreateEq, wanted.uid, &input, &pages);
    let (out, mem): (CreateEqOut, _) = Error::or_keep(created, mem)?;
    Ok((mem, entries, out.eq_number()))
}

/// Reports the number of entries taken from a queue (doorbell page, number) to the device.
pub fn report(bar: &Bar, (uar, eqn): (u32, u8), register: usize, taken: u32) {
    let offset = uar as usize * UAR_SIZE + register;
    bar.write32(offset as u32, u32::from(eqn) << 24 | taken & 0xff_ffff);
}

impl EventQueue {
    /// Creates a queue for completions. Its events signal `vector`, and its consumer index is reported through UAR page
    /// `uar`.
    pub fn create(function: &Function, uid: u16, uar: u32, vector: u16, entries: u32) -> Result<Self, Error> {
        let wanted = Wanted { uid, uar, vector, entries, mask: 0, scope: Scope::Opener };
        let (mem, entries, eqn) = create(function, &wanted)?;
        let ring = BlockRing::new(mem.clone(), 0, entries);
        let eq = Self { ring, mem, bar: function.bar.clone(), eqn, uar, ci: 0, reported: 0 };
        eq.report(EQ_ARM);
        Ok(eq)
    }

    /// Its number.
    pub fn eqn(&self) -> u8 {
        self.eqn
    }

    /// Takes the next entry, if the device has written one.
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

    /// Reports the consumer index and requests an interrupt for the next entry.
    pub fn arm(&mut self) {
        self.reported = self.ci;
        self.report(EQ_ARM);
    }

    fn report(&self, register: usize) {
        report(&self.bar, (self.uar, self.eqn), register, self.ci);
    }

    /// Destroys the queue. Unless the device confirms that, its memory is kept forever.
    pub fn destroy(self, function: &Function, uid: u16) -> Result<(), Error> {
        let destroy = |uid| function.destroy_object(Opcode::DestroyEq, uid, self.eqn.into());
        // The first attempt has no user context, since EQ numbers are normally unique within the function. A node has
        // more openers than numbers; it refuses a number that several openers use, and needs the user context to tell
        // them apart.
        let destroyed = match destroy(0) {
            Err(refused @ Error::Command { status: Status::BadResState, .. }) => {
                destroy(uid).map_err(|_| refused)
            }
            first => first,
        };
        destroyed.inspect_err(|_| std::mem::forget(self.mem))
    }
}
