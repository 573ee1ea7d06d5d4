//! The log in which all openers find the function's asynchronous events.
//!
//! The device has one event queue for them, and one for requests for pages. An opener that looks at the first copies an
//! entry into the log before it frees the entry for the device, and each opener reads the log at a position of its own,
//! so that an event reaches all of them. Requests for pages are served where they are found, and do not go there.
//! No step holds anything that others wait for: an opener that dies or stops between two of them leaves the rest to the
//! next one.

use super::{FunctionLock, Shared, xrc};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Events of the past that the log has.
pub const LOGGED: u32 = 512;

/// Words of each of the function's event queues: where it lies, entries taken, and entries taken when it was last armed.
const QUEUES: usize = xrc::END;
const QUEUE_WORDS: usize = 8;
const NUMBER: usize = 0;
const PAGE: usize = 1;
const ADDRESS_LOW: usize = 2;
const ADDRESS_HIGH: usize = 3;
const ENTRIES: usize = 4;
const TAKEN: usize = 5;
const ARMED: usize = 6;
const LOG: usize = QUEUES + 2 * QUEUE_WORDS;
const END: usize = LOG + 2 * LOGGED as usize;
const _: () = assert!(END * 4 <= super::SHARED_LEN && LOG % 2 == 0);

/// An event as the log has it: round of the log (16 bits), type (8), the rest (40).
const ROUND_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 40;
const REST: u64 = (1 << KIND_SHIFT) - 1;

/// One of the function's event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Of what is neither a completion nor a request for pages; its entries go to the log.
    Events,
    /// Of requests for pages; an entry is taken when it has been served.
    Pages,
}

/// Where an event queue lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Its number.
    pub eqn: u8,
    /// The doorbell page it is told its consumer index by.
    pub uar: u32,
    /// Where its ring begins.
    pub iova: u64,
    /// Entries of the ring.
    pub entries: u32,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its type.
    pub kind: u8,
    /// 40 bits of what it says.
    pub rest: u64,
}

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is this.
    Event(Logged),
    /// A later one has taken its place.
    Overwritten,
}

/// The mark of event `number` in the log: 1 in the first round, since 0 is an empty place.
fn round(number: u32) -> u64 {
    u64::from((number / LOGGED).wrapping_add(1) as u16)
}

impl Shared {
    fn place(&self, number: u32) -> &AtomicU64 {
        &self.mem.words()[LOG / 2 + (number % LOGGED) as usize]
    }

    fn queue_word(&self, which: Which, word: usize) -> &AtomicU32 {
        self.word(QUEUES + which as usize * QUEUE_WORDS + word)
    }

    /// An event queue of the function's, once there is one.
    pub fn event_queue(&self, which: Which) -> Option<QueuePlace> {
        let number = self.queue_word(which, NUMBER).load(Acquire).checked_sub(1)?;
        let half = |word: usize| self.queue_word(which, word).load(Relaxed);
        Some(QueuePlace {
            eqn: number as u8,
            uar: half(PAGE),
            iova: u64::from(half(ADDRESS_HIGH)) << 32 | u64::from(half(ADDRESS_LOW)),
            entries: half(ENTRIES),
        })
    }

    /// Entries that were taken out of a queue, modulo 2^32.
    pub fn taken(&self, which: Which) -> u32 {
        self.queue_word(which, TAKEN).load(Acquire)
    }

    /// As [`Shared::taken`], of the queue whose entries go to the log.
    pub fn events_taken(&self) -> u32 {
        self.taken(Which::Events)
    }

    /// Records `event` as number `number`. Does nothing if another opener did.
    pub fn log_event(&self, number: u32, event: Logged) {
        let place = self.place(number);
        let before = place.load(Acquire);
        if before >> ROUND_SHIFT == round(number).wrapping_sub(1) & 0xffff {
            let word = round(number) << ROUND_SHIFT | u64::from(event.kind) << KIND_SHIFT | event.rest & REST;
            // Another opener that was faster has written the same.
            let _ = place.compare_exchange(before, word, AcqRel, Relaxed);
        }
    }

    /// Counts entry `number` of a queue as taken. False: another opener has done so.
    pub fn take(&self, which: Which, number: u32) -> bool {
        let word = self.queue_word(which, TAKEN);
        word.compare_exchange(number, number.wrapping_add(1), AcqRel, Relaxed).is_ok()
    }

    /// Event `number`, which was taken.
    pub fn event(&self, number: u32) -> Found {
        let word = self.place(number).load(Acquire);
        match word >> ROUND_SHIFT == round(number) {
            true => Found::Event(Logged { kind: (word >> KIND_SHIFT) as u8, rest: word & REST }),
            false => Found::Overwritten,
        }
    }

    /// Entries that were taken when a queue was last armed.
    pub fn armed(&self, which: Which) -> u32 {
        self.queue_word(which, ARMED).load(Acquire)
    }

    /// Records that a queue was armed behind entry `number`.
    pub fn set_armed(&self, which: Which, number: u32) {
        self.queue_word(which, ARMED).store(number, Release);
    }
}

impl FunctionLock<'_> {
    /// Records that the function has no event queues; the log is empty.
    pub fn clear_event_queues(&self) {
        (QUEUES..END).for_each(|word| self.0.word(word).store(0, Release));
    }

    /// Records an event queue of the function's, armed and of which nothing was taken.
    pub fn set_event_queue(&self, which: Which, place: QueuePlace) {
        let store = |word: usize, value: u32| self.0.queue_word(which, word).store(value, Relaxed);
        store(PAGE, place.uar);
        store(ADDRESS_LOW, place.iova as u32);
        store(ADDRESS_HIGH, (place.iova >> 32) as u32);
        store(ENTRIES, place.entries);
        self.0.queue_word(which, NUMBER).store(u32::from(place.eqn) + 1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Transport, fake::Chip};
    use std::sync::Arc;

    #[test]
    fn an_event_is_logged_once_and_stays_until_the_log_has_gone_round() {
        let transport: Arc<dyn Transport> = Chip::new().opener(1);
        let shared = Shared::open(&transport).unwrap();
        let event = |number: u32| Logged { kind: number as u8, rest: u64::from(number) << 8 };
        for number in 0..70_000 {
            assert_eq!(shared.events_taken(), number);
            shared.log_event(number, event(number));
            // An opener that was stopped before it logged the same event, and one before it.
            shared.log_event(number, event(7));
            shared.log_event(number.saturating_sub(LOGGED), event(9));
            assert!(shared.take(Which::Events, number) && !shared.take(Which::Events, number));
            assert_eq!(shared.event(number), Found::Event(event(number)));
            if let Some(old) = number.checked_sub(LOGGED) {
                assert_eq!(shared.event(old), Found::Overwritten);
                assert_eq!(shared.event(old + 1), Found::Event(event(old + 1)));
            }
        }
    }
}
