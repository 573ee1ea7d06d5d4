//! Rings of whole frames that belong to no function: the uplink, for frames that leave the adapter, and the capture, for copies
//! of all frames on the wire.
//!
//! The parties that run the pipeline fill them, under their own small lock; one party consumes each. As in a receive ring,
//! a filler publishes only the tail, so a filler that dies leaves nothing behind and merely loses frames. An outlet is closed
//! while it has no consumer, and then holds nothing.
//!
//! A filler may be stopped indefinitely while it holds the lock. Therefore each outlet has several rings, its lanes: if the
//! filler of one is stopped, the next filler takes another lane. Nearly always all frames go through the first.
//!
//! The frames of one flow, which one party at a time sends, come out in order even if the lane changes in between: no frame
//! goes into a lane while a later lane holds one, and the consumer takes from the first lane that holds one.

use super::{
    Lock, Patience, Region,
    layout::{MAX_FRAME, OUTLET_LANES, Outlet},
};
use crate::{
    Config,
    host::{Host, Party},
};
use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::*},
};
use sync::laboratory::{Site, step};

/// Bytes of a record before its frame: length, sender, time.
const HEAD: usize = 16;

/// Fill level of an outlet, in bytes, from which on senders pause as on a paused switch port; limited to half of the ring.
const PAUSE: usize = 512 << 10;
/// Senders stop pausing when the consumer has taken nothing for this long, in ps. Frames that find no room are then lost.
const STUCK: u64 = 100_000_000_000;
/// Maximum time in ps for which a sender with another way waits for an outlet to become idle.
const SOON: u64 = 1_000_000_000;

/// Words of a lane. Except for head and tail, only those of the first lane are used, for the whole outlet.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Word {
    /// Total frames dropped for lack of room.
    Lost = 0,
    /// Bytes taken, free-running.
    Head = 64,
    /// Time since which the oldest frame has been the oldest, in ps; 64 bits.
    Since = 72,
    /// Not 0 while the consumer has frames that it took and has not delivered yet.
    Carried = 80,
    /// Time of the first frame since the outlet was idle, in ps; 64 bits.
    Busy = 88,
    /// Bytes filled, free-running.
    Tail = 128,
    /// State of the outlet: [`CLOSED`], [`TAKEN`] or [`DIVERTED`]. Mostly read.
    Open = 192,
}

/// No consumer.
const CLOSED: u32 = 0;
/// A consumer takes the frames.
const TAKEN: u32 = 1;
/// Capture only: its frames are not copies; the consumer forwards each one.
const DIVERTED: u32 = 2;

/// Offset of the fillers' lock, after [`Word::Lost`].
const LOCK: usize = 8;

/// Sender and time of a frame in an outlet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Function that sent it; `None` if it came from outside.
    pub from: Option<u8>,
    /// Time at which it entered the wire, in ps.
    pub now: u64,
}

/// An outlet of a region.
#[derive(Clone, Copy)]
pub struct OutletRing<'r> {
    region: &'r Region,
    which: Outlet,
}

impl<'r> OutletRing<'r> {
    /// The outlet `which`.
    #[inline]
    pub fn of(region: &'r Region, which: Outlet) -> Self {
        Self { region, which }
    }

    fn lane(&self, index: usize) -> Lane<'r> {
        let size = self.region.geometry().outlet_size(self.which);
        Lane {
            region: self.region,
            words: self.region.lane_words(self.which, index),
            which: self.which,
            size,
            index,
        }
    }

    /// Takes the lock of a lane and keeps it.
    #[cfg(test)]
    pub(super) fn hold_lane(&self, index: usize, host: &mut dyn Host) {
        let _ = self.lane(index).lock().acquire(host);
    }

    fn lanes(&self) -> impl Iterator<Item = Lane<'r>> + use<'r> {
        let this = *self;
        (0..OUTLET_LANES).map(move |index| this.lane(index))
    }

    /// True if the outlet has a consumer.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.lane(0).word(Word::Open).load(Relaxed) != CLOSED
    }

    /// Empties the outlet and opens or closes it. For its consumer, or the successor of one that died.
    pub fn open(&self, open: bool) {
        self.lanes().for_each(|lane| lane.empty());
        self.set_carried(false);
        self.lane(0).word(Word::Open).store(if open { TAKEN } else { CLOSED }, Release);
    }

    /// Empties the outlet and opens it for a consumer that forwards the frames on the wire.
    pub fn divert(&self) {
        self.lanes().for_each(|lane| lane.empty());
        self.lane(0).word(Word::Open).store(DIVERTED, Release);
    }

    /// Closes it for all fillers; frames already in it stay for the consumer.
    pub fn stop(&self) {
        self.lane(0).word(Word::Open).store(CLOSED, Release);
    }

    /// Frees the locks of a filler that died. `None` if a stopped process holds one.
    pub(super) fn free_lock_of(&self, host: &mut dyn Host, party: Party) -> Option<()> {
        // Frames that it had not published stay invisible.
        self.lanes().try_for_each(|lane| lane.lock().free_of(host, party, || {}))
    }

    fn time(&self, word: Word) -> &'r AtomicU64 {
        // SAFETY: within the words of the lane, as the others; eight bytes, aligned, for the two words that are times.
        unsafe { &*self.lane(0).words.add(word as usize).cast::<AtomicU64>() }
    }

    /// Bytes that a sender may append at `now` (ps) before it pauses. Unlimited once the consumer has stopped taking frames,
    /// since a sender that waited for a stopped program would never get its error.
    #[inline]
    pub fn allowance(&self, now: u64) -> usize {
        let (used, size) = self.lanes().fold((0, 0), |(used, _), lane| (lane.used().max(used), lane.size));
        let left = PAUSE.min(size / 2).saturating_sub(used);
        if left < MAX_FRAME && self.is_stuck(now) { size } else { left }
    }

    /// True if the consumer has taken nothing for so long that it may be stopped.
    fn is_stuck(&self, now: u64) -> bool {
        now.saturating_sub(self.time(Word::Since).load(Relaxed)) > STUCK
    }

    /// True if it will be [idle](Self::is_idle) soon, so that a sender with another way may wait for that at `now` (ps). False if the
    /// consumer is slow, or others fill the outlet all the time.
    pub fn is_idle_soon(&self, now: u64) -> bool {
        now.saturating_sub(self.time(Word::Busy).load(Relaxed)) < SOON
    }

    /// True if no frame waits or is [carried](Self::set_carried), so that later frames of the same flow may go another way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // The consumer marks a frame as carried before it takes it.
        !self.waits() && self.lane(0).word(Word::Carried).load(Acquire) == 0
    }

    /// Records whether the consumer has frames that it took and has not delivered yet. For the consumer only.
    pub fn set_carried(&self, carried: bool) {
        self.lane(0).word(Word::Carried).store(carried.into(), Release);
    }

    /// True if a frame waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.lanes().any(|lane| lane.waits())
    }

    /// Total frames dropped for lack of room.
    pub fn lost(&self) -> u32 {
        self.lane(0).word(Word::Lost).load(Relaxed)
    }

    /// Appends a frame. Returns false if the outlet has no consumer, or if every lane is full or held by a stopped program
    /// (which is counted).
    pub fn push(&self, host: &mut dyn Host, origin: Origin, frame: &[u8]) -> bool {
        self.offer(host, origin, frame).0
    }

    /// Like [`push`](Self::push); the second value is true if the consumer forwards the frame, even if there was no room for it.
    pub(crate) fn offer(&self, host: &mut dyn Host, origin: Origin, frame: &[u8]) -> (bool, bool) {
        // Read once: the mode must not change between the two uses.
        let open = self.lane(0).word(Word::Open).load(Relaxed);
        (open != CLOSED && self.append(host, origin, frame), open == DIVERTED)
    }

    fn append(&self, host: &mut dyn Host, origin: Origin, frame: &[u8]) -> bool {
        // The last lane that may hold earlier frames.
        let last = self.lanes().skip(1).filter(Lane::waits).last().map_or(0, |lane| lane.index);
        if last == 0 && !self.lane(0).waits() {
            self.time(Word::Since).store(origin.now, Relaxed);
            if self.is_idle() {
                self.time(Word::Busy).store(origin.now, Relaxed);
            }
        }
        let mut lanes = self.lanes().skip(last);
        let pushed = lanes.find_map(|lane| lane.push(host, origin, frame)).unwrap_or(false);
        if !pushed {
            self.lane(0).word(Word::Lost).fetch_add(1, Relaxed);
        }
        pushed
    }

    /// Takes the oldest frame into `frame`. For the consumer only.
    pub fn pop(&self, frame: &mut Vec<u8>) -> Option<Origin> {
        frame.clear();
        self.pop_behind(frame)
    }

    /// Takes the oldest frame, and appends it to `bytes`. For the consumer only.
    pub fn pop_behind(&self, bytes: &mut Vec<u8>) -> Option<Origin> {
        self.lanes().find_map(|lane| lane.pop(bytes))
    }

    /// Records that frames were taken at `now` (ps), for senders that wait for room.
    pub fn note_taken(&self, now: u64) {
        self.time(Word::Since).store(now, Relaxed);
    }
}

/// True if the adapter's configuration or a capture makes all frames whole ones, which can be observed.
#[inline]
pub(crate) fn is_watched(region: &Region, config: &Config) -> bool {
    config.sealed || !config.faults.is_none() || OutletRing::of(region, Outlet::Capture).is_open()
}

/// One of the rings of an outlet.
struct Lane<'r> {
    region: &'r Region,
    words: *mut u8,
    which: Outlet,
    /// Bytes of the ring, a power of two.
    size: usize,
    /// Position in the outlet. Lanes other than the first have no backing memory until they are used.
    index: usize,
}

impl<'r> Lane<'r> {
    #[inline]
    fn word(&self, word: Word) -> &'r AtomicU32 {
        // SAFETY: the region's front contains the words of all lanes; they are aligned, since they start at page boundaries;
        // only ever accessed as an atomic.
        unsafe { &*self.words.add(word as usize).cast::<AtomicU32>() }
    }

    fn lock(&self) -> &'r Lock {
        // SAFETY: as for `word`; the lock is among these words.
        unsafe { &*self.words.add(LOCK).cast::<Lock>() }
    }

    fn empty(&self) {
        self.word(Word::Head).store(self.word(Word::Tail).load(Acquire), Release);
    }

    /// Bytes filled and not yet taken.
    fn used(&self) -> usize {
        let head = self.word(Word::Head).load(Acquire);
        (self.word(Word::Tail).load(Acquire).wrapping_sub(head) as usize).min(self.size)
    }

    #[inline]
    fn waits(&self) -> bool {
        self.word(Word::Head).load(Acquire) != self.word(Word::Tail).load(Acquire)
    }

    /// Appends a frame; returns true if there was room for it. `None` if a stopped program holds the lane.
    fn push(&self, host: &mut dyn Host, origin: Origin, frame: &[u8]) -> Option<bool> {
        let need = HEAD + frame.len().next_multiple_of(8);
        let (lock, dead) = self.lock().acquire_with(host, Patience::UntilStopped)?;
        if dead.is_any() {
            // Frames that the dead filler had not published stay invisible.
            lock.repaired();
        }
        let tail = self.word(Word::Tail).load(Relaxed);
        let room = frame.len() <= MAX_FRAME
            && need <= self.size - self.used()
            && (self.index == 0 || self.back(tail, need));
        let ring = self.region.lane_pointer(self.which, self.index).filter(|_| room);
        if let Some(ring) = ring {
            let mut head = [0; HEAD];
            head[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
            head[4..6].copy_from_slice(&origin.from.map_or(u16::MAX, u16::from).to_le_bytes());
            head[8..].copy_from_slice(&origin.now.to_le_bytes());
            self.write(ring, tail, &head);
            step(Site::Outlet);
            self.write(ring, tail.wrapping_add(HEAD as u32), frame);
            step(Site::Outlet);
            self.word(Word::Tail).store(tail.wrapping_add(need as u32), Release);
        }
        lock.release();
        Some(ring.is_some())
    }

    /// Origin and length of the oldest frame. A malformed record is discarded together with everything after it.
    fn front(&self, ring: NonNull<u8>) -> Option<(Origin, usize)> {
        let used = self.used();
        if used < HEAD {
            return None;
        }
        let mut head = [0; HEAD];
        self.read(ring, self.word(Word::Head).load(Relaxed), &mut head);
        let [a, b, c, d, from_low, from_high, _, _, ref time @ ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > MAX_FRAME || HEAD + len.next_multiple_of(8) > used {
            // No party writes such a record: later ones cannot be delimited.
            self.empty();
            return None;
        }
        let from = u8::try_from(u16::from_le_bytes([from_low, from_high])).ok();
        Some((Origin { from, now: u64::from_le_bytes(*time) }, len))
    }

    fn pop(&self, bytes: &mut Vec<u8>) -> Option<Origin> {
        if !self.waits() {
            return None;
        }
        let ring = self.region.lane_pointer(self.which, self.index)?;
        let (origin, len) = self.front(ring)?;
        let at = self.word(Word::Head).load(Relaxed);
        let start = bytes.len();
        bytes.resize(start + len, 0);
        self.read(ring, at.wrapping_add(HEAD as u32), &mut bytes[start..]);
        let need = HEAD + len.next_multiple_of(8);
        step(Site::Outlet);
        self.word(Word::Head).store(at.wrapping_add(need as u32), Release);
        Some(origin)
    }

    /// Calls `each` with the parts of the ring that make up `len` bytes from `at` on, each with its offset in the whole.
    fn parts(&self, ring: NonNull<u8>, at: u32, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let start = at as usize & (self.size - 1);
        let first = len.min(self.size - start);
        // SAFETY: `start` is within the ring, all `size` bytes of which are mapped.
        each(unsafe { ring.as_ptr().add(start) }, 0, first);
        if first < len {
            each(ring.as_ptr(), first, len - first);
        }
    }

    /// Backs `len` bytes of the ring from `at` on with memory. Returns false if there is none.
    #[cold]
    fn back(&self, at: u32, len: usize) -> bool {
        let start = at as usize & (self.size - 1);
        let first = len.min(self.size - start);
        let ring = self.region.geometry.lane_at(self.which, self.index);
        let memory = &self.region.memory;
        memory.back(ring + start, first) && (first == len || memory.back(ring, len - first))
    }

    fn write(&self, ring: NonNull<u8>, at: u32, bytes: &[u8]) {
        self.parts(ring, at, bytes.len(), |to, from, len| {
            // SAFETY: both ends are in bounds, since no record is longer than the ring. Bytes between tail and head belong to
            // the filler, which holds the lock.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), to, len) }
        });
    }

    fn read(&self, ring: NonNull<u8>, at: u32, bytes: &mut [u8]) {
        self.parts(ring, at, bytes.len(), |from, to, len| {
            // SAFETY: as in `write`; bytes between head and tail belong to the consumer.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(to), len) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Geometry, tests::machine};
    use super::*;

    fn frame(i: usize) -> Vec<u8> {
        (0..(i * 37) % 3000 + 1).map(|b| (b + i) as u8).collect()
    }

    #[test]
    fn frames_come_out_as_they_went_in_round_and_round() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Uplink);
        assert!(!ring.push(&mut machine(1), Origin { from: None, now: 0 }, &[1]), "nobody takes from it");
        ring.open(true);
        let mut out = Vec::new();
        for i in 0..500 {
            let origin = Origin { from: (i % 3 != 0).then_some(i as u8), now: i as u64 };
            assert!(ring.push(&mut machine(1), origin, &frame(i)));
            assert!(ring.push(&mut machine(1), origin, &[]));
            assert_eq!(ring.pop(&mut out), Some(origin));
            assert_eq!(out, frame(i));
            assert_eq!((ring.pop(&mut out), out.len()), (Some(origin), 0));
            assert_eq!(ring.pop(&mut out), None);
        }
    }

    #[test]
    fn a_full_outlet_loses_frames_and_counts_them() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Capture);
        ring.open(true);
        let origin = Origin { from: Some(1), now: 5 };
        let fit = (0..1000).take_while(|_| ring.push(&mut machine(1), origin, &[7; 1000])).count();
        assert!((60..70).contains(&fit), "{fit} of 1016 bytes in 64 KiB");
        assert_eq!(ring.lost(), 1);
        assert!(!ring.push(&mut machine(1), origin, &[0; MAX_FRAME + 1]));
        let mut out = Vec::new();
        assert_eq!(std::iter::from_fn(|| ring.pop(&mut out)).count(), fit);
        assert!(ring.push(&mut machine(1), origin, &[7; 1000]));
        ring.open(true);
        assert_eq!(ring.pop(&mut out), None, "whoever opens it finds it empty");
    }

    #[test]
    fn senders_pause_for_a_taker_and_not_for_one_that_takes_nothing() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Uplink);
        ring.open(true);
        let (all, mut out) = (ring.allowance(0), Vec::new());
        let fill = |now| {
            let push = || ring.push(&mut machine(1), Origin { from: Some(1), now }, &[7; 1000]);
            (0..1000).take_while(|_| ring.allowance(now) >= 2000 && push()).count()
        };
        // The outlet had been empty for a long time.
        let begin = 100 * STUCK;
        assert_eq!(fill(begin), all / 1016 - 1);
        assert!(
            ring.allowance(begin + STUCK) < MAX_FRAME,
            "it pauses, for room is left to those that do not"
        );
        assert!(ring.allowance(begin + STUCK + 1) > all);
        assert!(ring.pop(&mut out).is_some());
        ring.note_taken(begin + STUCK);
        assert!(ring.allowance(begin + 2 * STUCK) < MAX_FRAME);
    }

    #[test]
    fn frames_of_one_step_keep_their_order_when_a_filler_goes_on_between_them() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Uplink);
        ring.open(true);
        let origin = Origin { from: Some(1), now: 7 };
        let mut sender = machine(9);
        sender.stopped.insert(1);
        let mut sent = 0..;
        let mut send = |n: usize| {
            for i in sent.by_ref().take(n) {
                assert!(ring.push(&mut sender, origin, &frame(i)));
            }
        };
        // The fillers of the first two lanes are taken for stopped, one after the other, and then continue.
        send(2);
        let (first, _) = ring.lane(0).lock().acquire::<dyn Host>(&mut machine(1));
        send(2);
        let (second, _) = ring.lane(1).lock().acquire::<dyn Host>(&mut machine(1));
        send(2);
        first.release();
        send(2);
        second.release();
        send(2);
        let mut came = 0..;
        let mut take = |n: usize| {
            for i in came.by_ref().take(n) {
                let mut out = Vec::new();
                assert_eq!((ring.pop(&mut out), out == frame(i)), (Some(origin), true), "frame {i}");
            }
        };
        take(7);
        send(3);
        take(6);
        // All lanes are empty, so the first is used again.
        send(1);
        assert!(ring.lane(0).waits());
        take(1);
    }

    #[test]
    fn a_stopped_filler_keeps_one_lane_and_nobody_else() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Uplink);
        ring.open(true);
        let origin = |now| Origin { from: Some(1), now };
        let mut others = machine(9);
        assert!(ring.push(&mut others, origin(1), &frame(1)));
        // One filler after the other is stopped while it holds the lock of the first free lane.
        for stopped in 1..OUTLET_LANES as u16 {
            let lane = ring.lane(usize::from(stopped) - 1);
            let _ = lane.lock().acquire::<dyn Host>(&mut machine(stopped));
            others.stopped.insert(stopped);
            assert!(ring.push(&mut others, origin(1 + u64::from(stopped)), &frame(usize::from(stopped) + 1)));
        }
        let _ = ring.lane(OUTLET_LANES - 1).lock().acquire::<dyn Host>(&mut machine(8));
        others.stopped.insert(8);
        assert!(!ring.push(&mut others, origin(20), &frame(0)), "all lanes are held");
        let mut out = Vec::new();
        for i in 1..=OUTLET_LANES {
            assert_eq!(ring.pop(&mut out), Some(origin(i as u64)), "in the order they went in");
            assert_eq!(out, frame(i));
        }
        assert_eq!((ring.pop(&mut out), ring.lost()), (None, 1));
    }
}
