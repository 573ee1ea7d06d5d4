//! Locks that record their holder, so that a dead program does not keep them.
//!
//! Nearly every lock is taken repeatedly by the same thread: the lock of a function by the program that polls it, the
//! lock of its receive ring by the one peer that sends to it. A locked instruction costs that thread more than
//! everything else in the lock, since it waits until all earlier stores are visible, including frames for other
//! processors. So a runner that is always on the same thread ([`Contender::steady`]) becomes the owner of a lock that
//! it takes often enough in a row, and from then on takes it by plain loads and stores. Any other contender takes the
//! lock from its owner, and pays for both with a barrier in every thread ([`Contender::barrier`]). Each such loss
//! raises the number of acquisitions until the lock has an owner again.
//!
//! The rules, which determine the rest (the handshake of the first two is in [`bias`]):
//!
//! - An owner has a seat, a word of the lock that only the owner stores to. The owner is inside once it has marked its
//!   seat and then checked that it is still the owner. If it is not, it removes the mark.
//! - A thief holds `holder`, announces in `owner` that the lock is being taken, executes the barrier, and then reads
//!   the owner's seat: one of the two sees the other. Once the seat is free there is no owner any more, and `owner` is
//!   cleared.
//! - The party in `holder` is inside if there is no owner. Only that party may make itself the owner.
//! - If two contenders give up because of each other, one of them checks again.
//!
//! A thread may be stopped for any time between any two instructions, and so between finding itself the owner and
//! marking its seat. When it continues, the lock may have had other owners. Its late mark disturbs none of them, since
//! its seat is no longer read, and it sees the change before it gets further. So a seat passes to another party only
//! when its own party is dead, or takes the path of contenders that are not the owner and gives the seat up.

mod contended;

use crate::{
    Contender, Party,
    bias::{self, AtomicU16, AtomicU32, Ordering::*},
    laboratory::{Site, step},
};

/// Maximum number of owners and former owners of a lock. If this many former owners are alive and do not return, the
/// lock gets no further owner.
const SEATS: usize = 4;

/// The words of a lock, all zero when it is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    /// The party that holds it without owning it, or 0. During repair, the upper half holds the dead party that left
    /// the work to repair.
    holder: AtomicU32,
    /// The party with a steady runner that bypasses `holder`, with the number of its seat in the upper half; or 0. With
    /// [`TAKEN`], a thief is about to take the lock from it.
    owner: AtomicU32,
    /// Nonzero: the party with the seat holds the lock, if it is the owner.
    seats: [AtomicU32; SEATS],
    /// The parties with the seats, or 0.
    seated: [AtomicU16; SEATS],
    /// The party with the steady runner that last took it by `holder`, and the number of times in a row.
    last: AtomicU16,
    row: AtomicU16,
    /// Number of times it was taken from an owner, up to [`DOUBLED`](contended::DOUBLED).
    lost: AtomicU16,
    /// Nonzero: a contender found no free seat, so a party that has one and is not the owner gives it up.
    wanted: AtomicU16,
}

/// The part of a word that contains a party.
const PARTY: u32 = 0xffff;
/// In [`Lock::owner`]: shift of the seat number, and the flag that the lock is being taken from its owner.
const SEAT_SHIFT: u32 = 16;
const TAKEN: u32 = 1 << 31;

/// The parties that died with a lock, as holder and as owner. At most one of them was working inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dead(pub [Option<Party>; 2]);

impl Dead {
    /// True if there are any.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.0 != [None; 2]
    }
}

/// A held lock. It is not released on drop, since the holder selects the kind of release.
#[derive(Clone, Copy)]
pub struct Holding<'r> {
    lock: &'r Lock,
    /// The word that excludes others: `holder`, or the seat of the owner.
    word: &'r AtomicU32,
    /// The party that holds it.
    pub party: Party,
}

/// Limit of the wait for a live holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until the holder releases it.
    Endless,
    /// Until [`Contender::relax`] reports that the holder is stopped. For contenders that can do without the lock or
    /// retry later, while holding something that others wait for.
    UntilStopped,
}

impl Lock {
    /// Takes it for `host`'s party if it is free. Only [`acquire`](Self::acquire) detects a dead holder.
    #[inline(always)]
    pub fn try_acquire<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        match self.enter(host) {
            Some(holding) => Some(holding),
            None => self.try_acquire_as_any(host),
        }
    }

    /// Takes it for `host`'s party, waiting while its holder is alive. Also returns the parties that died with it and
    /// left work to repair.
    #[inline(always)]
    pub fn acquire<C: Contender + ?Sized>(&self, host: &mut C) -> (Holding<'_>, Dead) {
        loop {
            if let Some(taken) = self.acquire_with(host, Patience::Endless) {
                return taken;
            }
        }
    }

    /// Like [`acquire`](Self::acquire). `None` if `patience` ran out.
    #[inline(always)]
    pub fn acquire_with<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Option<(Holding<'_>, Dead)> {
        match self.enter(host) {
            Some(holding) => Some((holding, Dead::default())),
            None => self.acquire_as_any(host, patience).ok(),
        }
    }

    /// Like [`acquire_with`](Self::acquire_with), but never as its owner: an owner enters regardless of `holder`, and
    /// so does not detect a contender that died there before taking the lock away.
    pub fn acquire_from_dead<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Option<(Holding<'_>, Dead)> {
        self.acquire_as_any(host, patience).ok()
    }

    /// Takes it as its owner.
    #[inline(always)]
    pub fn enter<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        let party = host.steady()?;
        let owner = self.owned_by(party)?;
        self.sit(party, owner)
    }

    /// The first half of [`enter`](Self::enter): the value of `owner`, if that is `party`, the party of this steady
    /// runner.
    #[inline(always)]
    fn owned_by(&self, party: Party) -> Option<u32> {
        step(Site::Lock);
        let (me, owner) = (u32::from(party.0), self.owner.load(Relaxed));
        // Not if the party already holds it.
        let busy = self.seat_of(owner).load(Relaxed) != 0 || self.holder.load(Relaxed) & PARTY == me;
        (owner & (TAKEN | PARTY) == me && !busy).then_some(owner)
    }

    /// The second half, which may follow any time later.
    #[inline(always)]
    fn sit(&self, party: Party, owner: u32) -> Option<Holding<'_>> {
        let seat = self.seat_of(owner);
        let mark = || {
            step(Site::Lock);
            seat.store(party.0.into(), Relaxed);
        };
        let is_owner = || {
            step(Site::Lock);
            self.owner.load(Relaxed) == owner
        };
        if bias::enter(mark, is_owner) {
            return Some(Holding { lock: self, word: seat, party });
        }
        step(Site::Lock);
        // Ordered before the caller reads the holder.
        seat.swap(0, SeqCst);
        None
    }

    /// The seat in a value of `owner`.
    #[inline(always)]
    fn seat_of(&self, owner: u32) -> &AtomicU32 {
        &self.seats[(owner >> SEAT_SHIFT) as usize % SEATS]
    }

    /// The owner, if it is inside as far as this thread can see.
    #[inline]
    fn owner_inside(&self) -> Option<Party> {
        let owner = self.owner.load(SeqCst);
        (owner != 0 && self.seat_of(owner).load(SeqCst) != 0).then_some(Party(owner as u16))
    }

    /// The party that holds it, as far as this thread can see: marks of an owner become visible late.
    #[inline]
    pub fn holder(&self) -> Option<Party> {
        let held = || Some(self.holder.load(SeqCst) as u16).filter(|holder| *holder != 0).map(Party);
        self.owner_inside().or_else(held)
    }

    /// True if it is owned by a runner other than `host`.
    #[inline]
    pub fn is_anothers<C: Contender + ?Sized>(&self, host: &C) -> bool {
        let owner = self.owner.load(Relaxed);
        owner != 0 && host.steady().is_none_or(|me| me.0 != owner as u16)
    }

    /// True if `party` holds or owns it.
    pub fn is_of(&self, party: Party) -> bool {
        let is = |word: &AtomicU32| word.load(Acquire) as u16 == party.0;
        is(&self.holder) || is(&self.owner)
    }

    /// Takes it from the dead `party`; `repair` repairs the work left behind. `None` if a stopped party holds the lock.
    pub fn free_of<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        party: Party,
        repair: impl FnOnce(),
    ) -> Option<()> {
        if self.is_of(party) {
            let (holding, _) = self.acquire_from_dead(host, Patience::UntilStopped)?;
            repair();
            holding.repaired();
            holding.release();
        }
        self.unseat(party);
        Some(())
    }
}

impl Holding<'_> {
    /// Declares the work of the dead repaired. The lock is then held normally.
    pub fn repaired(&self) {
        if std::ptr::eq(self.word, &self.lock.holder) {
            step(Site::Lock);
            self.lock.holder.store(self.party.0.into(), Release);
            step(Site::Lock);
            let owner = self.lock.owner.load(Relaxed);
            if owner & TAKEN != 0 {
                self.lock.owner.store(0, Release);
                step(Site::Lock);
                self.lock.unseat(Party(owner as u16));
            }
        }
    }

    /// Releases the lock.
    #[inline(always)]
    pub fn release(&self) {
        step(Site::Lock);
        self.word.store(0, Release);
        step(Site::Lock);
    }

    /// Releases the lock before any later load with `SeqCst`: cheaper than a release and a fence.
    #[inline]
    pub fn release_first(&self) {
        step(Site::Lock);
        self.word.swap(0, SeqCst);
        step(Site::Lock);
    }
}

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
