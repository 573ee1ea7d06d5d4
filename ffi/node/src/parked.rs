//! The parked thread does a process's share of the node's work while the program's own threads are elsewhere. It sleeps until it is woken
//! or a timer of its functions expires, and never spins.

use super::{
    core::{Core, MILLI},
    jail::{self, Role},
    party, sys,
};
use driver::transport::Quiet;
use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*, fence},
        mpsc,
    },
    thread::JoinHandle,
};

/// No deadline.
const NEVER: u64 = u64::MAX;
/// Delay (ps) before unfinished work is tried again.
const RETRY: u64 = MILLI;
/// Delay (ps) before another try to clean up after a dead program, if a stopped program prevents it.
const HELD_UP: u64 = 100 * MILLI;
/// Minimum delay (ps), for an expired timer of a function that another party has locked, and for work that a work limit ended.
const LEAST: u64 = MILLI / 10;

/// Maximum sleep (ps). If the file is truncated, this thread's bell is no longer shared and no other process can wake it, so it checks by
/// itself.
const LOOK: u64 = 1_000 * MILLI;

/// The thread, stopped when dropped.
pub struct Parked {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Parked {
    /// Starts it.
    pub fn start(core: &Arc<Core>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, their_stop) = (core.clone(), stop.clone());
        let builder = std::thread::Builder::new().name("ironverbs".into()).stack_size(256 << 10);
        let (alive, begun) = mpsc::channel();
        let body = move || sleep_and_serve(&theirs, &their_stop, alive);
        let quiet = Quiet::new();
        let thread = builder.spawn(body)?;
        drop(quiet);
        // From here on, other processes can see that the thread is alive. It never sends anything: the channel closes.
        let _ = begun.recv();
        Ok(Self { core: core.clone(), stop, thread: Some(thread) })
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if !self.core.is_ours() {
            // The thread exists only in the parent.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.store(true, Release);
        self.core.wake(self.core.me.slot);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sleep_and_serve(core: &Core, stop: &AtomicBool, alive: mpsc::Sender<()>) {
    let place = core.place();
    // If this fails, other processes notice later that this one has died.
    let _life = sys::Life::begin(core.map.life(core.me.slot));
    drop(alive);
    ::clock::stay_apart();
    jail::enter(Role::Parked);
    core.park();
    let mut signaled = false;
    loop {
        let seen = place.bell.rung();
        place.deadline.store(0, SeqCst);
        if stop.load(Acquire) {
            return;
        }
        core.has_its_files();
        let lost = core.is_lost();
        if lost && !signaled {
            core.signal_all();
            signaled = true;
        }
        // A program that can map no more is lost, which this thread reports in the next round.
        let served = || std::panic::catch_unwind(AssertUnwindSafe(|| serve(core))).unwrap_or(0);
        let wait = if lost { NEVER } else { served() };
        let now = core.now();
        let until = if lost { NEVER } else { next_timer(core, now).min(now.saturating_add(wait)) };
        place.deadline.store(until, SeqCst);
        fence(SeqCst);
        if !lost && next_timer(core, now) < until {
            continue;
        }
        let rest = until.saturating_sub(now).max(LEAST);
        let nanos = Some(rest.min(LOOK) / 1000);
        let woken = place.bell.sleep(seen, |word, seen| sys::futex_wait(word, seen, nanos));
        match woken {
            true => _ = place.wakes.fetch_add(1, Relaxed),
            false if rest <= LOOK => _ = place.ticks.fetch_add(1, Relaxed),
            false => {}
        }
    }
}

/// Expiry of the earliest timer of this process's functions.
fn next_timer(core: &Core, now: u64) -> u64 {
    if core.board().is_some() {
        return NEVER;
    }
    let region = core.adapter.region();
    core.open_functions().filter_map(|fid| region.timer_hint(fid, now)).min().unwrap_or(NEVER)
}

/// Does pending work. Returns the time (ps) until work must be retried, or [`NEVER`].
fn serve(core: &Core) -> u64 {
    let mut held_up = false;
    // While functions of this process are marked as polled, the parked thread checks that they are.
    let polled = core.check_pollers();
    let mut unfinished = core.check_coalesced() || polled != 0;
    core.meet();
    // A dead program can answer forever that it is not ready.
    if next_timer(core, core.now()) != NEVER {
        core.sweep(core.now());
    }
    for slot in core.take_suspects() {
        if core.map.header().taken.has(slot) {
            if party::lives(&core.map, core.locks, slot) {
                if party::probe(&core.map, core.locks, slot).is_none() {
                    core.suspect_later(slot);
                    unfinished = true;
                }
            } else {
                if let Err(error) = core.reap() {
                    tracing::warn!(%error, "a program that died could not be cleaned up after");
                }
                if core.map.header().taken.has(slot) {
                    core.suspect_later(slot);
                    held_up = true;
                }
            }
        }
    }
    core.deliver_interrupts();
    let now = core.now();
    unfinished |= core.take_back_stalled(now) | core.take_back_stalled_beside();
    let mut left = core.take_left();
    for fid in core.open_functions() {
        left |= 1 << fid;
    }
    for fid in (0..128u8).filter(|f| left & 1 << f != 0) {
        if !core.adapter.has_work(fid, now) {
            continue;
        }
        // The polling thread resumes this work by itself, unless this thread prevents it; then the next check finds it. The polling thread
        // checks timers only occasionally.
        if polled & 1 << fid == 0 || core.adapter.region().timer_due(fid, now) {
            core.run(now, fid);
        }
        // The holder of the lock sees the function's frames, but may not notice an expired timer. It may also be dead.
        let holder = core.adapter.region().function_lock(fid).holder().map_or(0, |party| party.0);
        if holder != 0 && holder != core.me.slot {
            unfinished = true;
            if !party::lives(&core.map, core.locks, holder) {
                core.suspect(holder);
            }
        }
    }
    core.deliver_interrupts();
    match (unfinished, held_up) {
        // It may be waiting for receivers of what was sent.
        _ if core.has_left() => LEAST,
        (true, _) => RETRY,
        (false, true) => HELD_UP,
        (false, false) => NEVER,
    }
}
