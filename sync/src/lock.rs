//! Locks that record their holder, so that a dead program does not keep them.
//!
//! One thread takes nearly every lock again and again: that of a function, the program that polls it; that of its receive ring, the
//! one peer that sends to it. A locked instruction costs that thread more than the rest of its way through the lock, since it
//! waits until all earlier stores have arrived, frames for other processors among them. So a runner that is always the same
//! thread's ([`Contender::steady`]) and takes a lock often enough in a row becomes its owner, and takes it from then on by plain
//! loads and stores. Any other contender takes the lock from its owner, and pays for both by a barrier in every thread there is
//! ([`Contender::barrier`]). After each such loss it takes longer until the lock has an owner again.
//!
//! The rules, from which the rest follows ([`bias`] has the handshake of the first two):
//!
//! - An owner has a seat, a word of the lock to which it alone stores. It is inside when it has marked its seat and has seen after
//!   that that it is still the owner. Otherwise it takes the mark back.
//! - A thief holds `holder`, announces in `owner` that the lock is being taken, has the barrier carried out, and then looks at the
//!   owner's seat: one of the two sees the other. When the seat is free there is no owner any more, and `owner` is cleared.
//! - The party in `holder` is inside when there is no owner. It alone may make itself the owner.
//! - If two contenders give up because of each other, one of them looks again.
//!
//! A thread may be stopped for any time between any two instructions, and so between finding itself the owner and marking its seat.
//! When it goes on the lock may have had other owners. Its late mark disturbs none of them, since nobody looks at its seat any more,
//! and it sees the change before it gets further. So a seat passes to another party only when its own is dead, or comes the way of
//! contenders that are not the owner and gives it up.

use crate::{
    Contender, Party,
    bias::{self, AtomicU16, AtomicU32, Ordering::*, spin_loop},
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
    /// How often it was taken from an owner, up to [`DOUBLED`].
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
    /// Whether there are any.
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

/// Rounds of spinning between checks whether the holder lives. A round is a few nanoseconds, so this is some 20 us.
const ROUNDS_PER_CHECK: u32 = often(4_000, 2, 1);

/// A count that is `usual`, and smaller in the laboratory and under the model checker, which would hardly reach what
/// follows it otherwise.
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
    /// Until [`Contender::relax`] reports that it is stopped. For contenders that can do without the lock or come back
    /// later, and hold something that others wait for meanwhile.
    UntilStopped,
}

/// The holder is stopped, and the caller does not wait for a stopped one.
#[derive(Debug)]
struct Stopped;

/// Times in a row that make an owner, at first.
const STEADY: u16 = often(256, 3, 0) as u16;
/// Losses, each of which costs some microseconds, that double [`STEADY`] at most.
const DOUBLED: u16 = if cfg!(all(test, loom)) { 0 } else { 4 };

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
            // The owner left in between. It may have given up only because of us, so look again.
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
                // A dead holder stays recorded, so that the next contender repairs what it left.
                self.holder.swap(dead[0].map_or(0, |party| party.0.into()), SeqCst);
            })?;
            // A dead owner stays recorded until what it left is repaired.
            if dead[1].is_none() {
                step(Site::Lock);
                self.owner.store(0, Relaxed);
            }
        } else if dead[0].is_none() {
            self.count(host);
        }
        Ok((Holding { lock: self, word: &self.holder, party: host.party() }, Dead(dead)))
    }

    /// Takes `holder`, also from a dead party.
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
                // The lock changes hands, so its holders are running.
                (last, checks) = (held, 0);
            }
            rounds = rounds.wrapping_add(1);
            if rounds % ROUNDS_PER_CHECK == 0 {
                // Another thread of our own party lives as surely as we do.
                if holder != me && !host.alive(Party(holder as u16)) {
                    // The party that died first stays recorded until what it left is repaired, since the repairer may
                    // die as well.
                    let first = if before == 0 { holder } else { before };
                    step(Site::Lock);
                    if self.holder.compare_exchange(held, first << 16 | me, Acquire, Relaxed).is_ok() {
                        return Ok(Some(Party(first as u16)));
                    }
                }
                checks = checks.saturating_add(1);
                // The party in `holder` may itself be waiting for an owner that is inside, or be stopped before it saw
                // that the owner is dead.
                let inside = self.owner_inside().filter(|owner| *owner == host.party() || host.alive(*owner));
                let waited_for = inside.unwrap_or(Party(holder as u16));
                if host.relax(waited_for, checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            spin_loop();
        }
    }

    /// Revokes the lock from its owner, which from here on sees that or is seen inside. `holder` is ours.
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

    /// Waits for the former owner to leave. Returns it if it died inside. `holder` is ours.
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

    /// Counts an acquisition by `holder` while there is no owner. A steady runner that came often enough in a row
    /// becomes the owner.
    #[inline(always)]
    fn count<C: Contender + ?Sized>(&self, host: &mut C) {
        let me = host.steady().map_or(0, |party| party.0);
        let row = if self.last.load(Relaxed) == me { self.row.load(Relaxed).wrapping_add(1) } else { 0 };
        self.last.store(me, Relaxed);
        self.row.store(row, Relaxed);
        if me == 0 {
            return;
        }
        // Its thread is here, and so not on its way to the seat.
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
        // A party that died on its way in may have left its mark.
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
