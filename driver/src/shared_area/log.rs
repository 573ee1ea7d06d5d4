//! The log in which all openers find the function's asynchronous events.
//!
//! The device has one event queue for them. Whichever opener looks copies an entry into the log before it frees the
//! entry for the device, and each opener reads the log at a position of its own, so that an event reaches all of them.
//! No step holds anything that others wait for: an opener that dies or stops between two of them leaves the rest to the
//! next one.

use super::{FunctionLock, Shared, xrc};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Events of the past that the log has.
pub const LOGGED: u32 = 512;

/// Words of the function's event queue.
const QUEUE: usize = xrc::END;
const QUEUE_WORDS: usize = 8;
const NUMBER: usize = QUEUE;
const PAGE: usize = QUEUE + 1;
const ADDRESS_LOW: usize = QUEUE + 2;
const ADDRESS_HIGH: usize = QUEUE + 3;
const ENTRIES: usize = QUEUE + 4;
/// Events taken, requests for pages served, events taken when the queue was last armed.
const TAKEN: usize = QUEUE + 5;
const SERVED: usize = QUEUE + 6;
const ARMED: usize = QUEUE + 7;
const LOG: usize = QUEUE + QUEUE_WORDS;
const END: usize = LOG + 2 * LOGGED as usize;
const _: () = assert!(END * 4 <= super::SHARED_LEN && LOG % 2 == 0);

/// An event as the log has it: round of the log (16 bits), type (8), the rest (40).
const ROUND_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 40;
const REST: u64 = (1 << KIND_SHIFT) - 1;

/// Where the function's event queue lies.
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

    /// The function's event queue, once there is one.
    pub fn event_queue(&self) -> Option<QueuePlace> {
        let number = self.word(NUMBER).load(Acquire).checked_sub(1)?;
        let half = |word: usize| self.word(word).load(Relaxed);
        Some(QueuePlace {
            eqn: number as u8,
            uar: half(PAGE),
            iova: u64::from(half(ADDRESS_HIGH)) << 32 | u64::from(half(ADDRESS_LOW)),
            entries: half(ENTRIES),
        })
    }

    /// Events that were taken out of the queue, modulo 2^32.
    pub fn events_taken(&self) -> u32 {
        self.word(TAKEN).load(Acquire)
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

    /// Counts event `number` as taken. False: another opener has done so.
    pub fn take_event(&self, number: u32) -> bool {
        self.word(TAKEN).compare_exchange(number, number.wrapping_add(1), AcqRel, Relaxed).is_ok()
    }

    /// Event `number`, which was taken.
    pub fn event(&self, number: u32) -> Found {
        let word = self.place(number).load(Acquire);
        match word >> ROUND_SHIFT == round(number) {
            true => Found::Event(Logged { kind: (word >> KIND_SHIFT) as u8, rest: word & REST }),
            false => Found::Overwritten,
        }
    }

    /// The first event that may be an unserved request for pages.
    pub fn pages_served(&self) -> u32 {
        self.word(SERVED).load(Acquire)
    }

    /// Counts event `number` as served, by the opener that supplies pages.
    pub fn serve_event(&self, number: u32) {
        self.word(SERVED).store(number.wrapping_add(1), Release);
    }

    /// Events that were taken when the queue was last armed.
    pub fn events_armed(&self) -> u32 {
        self.word(ARMED).load(Acquire)
    }

    /// Records that the queue was armed behind event `number`.
    pub fn set_events_armed(&self, number: u32) {
        self.word(ARMED).store(number, Release);
    }
}

impl FunctionLock<'_> {
    /// Records the function's event queue, or that there is none; its log is empty.
    pub fn set_event_queue(&self, place: Option<QueuePlace>) {
        (QUEUE..END).for_each(|word| self.0.word(word).store(0, Release));
        let Some(place) = place else { return };
        self.0.word(PAGE).store(place.uar, Relaxed);
        self.0.word(ADDRESS_LOW).store(place.iova as u32, Relaxed);
        self.0.word(ADDRESS_HIGH).store((place.iova >> 32) as u32, Relaxed);
        self.0.word(ENTRIES).store(place.entries, Relaxed);
        self.0.word(NUMBER).store(u32::from(place.eqn) + 1, Release);
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
            assert!(shared.take_event(number) && !shared.take_event(number));
            assert_eq!(shared.event(number), Found::Event(event(number)));
            if let Some(old) = number.checked_sub(LOGGED) {
                assert_eq!(shared.event(old), Found::Overwritten);
                assert_eq!(shared.event(old + 1), Found::Event(event(old + 1)));
            }
        }
    }
}
