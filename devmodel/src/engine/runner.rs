//! The functional runner: operations take no time, and any caller that needs the adapter drives it.
//!
//! A runner belongs to one thread. [`Runner::run`] works on a function until it has nothing left to do or its budget is used
//! up, then on the functions that received its frames, if its party [serves](crate::host::Parties::serves) either of the two. It
//! never waits for one function's lock while it holds another's.

use super::{
    dispatch::dispatch,
    eswitch::Switch,
    route::{At, InlineFrames, payload_of},
};
use crate::{
    Adapter, Config, LinkLayer, cmd,
    host::{Host, Party, Rid},
    mlx5::{Job, Step, arrive_in_train, arrive_inline, step::Buffers},
    region::{Func, FunctionSet, Origin, Patience, READY_SQ, Sync, WireRing, purge_frames},
    subnet::{self, Announcement},
    wire::Link,
};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Runs the pipeline, as described in the [module](self).
#[derive(Default)]
pub struct Runner {
    pub(super) buffers: Buffers,
    /// Bitmap of functions with something to do.
    pub(super) due: FunctionSet,
    /// Functions that can do nothing until a link takes frames.
    paused: FunctionSet,
    /// Set by [`defer`](Self::defer).
    defers: bool,
    /// The function that was run last.
    last: u8,
    pub(super) link: Option<Box<dyn Link>>,
    pub(super) trace: Option<Trace>,
    pub(super) sealed: Vec<u8>,
    pub(super) inline: InlineFrames,
    /// A copy of the e-switch's settings, used if its manager has made any.
    pub(super) switch: Switch,
    /// The polled function that got the latest frames: further frames go into its ring without asking the host first.
    pub(super) polled: Option<u8>,
}

/// An event of a run, for observers. Events describe a run completely: equal traces are equal runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent<'a> {
    /// Time, in ps.
    pub now: u64,
    /// The function.
    pub fid: u8,
    /// The event.
    pub what: Traced<'a>,
}

/// The kind of a [`TraceEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced<'a> {
    /// A job starts. A job with refused copies starts again.
    Job(Job),
    /// A frame is sent: its headers, and the number of payload bytes after them.
    Frame(&'a [u8], usize),
}

/// The observer of a runner.
pub type Trace = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// Maximum number of functions in a chain of direct deliveries.
const HANDS: usize = 16;
/// Maximum rounds over functions per call, so that a call ends even if other parties keep adding work.
const ROUNDS: usize = 64;
/// Packets in the outbox that end a step.
const OUT: usize = 128;

impl Runner {
    /// A runner with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an observer of every job this runner starts and every frame it sends.
    pub fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace;
    }

    /// Sets an observer of every frame this runner sends.
    pub fn set_link(&mut self, link: Option<Box<dyn Link>>) {
        self.link = link;
    }

    /// The link, if there is one.
    pub fn link(&mut self) -> Option<&mut (dyn Link + 'static)> {
        self.link.as_deref_mut()
    }

    /// Leaves running the functions to the caller, in its own time. A submitted job is executed alone; the other work of its
    /// function is [due](Self::take_due) afterwards.
    #[inline]
    pub fn defer(&mut self, defers: bool) {
        self.defers = defers;
    }

    /// Executes `job` on function `fid` and the work that follows.
    pub fn submit(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8, job: Job) {
        let at = &mut At { adapter, host, now };
        match Func::lock_own(adapter.region(), fid, at.host) {
            Some(func) => self.work_on(at, func, Some(&job)),
            None => self.submit_as_any(at, fid, &job),
        }
        if !self.buffers.held.is_empty() {
            let locked = self.complete_held(at, fid);
            self.make_waiting_due(at, locked);
            self.run_due(at);
        }
        if self.due != 0 {
            self.run_due(at);
        }
    }

    #[inline(never)]
    fn submit_as_any(&mut self, at: &mut At<'_>, fid: u8, job: &Job) {
        let func = Func::lock(at.adapter.region(), fid, at.host);
        self.work_on(at, func, Some(job));
    }

    /// Completes commands that took memory away, once no transfer in progress refers to it any more. Returns the functions that
    /// were locked for that.
    #[cold]
    fn complete_held(&mut self, at: &mut At<'_>, fid: u8) -> FunctionSet {
        let region = at.adapter.region();
        // `Patience::Endless` never runs out.
        let locked = purge_frames(region, at.host, fid, Patience::Endless).unwrap_or_default();
        let mut func = Func::lock(region, fid, at.host);
        self.buffers.held.drain(..).for_each(|completion| cmd::complete_held(&mut func, &completion));
        func.commit(at.host);
        locked | 1 << fid
    }

    /// Runs function `fid` and the work that follows, if it has anything to do.
    pub fn run(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if adapter.has_work(fid, now) {
            self.run_busy(adapter, host, now, fid);
        }
    }

    /// [`run`](Self::run) for a function that appears to have something to do.
    #[inline]
    pub fn run_busy(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        let at = &mut At { adapter, host, now };
        if self.due != 0 || self.defers {
            self.due |= 1 << fid;
        } else {
            self.last = fid;
            self.work(at, fid);
        }
        if self.due != 0 {
            self.run_due(at);
        }
    }

    /// Runs `fid` after it was locked for another purpose, such as a register read: work that arrived in the meantime was left
    /// to the holder of the lock.
    pub fn look_again(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        // The lock is released before the check; a party that leaves a frame stores it before it reads the lock.
        fence(SeqCst);
        self.run(adapter, host, now, fid);
    }

    /// Runs those of `functions` that have something to do. This runner has held them, so other parties left work to it.
    #[cold]
    pub fn run_waiting(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, functions: FunctionSet) {
        let at = &mut At { adapter, host, now };
        self.make_waiting_due(at, functions);
        self.run_due(at);
    }

    #[cold]
    fn make_waiting_due(&mut self, at: &mut At<'_>, functions: FunctionSet) {
        fence(SeqCst);
        for fid in at.adapter.functions().filter(|fid| functions & 1 << fid != 0) {
            let rid = Rid(fid);
            let mine = self.defers || at.host.serves(rid);
            if at.adapter.has_work(fid, at.now) && (mine || !at.host.wake_users(rid)) {
                self.due |= 1 << fid;
            }
        }
    }

    /// Receives a whole frame (Ethernet to ICRC) from outside.
    pub fn receive(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, frame: &[u8]) {
        self.receive_all(adapter, host, now, std::iter::once(frame));
    }

    /// Receives several frames from outside, in this order, before processing any of them.
    pub fn receive_all<'f>(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        frames: impl Iterator<Item = &'f [u8]>,
    ) {
        let at = &mut At { adapter, host, now };
        frames.for_each(|frame| self.receive_external(at, frame));
        self.run_due(at);
    }

    /// Tells the PF of an InfiniBand adapter what all `others` on its subnet announce, and functions that their groups have changed.
    /// Returns false if a stopped program holds the PF.
    pub fn learn(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        others: &[Announcement],
    ) -> bool {
        let pf = Func::lock_with(adapter.region(), 0, host, Patience::UntilStopped);
        let Some(mut pf) = pf else { return false };
        let changed = subnet::learn(&mut pf, host, adapter.config(), others);
        drop(pf);
        let at = &mut At { adapter, host, now };
        for fid in adapter.functions().filter(|fid| changed & 1 << fid != 0) {
            self.notify(at, None, fid, subnet::REREGISTER);
        }
        self.run_due(at);
        true
    }

    /// Forwards frames that were diverted from the wire by [`OutletRing::divert`](crate::region::OutletRing::divert), and runs
    /// their receivers.
    pub fn bring_on<'f>(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        frames: impl Iterator<Item = (Option<u8>, &'f [u8])>,
    ) {
        let at = &mut At { adapter, host, now };
        frames.for_each(|(from, frame)| self.carry(at, Origin { from, now }, frame));
        self.run_due(at);
    }

    #[inline(never)]
    fn run_due(&mut self, at: &mut At<'_>) {
        for _ in 0..ROUNDS {
            if self.due == 0 || self.defers {
                break;
            }
            // Round robin, so that a function that always has work does not keep the others from receiving its frames.
            let fid =
                (self.last + 1 + self.due.rotate_right(u32::from(self.last) + 1).trailing_zeros() as u8)
                    & 127;
            self.due &= !(1 << fid);
            self.last = fid;
            self.work(at, fid);
        }
    }

    /// Takes the bitmap of functions that still have work after the last call's budget, to be run again. Some may have no other party to
    /// run them.
    #[inline]
    pub fn take_due(&mut self) -> FunctionSet {
        std::mem::take(&mut self.due)
    }

    /// Takes the bitmap of functions that are to be run again after a link has taken frames.
    #[inline]
    pub fn take_paused(&mut self) -> FunctionSet {
        std::mem::take(&mut self.paused)
    }

    /// Works on `fid` for one budget, then on the functions that its frames are passed to. If the function is locked, its
    /// holder will see the work.
    #[inline]
    fn work(&mut self, at: &mut At<'_>, fid: u8) {
        if let Some(other) = at.host.exclusive_runner(Rid(fid)) {
            return at.host.wake(other);
        }
        match Func::lock_own(at.adapter.region(), fid, at.host) {
            Some(func) => self.work_on(at, func, None),
            None => self.work_as_any(at, fid),
        }
    }

    #[inline(never)]
    fn work_as_any(&mut self, at: &mut At<'_>, fid: u8) {
        if let Some(func) = Func::try_lock(at.adapter.region(), fid, at.host) {
            self.work_on(at, func, None);
        }
    }

    /// Works on `func` for one budget, then on the functions that its frames are passed to. With a job to execute, it waits for
    /// the lock if it must take it again.
    // The function stays where it was locked: copying it immediately would stall until its fields have been stored.
    #[inline(always)]
    fn work_on(&mut self, at: &mut At<'_>, func: Func<'_>, first: Option<&Job>) {
        // A stage that panicked may have left frames.
        self.inline.forget();
        let (fid, mut handed) = (func.fid(), None);
        let hands = if self.defers { 0 } else { HANDS };
        let (waits, outcome) = self.turn(at, func, first, (hands, &mut handed));
        if waits || handed.is_some() || !matches!(outcome, Outcome::Idle) {
            self.go_on(at, (fid, first.is_some()), (waits, outcome), &mut handed);
        }
    }

    /// The work that follows from the first turn of [`work_on`](Self::work_on).
    #[inline(never)]
    fn go_on<'r>(
        &mut self,
        at: &mut At<'r>,
        (mut fid, wait): (u8, bool),
        mut came: (bool, Outcome),
        handed: &mut Option<Func<'r>>,
    ) {
        let mut hands = HANDS;
        loop {
            match came {
                (_, Outcome::More) => self.due |= 1 << fid,
                (true, Outcome::Paused) => self.due |= 1 << fid,
                (false, Outcome::Paused) => self.paused |= 1 << fid,
                (_, Outcome::Blocked(party)) => at.host.wake(party),
                (false, Outcome::Idle) => {}
                (true, Outcome::Idle) if handed.is_some() => self.due |= 1 << fid,
                (true, Outcome::Idle) => {
                    let other = if wait { None } else { at.host.exclusive_runner(Rid(fid)) };
                    if let Some(other) = other {
                        return at.host.wake(other);
                    }
                    let region = at.adapter.region();
                    let func = match wait {
                        true => Some(Func::lock(region, fid, at.host)),
                        false => Func::try_lock(region, fid, at.host),
                    };
                    let Some(func) = func else { return };
                    came = self.turn(at, func, None, (hands, handed));
                    continue;
                }
            }
            let Some(func) = handed.take() else { return };
            (fid, hands) = (func.fid(), hands - 1);
            came = self.turn(at, func, None, (hands, handed));
        }
    }

    /// One turn of a function: returns true if a frame was left to us while we held it, and the outcome. If the frames were
    /// passed directly to another function, which may happen `hands` times, that function is stored in `handed`.
    // Not part of the loop: code that the compiler hoists out of a loop is executed by every call, and nearly every call is one turn.
    #[inline(never)]
    fn turn<'r>(
        &mut self,
        at: &mut At<'r>,
        mut func: Func<'_>,
        first: Option<&Job>,
        (hands, handed): (usize, &mut Option<Func<'r>>),
    ) -> (bool, Outcome) {
        let fid = func.fid();
        let outcome = self.locked(at, &mut func, first);
        if matches!(outcome, Outcome::Blocked(_)) {
            self.requeue_inline(at, fid);
        }
        *handed = self.deliver(at, &mut func, hands > 0);
        if at.host.polls_itself(Rid(fid)) {
            // We poll this function, and find frames missed now later.
            func.unlock();
            (WireRing::of(at.adapter.region(), fid).waits(), outcome)
        } else {
            (func.unlock_and_look(), outcome)
        }
    }

    /// Works on a locked function.
    #[inline(always)]
    fn locked(&mut self, at: &mut At<'_>, func: &mut Func<'_>, first: Option<&Job>) -> Outcome {
        let At { adapter, now, .. } = *at;
        let link = self.link.is_some();
        let config = adapter.config();
        let bound = if self.defers { 1 } else { config.budget };
        let Self { buffers, inline, trace: watch, .. } = self;
        let mut step = Step::new(at.host, now, (adapter.region(), config), buffers);
        step.trains = watch.is_none() && !link && !config.sealed && config.link_layer == LinkLayer::Ethernet;
        // Starting point, also after a rollback: with `first`, unless that was committed.
        let (mut first, mut kept, mut budget) = (first, first, bound);
        loop {
            let is_inline = inline.next < inline.frames.len();
            // The job stays where it was built: copying it immediately would stall until its fields have been stored.
            let found = if is_inline || kept.is_some() { None } else { next(func, now, config) };
            // A job is the smallest unit of a commit.
            if is_inline {
                take_inline(func, &mut step, inline, watch);
            } else if let Some(job) = kept.take().or(found.as_ref()) {
                step.begin();
                trace(watch, now, func.fid(), Traced::Job(*job));
                dispatch(job, func, &mut step);
            } else if commit(func, &mut step, inline) {
                return Outcome::Idle;
            } else {
                (step.careful, kept, budget) = (true, first, bound);
                continue;
            }
            if step.refused || step.blocked.is_some() {
                take_back(func, &mut step, inline);
                match step.blocked {
                    // Only this job was rolled back: it waits for the party that can execute it.
                    Some(party) if step.careful => return Outcome::Blocked(party),
                    _ => {
                        (step.careful, kept, budget) = (true, first, bound);
                        continue;
                    }
                }
            }
            budget = budget.saturating_sub(1);
            let full = !step.more_inline && (step.yielded || budget == 0 || step.sent() >= OUT);
            if step.careful || full || step.settle || !func.has_room() {
                if !commit_so_far(func, &mut step, inline) {
                    (step.careful, kept, budget) = (true, first, bound);
                    continue;
                }
                first = None;
                if full {
                    return if step.paused { Outcome::Paused } else { Outcome::More };
                }
            }
        }
    }
}

/// Processes the next inline frame.
#[inline(never)]
fn take_inline(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    inline: &mut InlineFrames,
    watch: &mut Option<Trace>,
) {
    let Some(frame) = inline.frames.get(inline.next) else { return };
    inline.next += 1;
    step.begin();
    step.more_inline = inline.next < inline.frames.len();
    if frame.packets > 1 {
        if func.function().may_dma() {
            arrive_in_train(func, step, inline.from, frame);
        }
    } else if func.function().may_dma() || has_agents(step.config) {
        trace(watch, step.now, func.fid(), Traced::Job(Job::Arrive));
        let payload = payload_of(frame, inline.from, &inline.staged);
        arrive_inline(func, step, frame.head(), payload);
    }
}

/// Commits the jobs since the last commit. Returns false if a copy was aborted; the jobs are then rolled back.
#[inline(always)]
fn commit(func: &mut Func<'_>, step: &mut Step<'_>, inline: &mut InlineFrames) -> bool {
    if !step.buffers.moves.is_empty() && !copy(func, step, inline) {
        return false;
    }
    func.commit(step.host);
    step.buffers.committed();
    inline.committed = inline.next;
    true
}

/// [`commit`] with more jobs to come.
#[inline(never)]
fn commit_so_far(func: &mut Func<'_>, step: &mut Step<'_>, inline: &mut InlineFrames) -> bool {
    commit(func, step, inline)
}

/// Makes the copies that the jobs gathered. Returns false if one was aborted; the jobs are then rolled back.
#[inline(never)]
fn copy(func: &mut Func<'_>, step: &mut Step<'_>, inline: &mut InlineFrames) -> bool {
    let done = step.host.copy(&step.buffers.staged, &step.buffers.moves);
    step.buffers.moves.clear();
    if done.is_err() {
        take_back(func, step, inline);
    }
    done.is_ok()
}

/// Rolls back the jobs since the last commit.
#[cold]
fn take_back(func: &mut Func<'_>, step: &mut Step<'_>, inline: &mut InlineFrames) {
    func.rollback();
    step.buffers.rollback();
    inline.next = inline.committed;
}

/// The outcome of working on a function.
enum Outcome {
    /// Nothing is left to do.
    Idle,
    /// More work than fits one budget.
    More,
    /// Work that waits until a link takes frames.
    Paused,
    /// The next job must be executed by this party, whose memory the runner cannot access.
    Blocked(Party),
}

#[inline]
pub(super) fn trace(trace: &mut Option<Trace>, now: u64, fid: u8, what: Traced<'_>) {
    if let Some(watch) = trace {
        tell(watch, &TraceEvent { now, fid, what });
    }
}

#[cold]
fn tell(watch: &mut Trace, event: &TraceEvent<'_>) {
    watch(event);
}

/// True if frames may be for agents within the adapter, which exist without a driver: on InfiniBand.
#[cold]
pub(super) fn has_agents(config: &Config) -> bool {
    config.link_layer == LinkLayer::Infiniband
}

/// The next job of the function. Frames come before timers and timers before new requests, so that acknowledgements free their QPs.
#[inline]
fn next(func: &mut Func<'_>, now: u64, config: &Config) -> Option<Job> {
    if !func.function().may_dma() {
        return next_without_dma(func, config);
    }
    if func.has_frame() {
        return Some(Job::Arrive);
    }
    if let Some((qp, kind)) = func.take_timer(now) {
        return Some(Job::Timeout { qp, kind });
    }
    func.take_ready().map(ready_job)
}

/// The job for an entry of the ready ring.
#[inline]
pub(super) fn ready_job(entry: u32) -> Job {
    match entry & READY_SQ {
        0 => Job::Execute { qp: entry },
        _ => Job::Transmit { sq: entry ^ READY_SQ },
    }
}

/// Without bus mastering nothing is received or sent.
#[cold]
fn next_without_dma(func: &mut Func<'_>, config: &Config) -> Option<Job> {
    while func.has_frame() {
        if has_agents(config) {
            return Some(Job::Arrive);
        }
        func.take_front();
    }
    None
}

impl Adapter {
    /// True if `fid` has anything to do at `now`; does not take its lock.
    #[inline]
    pub fn has_work(&self, fid: u8, now: u64) -> bool {
        let region = self.region();
        WireRing::of(region, fid).waits()
            || region.sync(fid, Sync::Ready).load(std::sync::atomic::Ordering::Relaxed) != 0
            || region.timer_due(fid, now)
    }
}
