//! The function's event queues for everything but completions, shared by all openers. There are two: one for page
//! requests, since a card refuses to combine these with other events, and one for everything else. The device keeps one
//! queue per class of events, regardless of which opener created the object in question.
//!
//! Any opener may serve page requests: in a thread that takes events, or while it waits for a command, since the device
//! may hold a command back until it has the pages.

use crate::{
    cmd::{Attendant, CommandQueue},
    dma::{BlockRing, DmaMem},
    eq::{self, Wanted},
    error::Error,
    function::Function,
    pages::{OwnBlocks, Owner, PageSupply},
    shared_area::{Found, FunctionLock, LOGGED, Logged, QueuePlace, Shared, Which},
    transport::{Bar, Scope, Transport},
};
use hwspec::{
    cmd::{CmdIn, Opcode, resource::*},
    doorbell::{EQ_ARM, EQ_CI},
    eqe::{CqErrorEvent, Eqe, EventType, PagesEvent, PortEvent, QpEvent},
};
use std::{sync::Arc, time::Instant};

/// Interrupt vector of these events, shared with completions if the function has no other.
pub const VECTOR: u16 = 0;
/// Maximum number of entries.
const ENTRIES: u32 = 1024;
/// Maximum number of entries between reports of the consumer index.
const REPORT_EVERY: u32 = 64;

/// An event as openers see it: type, subtype, and number of the object or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice(pub EventType, pub u8, pub u32);

impl Notice {
    fn of(eqe: &Eqe) -> Self {
        let kind = eqe.event_type();
        let (sub, number) = match kind {
            EventType::CqError => {
                let data = eqe.data::<CqErrorEvent>();
                (data.syndrome().raw(), data.cqn().0)
            }
            // The kind of queue, which the event type does not contain.
            EventType::WqCatasError => {
                let data = eqe.data::<QpEvent>();
                (data.kind().raw(), data.qpn_rqn_sqn().0)
            }
            EventType::PortChange => (eqe.event_sub_type(), eqe.data::<PortEvent>().port_num().into()),
            _ => (eqe.event_sub_type(), eqe.data::<QpEvent>().qpn_rqn_sqn().0),
        };
        Self(kind, sub, number)
    }

    fn log(self) -> Logged {
        let Self(kind, sub, number) = self;
        Logged { kind: kind.raw(), rest: u64::from(sub) << 24 | u64::from(number & 0xff_ffff) }
    }

    /// Reads an entry of the log.
    pub fn read(logged: Logged) -> Self {
        Self(EventType::from_raw(logged.kind), (logged.rest >> 24) as u8, logged.rest as u32 & 0xff_ffff)
    }
}

/// One opener's view of a queue.
struct Queue {
    which: Which,
    ring: BlockRing,
    place: QueuePlace,
    bar: Bar,
    shared: Shared,
}

impl Queue {
    /// Creates the function's queue for the events in `mask`, and arms it.
    fn create(
        function: &Function,
        lock: &FunctionLock<'_>,
        (which, uar): (Which, u32),
        mask: u64,
    ) -> Result<(), Error> {
        let entries = function.options.eq_entries.min(ENTRIES);
        let wanted = Wanted { uid: 0, uar, vector: VECTOR, entries, mask, scope: Scope::Function };
        let (mem, entries, eqn) = eq::create(function, &wanted)?;
        let iova = mem.iova();
        // Kept with the chip's pages, since it outlives its creator as they do.
        if let Some(mem) = Arc::into_inner(mem) {
            function.pages()?.keep(mem)?;
        }
        lock.set_event_queue(which, QueuePlace { eqn, uar, iova, entries });
        eq::report(&function.bar, (uar, eqn), EQ_ARM, 0);
        Ok(())
    }

    fn attach(
        transport: &Arc<dyn Transport>,
        bar: &Bar,
        shared: &Shared,
        which: Which,
    ) -> Result<Self, Error> {
        let found = || Error::device("the function's event queues in the area of its openers", "none");
        let place = shared.event_queue(which).ok_or_else(found)?;
        if !place.entries.is_power_of_two() || place.entries > ENTRIES {
            return Err(Error::device(
                format!("an event queue of at most {ENTRIES} entries"),
                place.entries.to_string(),
            ));
        }
        let mem = Arc::new(DmaMem::attach(transport, place.iova, place.entries as usize * Eqe::SIZE)?);
        let ring = BlockRing::new(mem, 0, place.entries);
        Ok(Self { which, ring, place, bar: bar.clone(), shared: shared.clone() })
    }

    /// Returns the next entry with its number, if the device has written one.
    fn peek(&self) -> Option<(u32, Eqe)> {
        loop {
            let number = self.shared.taken(self.which);
            let wrap = (number / self.place.entries) & 1;
            let bytes = self.ring.take64(number, |last| u32::from(last & 1) == wrap)?;
            // Meanwhile another opener may have taken the entry, and the device may have overwritten it.
            if self.shared.taken(self.which) == number {
                return Some((number, Eqe::from_bytes(bytes)));
            }
        }
    }

    /// Marks entry `number` as taken, unless another opener already did.
    fn take(&self, number: u32) {
        let taken = number.wrapping_add(1);
        if self.shared.take(self.which, number) && taken % REPORT_EVERY == 0 {
            self.report(EQ_CI, taken);
        }
    }

    /// Requests an interrupt for the next entry, unless one has been requested since the last entry was taken.
    fn arm(&self) {
        let taken = self.shared.taken(self.which);
        if self.shared.armed(self.which) != taken {
            self.report(EQ_ARM, taken);
            self.shared.set_armed(self.which, taken);
        }
    }

    fn report(&self, register: usize, taken: u32) {
        eq::report(&self.bar, (self.place.uar, self.place.eqn), register, taken);
    }
}

/// One opener's view of both queues.
pub struct AsyncQueues {
    events: Queue,
    pages: Queue,
}

impl AsyncQueues {
    /// Creates the queues. Called by the function's first opener.
    pub fn create(function: &Function, lock: &FunctionLock<'_>) -> Result<(), Error> {
        let page: AllocUarOut = function.call(Opcode::AllocUar, 0, &CmdIn::zeroed())?;
        function.bar.reach_page(page.uar())?;
        let mask = |events: &[EventType]| events.iter().fold(0, |mask, event| mask | 1 << event.raw());
        // Only types that every device has, so there is no need to check capabilities. Fatal errors (type 8) are left
        // to the health buffer: devices refuse a queue that asks for types they do not have.
        Queue::create(function, lock, (Which::Events, page.uar()), mask(&EventType::OF_ALL))?;
        Queue::create(function, lock, (Which::Pages, page.uar()), mask(&[EventType::PageRequest]))
    }

    /// Attaches to the queues that the first opener created.
    pub fn attach(transport: &Arc<dyn Transport>, bar: &Bar, shared: &Shared) -> Result<Arc<Self>, Error> {
        let attach = |which| Queue::attach(transport, bar, shared, which);
        Ok(Arc::new(Self { events: attach(Which::Events)?, pages: attach(Which::Pages)? }))
    }

    /// Moves the events that the device has written to the log.
    fn collect(&self) {
        // At most one round, so that a device that writes faster than we read cannot keep us here.
        for _ in 0..self.events.place.entries {
            let Some((number, eqe)) = self.events.peek() else { break };
            self.events.shared.log_event(number, Notice::of(&eqe).log());
            self.events.take(number);
        }
    }
}

/// Serves page requests.
pub struct Server {
    pub queues: Arc<AsyncQueues>,
    pub transport: Arc<dyn Transport>,
    pub own: Arc<OwnBlocks>,
}

impl Attendant for Server {
    /// Moves events to the log, and serves page requests. Leaves a request to another opener that is about to serve it.
    fn attend(&self, cmd: &CommandQueue) {
        self.queues.collect();
        let queue = &self.queues.pages;
        let shared = &queue.shared;
        let supply =
            PageSupply { transport: &self.transport, shared, cmd, own: &self.own, began: Instant::now() };
        // At most one round, as above. The holder of the role checks for new requests after releasing it. The loop also
        // ends after the timeout of one command, since each of our commands may be answered with another request; the
        // remaining ones are left to the next opener.
        for _ in 0..queue.place.entries {
            if queue.peek().is_none() || supply.is_over() || !shared.claim_page_manager() {
                return;
            }
            if let Some((number, eqe)) = queue.peek() {
                if eqe.event_type() == EventType::PageRequest {
                    let asked = eqe.data::<PagesEvent>();
                    let owner = Owner { function: asked.function_id(), embedded: asked.ec_function() };
                    supply.answer(owner, asked.num_pages() as i32);
                }
                queue.take(number);
            }
            shared.release_page_manager();
        }
    }
}

/// Destroys the queues. Called by the function's last opener. Their memory is freed with the pages. The count of taken
/// entries is kept until then: without it, entries would be served again while further commands are waited for.
pub fn destroy(function: &Function) -> Result<(), Error> {
    // The queue for page requests goes last, so that they are served for as long as the device can make them.
    for which in [Which::Events, Which::Pages] {
        let Some(place) = function.shared.event_queue(which) else { continue };
        function.attend();
        function.destroy_object(Opcode::DestroyEq, 0, place.eqn.into())?;
        if which == Which::Pages {
            function.destroy_object(Opcode::DeallocUar, 0, place.uar)?;
        }
    }
    Ok(())
}

/// One opener's position in the log.
pub struct Reader {
    queues: Arc<AsyncQueues>,
    next: u32,
}

impl Reader {
    /// Starts reading at the next event.
    pub fn new(queues: &Arc<AsyncQueues>) -> Self {
        Self { queues: queues.clone(), next: queues.events.shared.events_taken() }
    }

    /// Returns the next event with its number.
    pub fn next(&mut self) -> Option<(u32, Notice)> {
        let shared = &self.queues.events.shared;
        loop {
            let behind = shared.events_taken().wrapping_sub(self.next);
            if behind == 0 {
                return None;
            }
            let number = self.next;
            self.next = number.wrapping_add(1);
            match shared.event(number) {
                Found::Event(logged) => return Some((number, Notice::read(logged))),
                Found::Overwritten => {
                    tracing::warn!("{behind} events came while no program read them: the oldest are lost");
                    self.next = number.wrapping_add(behind.saturating_sub(LOGGED / 2).max(1));
                }
            }
        }
    }

    /// Requests an interrupt for the next event and for the next page request.
    pub fn arm(&self) {
        self.queues.events.arm();
        self.queues.pages.arm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_out_of_the_log_as_it_went_in() {
        let notices = [
            Notice(EventType::WqAccessError, 0, 0xff_ffff),
            Notice(EventType::PortChange, 0xff, 1),
            Notice(EventType::Other(0x7f), 3, 0),
        ];
        assert_eq!(notices.map(|notice| Notice::read(notice.log())), notices);
    }
}
