//! Locks that record their holder, so that a dead program does not keep them.
//!
//! One thread takes nearly every lock again and again: that of a function, the program that polls it; that of its
//! receive ring, the one peer that sends to it. A locked instruction costs that thread more than the rest of its way
//! through the lock, since it waits until all earlier stores have arrived, frames for other processors among them. So a
//! runner that is always the same thread's ([`Contender::steady`]) and takes a lock often enough in a row becomes its
//! owner, and takes it from then on by plain loads and stores. Any other contender takes the lock from its owner, and
//! pays for both by a barrier in every thread there is ([`Contender::barrier`]). After each such loss it takes longer
//! until the lock has an owner again.
//!
//! The rules, from which the rest follows ([`bias`] has the handshake of the first two):
//!
//! - An owner has a seat, a word of the lock to which it alone stores. It is inside when it has marked its seat and has
//!   seen after that that it is still the owner. Otherwise it takes the mark back.
//! - A thief holds `holder`, announces in `owner` that the lock is being taken, has the barrier carried out, and then
//!   looks at the owner's seat: one of the two sees the other. When the seat is free there is no owner any more, and
//!   `owner` is cleared.
//! - The party in `holder` is inside when there is no owner. It alone may make itself the owner.
//! - If two contenders give up because of each other, one of them looks again.
//!
//! A thread may be stopped for any time between any two instructions, and so between finding itself the owner and
//! marking its seat. When it goes on the lock may have had other owners. Its late mark disturbs none of them, since
//! nobody looks at its seat any more, and it sees the change before it gets further. So a seat passes to another party
//! only when its own is dead, or comes the way of contenders that are not the owner and gives it up.

mod contended;

use crate::{
    Contender, Party,
    bias::{self, AtomicU16, AtomicU32, Ordering::*},
    laboratory::{Site, step},
};

/// Owners and former owners that a lock has room for. When this many former owners are alive and stay away, the lock
/// gets no further owner.
const SEATS: usize = 4;

/// The words of a lock, all zero when it is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    /// The party that holds it without owning it, or 0. Above it, during repair, the dead party whose work is repaired.
    holder: AtomicU32,
    /// The party whose steady runner does without `holder`, and above it the number of its seat; or 0. With [`TAKEN`] a
    /// thief is about to take the lock from it.
    owner: AtomicU32,
    /// Not 0: the party that has the seat holds the lock, if it is the owner.
    seats: [AtomicU32; SEATS],
    /// The parties that have the seats, or 0.
    seated: [AtomicU16; SEATS],
    /// The party whose steady runner last took it by `holder`, and how often in a row.
    last: AtomicU16,
    row: AtomicU16,
    /// How often it was taken from an owner, up to [`DOUBLED`](contended::DOUBLED).
    lost: AtomicU16,
    /// Not 0: a contender found no free seat, so a party that has one and is not the owner gives it up.
    wanted: AtomicU16,
}

/// The part of a word that names a party.
const PARTY: u32 = 0xffff;
/// In [`Lock::owner`]: where the number of the seat begins, and the flag that the lock is being taken from its owner.
const SEAT_SHIFT: u32 = 16;
const TAKEN: u32 = 1 << 31;

/// The parties that died with a lock: as its holder, and as its owner. At most one of them was at work in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dead(pub [Option<Party>; 2]);

impl Dead {
    /// True if there are any.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.0 != [None; 2]
    }
}

/// A lock that is held. It is not released when dropped, since the holder chooses how.
#[derive(Clone, Copy)]
pub struct Holding<'r> {
    lock: &'r Lock,
    /// The word that keeps others out: `holder`, or the seat of the owner.
    word: &'r AtomicU32,
    /// The party that holds it.
    pub party: Party,
}

/// How long to wait for the holder of a lock that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it lets go.
    Endless,
    /// Until [`Contender::relax`] reports that it is stopped. For contenders that can do without the lock or come back
    /// later, and hold something that others wait for meanwhile.
    UntilStopped,
}

impl Lock {
    /// Takes it for `host`'s party if it is free. Only [`acquire`](Self::acquire) finds out whether a holder is dead.
    #[inline(always)]
    pub fn try_acquire<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        match self.enter(host) {
            Some(holding) => Some(holding),
            None => self.try_acquire_as_any(host),
        }
    }

    /// Takes it for `host`'s party, waiting while its holder lives. Returns also the parties that died with it, whose
    /// work is to be repaired.
    #[inline(always)]
    pub fn acquire<C: Contender + ?Sized>(&self, host: &mut C) -> (Holding<'_>, Dead) {
        loop {
            if let Some(taken) = self.acquire_with(host, Patience::Endless) {
                return taken;
            }
        }
    }

    /// As [`acquire`](Self::acquire). `None` when patience ran out.
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

    /// As [`acquire_with`](Self::acquire_with), but never as its owner: that one enters whoever is in `holder`, and so does not see
    /// a contender that died there before it took the lock away.
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

    /// The first half of [`enter`](Self::enter): the value of `owner`, if that is `party`, whose steady runner we are.
    #[inline(always)]
    fn owned_by(&self, party: Party) -> Option<u32> {
        step(Site::Lock);
        let (me, owner) = (u32::from(party.0), self.owner.load(Relaxed));
        // Not if the party holds it already.
        let busy = self.seat_of(owner).load(Relaxed) != 0 || self.holder.load(Relaxed) & PARTY == me;
        (owner & (TAKEN | PARTY) == me && !busy).then_some(owner)
    }

    /// The second half, any time later.
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
        // Ordered before the caller reads who holds it.
        seat.swap(0, SeqCst);
        None
    }

    /// The seat that a value of `owner` names.
    #[inline(always)]
    fn seat_of(&self, owner: u32) -> &AtomicU32 {
        &self.seats[(owner >> SEAT_SHIFT) as usize % SEATS]
    }

    /// The owner, if it is inside as far as can be seen from here.
    #[inline]
    fn owner_inside(&self) -> Option<Party> {
        let owner = self.owner.load(SeqCst);
        (owner != 0 && self.seat_of(owner).load(SeqCst) != 0).then_some(Party(owner as u16))
    }

    /// The party that holds it, as far as this thread can see: the marks of an owner arrive late.
    #[inline]
    pub fn holder(&self) -> Option<Party> {
        let held = || Some(self.holder.load(SeqCst) as u16).filter(|holder| *holder != 0).map(Party);
        self.owner_inside().or_else(held)
    }

    /// True if it is owned by another runner than `host`'s.
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

    /// Takes it from `party`, which is dead; `repair` repairs what it left. `None` if a stopped party holds the lock.
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
    /// Declares the work of the dead repaired. The lock is then held like any other.
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
