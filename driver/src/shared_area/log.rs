//! The log that distributes the function's asynchronous events to all openers.
//!
//! The device has one event queue for them, and one for page requests. The first opener to find an entry copies it to
//! the log before returning the entry to the device, and each opener reads the log at its own position, so that an
//! event reaches all of them. Page requests are served where they are found and do not go to the log. No step holds a
//! resource that others wait for: if an opener dies or stops between two steps, the next opener continues.

use super::{FunctionLock, Shared, xrc};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Number of past events kept in the log.
pub const LOGGED: u32 = 512;

/// Words for each of the function's event queues: location, entries taken, and entries taken when last armed.
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

/// Format of a log entry: round of the log (16 bits), type (8), the rest (40).
const ROUND_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 40;
const REST: u64 = (1 << KIND_SHIFT) - 1;

/// One of the function's event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// For everything but completions and page requests; its entries go to the log.
    Events,
    /// For page requests; an entry counts as taken once it has been served.
    Pages,
}

/// Location of an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Its number.
    pub eqn: u8,
    /// The doorbell page for its consumer index.
    pub uar: u32,
    /// IOVA of its ring.
    pub iova: u64,
    /// Number of entries of the ring.
    pub entries: u32,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its type.
    pub kind: u8,
    /// The remaining 40 bits.
    pub rest: u64,
}

/// The result of reading the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The event.
    Event(Logged),
    /// The event was overwritten by a later one.
    Overwritten,
}

/// The round in the log entry of event `number`: 1 in the first round, since 0 marks an empty entry.
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

    /// The location of an event queue, if it has been created.
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

    /// Number of entries taken from a queue, modulo 2^32.
    pub fn taken(&self, which: Which) -> u32 {
        self.queue_word(which, TAKEN).load(Acquire)
    }

    /// Like [`Shared::taken`], for the queue with entries that go to the log.
    pub fn events_taken(&self) -> u32 {
        self.taken(Which::Events)
    }

    /// Records `event` as number `number`, unless another opener already did.
    pub fn log_event(&self, number: u32, event: Logged) {
        let place = self.place(number);
        let before = place.load(Acquire);
        if before >> ROUND_SHIFT == round(number).wrapping_sub(1) & 0xffff {
            let word = round(number) << ROUND_SHIFT | u64::from(event.kind) << KIND_SHIFT | event.rest & REST;
            // A faster opener has written the same value.
            let _ = place.compare_exchange(before, word, AcqRel, Relaxed);
        }
    }

    /// Marks entry `number` of a queue as taken. Returns false if another opener already did.
    pub fn take(&self, which: Which, number: u32) -> bool {
        let word = self.queue_word(which, TAKEN);
        word.compare_exchange(number, number.wrapping_add(1), AcqRel, Relaxed).is_ok()
    }

    /// Reads event `number`, which has been taken.
    pub fn event(&self, number: u32) -> Found {
        let word = self.place(number).load(Acquire);
        match word >> ROUND_SHIFT == round(number) {
            true => Found::Event(Logged { kind: (word >> KIND_SHIFT) as u8, rest: word & REST }),
            false => Found::Overwritten,
        }
    }

    /// Number of entries taken when a queue was last armed.
    pub fn armed(&self, which: Which) -> u32 {
        self.queue_word(which, ARMED).load(Acquire)
    }

    /// Records that a queue was armed after entry `number`.
    pub fn set_armed(&self, which: Which, number: u32) {
        self.queue_word(which, ARMED).store(number, Release);
    }
}

impl FunctionLock<'_> {
    /// Records that the function has no event queues, and empties the log.
    pub fn clear_event_queues(&self) {
        (QUEUES..END).for_each(|word| self.0.word(word).store(0, Release));
    }

    /// Records an event queue of the function, armed and with no entries taken.
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
            // An opener was stopped before it logged the same event, and one before it.
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
