//! The paths of contenders that are not the owner: they take `holder`, take the lock from its owner, wait, and become
//! owners themselves. The rules are documented in the parent module.

use super::{Dead, Holding, Lock, PARTY, Patience, SEAT_SHIFT, SEATS, TAKEN};
use crate::{
    Contender, Party,
    bias::{self, Ordering::*, spin_loop},
    laboratory::{Site, step},
};

/// Rounds of spinning between checks that the holder is alive. A round takes a few nanoseconds, so this is some 20 us.
const ROUNDS_PER_CHECK: u32 = often(4_000, 2, 1);

/// A count that is `usual`, or smaller in the laboratory and under the model checker, which would otherwise hardly
/// reach the code after it.
const fn often(usual: u32, laboratory: u32, checker: u32) -> u32 {
    match (cfg!(all(test, loom)), cfg!(feature = "laboratory")) {
        (true, _) => checker,
        (_, true) => laboratory,
        _ => usual,
    }
}

/// The holder is stopped, and the caller does not wait for a stopped holder.
#[derive(Debug)]
pub(super) struct Stopped;

/// Initial number of acquisitions in a row that make an owner.
pub(super) const STEADY: u16 = often(256, 3, 0) as u16;
/// Maximum number of losses that double [`STEADY`]; each costs some microseconds.
pub(super) const DOUBLED: u16 = if cfg!(all(test, loom)) { 0 } else { 4 };

impl Lock {
    #[inline(never)]
    pub(super) fn try_acquire_as_any<C: Contender + ?Sized>(&self, host: &mut C) -> Option<Holding<'_>> {
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
            // The owner left in between. It may have given up only because of this contender, so check again.
        }
        Some(Holding { lock: self, word: &self.holder, party })
    }

    #[inline(never)]
    pub(super) fn acquire_as_any<C: Contender + ?Sized>(
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
                // A dead holder stays recorded, so that the next contender repairs the work left behind.
                self.holder.swap(dead[0].map_or(0, |party| party.0.into()), SeqCst);
            })?;
            // A dead owner stays recorded until the work left behind is repaired.
            if dead[1].is_none() {
                step(Site::Lock);
                self.owner.store(0, Relaxed);
            }
        } else if dead[0].is_none() {
            self.count(host);
        }
        Ok((Holding { lock: self, word: &self.holder, party: host.party() }, Dead(dead)))
    }

    /// Takes `holder`, from a dead party if necessary.
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
                // Another thread of our own party is certainly alive.
                if holder != me && !host.alive(Party(holder as u16)) {
                    // The party that died first stays recorded until its work is repaired, since the repairing party
                    // may die as well.
                    let first = if before == 0 { holder } else { before };
                    step(Site::Lock);
                    if self.holder.compare_exchange(held, first << 16 | me, Acquire, Relaxed).is_ok() {
                        return Ok(Some(Party(first as u16)));
                    }
                }
                checks = checks.saturating_add(1);
                // The party in `holder` may itself be waiting for an owner that is inside, or may have been stopped
                // before it saw that the owner is dead.
                let inside = self.owner_inside().filter(|owner| *owner == host.party() || host.alive(*owner));
                let waited_for = inside.unwrap_or(Party(holder as u16));
                if host.relax(waited_for, checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            spin_loop();
        }
    }

    /// Revokes the lock from its owner, which from here on either sees the revocation or is seen inside. The caller has
    /// `holder`.
    #[cold]
    fn disown<C: Contender + ?Sized>(&self, host: &mut C) {
        let owner = self.owner.load(Relaxed);
        let announce = || {
            // Another thief may have announced it and then died before its barrier, or given up.
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

    /// Waits for the former owner to leave. Returns the owner if it died inside. The caller has `holder`.
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

    /// Counts an acquisition by `holder` without an owner. After enough acquisitions in a row, a steady runner becomes
    /// the owner.
    #[inline(always)]
    fn count<C: Contender + ?Sized>(&self, host: &mut C) {
        let me = host.steady().map_or(0, |party| party.0);
        let row = if self.last.load(Relaxed) == me { self.row.load(Relaxed).wrapping_add(1) } else { 0 };
        self.last.store(me, Relaxed);
        self.row.store(row, Relaxed);
        if me == 0 {
            return;
        }
        // The party's steady thread is here, and so not on its way to the seat.
        if self.wanted.load(Relaxed) != 0 && self.unseat(Party(me)) {
            self.wanted.store(0, Relaxed);
        }
        if row >= STEADY << self.lost.load(Relaxed).min(DOUBLED) {
            self.row.store(0, Relaxed);
            self.own(host, me);
        }
    }

    /// Makes `me`, the party of this steady runner, the owner, if there is a seat for it. The caller has `holder`, and
    /// there is no owner.
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
        // A party that died while entering may have left its mark.
        step(Site::Lock);
        self.seats[seat].store(0, Relaxed);
        self.seated[seat].store(me, Relaxed);
        step(Site::Lock);
        self.owner.store((seat as u32) << SEAT_SHIFT | u32::from(me), Relaxed);
    }

    /// Frees the seat of `party`, which is dead or the caller, and not the owner. Returns true if it had one.
    pub(super) fn unseat(&self, party: Party) -> bool {
        let seat = self.seated.iter().find(|seated| seated.load(Relaxed) == party.0);
        // A caller without `holder` may race with another that noticed the death.
        seat.is_some_and(|seated| seated.compare_exchange(party.0, 0, Relaxed, Relaxed).is_ok())
    }
}
