//! The function's event queue for what is not a completion: one, of the function itself, which all openers share. The
//! device keeps one queue for each class of events, whoever made the object that an event is about.
//!
//! Requests for pages are among the events. They are served by whoever finds them: a thread that takes events, or one
//! that waits for a command, since the device may hold a command back until it has the pages.

use crate::{
    cmd::{Attendant, CommandQueue},
    dma::{DmaMem, DmaRing},
    eq::{self, Wanted},
    error::Error,
    function::Function,
    pages::{OwnBlocks, Owner, PageSupply},
    shared_area::{FunctionLock, LOGGED, Logged, QueuePlace, Shared},
    transport::{Bar, Scope, Transport},
};
use hwspec::{
    cmd::{Opcode, eq::DestroyEqIn, resource::*},
    doorbell::{EQ_ARM, EQ_CI},
    eqe::{CqErrorEvent, Eqe, EventType, PagesEvent, PortEvent, QpEvent},
};
use std::{sync::Arc, time::Instant};

/// The interrupt vector of these events, unless the function has no other.
pub const VECTOR: u16 = 0;
/// Entries at most.
const ENTRIES: u32 = 1024;
/// Entries after which the consumer index is reported, at the latest.
const REPORT_EVERY: u32 = 64;

/// An event as openers hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A function has to be given pages, or to give back, if negative.
    Pages(Owner, i32),
    /// Something else: subtype, and the number of the object or port.
    Of(EventType, u8, u32),
}

impl Notice {
    const EMBEDDED: u64 = 1 << 16;
    const COUNT_SHIFT: u32 = 17;
    /// Most pages that fit, in either direction: 16 GiB, far more than firmware takes at once.
    const MOST: i32 = (1 << 22) - 1;

    fn of(eqe: &Eqe) -> Self {
        let kind = eqe.event_type();
        let (sub, number) = match kind {
            EventType::PageRequest => {
                let data = eqe.data::<PagesEvent>();
                let owner = Owner { function: data.function_id(), embedded: data.ec_function() };
                return Self::Pages(owner, data.num_pages() as i32);
            }
            EventType::CqError => {
                let data = eqe.data::<CqErrorEvent>();
                (data.syndrome().raw(), data.cqn().0)
            }
            // The kind of the queue, which the type does not tell.
            EventType::WqCatasError => {
                let data = eqe.data::<QpEvent>();
                (data.kind().raw(), data.qpn_rqn_sqn().0)
            }
            EventType::PortChange => (eqe.event_sub_type(), eqe.data::<PortEvent>().port_num().into()),
            _ => (eqe.event_sub_type(), eqe.data::<QpEvent>().qpn_rqn_sqn().0),
        };
        Self::Of(kind, sub, number)
    }

    fn log(self) -> Logged {
        match self {
            Self::Pages(owner, pages) => {
                let pages = pages.clamp(-Self::MOST, Self::MOST) as u64;
                let embedded = if owner.embedded { Self::EMBEDDED } else { 0 };
                let rest = pages << Self::COUNT_SHIFT | embedded | u64::from(owner.function);
                Logged { kind: EventType::PageRequest.raw(), rest }
            }
            Self::Of(kind, sub, number) => {
                Logged { kind: kind.raw(), rest: u64::from(sub) << 24 | u64::from(number & 0xff_ffff) }
            }
        }
    }

    /// Reads an entry of the log.
    pub fn read(logged: Logged) -> Self {
        match EventType::from_raw(logged.kind) {
            EventType::PageRequest => {
                let owner =
                    Owner { function: logged.rest as u16, embedded: logged.rest & Self::EMBEDDED != 0 };
                // 23 bits with a sign, at the top of 40.
                Self::Pages(owner, ((logged.rest << 24) as i64 >> (24 + Self::COUNT_SHIFT)) as i32)
            }
            kind => Self::Of(kind, (logged.rest >> 24) as u8, logged.rest as u32 & 0xff_ffff),
        }
    }
}

/// The queue as one opener reaches it.
pub struct AsyncQueue {
    ring: DmaRing,
    place: QueuePlace,
    bar: Bar,
    shared: Shared,
}

impl AsyncQueue {
    /// Creates the queue, by the function's first opener.
    pub fn create(function: &Function, lock: &FunctionLock<'_>) -> Result<(), Error> {
        let page: AllocUarOut = function.call(Opcode::AllocUar, 0, &AllocUarIn::zeroed())?;
        function.bar.check_page(page.uar())?;
        let wanted = Wanted {
            uid: 0,
            uar: page.uar(),
            vector: VECTOR,
            entries: function.options.eq_entries.min(ENTRIES),
            // None of fatal errors (type 8), which the health buffer shows: devices refuse a queue that asks for types they do
            // not have.
            mask: EventType::OF_ALL
                .iter()
                .chain(&[EventType::PageRequest])
                .fold(0, |mask, event| mask | 1 << event.raw()),
            scope: Scope::Function,
        };
        let (mem, entries, eqn) = eq::create(function, &wanted)?;
        let iova = mem.iova();
        // With the pages for the chip, since it outlives its maker as they do.
        if let Some(mem) = Arc::into_inner(mem) {
            function.pages()?.keep(mem)?;
        }
        lock.set_event_queue(Some(QueuePlace { eqn, uar: page.uar(), iova, entries }));
        Ok(())
    }

    /// The queue that the first opener created.
    pub fn attach(transport: &Arc<dyn Transport>, bar: &Bar, shared: &Shared) -> Result<Arc<Self>, Error> {
        let found = || Error::device("the function's event queue in the area of its openers", "none");
        let place = shared.event_queue().ok_or_else(found)?;
        if !place.entries.is_power_of_two() || place.entries > ENTRIES {
            return Err(Error::device(
                format!("an event queue of at most {ENTRIES} entries"),
                place.entries.to_string(),
            ));
        }
        let mem = Arc::new(DmaMem::attach(transport, place.iova, place.entries as usize * Eqe::SIZE)?);
        let ring = DmaRing::new(mem, 0, place.entries, Eqe::SIZE);
        Ok(Arc::new(Self { ring, place, bar: bar.clone(), shared: shared.clone() }))
    }

    /// Takes what the device has written into the log. Returns whether there is room in it for what may come.
    fn collect(&self) -> bool {
        // One round at most, so that a device that writes faster than it is read cannot keep us here.
        for _ in 0..self.place.entries {
            let number = self.shared.events_taken();
            // A request for pages stays until it is served.
            if number.wrapping_sub(self.shared.pages_served()) >= LOGGED {
                return false;
            }
            let wrap = (number / self.place.entries) & 1;
            let Some(bytes) = self.ring.take64(number, |last| u32::from(last & 1) == wrap) else { break };
            if self.shared.events_taken() != number {
                continue;
            }
            self.shared.log_event(number, Notice::of(&Eqe::from_bytes(bytes)).log());
            let taken = number.wrapping_add(1);
            if self.shared.take_event(number) && taken % REPORT_EVERY == 0 {
                self.report(EQ_CI, taken);
            }
        }
        true
    }

    /// Asks for an interrupt at the next event, unless it was asked for since the last one was taken.
    fn arm(&self) {
        let taken = self.shared.events_taken();
        if self.shared.events_armed() != taken {
            self.report(EQ_ARM, taken);
            self.shared.set_events_armed(taken);
        }
    }

    fn report(&self, register: usize, taken: u32) {
        eq::report(&self.bar, (self.place.uar, self.place.eqn), register, taken);
    }
}

/// Serves requests for pages.
pub struct Server {
    pub queue: Arc<AsyncQueue>,
    pub transport: Arc<dyn Transport>,
    pub shared: Shared,
    pub own: Arc<OwnBlocks>,
}

impl Attendant for Server {
    /// Takes events into the log and serves the requests among them. What another opener is about to serve is its.
    fn attend(&self, cmd: &CommandQueue) {
        let supply = PageSupply {
            transport: &self.transport,
            shared: &self.shared,
            cmd,
            own: &self.own,
            began: Instant::now(),
        };
        let mut room = self.queue.collect();
        while self.shared.pages_served() != self.shared.events_taken() {
            if !self.shared.claim_page_manager() {
                return;
            }
            loop {
                let number = self.shared.pages_served();
                if number == self.shared.events_taken() || supply.is_over() {
                    break;
                }
                if let crate::shared_area::Found::Event(logged) = self.shared.event(number) {
                    if let Notice::Pages(owner, pages) = Notice::read(logged) {
                        supply.answer(owner, pages);
                    }
                }
                self.shared.serve_event(number);
            }
            self.shared.release_page_manager();
            // Each command of ours may be answered with another request. Those are for whoever comes next.
            if supply.is_over() {
                return;
            }
            // What came after the last look was left to us by whoever found the role taken.
            if !room {
                room = self.queue.collect();
            }
        }
    }
}

/// Destroys the queue, by the function's last opener. Its memory goes with the pages.
pub fn destroy(function: &Function, lock: &FunctionLock<'_>) -> Result<(), Error> {
    let Some(place) = function.shared.event_queue() else { return Ok(()) };
    let mut input = DestroyEqIn::zeroed();
    input.set().eq_number(place.eqn);
    function.order(Opcode::DestroyEq, 0, &input)?;
    lock.set_event_queue(None);
    let mut input = DeallocUarIn::zeroed();
    input.set().uar(place.uar);
    function.order(Opcode::DeallocUar, 0, &input)
}

/// One opener's position in the log.
pub struct Reader {
    queue: Arc<AsyncQueue>,
    next: u32,
}

impl Reader {
    /// Reads what comes from now on.
    pub fn new(queue: &Arc<AsyncQueue>) -> Self {
        Self { queue: queue.clone(), next: queue.shared.events_taken() }
    }

    /// The next event, with its number.
    pub fn next(&mut self) -> Option<(u32, Notice)> {
        loop {
            let behind = self.queue.shared.events_taken().wrapping_sub(self.next);
            if behind == 0 {
                return None;
            }
            let number = self.next;
            self.next = number.wrapping_add(1);
            match self.queue.shared.event(number) {
                crate::shared_area::Found::Event(logged) => return Some((number, Notice::read(logged))),
                crate::shared_area::Found::Overwritten => {
                    tracing::warn!("{behind} events came while nobody took them, and the oldest are lost");
                    self.next = number.wrapping_add(behind.saturating_sub(LOGGED / 2).max(1));
                }
            }
        }
    }

    /// Asks for an interrupt at the next event.
    pub fn arm(&self) {
        self.queue.arm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_comes_out_of_the_log_as_it_went_in() {
        let owner = |function, embedded| Owner { function, embedded };
        let notices = [
            Notice::Pages(owner(0, false), 1),
            Notice::Pages(owner(0xffff, true), -50_000),
            Notice::Pages(owner(7, false), Notice::MOST),
            Notice::Pages(owner(7, true), -Notice::MOST),
            Notice::Of(EventType::WqAccessError, 0, 0xff_ffff),
            Notice::Of(EventType::PortChange, 0xff, 1),
            Notice::Of(EventType::Other(0x7f), 3, 0),
        ];
        assert_eq!(notices.map(|notice| Notice::read(notice.log())), notices);
        let most = Notice::Pages(owner(1, false), i32::MIN);
        assert_eq!(Notice::read(most.log()), Notice::Pages(owner(1, false), -Notice::MOST));
    }
}
