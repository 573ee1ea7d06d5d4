//! The parked thread: what a process owes the node while its own threads are elsewhere. It sleeps unless woken or a
//! timer of its functions is due; it never spins.

use super::{
    core::{Core, MILLI},
    file::VECTORS,
    party, sys,
};
use driver::transport::Quiet;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*, fence},
        mpsc,
    },
    thread::JoinHandle,
};

/// Never.
const NEVER: u64 = u64::MAX;
/// Wait after work that could not be finished, ps.
const RETRY: u64 = MILLI;
/// Least wait, ps: a timer that is due but held up by somebody else's lock.
const LEAST: u64 = MILLI / 10;

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
        // What depends on its life being noted can be done from here on. Nothing is ever said: the other end closes.
        let _ = begun.recv();
        Ok(Self { core: core.clone(), stop, thread: Some(thread) })
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if !self.core.is_ours() {
            // The thread stayed in the parent.
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
    // Without it others find out later that we are gone.
    let _life = sys::Life::begin(&place.life);
    drop(alive);
    core.park();
    loop {
        let seen = place.wake.load(SeqCst);
        place.deadline.store(0, SeqCst);
        if stop.load(Acquire) {
            return;
        }
        let unfinished = serve(core);
        let now = core.now();
        let mut until = next_timer(core, now);
        if unfinished {
            until = until.min(now + RETRY);
        }
        place.deadline.store(until, SeqCst);
        fence(SeqCst);
        if next_timer(core, now) < until {
            continue;
        }
        place.sleeping.store(1, SeqCst);
        let nanos = (until != NEVER).then(|| until.saturating_sub(now).max(LEAST) / 1000);
        let woken = sys::futex_wait(&place.wake, seen, nanos);
        place.sleeping.store(0, SeqCst);
        if woken { &place.wakes } else { &place.ticks }.fetch_add(1, Relaxed);
    }
}

/// When the earliest timer of our functions is due.
fn next_timer(core: &Core, now: u64) -> u64 {
    let region = core.adapter.region();
    core.open_functions().filter_map(|fid| region.timer_hint(fid, now)).min().unwrap_or(NEVER)
}

/// Does what waits. True if something has to be tried again soon.
fn serve(core: &Core) -> bool {
    // While we are said to poll, somebody must see whether we do.
    let polled = core.check_pollers();
    let mut unfinished = core.check_streams() || polled != 0;
    core.meet();
    for slot in core.take_suspects() {
        if core.map.parties()[usize::from(slot)].state.load(Acquire) != 0 {
            if party::lives(&core.map, core.locks, slot) {
                if party::probe(&core.map, core.locks, slot).is_none() {
                    core.suspect_later(slot);
                    unfinished = true;
                }
            } else if let Err(error) = core.reap() {
                tracing::warn!(%error, "a program that died could not be cleaned up after");
            }
        }
    }
    deliver_interrupts(core);
    let now = core.now();
    unfinished |= core.take_back_stalled(now);
    let mut left = core.take_left();
    for fid in core.open_functions() {
        left |= 1 << fid;
    }
    for fid in (0..128u8).filter(|f| left & 1 << f != 0) {
        if !core.adapter.has_work(fid, now) {
            continue;
        }
        // A thread that polls and was kept from it, by us perhaps, comes back to what waits; else we see at the next look. It asks
        // for timers only now and then.
        if polled & 1 << fid == 0 || core.adapter.region().timer_due(fid, now) {
            core.run(now, fid);
        }
        // Somebody who holds the function sees its frames, but perhaps not that a timer is due; or is dead.
        let holder = core.adapter.region().function_lock(fid).holder().map_or(0, |party| party.0 as u8);
        if holder != 0 && holder != core.me.slot {
            unfinished = true;
            if !party::lives(&core.map, core.locks, holder) {
                core.suspect(holder);
            }
        }
    }
    deliver_interrupts(core);
    unfinished
}

/// Passes on what others raised for us.
fn deliver_interrupts(core: &Core) {
    for fid in core.open_functions() {
        let function = &core.map.functions()[usize::from(fid)];
        let pending = function.pending.load(Acquire);
        if pending == 0 {
            continue;
        }
        let ours = (0..VECTORS as u16)
            .filter(|v| function.vectors[usize::from(*v)].load(Acquire) == core.me.opener())
            .fold(0u64, |bits, v| bits | 1 << v);
        let taken = function.pending.fetch_and(!ours, AcqRel) & ours;
        for vector in (0..VECTORS as u16).filter(|v| taken & 1 << v != 0) {
            core.signal(fid, vector);
        }
    }
}
