//! The guarantees of the lock, step by step. `model.rs` covers every order of these steps.
#![allow(unsafe_code)]

use super::{
    contended::{DOUBLED, STEADY},
    *,
};
use std::{cell::UnsafeCell, collections::HashSet};

#[derive(Default)]
struct Machine {
    me: u16,
    /// The runner is always on the same thread.
    steady: bool,
    dead: HashSet<u16>,
    stopped: HashSet<u16>,
    /// Number of barriers requested.
    barriers: usize,
}

impl Contender for Machine {
    fn party(&self) -> Party {
        Party(self.me)
    }
    fn steady(&self) -> Option<Party> {
        self.steady.then_some(Party(self.me))
    }
    fn barrier(&mut self) {
        self.barriers += 1;
        // SAFETY: passes no memory.
        let done = |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
        // `linux/membarrier.h`: register, and a barrier in every thread of this process.
        if !(done(1 << 4) && done(1 << 3)) {
            // As in the node: stores are certainly visible after this time.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    fn alive(&mut self, party: Party) -> bool {
        !self.dead.contains(&party.0)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        assert!(!self.dead.contains(&holder.0) || times < 100, "waits for party {}, which is dead", holder.0);
        self.stopped.contains(&holder.0)
    }
}

fn machine(me: u16) -> Machine {
    Machine { me, ..Machine::default() }
}

fn steady(me: u16) -> Machine {
    Machine { steady: true, ..machine(me) }
}

fn owner_of(lock: &Lock) -> u32 {
    lock.owner.load(Relaxed) & (TAKEN | PARTY)
}

fn take(lock: &Lock, host: &mut Machine) {
    let (holding, dead) = lock.acquire(host);
    assert!(!dead.is_any());
    holding.release();
}

/// Takes it until `host` is the owner.
fn own(lock: &Lock, host: &mut Machine) {
    let rounds = (0..1 << 24).take_while(|_| {
        take(lock, host);
        owner_of(lock) == 0
    });
    let (rounds, lost) = (rounds.count() as u16, lock.lost.load(Relaxed));
    assert_eq!(rounds, STEADY << lost, "after {lost} losses");
}

#[test]
fn a_runner_that_takes_a_lock_often_owns_it_until_another_comes() {
    let (lock, mut owner, mut other, mut fickle) = (Lock::default(), steady(1), steady(2), machine(3));
    (0..4 * STEADY).for_each(|_| take(&lock, &mut fickle));
    assert_eq!(owner_of(&lock), 0, "a runner that is not one thread's owns nothing");
    own(&lock, &mut owner);
    assert!(lock.is_anothers(&other) && !lock.is_anothers(&owner));
    let (holding, _) = lock.acquire(&mut owner);
    assert!(std::ptr::eq(holding.word, &lock.seats[0]) && lock.holder.load(Relaxed) == 0);
    assert_eq!(lock.holder(), Some(Party(1)));
    assert!(lock.try_acquire(&mut other).is_none() && lock.try_acquire(&mut owner).is_none());
    assert_eq!((owner_of(&lock), other.barriers), (1, 0), "a look does not take it away");
    holding.release();
    assert_eq!((lock.holder(), owner.barriers), (None, 0));
    take(&lock, &mut other);
    assert_eq!((owner_of(&lock), other.barriers), (0, 1));
    own(&lock, &mut owner);
    let holding = lock.try_acquire(&mut fickle).expect("its owner is not inside");
    assert!(lock.try_acquire(&mut owner).is_none());
    holding.release();
    assert_eq!((owner_of(&lock), fickle.barriers), (0, 1));
    own(&lock, &mut other);
}

#[test]
fn an_owner_that_cleans_up_finds_who_died_on_the_way_to_its_lock() {
    let (lock, mut owner, mut reborn) = (Lock::default(), steady(1), steady(2));
    own(&lock, &mut owner);
    // Party 2 is in `holder`, and dies before it has read the owner.
    lock.holder.store(2, Relaxed);
    owner.dead.insert(2);
    let mut repairs = 0;
    assert_eq!(lock.free_of(&mut owner, Party(2), || repairs += 1), Some(()));
    assert_eq!((repairs, lock.holder(), lock.is_of(Party(2))), (1, None, false));
    // The number now belongs to another program, which is alive: the lock would never be taken from that one.
    assert!(lock.try_acquire(&mut reborn).is_some());
}

#[test]
fn an_owner_and_a_thief_exclude_each_other() {
    /// Two words that are equal whenever the lock is held.
    struct Pair(UnsafeCell<(u64, u64)>);
    // SAFETY: only accessed by the holder of the lock, which is the subject of the test.
    unsafe impl Sync for Pair {}
    const THEFTS: u64 = 4_000;
    let (lock, pair, over) = (Lock::default(), Pair(UnsafeCell::new((0, 0))), AtomicU32::new(0));
    let (lock, pair, over) = (&lock, &pair, &over);
    let inside = |holding: Holding<'_>| {
        // SAFETY: this thread holds the lock.
        let (a, b) = unsafe { &mut *pair.0.get() };
        let alone = a == b;
        *a += 1;
        std::hint::black_box(&a);
        *b += 1;
        holding.release();
        assert!(alone, "two were inside");
    };
    let taken = std::thread::scope(|scope| {
        let owner = scope.spawn(move || {
            let mut host = steady(1);
            (0u64..)
                .take_while(|_| over.load(Relaxed) == 0)
                .map(|_| inside(lock.acquire(&mut host).0))
                .count() as u64
        });
        let thief = scope.spawn(move || {
            let mut host = machine(3);
            for _ in 0..THEFTS {
                // Gives an owner enough time to become one.
                std::thread::sleep(std::time::Duration::from_micros(50));
                match lock.try_acquire(&mut host) {
                    Some(holding) => inside(holding),
                    None => inside(lock.acquire(&mut host).0),
                }
            }
            host.barriers
        });
        let barriers = thief.join();
        over.store(1, Relaxed);
        let taken = owner.join().unwrap() + THEFTS;
        assert!(barriers.unwrap() > 0, "it never had an owner");
        taken
    });
    // SAFETY: all other threads have ended.
    assert_eq!(unsafe { *pair.0.get() }, (taken, taken));
}

#[test]
fn a_dead_owner_is_reported_until_its_work_is_repaired() {
    let (lock, mut owner, mut second, mut third) = (Lock::default(), steady(1), steady(2), machine(3));
    own(&lock, &mut owner);
    // The owner dies inside.
    let _ = lock.acquire(&mut owner);
    second.dead.insert(1);
    assert!(lock.try_acquire(&mut second).is_none());
    let (_, dead) = lock.acquire(&mut second);
    assert_eq!(dead, Dead([None, Some(Party(1))]));
    // The second party dies before it has repaired anything.
    third.dead.extend([1, 2]);
    let (holding, dead) = lock.acquire(&mut third);
    assert_eq!((dead, third.barriers), (Dead([Some(Party(2)), Some(Party(1))]), 1));
    holding.repaired();
    assert_eq!(lock.holder(), Some(Party(3)));
    holding.release();
    take(&lock, &mut third);
    // A party that dies outside leaves nothing behind but the ownership.
    own(&lock, &mut owner);
    assert!(lock.is_of(Party(1)));
    assert_eq!(lock.free_of(&mut third, Party(1), || {}), Some(()));
    assert!(!lock.is_of(Party(1)) && lock.holder().is_none());
}

/// Enters as the owner, with `meanwhile` executed between the two halves.
fn late<'a>(lock: &'a Lock, host: &Machine, meanwhile: impl FnOnce()) -> Option<Holding<'a>> {
    let seen = lock.owned_by(host.party()).expect("it is the owner");
    meanwhile();
    lock.sit(host.party(), seen)
}

#[test]
fn an_owner_that_was_stopped_on_its_way_in_disturbs_no_later_owner() {
    let (lock, mut first, mut second, mut third) = (Lock::default(), steady(1), steady(2), machine(3));
    own(&lock, &mut first);
    let stopped = late(&lock, &first, || {
        take(&lock, &mut third);
        own(&lock, &mut second);
        assert!(lock.enter(&mut second).is_some(), "the second owner is inside");
    });
    assert!(stopped.is_none());
    assert_eq!(lock.holder(), Some(Party(2)));
    assert!(lock.try_acquire(&mut third).is_none(), "two are inside");
    assert!(lock.try_acquire(&mut first).is_none(), "two are inside");
}

#[test]
fn an_owner_stopped_on_its_way_in_keeps_nobody_out() {
    let (lock, mut first, mut second, mut third) = (Lock::default(), steady(1), steady(2), machine(3));
    own(&lock, &mut first);
    take(&lock, &mut third);
    own(&lock, &mut second);
    // Party 1 is stopped after marking its seat, before it sees that it is no longer the owner.
    lock.seats[0].store(1, Relaxed);
    assert_eq!(lock.holder(), None);
    take(&lock, &mut second);
    assert!(lock.try_acquire(&mut third).is_some());
}

#[test]
fn former_owners_that_stay_away_keep_their_seats_until_they_come_again_or_die() {
    let (lock, mut last, mut other) = (Lock::default(), steady(9), machine(3));
    let takes = |host: &mut Machine| (0..STEADY << (DOUBLED + 1)).for_each(|_| take(&lock, host));
    let mut former: Vec<Machine> = (11..).take(SEATS).map(steady).collect();
    for host in &mut former {
        own(&lock, host);
        take(&lock, &mut other);
    }
    takes(&mut last);
    assert_eq!(owner_of(&lock), 0, "all seats are taken by parties that live");
    // One of them comes back and leaves again.
    take(&lock, &mut former[2]);
    takes(&mut last);
    assert_eq!(owner_of(&lock), 9);
    take(&lock, &mut other);
    takes(&mut former[2]);
    assert_eq!(owner_of(&lock), 0);
    // One of them dies; a dead party's seat is freed.
    former[2].dead.insert(12);
    takes(&mut former[2]);
    assert_eq!(owner_of(&lock), 13);
    assert_eq!(lock.free_of(&mut other, Party(11), || {}), Some(()));
    assert!(lock.seated.iter().all(|seated| seated.load(Relaxed) != 11));
}

#[test]
fn the_holders_work_is_repaired_when_the_owner_died_on_its_way_in() {
    let (lock, mut first, mut second, mut third) = (Lock::default(), steady(1), machine(2), machine(3));
    own(&lock, &mut first);
    let _ = lock.acquire(&mut second);
    // Party 1, the owner, checked that it was before party 2 took the lock away, and was killed before checking
    // again.
    lock.seats[0].store(1, Relaxed);
    third.dead.extend([1, 2]);
    let (holding, dead) = lock.acquire(&mut third);
    assert_eq!(dead, Dead([Some(Party(2)), None]));
    holding.repaired();
    holding.release();
    take(&lock, &mut third);
}

#[test]
fn a_thief_that_died_before_its_barrier_is_completed_by_the_next() {
    let (lock, mut owner, mut third) = (Lock::default(), steady(1), machine(3));
    own(&lock, &mut owner);
    // Party 2 had the lock's first word and had announced the theft; it died before its barrier.
    lock.holder.store(2, Relaxed);
    lock.owner.fetch_or(TAKEN, Relaxed);
    third.dead.insert(2);
    let (holding, dead) = lock.acquire(&mut third);
    assert_eq!((dead, third.barriers), (Dead([Some(Party(2)), None]), 1));
    holding.repaired();
    holding.release();
    take(&lock, &mut owner);
}

#[test]
fn only_endless_patience_waits_for_a_stopped_holder() {
    let (lock, mut owner, mut second, mut third) = (Lock::default(), steady(1), machine(2), machine(3));
    third.stopped.extend([1, 2]);
    // First stopped with the lock's first word, then as its owner.
    let (holding, _) = lock.acquire(&mut second);
    assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
    holding.release();
    own(&lock, &mut owner);
    let (holding, _) = lock.acquire(&mut owner);
    assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
    // The contender that gave up does not block others.
    holding.release();
    take(&lock, &mut second);
    let (holding, dead) = lock.acquire_with(&mut third, Patience::UntilStopped).expect("nobody holds it");
    assert!(!dead.is_any());
    holding.release();
}

#[test]
fn a_holder_stopped_before_it_saw_a_dead_owner_is_not_waited_for() {
    let (lock, mut owner, mut third) = (Lock::default(), steady(1), machine(3));
    own(&lock, &mut owner);
    // Party 1 was killed inside; party 2 has been stopped since it took the lock's first word.
    let _ = lock.acquire(&mut owner);
    lock.holder.store(2, Relaxed);
    (third.dead, third.stopped) = ([1].into(), [2].into());
    assert!(lock.acquire_with(&mut third, Patience::UntilStopped).is_none());
    third.stopped.clear();
    third.dead.insert(2);
    let (holding, dead) = lock.acquire_with(&mut third, Patience::UntilStopped).expect("both are dead");
    assert_eq!(dead, Dead([Some(Party(2)), Some(Party(1))]));
    holding.repaired();
    holding.release();
    take(&lock, &mut third);
}

#[test]
fn a_contender_that_gives_up_leaves_the_dead_recorded() {
    let (lock, mut owner, mut third) = (Lock::default(), steady(1), machine(3));
    own(&lock, &mut owner);
    // Party 1 is stopped inside; party 2 was killed while it waited for party 1 to leave.
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
