//! The guarantees of the mutex for threads of the machine, and for a child of fork. `model.rs` covers every order
//! of their steps.
use super::*;

#[test]
fn one_holder_at_a_time() {
    let counter = BiasedMutex::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10_000).for_each(|_| *counter.lock() += 1));
        }
    });
    assert_eq!(*counter.lock(), 30_000);
}

#[test]
fn an_owner_and_thieves_exclude_each_other() {
    for round in 0..200 {
        // Two words that are equal whenever the mutex is held.
        let pair = BiasedMutex::new((0u64, 0u64));
        let turn = |guard: &mut (u64, u64)| {
            assert_eq!(guard.0, guard.1);
            guard.0 += 1;
            std::hint::black_box(&guard);
            guard.1 += 1;
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2_000).for_each(|_| turn(&mut pair.lock_biased())));
            scope.spawn(|| {
                // Gives the first thread time to become the owner.
                (0..round * 5).for_each(|_| spin_loop());
                (0..50).for_each(|_| turn(&mut pair.lock()));
            });
            scope.spawn(|| (0..50).for_each(|_| turn(&mut pair.lock_biased())));
        });
        assert_eq!(*pair.lock(), (2_100, 2_100));
    }
}

/// A mutex owned by the calling thread. `None` if ownership is not available, because of the machine or of other
/// tests.
fn owned() -> Option<BiasedMutex<u32>> {
    let mutex = BiasedMutex::new(0);
    drop(mutex.lock());
    assert_eq!(mutex.owner.load(Relaxed), NOBODY, "`lock` makes nobody the owner");
    drop(mutex.lock_biased());
    (mutex.owner.load(Relaxed) == this_thread()).then_some(mutex)
}

#[test]
fn a_thread_that_is_alone_owns_its_mutex_until_another_comes() {
    let Some(mutex) = owned() else { return };
    let guard = mutex.lock_biased();
    assert!(std::ptr::eq(guard.word, &mutex.inside) && !mutex.locked.load(Relaxed));
    drop(guard);
    std::thread::scope(|scope| scope.spawn(|| *mutex.lock() += 1).join()).unwrap();
    assert_eq!((mutex.owner.load(Relaxed), *mutex.lock()), (REVOKED, 1));
}

#[test]
fn a_child_of_fork_locks_its_copies_and_leaves_the_parents_mutexes_alone() {
    let (Some(mine), other) = (owned(), BiasedMutex::new(0)) else { return };
    std::thread::scope(|scope| scope.spawn(|| drop(other.lock_biased())).join()).unwrap();
    // SAFETY: the child accesses two mutexes in its own memory and exits.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            // Ends a child that waits for a thread of its parent.
            libc::alarm(20);
            *mine.lock_biased() += 1;
            let is_mine = mine.owner.load(Relaxed) == this_thread();
            *other.lock_biased() += 1;
            let is_other = other.owner.load(Relaxed) == this_thread();
            libc::_exit(i32::from(!is_mine || is_other));
        }
        child
    };
    let mut status = -1;
    // SAFETY: the process is our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!((*mine.lock_biased(), mine.owner.load(Relaxed)), (0, this_thread()));
}
