//! The functional runner: costs are zero, and whoever needs the chip drives it.
//!
//! A runner belongs to one thread. [`Runner::run`] works on a function until nothing is left to do or its bound is
//! reached, then on the functions its frames went to, as far as its party uses one of the two ([`Host::uses`]). It never
//! waits for one function's lock while it holds another's.

use super::{
    delivery::{Hand, payload_of},
    dispatch::dispatch,
    eswitch::Switch,
    switched::keep_pace,
};
use crate::{
    Adapter, Config, LinkLayer, cmd,
    host::{Host, Party, Rid},
    mlx5::{Job, Step, arrive_in_hand, arrive_in_train, step::Buffers},
    region::{Func, FunctionSet, Left, Patience, READY_SQ, Sync, WireRing, purge_frames},
    wire::Link,
};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Runs the pipeline; see the [module](self).
#[derive(Default)]
pub struct Runner {
    pub(super) buffers: Buffers,
    /// Functions with something to do, by bit.
    pub(super) due: FunctionSet,
    /// See [`defer`](Self::defer).
    defers: bool,
    /// The function that was worked on last.
    last: u8,
    pub(super) link: Option<Box<dyn Link>>,
    pub(super) trace: Option<Trace>,
    pub(super) sealed: Vec<u8>,
    pub(super) hand: Hand,
    /// The copy of the e-switch that frames go by where its manager set something.
    pub(super) switch: Switch,
    /// The function whose frames were last left to who polls it: the next ones go into its ring without asking the host first.
    pub(super) tended: Option<u8>,
}

/// Something that happened, for those who watch: all there is to a run, so equal traces are equal runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent<'a> {
    /// When, ps.
    pub now: u64,
    /// The function.
    pub fid: u8,
    /// The event.
    pub what: Traced<'a>,
}

/// See [`TraceEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced<'a> {
    /// A job starts. A job whose copies are refused starts again.
    Job(Job),
    /// A frame goes out: its headers, and the bytes of payload behind them.
    Frame(&'a [u8], usize),
}

/// The observer of a runner.
pub type Trace = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// Functions in a row that frames are handed to.
const HANDS: usize = 16;
/// Rounds over functions in one call, so that a call ends even if others keep making work.
const ROUNDS: usize = 64;
/// Packets in the outbox that end a step.
const OUT: usize = 128;

impl Runner {
    /// A runner with its buffers in place.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches every job this runner starts and every frame it sends.
    pub fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace;
    }

    /// Watches every frame this runner sends.
    pub fn set_link(&mut self, link: Option<Box<dyn Link>>) {
        self.link = link;
    }

    /// The link, if there is one.
    pub fn link(&mut self) -> Option<&mut (dyn Link + 'static)> {
        self.link.as_deref_mut()
    }

    /// Lets others run the functions, in a time of their own. A job that is submitted is carried out alone; what else its function has
    /// to do is [due](Self::take_due) afterwards.
    #[inline]
    pub fn defer(&mut self, defers: bool) {
        self.defers = defers;
    }

    /// Hands `job` to function `fid` and runs.
    pub fn submit(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8, job: Job) {
        match Func::lock_own(adapter.region(), fid, host) {
            Some(func) => self.work_on(adapter, host, now, func, Some(&job)),
            None => self.submit_as_any(adapter, host, now, fid, &job),
        }
        if !self.buffers.held.is_empty() {
            let locked = self.complete_held(adapter, host, fid);
            self.run_waiting(adapter, host, now, locked);
        }
        if self.due != 0 {
            self.run_due(adapter, host, now);
        }
    }

    #[inline(never)]
    fn submit_as_any(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8, job: &Job) {
        let func = Func::lock(adapter.region(), fid, host);
        self.work_on(adapter, host, now, func, Some(job));
    }

    /// Completes commands that took memory away, when nothing under way refers to it any more. Returns the functions that were
    /// locked for that.
    #[cold]
    fn complete_held(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8) -> FunctionSet {
        // Endless patience does not run out.
        let locked = purge_frames(adapter.region(), host, fid, Patience::Endless).unwrap_or_default();
        let mut func = Func::lock(adapter.region(), fid, host);
        self.buffers.held.drain(..).for_each(|completion| cmd::complete_held(&mut func, &completion));
        func.commit(host);
        locked | 1 << fid
    }

    /// Runs function `fid` and whatever follows, if it has anything to do.
    pub fn run(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if adapter.has_work(fid, now) {
            self.run_busy(adapter, host, now, fid);
        }
    }

    /// [`run`](Self::run), of a function that seems to have something to do.
    #[inline]
    pub fn run_busy(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if self.due != 0 || self.defers {
            self.due |= 1 << fid;
        } else {
            self.last = fid;
            self.work(adapter, host, now, fid);
        }
        if self.due != 0 {
            self.run_due(adapter, host, now);
        }
    }

    /// Runs `fid` after it was locked for something else, such as the reading of a register: what came meanwhile was left
    /// to whoever held it.
    pub fn look_again(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        // The lock is let go of before we look; whoever leaves a frame puts it there before looking at the lock.
        fence(SeqCst);
        self.run(adapter, host, now, fid);
    }

    /// Sees to it that those of `functions` that have something to do are run. They are functions that this runner has held, so
    /// that others left to it what came meanwhile.
    #[cold]
    pub fn run_waiting(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, functions: FunctionSet) {
        fence(SeqCst);
        for fid in adapter.functions().filter(|fid| functions & 1 << fid != 0) {
            let rid = Rid(fid);
            if adapter.has_work(fid, now) && (self.defers || host.uses(rid) || !host.leave_to_users(rid)) {
                self.due |= 1 << fid;
            }
        }
        self.run_due(adapter, host, now);
    }

    /// A whole frame (Ethernet to ICRC) arrives from outside.
    pub fn receive(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, frame: &[u8]) {
        self.receive_all(adapter, host, now, std::iter::once(frame));
    }

    /// Several frames arrive from outside, in this order, before anything is done about them.
    pub fn receive_all<'f>(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        frames: impl Iterator<Item = &'f [u8]>,
    ) {
        frames.for_each(|frame| self.come_in(adapter, host, now, frame));
        self.run_due(adapter, host, now);
    }

    /// Brings frames on that were diverted on their way over the wire (see [`OutletRing::divert`](crate::region::OutletRing::divert)), and lets their receivers run.
    pub fn bring_on<'f>(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        frames: impl Iterator<Item = (Option<u8>, &'f [u8])>,
    ) {
        frames.for_each(|(from, frame)| self.carry(adapter, host, Left { from, now }, frame));
        self.run_due(adapter, host, now);
    }

    #[inline(never)]
    fn run_due(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64) {
        for _ in 0..ROUNDS {
            if self.due == 0 || self.defers {
                break;
            }
            // In turn, so that one that always has more does not keep the others from taking what it sends.
            let fid =
                (self.last + 1 + self.due.rotate_right(u32::from(self.last) + 1).trailing_zeros() as u8)
                    & 127;
            self.due &= !(1 << fid);
            self.last = fid;
            self.work(adapter, host, now, fid);
        }
    }

    /// Takes note of the functions, by bit, that the bound of the last call left with work, to be run again. They may be
    /// functions that nobody else looks after.
    #[inline]
    pub fn take_due(&mut self) -> FunctionSet {
        std::mem::take(&mut self.due)
    }

    /// Works on `fid` for one bound, and then on those its frames are handed to; a busy holder will see the work.
    #[inline]
    fn work(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if let Some(keeper) = host.keeper(Rid(fid)) {
            return host.wake(keeper);
        }
        match Func::lock_own(adapter.region(), fid, host) {
            Some(func) => self.work_on(adapter, host, now, func, None),
            None => self.work_as_any(adapter, host, now, fid),
        }
    }

    #[inline(never)]
    fn work_as_any(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if let Some(func) = Func::try_lock(adapter.region(), fid, host) {
            self.work_on(adapter, host, now, func, None);
        }
    }

    /// Works on `func` for one bound, and then on those its frames are handed to. With a job in hand its lock is waited for when
    /// it has to be taken once more.
    // A function stays where it was locked: one that is copied right behind waits until its parts have been stored.
    #[inline(always)]
    fn work_on(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        func: Func<'_>,
        first: Option<&Job>,
    ) {
        // A stage that panicked may have left some.
        self.hand.forget();
        let (fid, mut handed) = (func.fid(), None);
        let hands = if self.defers { 0 } else { HANDS };
        let (waits, outcome) = self.turn(adapter, host, now, func, first, (hands, &mut handed));
        if waits || handed.is_some() || !matches!(outcome, Outcome::Idle) {
            self.go_on(adapter, host, now, (fid, first.is_some()), (waits, outcome), &mut handed);
        }
    }

    /// The work that follows from the first turn of [`work_on`](Self::work_on).
    #[inline(never)]
    fn go_on<'r>(
        &mut self,
        adapter: &'r Adapter,
        host: &mut dyn Host,
        now: u64,
        (mut fid, wait): (u8, bool),
        mut came: (bool, Outcome),
        handed: &mut Option<Func<'r>>,
    ) {
        let mut hands = HANDS;
        loop {
            match came {
                (_, Outcome::More) => self.due |= 1 << fid,
                (_, Outcome::Blocked(party)) => host.wake(party),
                (false, Outcome::Idle) => {}
                (true, Outcome::Idle) if handed.is_some() => self.due |= 1 << fid,
                (true, Outcome::Idle) => {
                    let keeper = if wait { None } else { host.keeper(Rid(fid)) };
                    if let Some(keeper) = keeper {
                        return host.wake(keeper);
                    }
                    let region = adapter.region();
                    let func = if wait {
                        Some(Func::lock(region, fid, host))
                    } else {
                        Func::try_lock(region, fid, host)
                    };
                    let Some(func) = func else { return };
                    came = self.turn(adapter, host, now, func, None, (hands, handed));
                    continue;
                }
            }
            let Some(func) = handed.take() else { return };
            (fid, hands) = (func.fid(), hands - 1);
            came = self.turn(adapter, host, now, func, None, (hands, handed));
        }
    }

    /// One function's turn: whether a frame was left to us while we held it, and what came of it. The function that frames
    /// were handed to, which may be done so often, goes into `handed`.
    // Not part of the loop: what a compiler takes out of a loop is done at every call, and nearly every call is one turn.
    #[inline(never)]
    fn turn<'r>(
        &mut self,
        adapter: &'r Adapter,
        host: &mut dyn Host,
        now: u64,
        mut func: Func<'r>,
        first: Option<&Job>,
        (hands, handed): (usize, &mut Option<Func<'r>>),
    ) -> (bool, Outcome) {
        let fid = func.fid();
        let outcome = self.locked(adapter, host, now, &mut func, first);
        if matches!(outcome, Outcome::Blocked(_)) {
            self.lay_down(adapter, host, fid);
        }
        // Frames of a function enter the wire in the order it made them, so before another can run it.
        if !self.buffers.raw.is_empty() {
            let bytes = self.deliver_raw(adapter, host, now, fid);
            keep_pace(host, now, &mut func, bytes);
        }
        if self.buffers.out.is_empty() {
            self.buffers.delivered();
        } else if let Some(to) = self.addressee(adapter) {
            if hands > 0 && to != fid && self.tended != Some(to) && !host.is_tended(Rid(to)) {
                *handed = self.hand_over(adapter, host, now, fid, to);
            }
            if handed.is_none() {
                self.deliver(adapter, host, now, fid, to);
            }
        } else {
            let bytes = self.scatter(adapter, host, now, fid);
            keep_pace(host, now, &mut func, bytes);
        }
        if host.tends(Rid(fid)) {
            // We come back to frames that we overlook now.
            func.unlock();
            (WireRing::of(adapter.region(), fid).waits(), outcome)
        } else {
            (func.unlock_and_look(), outcome)
        }
    }

    /// Works on a locked function.
    #[inline(always)]
    fn locked(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        func: &mut Func<'_>,
        first: Option<&Job>,
    ) -> Outcome {
        let link = self.link.is_some();
        let config = adapter.config();
        let bound = if self.defers { 1 } else { config.budget };
        let Self { buffers, hand, trace: watch, .. } = self;
        let mut step = Step::new(host, now, (adapter.region(), config), buffers);
        step.trains = watch.is_none() && !link && !config.sealed && config.link_layer == LinkLayer::Ethernet;
        // Where it begins, and begins again when jobs were taken back: with `first`, unless that was committed.
        let (mut first, mut kept, mut budget) = (first, first, bound);
        loop {
            let in_hand = hand.next < hand.frames.len();
            // A job stays where it was put together: one that is copied right behind waits until its parts have been stored.
            let found = if in_hand || kept.is_some() { None } else { next(func, now, config) };
            // A job and all that follows from it within the function is the least that commits.
            if in_hand {
                take_in_hand(func, &mut step, hand, watch);
            } else if let Some(job) = kept.take().or(found.as_ref()) {
                step.begin();
                trace(watch, now, func.fid(), Traced::Job(*job));
                dispatch(job, func, &mut step);
            } else if commit(func, &mut step, hand) {
                return Outcome::Idle;
            } else {
                (step.careful, kept, budget) = (true, first, bound);
                continue;
            }
            if !step.buffers.jobs.is_empty() {
                follow(func, &mut step, watch);
            }
            if step.refused || step.blocked.is_some() {
                take_back(func, &mut step, hand);
                match step.blocked {
                    // Only the one job was taken back: it waits for the party that can do it.
                    Some(party) if step.careful => return Outcome::Blocked(party),
                    _ => {
                        (step.careful, kept, budget) = (true, first, bound);
                        continue;
                    }
                }
            }
            budget = budget.saturating_sub(1);
            let full = !step.more_in_hand && (step.yielded || budget == 0 || step.sent() >= OUT);
            if step.careful || full || step.settle || !func.has_room() {
                if !commit_so_far(func, &mut step, hand) {
                    (step.careful, kept, budget) = (true, first, bound);
                    continue;
                }
                first = None;
                if full {
                    return Outcome::More;
                }
            }
        }
    }
}

/// The next of the frames in hand.
#[inline(never)]
fn take_in_hand(func: &mut Func<'_>, step: &mut Step<'_>, hand: &mut Hand, watch: &mut Option<Trace>) {
    let Some(frame) = hand.frames.get(hand.next) else { return };
    hand.next += 1;
    step.begin();
    step.more_in_hand = hand.next < hand.frames.len();
    if frame.packets > 1 {
        if func.function().may_dma() {
            arrive_in_train(func, step, hand.from, frame);
        }
    } else if func.function().may_dma() || has_agents(step.config) {
        trace(watch, step.now, func.fid(), Traced::Job(Job::Arrive));
        let headers = &frame.headers[..frame.header_len as usize];
        let payload = payload_of(frame, hand.from, &hand.staged);
        arrive_in_hand(func, step, headers, payload);
    }
}

/// The jobs that follow from one.
#[inline(never)]
fn follow(func: &mut Func<'_>, step: &mut Step<'_>, watch: &mut Option<Trace>) {
    while let Some(job) = step.buffers.jobs.pop_front() {
        trace(watch, step.now, func.fid(), Traced::Job(job));
        dispatch(&job, func, step);
    }
}

/// Makes what the jobs since the last commit did final. False if a copy was aborted: then they are taken back.
#[inline(always)]
fn commit(func: &mut Func<'_>, step: &mut Step<'_>, hand: &mut Hand) -> bool {
    if !step.buffers.moves.is_empty() && !copy(func, step, hand) {
        return false;
    }
    func.commit(step.host);
    step.buffers.committed();
    hand.committed = hand.next;
    true
}

/// [`commit`], with more to come.
#[inline(never)]
fn commit_so_far(func: &mut Func<'_>, step: &mut Step<'_>, hand: &mut Hand) -> bool {
    commit(func, step, hand)
}

/// Makes the copies that jobs gathered. False if one was aborted: then the jobs are taken back.
#[inline(never)]
fn copy(func: &mut Func<'_>, step: &mut Step<'_>, hand: &mut Hand) -> bool {
    let done = step.host.copy(&step.buffers.staged, &step.buffers.moves);
    step.buffers.moves.clear();
    if done.is_err() {
        take_back(func, step, hand);
    }
    done.is_ok()
}

/// Takes the jobs since the last commit back.
#[cold]
fn take_back(func: &mut Func<'_>, step: &mut Step<'_>, hand: &mut Hand) {
    func.rollback();
    step.buffers.rollback();
    hand.next = hand.committed;
}

/// The outcome of work on a function.
enum Outcome {
    /// Nothing is left to do.
    Idle,
    /// There is more than fits one bound.
    More,
    /// The next job is for this party, whose memory the runner can't reach.
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

/// True if frames may be for agents within the chip, which are there without a driver: on InfiniBand.
#[cold]
fn has_agents(config: &Config) -> bool {
    config.link_layer == LinkLayer::Infiniband
}

/// The next job of the function: frames before timers before new requests, so that acknowledgements free their QPs.
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

/// Returns the job that an entry of the ready ring asks for.
#[inline]
pub(super) fn ready_job(entry: u32) -> Job {
    match entry & READY_SQ {
        0 => Job::Execute { qp: entry },
        _ => Job::Transmit { sq: entry ^ READY_SQ },
    }
}

/// Without bus mastering nothing can be received, and nothing goes out.
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
    /// True if `fid` has anything to do at `now`, without its lock.
    #[inline]
    pub fn has_work(&self, fid: u8, now: u64) -> bool {
        let region = self.region();
        WireRing::of(region, fid).waits()
            || region.sync(fid, Sync::Ready).load(std::sync::atomic::Ordering::Relaxed) != 0
            || region.timer_due(fid, now)
    }
}
