//! Rings of whole frames that belong to no function: the uplink, for frames that leave the adapter, and the capture, for
//! copies of all that go over the wire.
//!
//! Whoever runs the pipeline fills them, under a small lock of their own; one party takes from each. As in a receive ring
//! the tail is all a filler publishes, so one that dies leaves nothing behind but frames that are lost. Closed, which
//! they are while nobody takes from them, they hold nothing.

use super::{Patience, Region, lock::Lock};
use crate::host::{Host, Party};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// Frames for somebody who is no function of this adapter.
    Uplink,
    /// Copies of frames on the wire.
    Capture,
}

/// Bytes of the words below.
pub(super) const WORDS: usize = 4096;
/// Bytes of a record before its frame: length, sender, time.
const HEAD: usize = 16;
/// The longest frame: a jumbo frame of Ethernet.
pub const MAX_FRAME: usize = 9216;

/// Words of an outlet.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Word {
    /// Frames that found no room, ever.
    Lost = 0,
    /// Bytes taken, free-running.
    Head = 64,
    /// Bytes filled, free-running.
    Tail = 128,
    /// 1: somebody takes from it. Mostly read.
    Open = 192,
}

/// Where the lock of its fillers lies, behind [`Word::Lost`].
const LOCK: usize = 8;

/// A frame's company in an outlet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Function that sent it; `None` if it came from outside.
    pub from: Option<u8>,
    /// When it entered the wire, ps.
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

    #[inline]
    fn word(&self, word: Word) -> &'r AtomicU32 {
        let at = self.region.outlet_base(self.which) + word as usize;
        // SAFETY: the memory holds the outlets of the geometry (checked when the region is made), which begin with these words;
        // aligned, as outlets start at pages; only ever used as an atomic.
        unsafe { &*self.region.base.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Bytes of the ring, a power of two.
    fn size(&self) -> usize {
        self.region.geometry().outlet_size(self.which)
    }

    /// Whether somebody takes from it.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.word(Word::Open).load(Relaxed) != 0
    }

    /// Opens it, empty, or closes it. For the party that takes from it, or that follows one that died.
    pub fn open(&self, open: bool) {
        self.word(Word::Head).store(self.word(Word::Tail).load(Acquire), Release);
        self.word(Word::Open).store(open.into(), Release);
    }

    fn lock(&self) -> &'r Lock {
        // SAFETY: as for the words, between which it lies.
        unsafe { &*self.region.base.as_ptr().add(self.region.outlet_base(self.which) + LOCK).cast::<Lock>() }
    }

    /// Frees the lock of a filler that died. `None` if somebody has it who is stopped.
    pub(super) fn free_lock_of(&self, host: &mut dyn Host, party: Party) -> Option<()> {
        // What it had not published nobody sees.
        self.lock().free_of(host, party, || {})
    }

    /// Bytes filled and not taken.
    fn used(&self) -> usize {
        let head = self.word(Word::Head).load(Acquire);
        (self.word(Word::Tail).load(Acquire).wrapping_sub(head) as usize).min(self.size())
    }

    /// Bytes free, about.
    #[inline]
    pub fn free(&self) -> usize {
        self.size() - self.used()
    }

    /// Whether a frame waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.word(Word::Head).load(Relaxed) != self.word(Word::Tail).load(Acquire)
    }

    /// Frames that found no room, ever.
    pub fn lost(&self) -> u32 {
        self.word(Word::Lost).load(Relaxed)
    }

    /// Appends a frame. False if nobody takes from the outlet, or there is no room or a stopped program holds its lock (which is
    /// counted).
    pub fn push(&self, host: &mut dyn Host, left: Left, frame: &[u8]) -> bool {
        if !self.is_open() {
            return false;
        }
        let need = HEAD + frame.len().next_multiple_of(8);
        let Some((lock, dead)) = self.lock().acquire_with(host, Patience::UntilStopped) else {
            self.word(Word::Lost).fetch_add(1, Relaxed);
            return false;
        };
        if dead.is_any() {
            // What it had not published nobody sees.
            lock.repaired();
        }
        let room = frame.len() <= MAX_FRAME && need <= self.free();
        if room {
            let tail = self.word(Word::Tail).load(Relaxed);
            let mut head = [0; HEAD];
            head[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
            head[4..6].copy_from_slice(&left.from.map_or(u16::MAX, u16::from).to_le_bytes());
            head[8..].copy_from_slice(&left.now.to_le_bytes());
            self.write(tail, &head);
            self.write(tail.wrapping_add(HEAD as u32), frame);
            self.word(Word::Tail).store(tail.wrapping_add(need as u32), Release);
        } else {
            self.word(Word::Lost).fetch_add(1, Relaxed);
        }
        lock.release();
        room
    }

    /// Takes the oldest frame into `frame`. For the one party that opened it.
    pub fn pop(&self, frame: &mut Vec<u8>) -> Option<Left> {
        let used = self.used();
        if used < HEAD {
            return None;
        }
        let at = self.word(Word::Head).load(Relaxed);
        let mut head = [0; HEAD];
        self.read(at, &mut head);
        let [a, b, c, d, from_low, from_high, _, _, ref time @ ..] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let need = HEAD + len.min(MAX_FRAME).next_multiple_of(8);
        if len > MAX_FRAME || need > used {
            // Not what any of us writes: nothing behind it can be told apart.
            self.word(Word::Head).store(self.word(Word::Tail).load(Acquire), Release);
            return None;
        }
        frame.clear();
        frame.resize(len, 0);
        self.read(at.wrapping_add(HEAD as u32), frame);
        self.word(Word::Head).store(at.wrapping_add(need as u32), Release);
        let from = u8::try_from(u16::from_le_bytes([from_low, from_high])).ok();
        Some(Left { from, now: u64::from_le_bytes(*time) })
    }

    /// Calls `each` with the parts of the ring that `len` bytes from `at` on lie in, and where they start among them.
    fn parts(&self, at: u32, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let size = self.size();
        let start = at as usize & (size - 1);
        let first = len.min(size - start);
        let base = self.region.at(self.region.outlet_base(self.which) + WORDS, size);
        // SAFETY: `start` lies within the ring, of which `at` checked all `size` bytes.
        each(unsafe { base.add(start) }, 0, first);
        if first < len {
            each(base, first, len - first);
        }
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        self.parts(at, bytes.len(), |to, from, len| {
            // SAFETY: both ends are in bounds: no record is longer than the ring. Bytes between tail and head are the
            // filler's, who holds the lock.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(from), to, len) }
        });
    }

    fn read(&self, at: u32, bytes: &mut [u8]) {
        self.parts(at, bytes.len(), |from, to, len| {
            // SAFETY: as in `write`; bytes between head and tail are the taker's.
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
        assert!(!ring.push(&mut machine(1), Left { from: None, now: 0 }, &[1]), "nobody takes from it");
        ring.open(true);
        let mut out = Vec::new();
        for i in 0..500 {
            let left = Left { from: (i % 3 != 0).then_some(i as u8), now: i as u64 };
            assert!(ring.push(&mut machine(1), left, &frame(i)));
            assert!(ring.push(&mut machine(1), left, &[]));
            assert_eq!(ring.pop(&mut out), Some(left));
            assert_eq!(out, frame(i));
            assert_eq!((ring.pop(&mut out), out.len()), (Some(left), 0));
            assert_eq!(ring.pop(&mut out), None);
        }
    }

    #[test]
    fn a_full_outlet_loses_frames_and_counts_them() {
        let region = Region::private(Geometry::SMALL);
        let ring = OutletRing::of(&region, Outlet::Capture);
        ring.open(true);
        let left = Left { from: Some(1), now: 5 };
        let fit = (0..1000).take_while(|_| ring.push(&mut machine(1), left, &[7; 1000])).count();
        assert!((60..70).contains(&fit), "{fit} of 1016 bytes in 64 KiB");
        assert_eq!(ring.lost(), 1);
        assert!(!ring.push(&mut machine(1), left, &[0; MAX_FRAME + 1]));
        let mut out = Vec::new();
        assert_eq!(std::iter::from_fn(|| ring.pop(&mut out)).count(), fit);
        assert!(ring.push(&mut machine(1), left, &[7; 1000]));
        ring.open(true);
        assert_eq!(ring.pop(&mut out), None, "whoever opens it finds it empty");
    }
}
