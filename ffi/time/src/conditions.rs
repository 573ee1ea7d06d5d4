//! Waits for condition variables with a limit, in the node's time.
//!
//! If such a wait were many short waits of libc, a signal between two of them would be lost. So the waiting thread sleeps on its place on
//! the board, and threads that signal look there first.

use super::{
    BOARD, nanoseconds,
    own::own,
    player,
    waits::{deadline, in_kernel, left},
};
use clock::{Board, PLAYERS, Player};
use libc::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, ETIMEDOUT, c_int, clockid_t, pthread_cond_t, pthread_condattr_t,
    pthread_mutex_t, timespec,
};
use std::{
    mem::zeroed,
    sync::{
        Once, OnceLock,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
};

/// The wait of the thread that has this place on the board.
struct Waiter {
    /// Address of the condition variable, or one of the two values below.
    condition: AtomicUsize,
    /// Order of arrival; the lowest number is the oldest wait.
    turn: AtomicU64,
}

/// The thread waits for none.
const NONE: usize = 0;
/// A signalling thread has chosen this one and is about to wake it.
const CHOSEN: usize = 1;

static WAITERS: [Waiter; PLAYERS] =
    [const { Waiter { condition: AtomicUsize::new(NONE), turn: AtomicU64::new(0) } }; PLAYERS];
/// Number of turns given so far.
static TURNS: AtomicU64 = AtomicU64::new(0);
/// Number of waiting threads.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static FORKS: Once = Once::new();

/// A forked child has one thread, which waits for nothing.
extern "C" fn forked() {
    WAITERS.iter().for_each(|waiter| waiter.condition.store(NONE, Relaxed));
    WAITING.store(0, Relaxed);
}

/// A flag of libc's in a condition variable: the index of its word, and its bit.
type Bit = (usize, u32);

/// The flags by which libc notes that processes share a condition variable, and that its limits are times of the monotonic clock. No call
/// returns them and their places differ between releases, so each is found by comparing a plain condition variable with one that has it.
fn bits() -> Option<&'static [Bit; 2]> {
    static BITS: OnceLock<Option<[Bit; 2]>> = OnceLock::new();
    const WORDS: usize = size_of::<pthread_cond_t>() / 4;
    let words = |kind: &dyn Fn(*mut pthread_condattr_t) -> c_int| {
        // SAFETY: attributes and variable are ours, and are initialized and destroyed in the order that libc requires; a condition variable
        // consists of whole words, and may be all zeros.
        unsafe {
            let (mut kinds, mut condition): (pthread_condattr_t, pthread_cond_t) = (zeroed(), zeroed());
            libc::pthread_condattr_init(&raw mut kinds);
            kind(&raw mut kinds);
            libc::pthread_cond_init(&raw mut condition, &raw const kinds);
            let words: [u32; WORDS] = std::mem::transmute(condition);
            libc::pthread_cond_destroy(&raw mut condition);
            libc::pthread_condattr_destroy(&raw mut kinds);
            words
        }
    };
    let found = BITS.get_or_init(|| {
        let plain = words(&|_| 0);
        let differs = |other: [u32; WORDS]| {
            let word = (0..WORDS).find(|word| plain[*word] != other[*word])?;
            Some((word, plain[word] ^ other[word]))
        };
        // SAFETY: the attributes are initialized.
        let shared =
            words(&|kinds| unsafe { libc::pthread_condattr_setpshared(kinds, libc::PTHREAD_PROCESS_SHARED) });
        // SAFETY: as above.
        let monotonic = words(&|kinds| unsafe { libc::pthread_condattr_setclock(kinds, CLOCK_MONOTONIC) });
        Some([differs(shared)?, differs(monotonic)?])
    });
    found.as_ref()
}

/// True if `condition` has flag `number` of [`bits`].
///
/// # Safety
/// `condition` points to a condition variable.
unsafe fn is(condition: *const pthread_cond_t, number: usize) -> bool {
    let Some((word, bit)) = bits().map(|bits| bits[number]) else { return false };
    // SAFETY: the caller's promise, and the word is one of its words; other threads write to it by atomic operations alone.
    unsafe { (*condition.cast::<AtomicU32>().add(word)).load(Relaxed) & bit != 0 }
}

/// Waits until the board's time is `until` or a thread signals. Returns 0 or an error number.
///
/// # Safety
/// As of `pthread_cond_timedwait`.
unsafe fn wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    (board, player): (Board, Player),
    until: u64,
) -> c_int {
    // SAFETY: the handler only touches this library's statics.
    FORKS.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
    let waiter = &WAITERS[player.number()];
    let waits = || waiter.condition.load(SeqCst) == condition.addr();
    // The wait begins on the board before other threads can see it, so that a thread that signals can end it.
    let parked = player.park(until);
    waiter.turn.store(TURNS.fetch_add(1, Relaxed), Relaxed);
    waiter.condition.store(condition.addr(), SeqCst);
    WAITING.fetch_add(1, SeqCst);
    // SAFETY: the caller's promise.
    let refused = unsafe { libc::pthread_mutex_unlock(mutex) };
    board.speak();
    while refused == 0 && waits() && player.now() < until && board.is_conducted() {
        parked.rest();
        if waits() {
            parked.again();
        }
    }
    let is_over = waiter.condition.compare_exchange(condition.addr(), NONE, SeqCst, Relaxed).is_ok();
    // The signalling thread is about to end a wait, which must not be the next one.
    while waiter.condition.load(SeqCst) == CHOSEN {
        std::hint::spin_loop();
    }
    WAITING.fetch_sub(1, SeqCst);
    drop(parked);
    if refused != 0 {
        return refused;
    }
    // SAFETY: the caller's promise.
    match unsafe { libc::pthread_mutex_lock(mutex) } {
        0 if is_over => ETIMEDOUT,
        error => error,
    }
}

/// Wakes the thread that has waited longest for `condition` with a limit. Returns false if there is none.
fn signal(condition: *mut pthread_cond_t) -> bool {
    if WAITING.load(SeqCst) == 0 {
        return false;
    }
    let Some(board) = BOARD.get().copied().flatten() else { return false };
    loop {
        let waits = |number: &usize| WAITERS[*number].condition.load(SeqCst) == condition.addr();
        let Some(first) = (0..PLAYERS).filter(waits).min_by_key(|number| WAITERS[*number].turn.load(Relaxed))
        else {
            return false;
        };
        let word = &WAITERS[first].condition;
        if word.compare_exchange(condition.addr(), CHOSEN, SeqCst, Relaxed).is_ok() {
            // It continues no earlier than the time of this thread.
            board.at(first).rise(player().map_or(0, |(_, player)| player.now()));
            word.store(NONE, SeqCst);
            return true;
        }
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    at: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let clock = if unsafe { is(condition, 1) } { CLOCK_MONOTONIC } else { CLOCK_REALTIME };
    // SAFETY: the caller's promise.
    unsafe { pthread_cond_clockwait(condition, mutex, clock, at) }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    at: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise; libc's function is of this type.
    let call = |clock: clockid_t, at: *const timespec| unsafe {
        own!(pthread_cond_clockwait(condition => *mut pthread_cond_t, mutex => *mut pthread_mutex_t, clock => clockid_t,
            at => *const timespec) -> c_int, else libc::ENOSYS)
    };
    // SAFETY: the caller's promise: it is null, or a time.
    let until = unsafe { at.as_ref() }.and_then(nanoseconds).and_then(|ns| deadline(clock, ns));
    match (until, player()) {
        // SAFETY: the caller's promise.
        (Some(until), Some((board, player))) if !player.is_apart() && !unsafe { is(condition, 0) } => unsafe {
            wait(condition, mutex, (board, player), until)
        },
        (Some(until), _) => {
            let at = in_kernel(left(until));
            call(CLOCK_MONOTONIC, &raw const at)
        }
        (None, _) => call(clock, at),
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    match signal(condition) {
        true => 0,
        // SAFETY: the caller's promise; libc's function is of this type.
        false => unsafe {
            own!(pthread_cond_signal(condition => *mut pthread_cond_t) -> c_int, else libc::ENOSYS)
        },
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    while signal(condition) {}
    // SAFETY: the caller's promise; libc's function is of this type.
    unsafe { own!(pthread_cond_broadcast(condition => *mut pthread_cond_t) -> c_int, else libc::ENOSYS) }
}
