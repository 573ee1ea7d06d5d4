//! Locks that know their holder, so that the dead do not hold them.
//!
//! Nearly every lock is taken by one thread again and again: a function's by the program that polls it, its receive ring's by the
//! one peer that sends to it. A locked instruction costs that thread more than the rest of its way through the lock, for it
//! waits until all stores before it have arrived, frames for other processors among them. So a runner that is one thread's
//! alone ([`Host::steady`]) and takes a lock often enough in a row becomes its owner, and takes it from then on by plain loads
//! and stores. Whoever else comes takes the lock from its owner, and pays for both: by a barrier in every thread there is
//! ([`Host::barrier`]). Each time that happens it takes longer until the lock has an owner again.
//!
//! The rules, from which the rest follows:
//!
//! - Who has `holder` is inside when it has seen that there is no owner and nobody `inside`. It may make itself the owner then, and
//!   nobody else ever does.
//! - The owner is inside when it has said so in `inside` and has seen after that that it is still the owner. If it is not, it takes
//!   its word back.
//! - Who takes the lock from its owner has `holder`, says so in `owner`, then has the barrier, and then looks at `inside`: one of the
//!   two sees the other.
//! - Of two who give up because of each other one looks again.

use crate::host::{Host, Party};
use std::sync::atomic::{AtomicU32, Ordering::*, compiler_fence};

/// The words of a lock, all zero when it is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    /// Who holds it without owning it: a party, or 0; above it, while it repairs what a dead one left, that one.
    pub(super) holder: AtomicU32,
    /// The party whose steady runner does without `holder`, or 0.
    pub(super) owner: AtomicU32,
    /// The owner, or who was it a moment ago, while it holds the lock.
    pub(super) inside: AtomicU32,
    /// The party whose steady runner took it last by `holder`, and how often in a row.
    last: AtomicU32,
    row: AtomicU32,
    /// How often it was taken from its owner.
    lost: AtomicU32,
}

/// Those who died with a lock: by `holder`, and `inside`. One of them was at work at most, and left the other nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dead(pub(super) [Option<Party>; 2]);

impl Dead {
    /// Whether there are any.
    #[inline(always)]
    pub(super) fn is_any(&self) -> bool {
        self.0 != [None; 2]
    }
}

/// A lock that is held. Not released when dropped: who has it says how.
#[derive(Clone, Copy)]
pub(super) struct Holding<'r> {
    lock: &'r Lock,
    /// What says that we hold it.
    word: &'r AtomicU32,
    /// Who we are.
    pub(super) party: Party,
}

/// Looks whether the holder lives once in so many rounds; a round is a few nanoseconds, so this is some 20 us.
const ROUNDS_PER_CHECK: u32 = 4_000;

/// How long to wait for the holder of a lock that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it lets go.
    Endless,
    /// Until the host says that it is stopped, see [`Host::relax`]. For those who can do without the lock or come back later, and
    /// have something that others wait for meanwhile.
    UntilStopped,
}

/// The holder is stopped, and the caller said that it does not wait for one that is.
#[derive(Debug)]
struct Stopped;

/// Times in a row that make an owner, at first.
const STEADY: u32 = 256;
/// It doubles with every loss, which costs some microseconds, up to so often.
const DOUBLED: u32 = 4;

impl Lock {
    /// Takes it for `host`'s party if it is free. Whether a holder is dead is only found out by [`acquire`](Self::acquire).
    #[inline(always)]
    pub(super) fn try_acquire(&self, host: &mut dyn Host) -> Option<Holding<'_>> {
        match self.enter(host) {
            Some(holding) => Some(holding),
            None => self.try_acquire_as_any(host),
        }
    }

    /// Takes it for `host`'s party, waiting while its holder lives; and those who died with it, whose work is to be repaired.
    #[inline(always)]
    pub(super) fn acquire(&self, host: &mut dyn Host) -> (Holding<'_>, Dead) {
        loop {
            if let Some(taken) = self.acquire_with(host, Patience::Endless) {
                return taken;
            }
        }
    }

    /// As [`acquire`](Self::acquire). `None` when patience ran out.
    #[inline(always)]
    pub(super) fn acquire_with(
        &self,
        host: &mut dyn Host,
        patience: Patience,
    ) -> Option<(Holding<'_>, Dead)> {
        match self.enter(host) {
            Some(holding) => Some((holding, Dead::default())),
            None => self.acquire_as_any(host, patience).ok(),
        }
    }

    /// Takes it as its owner.
    #[inline(always)]
    pub(super) fn enter(&self, host: &mut dyn Host) -> Option<Holding<'_>> {
        let party = host.steady()?;
        let me = u32::from(party.0);
        // Not twice, as who has it already.
        let busy = self.inside.load(Relaxed) != 0 || self.holder.load(Relaxed) & 0xffff == me;
        if self.owner.load(Relaxed) != me || busy {
            return None;
        }
        self.inside.store(me, Relaxed);
        compiler_fence(SeqCst);
        if self.owner.load(Relaxed) == me {
            compiler_fence(Acquire);
            return Some(Holding { lock: self, word: &self.inside, party });
        }
        // Before it is asked who holds it.
        self.inside.swap(0, SeqCst);
        None
    }

    #[inline(never)]
    fn try_acquire_as_any(&self, host: &mut dyn Host) -> Option<Holding<'_>> {
        let party = host.party();
        loop {
            let busy = self.holder.load(SeqCst) != 0 || self.inside.load(SeqCst) != 0;
            if busy || self.holder.compare_exchange(0, party.0.into(), SeqCst, Relaxed).is_err() {
                return None;
            }
            if self.owner.load(Relaxed) == 0 && self.inside.load(Acquire) == 0 {
                self.count(host);
                break;
            }
            self.disown(host);
            if self.inside.load(SeqCst) == 0 {
                break;
            }
            self.holder.swap(0, SeqCst);
            if self.inside.load(SeqCst) != 0 {
                return None;
            }
            // It left in between, and may have been on its way out all the time because of us.
        }
        Some(Holding { lock: self, word: &self.holder, party })
    }

    #[inline(never)]
    fn acquire_as_any(
        &self,
        host: &mut dyn Host,
        patience: Patience,
    ) -> Result<(Holding<'_>, Dead), Stopped> {
        let mut dead = [self.take(host, patience)?, None];
        if dead[0].is_some() || self.owner.load(Relaxed) != 0 || self.inside.load(Acquire) != 0 {
            // One who died may have taken the lock from its owner, and not have come to the barrier.
            self.disown(host);
            dead[1] = self.outwait(host, patience).inspect_err(|Stopped| {
                // A dead holder stays on record: what it left is for whoever takes the lock next.
                self.holder.swap(dead[0].map_or(0, |party| party.0.into()), SeqCst);
            })?;
        } else {
            self.count(host);
        }
        Ok((Holding { lock: self, word: &self.holder, party: host.party() }, Dead(dead)))
    }

    /// Takes `holder`, from the dead too.
    #[inline(always)]
    fn take(&self, host: &mut dyn Host, patience: Patience) -> Result<Option<Party>, Stopped> {
        let me = u32::from(host.party().0);
        match self.holder.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Ok(None),
            Err(_) => self.contend(host, patience),
        }
    }

    #[cold]
    fn contend(&self, host: &mut dyn Host, patience: Patience) -> Result<Option<Party>, Stopped> {
        let me = u32::from(host.party().0);
        let (mut rounds, mut checks, mut last) = (0u32, 0u32, 0);
        loop {
            let held = self.holder.load(Relaxed);
            let (holder, before) = (held & 0xffff, held >> 16);
            if held == 0 {
                if self.holder.compare_exchange_weak(0, me, Acquire, Relaxed).is_ok() {
                    return Ok(None);
                }
                continue;
            }
            if held != last {
                // The lock changes hands, so its holders run.
                (last, checks) = (held, 0);
            }
            rounds += 1;
            if rounds % ROUNDS_PER_CHECK == 0 {
                // Another thread of our own party lives as surely as we do.
                if holder != me && !host.alive(Party(holder as u16)) {
                    // Who died first stays on record until what it left is repaired: the repairer may die as well.
                    let first = if before == 0 { holder } else { before };
                    if self.holder.compare_exchange(held, first << 16 | me, Acquire, Relaxed).is_ok() {
                        return Ok(Some(Party(first as u16)));
                    }
                }
                checks = checks.saturating_add(1);
                // The party in `holder` may itself be waiting for an owner that is inside.
                let inside = self.inside.load(Relaxed);
                let waited_for = if inside == 0 { holder } else { inside };
                if host.relax(Party(waited_for as u16), checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// It has no owner any more, and who was it knows, or can be seen inside. `holder` is ours.
    #[cold]
    fn disown(&self, host: &mut dyn Host) {
        self.owner.store(0, SeqCst);
        self.lost.store(self.lost.load(Relaxed).min(DOUBLED - 1) + 1, Relaxed);
        self.last.store(0, Relaxed);
        host.barrier();
    }

    /// Waits for who was the owner to leave; it, if it died inside. `holder` is ours.
    #[cold]
    fn outwait(&self, host: &mut dyn Host, patience: Patience) -> Result<Option<Party>, Stopped> {
        let (mut rounds, mut checks) = (0u32, 0u32);
        loop {
            let inside = Party(self.inside.load(Acquire) as u16);
            if inside == Party(0) {
                return Ok(None);
            }
            rounds += 1;
            if rounds % ROUNDS_PER_CHECK == 0 {
                if inside != host.party() && !host.alive(inside) {
                    return Ok(Some(inside));
                }
                checks = checks.saturating_add(1);
                if host.relax(inside, checks) && patience == Patience::UntilStopped {
                    return Err(Stopped);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// One more time that somebody took it by `holder`: who came often enough in a row owns it from the next time on.
    #[inline(always)]
    fn count(&self, host: &mut dyn Host) {
        let me = host.steady().map_or(0, |party| u32::from(party.0));
        let row = if self.last.load(Relaxed) == me { self.row.load(Relaxed).wrapping_add(1) } else { 0 };
        self.last.store(me, Relaxed);
        self.row.store(row, Relaxed);
        if me != 0 && row >= STEADY << self.lost.load(Relaxed).min(DOUBLED) {
            self.row.store(0, Relaxed);
            self.owner.store(me, Relaxed);
        }
    }

    /// Who holds it, as far as can be seen from here: an owner's coming and going arrives late.
    #[inline]
    pub fn holder(&self) -> Option<Party> {
        let party = |word: &AtomicU32| word.load(SeqCst) as u16;
        match party(&self.inside) {
            0 => Some(party(&self.holder)).filter(|holder| *holder != 0),
            inside => Some(inside),
        }
        .map(Party)
    }

    /// Whether it is owned by another runner than `host`'s.
    #[inline]
    pub(crate) fn is_anothers(&self, host: &dyn Host) -> bool {
        let owner = self.owner.load(Relaxed);
        owner != 0 && host.steady().is_none_or(|me| u32::from(me.0) != owner)
    }

    /// Whether `party` holds or owns it.
    pub(super) fn is_of(&self, party: Party) -> bool {
        let is = |word: &AtomicU32| word.load(Acquire) as u16 == party.0;
        is(&self.holder) || is(&self.inside) || is(&self.owner)
    }

    /// Takes it from `party`, which is dead; `repair` makes good what that left. `None` if somebody has it who is stopped.
    pub(super) fn free_of(&self, host: &mut dyn Host, party: Party, repair: impl FnOnce()) -> Option<()> {
        if self.is_of(party) {
            let (holding, _) = self.acquire_with(host, Patience::UntilStopped)?;
            repair();
            holding.repaired();
            holding.release();
        }
        Some(())
    }
}

impl Holding<'_> {
    /// What the dead holder left is repaired: the lock is ours like any other.
    pub(super) fn repaired(&self) {
        if !std::ptr::eq(self.word, &self.lock.inside) {
            self.lock.holder.store(self.party.0.into(), Release);
            self.lock.inside.store(0, Release);
        }
    }

    #[inline(always)]
    pub(super) fn release(&self) {
        self.word.store(0, Release);
    }

    /// Releases before whatever is looked at next with `SeqCst`: cheaper than a fence behind the release.
    #[inline]
    pub(super) fn release_first(&self) {
        self.word.swap(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Machine, machine},
        *,
    };
    use std::cell::UnsafeCell;

    fn steady(me: u16) -> Machine {
        let mut machine = machine(me);
        machine.steady = true;
        machine
    }

    fn take(lock: &Lock, host: &mut Machine) {
        let (holding, dead) = lock.acquire(host);
        assert!(!dead.is_any());
        holding.release();
    }

    /// Takes it until it is its owner's.
    fn own(lock: &Lock, host: &mut Machine) {
        let rounds = (0..1 << 24).take_while(|_| {
            take(lock, host);
            lock.owner.load(Relaxed) == 0
        });
        let (rounds, lost) = (rounds.count() as u32, lock.lost.load(Relaxed));
        assert_eq!(rounds, STEADY << lost, "after {lost} losses");
    }

    #[test]
    fn who_takes_a_lock_again_and_again_owns_it_until_another_comes() {
        let (lock, mut owner, mut other, mut fickle) = (Lock::default(), steady(1), steady(2), machine(3));
        (0..4 * STEADY).for_each(|_| take(&lock, &mut fickle));
        assert_eq!(lock.owner.load(Relaxed), 0, "a runner that is not one thread's owns nothing");
        own(&lock, &mut owner);
        assert!(lock.is_anothers(&other) && !lock.is_anothers(&owner));
        let (holding, _) = lock.acquire(&mut owner);
        assert!(std::ptr::eq(holding.word, &lock.inside) && lock.holder.load(Relaxed) == 0);
        assert_eq!(lock.holder(), Some(Party(1)));
        assert!(lock.try_acquire(&mut other).is_none() && lock.try_acquire(&mut owner).is_none());
        assert_eq!((lock.owner.load(Relaxed), other.barriers), (1, 0), "a look does not take it away");
        holding.release();
        assert_eq!((lock.holder(), owner.barriers), (None, 0));
        take(&lock, &mut other);
        assert_eq!((lock.owner.load(Relaxed), other.barriers), (0, 1));
        own(&lock, &mut owner);
        let holding = lock.try_acquire(&mut fickle).expect("its owner is not inside");
        assert!(lock.try_acquire(&mut owner).is_none());
        holding.release();
        assert_eq!((lock.owner.load(Relaxed), fickle.barriers), (0, 1));
        own(&lock, &mut other);
    }

    #[test]
    fn an_owner_and_those_who_take_its_lock_away_exclude_each_other() {
        /// Two words that are one number whenever one is inside.
        struct Pair(UnsafeCell<(u64, u64)>);
        // SAFETY: only touched by who holds the lock, which is what the test is about.
        unsafe impl Sync for Pair {}
        const SELDOM: u64 = 4_000;
        let (lock, pair, over) = (Lock::default(), Pair(UnsafeCell::new((0, 0))), AtomicU32::new(0));
        let (lock, pair, over) = (&lock, &pair, &over);
        let inside = |holding: Holding<'_>| {
            // SAFETY: we hold the lock.
            let (a, b) = unsafe { &mut *pair.0.get() };
            let alone = a == b;
            *a += 1;
            std::hint::black_box(&a);
            *b += 1;
            holding.release();
            assert!(alone, "two were inside");
        };
        let taken = std::thread::scope(|scope| {
            let often = scope.spawn(move || {
                let mut host = steady(1);
                (0u64..)
                    .take_while(|_| over.load(Relaxed) == 0)
                    .map(|_| inside(lock.acquire(&mut host).0))
                    .count() as u64
            });
            let seldom = scope.spawn(move || {
                let mut host = machine(3);
                for _ in 0..SELDOM {
                    // An owner must have the time to become one.
                    std::thread::sleep(std::time::Duration::from_micros(50));
                    match lock.try_acquire(&mut host) {
                        Some(holding) => inside(holding),
                        None => inside(lock.acquire(&mut host).0),
                    }
                }
                host.barriers
            });
            let barriers = seldom.join();
            over.store(1, Relaxed);
            let taken = often.join().unwrap() + SELDOM;
            assert!(barriers.unwrap() > 0, "it never had an owner");
            taken
        });
        // SAFETY: nobody else is left.
        assert_eq!(unsafe { *pair.0.get() }, (taken, taken));
    }

    #[test]
    fn of_a_dead_owner_the_next_hears_until_what_it_left_is_repaired() {
        let (lock, mut owner, mut second, mut third) = (Lock::default(), steady(1), steady(2), machine(3));
        own(&lock, &mut owner);
        // Dies inside.
        let _ = lock.acquire(&mut owner);
        second.dead.insert(1);
        assert!(lock.try_acquire(&mut second).is_none());
        let (_, dead) = lock.acquire(&mut second);
        assert_eq!(dead, Dead([None, Some(Party(1))]));
        // The second dies before it repaired anything.
        third.dead.extend([1, 2]);
        let (holding, dead) = lock.acquire(&mut third);
        assert_eq!((dead, third.barriers), (Dead([Some(Party(2)), Some(Party(1))]), 1));
        holding.repaired();
        assert_eq!(lock.holder(), Some(Party(3)));
        holding.release();
        take(&lock, &mut third);
        // One that dies outside leaves nothing but what it owned.
        own(&lock, &mut owner);
        assert!(lock.is_of(Party(1)));
        assert_eq!(lock.free_of(&mut third, Party(1), || {}), Some(()));
        assert!(!lock.is_of(Party(1)) && lock.holder().is_none());
    }

    #[test]
    fn who_was_at_work_is_repaired_though_an_owner_died_at_its_door() {
        let (lock, mut second, mut third) = (Lock::default(), machine(2), machine(3));
        let _ = lock.acquire(&mut second);
        // Party 1 was the owner, saw that before party 2 took the lock away, and was killed before it could see that too.
        lock.inside.store(1, Relaxed);
        third.dead.extend([1, 2]);
        let (holding, dead) = lock.acquire(&mut third);
        assert_eq!(dead, Dead([Some(Party(2)), Some(Party(1))]));
        holding.repaired();
        holding.release();
        take(&lock, &mut third);
    }

    #[test]
    fn one_who_died_at_taking_a_lock_away_is_made_good_by_a_barrier() {
        let (lock, mut owner, mut third) = (Lock::default(), steady(1), machine(3));
        own(&lock, &mut owner);
        // Party 2 had the lock's first word and had told the owner; it died ahead of its barrier.
        lock.holder.store(2, Relaxed);
        lock.owner.store(0, Relaxed);
        third.dead.insert(2);
        let (holding, dead) = lock.acquire(&mut third);
        assert_eq!((dead, third.barriers), (Dead([Some(Party(2)), None]), 1));
        holding.repaired();
        holding.release();
        take(&lock, &mut owner);
    }

    #[test]
    fn a_stopped_holder_is_waited_for_only_by_those_who_must() {
        let (lock, mut owner, mut second, mut third) = (Lock::default(), steady(1), machine(2), machine(3));
        third.stopped.extend([1, 2]);
        // Stopped with the lock's first word, then as its owner.
        let (holding, _) = lock.acquire(&mut second);
        assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
        holding.release();
        own(&lock, &mut owner);
        let (holding, _) = lock.acquire(&mut owner);
        assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
        // The one who gave up is in nobody's way.
        holding.release();
        take(&lock, &mut second);
        let (holding, dead) = lock.acquire_with(&mut third, Patience::UntilStopped).expect("nobody holds it");
        assert!(!dead.is_any());
        holding.release();
    }

    #[test]
    fn whoever_gives_up_leaves_the_dead_on_record() {
        let (lock, mut owner, mut third) = (Lock::default(), steady(1), machine(3));
        own(&lock, &mut owner);
        // Party 1 is stopped inside; party 2 was killed while it waited for it to leave.
        let (holding, _) = lock.acquire(&mut owner);
        lock.holder.store(2, Relaxed);
        (third.stopped, third.dead) = ([1].into(), [2].into());
        assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
        assert_eq!(lock.holder.load(Relaxed), 2);
        holding.release();
        let (holding, dead) = lock.acquire_with(&mut third, Patience::UntilStopped).expect("its owner left");
        assert_eq!(dead, Dead([Some(Party(2)), None]));
        holding.repaired();
        holding.release();
        take(&lock, &mut third);
    }
}
