//! Locks that know their holder, so that the dead do not hold them.
//!
//! Nearly every lock is taken by one thread again and again: a function's by the program that polls it, its receive ring's by the
//! one peer that sends to it. A locked instruction costs that thread more than the rest of its way through the lock, for it
//! waits until all stores before it have arrived, frames for other processors among them. So a runner that is one thread's
//! alone ([`Contender::steady`]) and takes a lock often enough in a row becomes its owner, and takes it from then on by plain loads
//! and stores. Whoever else comes takes the lock from its owner, and pays for both: by a barrier in every thread there is
//! ([`Contender::barrier`]). Each time that happens it takes longer until the lock has an owner again.
//!
//! The rules, from which the rest follows:
//!
//! - An owner has a seat, a word of the lock to which it alone stores. It is inside when it has marked its seat and has seen after
//!   that that it is still the owner. If it is not, it takes the mark back.
//! - Who takes the lock from its owner has `holder`, says in `owner` that it is taken, then has the barrier, and then looks at the
//!   owner's seat: one of the two sees the other. When the seat is free there is no owner any more, which `owner` then says.
//! - Who has `holder` is inside when there is no owner. It may make itself the owner then, and nobody else ever does.
//! - Of two who give up because of each other one looks again.
//!
//! A thread may be stopped for as long as somebody likes between any two instructions, and so between finding itself the owner and
//! marking its seat. When it goes on the lock may have had other owners. Its late mark disturbs none of them, for nobody looks at
//! its seat any more, and it has seen the change before it gets further. So a seat changes hands only when its party is dead,
//! or comes itself by the way of those who are no owners and leaves it.

use crate::{
    Contender, Party,
    bias::{self, AtomicU16, AtomicU32, Ordering::*, spin_loop},
    laboratory::{Site, step},
};

/// Owners and former owners a lock knows at a time. As many former owners but one can stay away, alive, before the lock
/// gets no further owner.
const SEATS: usize = 4;

/// The words of a lock, all zero when it is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    /// Who holds it without owning it: a party, or 0; above it, while it repairs what a dead one left, that one.
    holder: AtomicU32,
    /// The party whose steady runner does without `holder`, and above it the number of its seat; or 0. With [`TAKEN`] somebody
    /// is about to take the lock from it.
    owner: AtomicU32,
    /// Not 0: the one who has the seat holds the lock, if it is the owner.
    seats: [AtomicU32; SEATS],
    /// The parties that have the seats, or 0.
    seated: [AtomicU16; SEATS],
    /// The party whose steady runner took it last by `holder`, and how often in a row.
    last: AtomicU16,
    row: AtomicU16,
    /// How often it was taken from its owner, up to [`DOUBLED`].
    lost: AtomicU16,
    /// Not 0: somebody found no free seat, so who has one and is not the owner gives it back.
    wanted: AtomicU16,
}

/// The part of a word that names a party.
const PARTY: u32 = 0xffff;
/// In [`Lock::owner`], where the number of the seat begins, and the lock is being taken from its owner.
const SEAT_SHIFT: u32 = 16;
const TAKEN: u32 = 1 << 31;

/// Those who died with a lock: by `holder`, and as its owner. One of them was at work at most, and left the other nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dead(pub [Option<Party>; 2]);

impl Dead {
    /// Whether there are any.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        self.0 != [None; 2]
    }
}

/// A lock that is held. Not released when dropped: who has it says how.
#[derive(Clone, Copy)]
pub struct Holding<'r> {
    lock: &'r Lock,
    /// What says that we hold it.
    word: &'r AtomicU32,
    /// Who we are.
    pub party: Party,
}

/// Looks whether the holder lives once in so many rounds; a round is a few nanoseconds, so this is some 20 us.
const ROUNDS_PER_CHECK: u32 = often(4_000, 2, 1);

/// What is done once in `usual` times happens more often in a laboratory and under a model checker, or they would hardly see it.
const fn often(usual: u32, laboratory: u32, checker: u32) -> u32 {
    match (cfg!(all(test, loom)), cfg!(feature = "laboratory")) {
        (true, _) => checker,
        (_, true) => laboratory,
        _ => usual,
    }
}

/// How long to wait for the holder of a lock that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it lets go.
    Endless,
    /// Until the host says that it is stopped, see [`Contender::relax`]. For those who can do without the lock or come back later,
    /// and have something that others wait for meanwhile.
    UntilStopped,
}

/// The holder is stopped, and the caller said that it does not wait for one that is.
#[derive(Debug)]
struct Stopped;

/// Times in a row that make an owner, at first.
const STEADY: u16 = often(256, 3, 0) as u16;
/// It doubles with every loss, which costs some microseconds, up to so often.
const DOUBLED: u16 = if cfg!(all(test, loom)) { 0 } else { 4 };

impl Lock {
    /// Takes it for `host`'s party if it is free. Whether a holder is dead is only found out by [`acquire`](Self::acquire).
    #[inline(always)]
    pub fn try_acquire<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        match self.enter(host) {
            Some(holding) => Some(holding),
            None => self.try_acquire_as_any(host),
        }
    }

    /// Takes it for `host`'s party, waiting while its holder lives; and those who died with it, whose work is to be repaired.
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

    /// Takes it as its owner.
    #[inline(always)]
    pub fn enter<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        let party = host.steady()?;
        let owner = self.owned_by(party)?;
        self.sit(party, owner)
    }

    /// The first half of [`enter`](Self::enter): what `owner` says, if that is `party`, whose steady runner we are.
    #[inline(always)]
    fn owned_by(&self, party: Party) -> Option<u32> {
        step(Site::Lock);
        let (me, owner) = (u32::from(party.0), self.owner.load(Relaxed));
        // Not twice, as who has it already.
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
        // Before it is asked who holds it.
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

    #[inline(never)]
    fn try_acquire_as_any<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
        let party = host.party();
        loop {
            step(Site::Lock);
            let busy = self.holder.load(SeqCst) != 0 || self.owner_inside().is_some();
            if busy || self.holder.compare_exchange(0, party.0.into(), SeqCst, Relaxed).is_err() {
                return None;
            }
            step(Site::Lock);
            if self.owner.load(Relaxed) == 0 {
                self.count(host);
                break;
            }
            self.disown(host);
            if self.owner_inside().is_none() {
                step(Site::Lock);
                self.owner.store(0, Relaxed);
                break;
            }
            step(Site::Lock);
            self.holder.swap(0, SeqCst);
            step(Site::Lock);
            if self.owner_inside().is_some() {
                return None;
            }
            // It left in between, and may have been on its way out all the time because of us.
        }
        Some(Holding { lock: self, word: &self.holder, party })
    }

    #[inline(never)]
    fn acquire_as_any<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Result<(Holding<'_>, Dead), Stopped> {
        let mut dead = [self.take(host, patience)?, None];
        step(Site::Lock);
        if self.owner.load(Relaxed) != 0 {
            self.disown(host);
            dead[1] = self.outwait(host, patience).inspect_err(|Stopped| {
                step(Site::Lock);
                // A dead holder stays on record: what it left is for whoever takes the lock next.
                self.holder.swap(dead[0].map_or(0, |party| party.0.into()), SeqCst);
            })?;
            // A dead owner stays on record until what it left is repaired.
            if dead[1].is_none() {
                step(Site::Lock);
                self.owner.store(0, Relaxed);
            }
        } else if dead[0].is_none() {
            self.count(host);
        }
        Ok((Holding { lock: self, word: &self.holder, party: host.party() }, Dead(dead)))
    }

    /// Takes `holder`, from the dead too.
    #[inline(always)]
    fn take<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Result<Option<Party>, Stopped> {
        let me = u32::from(host.party().0);
        step(Site::Lock);
        match self.holder.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Ok(None),
            Err(_) => self.contend(host, patience),
        }
    }

    #[cold]
    fn contend<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Result<Option<Party>, Stopped> {
        let me = u32::from(host.party().0);
        let (mut rounds, mut checks, mut last) = (0u32, 0u32, 0);
        loop {
            step(Site::Spin);
            let held = self.holder.load(Relaxed);
            let (holder, before) = (held & PARTY, held >> 16);
            if held == 0 {
                if self.holder.compare_exchange_weak(0, me, Acquire, Relaxed).is_ok() {
                    return Ok(None);
                }
                spin_loop();
                continue;
            }
            if held != last {
                // The lock changes hands, so its holders run.
                (last, checks) = (held, 0);
            }
            rounds = rounds.wrapping_add(1);
            if rounds % ROUNDS_PER_CHECK == 0 {
                // Another thread of our own party lives as surely as we do.
                if holder != me && !host.alive(Party(holder as u16)) {
                    // Who died first stays on record until what it left is repaired: the repairer may die as well.
                    let first = if before == 0 { holder } else { before };
                    step(Site::Lock);
                    if self.holder.compare_exchange(held, first << 16 | me, Acquire, Relaxed).is_ok() {
                        return Ok(Some(Party(first as u16)));
                    }
                }
                checks = checks.saturating_add(1);
                // The party in `holder` may itself be waiting for an owner that is inside, or be stopped before it saw that one
                // dead.
                let inside = self.owner_inside().filter(|owner| *owner == host.party() || host.alive(*owner));
                let waited_for = inside.unwrap_or(Party(holder as u16));
                if host.relax(waited_for, checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            spin_loop();
        }
    }

    /// From here on the owner knows that the lock is being taken from it, or can be seen inside. `holder` is ours.
    #[cold]
    fn disown<C: Contender + ?Sized>(&self, host: &mut C) {
        let owner = self.owner.load(Relaxed);
        let announce = || {
            // Someone else may have announced it and died before its barrier, or given up.
            if owner & TAKEN == 0 {
                step(Site::Lock);
                self.owner.store(owner | TAKEN, SeqCst);
                step(Site::Lock);
                self.lost.store(self.lost.load(Relaxed).saturating_add(1).min(DOUBLED), Relaxed);
                self.last.store(0, Relaxed);
            }
        };
        bias::revoke(announce, || host.barrier());
        step(Site::Lock);
    }

    /// Waits for who was the owner to leave; it, if it died inside. `holder` is ours.
    #[cold]
    fn outwait<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        patience: Patience,
    ) -> Result<Option<Party>, Stopped> {
        let owner = self.owner.load(Relaxed);
        let (seat, owner) = (self.seat_of(owner), Party(owner as u16));
        let (mut rounds, mut checks) = (0u32, 0u32);
        while seat.load(Acquire) != 0 {
            step(Site::Spin);
            rounds = rounds.wrapping_add(1);
            if rounds % ROUNDS_PER_CHECK == 0 {
                if owner != host.party() && !host.alive(owner) {
                    return Ok(Some(owner));
                }
                checks = checks.saturating_add(1);
                if host.relax(owner, checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            spin_loop();
        }
        Ok(None)
    }

    /// One more time that somebody took it by `holder`, and there is no owner: who came often enough in a row owns it from the next
    /// time on.
    #[inline(always)]
    fn count<C: Contender + ?Sized>(&self, host: &mut C) {
        let me = host.steady().map_or(0, |party| party.0);
        let row = if self.last.load(Relaxed) == me { self.row.load(Relaxed).wrapping_add(1) } else { 0 };
        self.last.store(me, Relaxed);
        self.row.store(row, Relaxed);
        if me == 0 {
            return;
        }
        // Its own thread is here, and so not on its way to the seat.
        if self.wanted.load(Relaxed) != 0 && self.unseat(Party(me)) {
            self.wanted.store(0, Relaxed);
        }
        if row >= STEADY << self.lost.load(Relaxed).min(DOUBLED) {
            self.row.store(0, Relaxed);
            self.own(host, me);
        }
    }

    /// Makes `me`, whose steady runner we are, the owner, if there is a seat for it. `holder` is ours, and there is no owner.
    #[cold]
    fn own<C: Contender + ?Sized>(&self, host: &mut C, me: u16) {
        let sits = |seat: &usize| self.seated[*seat].load(Relaxed);
        let own = (0..SEATS).find(|seat| sits(seat) == me);
        let seat = own
            .or_else(|| (0..SEATS).find(|seat| sits(seat) == 0))
            .or_else(|| (0..SEATS).find(|seat| !host.alive(Party(sits(seat)))));
        let Some(seat) = seat else {
            self.wanted.store(1, Relaxed);
            return;
        };
        // One who died on its way in may have left its mark.
        step(Site::Lock);
        self.seats[seat].store(0, Relaxed);
        self.seated[seat].store(me, Relaxed);
        step(Site::Lock);
        self.owner.store((seat as u32) << SEAT_SHIFT | u32::from(me), Relaxed);
    }

    /// Takes the seat of `party`, which is dead or calls this itself, and is not the owner. Whether it had one.
    fn unseat(&self, party: Party) -> bool {
        let seat = self.seated.iter().find(|seated| seated.load(Relaxed) == party.0);
        // Without `holder` somebody else may have noticed that it is dead.
        seat.is_some_and(|seated| seated.compare_exchange(party.0, 0, Relaxed, Relaxed).is_ok())
    }

    /// Who holds it, as far as can be seen from here: an owner's coming and going arrives late.
    #[inline]
    pub fn holder(&self) -> Option<Party> {
        let held = || Some(self.holder.load(SeqCst) as u16).filter(|holder| *holder != 0).map(Party);
        self.owner_inside().or_else(held)
    }

    /// Whether it is owned by another runner than `host`'s.
    #[inline]
    pub fn is_anothers<C: Contender + ?Sized>(&self, host: &C) -> bool {
        let owner = self.owner.load(Relaxed);
        owner != 0 && host.steady().is_none_or(|me| me.0 != owner as u16)
    }

    /// Whether `party` holds or owns it.
    pub fn is_of(&self, party: Party) -> bool {
        let is = |word: &AtomicU32| word.load(Acquire) as u16 == party.0;
        is(&self.holder) || is(&self.owner)
    }

    /// Takes it from `party`, which is dead; `repair` makes good what that left. `None` if somebody has it who is stopped.
    pub fn free_of<C: Contender + ?Sized>(
        &self,
        host: &mut C,
        party: Party,
        repair: impl FnOnce(),
    ) -> Option<()> {
        if self.is_of(party) {
            let (holding, _) = self.acquire_with(host, Patience::UntilStopped)?;
            repair();
            holding.repaired();
            holding.release();
        }
        self.unseat(party);
        Some(())
    }
}

impl Holding<'_> {
    /// What the dead holder left is repaired: the lock is ours like any other.
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

    /// Lets go.
    #[inline(always)]
    pub fn release(&self) {
        step(Site::Lock);
        self.word.store(0, Release);
        step(Site::Lock);
    }

    /// Releases before whatever is looked at next with `SeqCst`: cheaper than a fence behind the release.
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
