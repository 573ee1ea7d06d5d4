//! The functional runner: costs are zero, and whoever needs the chip drives it.
//!
//! A runner belongs to one thread. [`Runner::run`] works on a function until nothing is left to do or its bound is
//! reached, then on the functions its frames went to, and so on. Functions are locked one at a time.

use crate::{
    Adapter, cmd,
    host::{Abort, Host, Party, Rid},
    pcie,
    pipe::{Frame, Job, Payload, Step, arrive_in_hand, dispatch, step::Buffers},
    region::{Func, SlotPayload, Sync, WireRing},
};
use hwspec::wire::{Headers, eth::Ethernet, icrc::Icrc};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// What becomes of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrives.
    Deliver,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
}

/// A wire that is watched, or leads out of the region. Frames are whole: Ethernet to ICRC.
pub trait Link: Send {
    /// Asked for every frame that enters the wire; may alter it, keep a copy, or release others kept back by pushing
    /// them to `more`.
    fn transmit(&mut self, from: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict;
    /// A frame whose destination is no function of this adapter.
    fn leave(&mut self, frame: &[u8]);
}

/// Runs the pipeline; see the [module](self).
#[derive(Default)]
pub struct Runner {
    buffers: Buffers,
    /// Functions with something to do, by bit.
    due: u128,
    /// The function that was worked on last.
    last: u8,
    link: Option<Box<dyn Link>>,
    trace: Option<Trace>,
    sealed: Vec<u8>,
    hand: Hand,
}

/// Something that happened, for those who watch: all there is to a run, so equal traces are equal runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent<'a> {
    /// When, ps.
    pub now: u64,
    /// The function.
    pub fid: u8,
    /// What.
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

/// Who watches a runner.
pub type Trace = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// Frames that go from one function to the next without the ring, because one runner works on both: the receiver was
/// locked before the sender was let go, so nobody can come in between.
#[derive(Default)]
struct Hand {
    frames: Vec<Frame>,
    staged: Vec<u8>,
    from: u8,
    /// Taken, and taken by jobs that committed.
    next: usize,
    committed: usize,
}

/// Payload of a frame, as its receiver sees it.
fn payload_of<'p>(frame: &'p Frame, from: u8, staged: &'p [u8]) -> SlotPayload<'p> {
    match &frame.payload {
        Payload::Empty => SlotPayload::Bytes(&[]),
        Payload::Staged(at, len) => {
            SlotPayload::Bytes(staged.get(*at as usize..(*at + *len) as usize).unwrap_or(&[]))
        }
        Payload::Pieces(n, pieces) => SlotPayload::Pieces(Rid(from), &pieces[..*n as usize]),
    }
}

/// Functions in a row that frames are handed to.
const HANDS: usize = 16;
/// Rounds over functions in one call, so that a call ends even if others keep making work.
const ROUNDS: usize = 64;
/// Frames in the outbox that end a step.
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

    /// Hands `job` to function `fid` and runs.
    pub fn submit(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8, job: Job) {
        self.work(adapter, host, now, fid, Some(job), true);
        if !self.buffers.held.is_empty() {
            self.complete_held(adapter, host, fid);
        }
        self.run_due(adapter, host, now);
    }

    /// Completes commands that took memory away, when nothing under way refers to it any more.
    #[cold]
    fn complete_held(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8) {
        pcie::purge_frames(adapter, host, fid);
        let mut func = Func::lock(adapter.region(), fid, host);
        self.buffers.held.drain(..).for_each(|completion| cmd::complete(&mut func, &completion));
        func.commit(host);
    }

    /// Runs function `fid` and whatever follows, if it has anything to do.
    pub fn run(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, fid: u8) {
        if adapter.has_work(fid, now) {
            self.due |= 1 << fid;
            self.run_due(adapter, host, now);
        }
    }

    /// A whole frame (Ethernet to ICRC) arrives from outside.
    pub fn receive(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, frame: &[u8]) {
        self.carry(adapter, host, frame);
        self.run_due(adapter, host, now);
    }

    fn run_due(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64) {
        for _ in 0..ROUNDS {
            if self.due == 0 {
                break;
            }
            // In turn, so that one that always has more does not keep the others from taking what it sends.
            let fid =
                (self.last + 1 + self.due.rotate_right(u32::from(self.last) + 1).trailing_zeros() as u8)
                    & 127;
            self.due &= !(1 << fid);
            self.last = fid;
            self.work(adapter, host, now, fid, None, false);
        }
    }

    /// Takes note of the functions, by bit, that the bound of the last call left with work, to be run again. They may be
    /// functions that nobody else looks after.
    #[inline]
    pub fn take_due(&mut self) -> u128 {
        std::mem::take(&mut self.due)
    }

    /// Works on `fid` for one bound. With a job in hand the lock is waited for; else a busy holder will see the work.
    fn work(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        fid: u8,
        first: Option<Job>,
        wait: bool,
    ) {
        let region = adapter.region();
        let mut first = first;
        let mut fid = fid;
        let mut handed = None;
        let mut hands = 0;
        // A stage that panicked may have left some.
        self.hand.frames.clear();
        (self.hand.next, self.hand.committed) = (0, 0);
        loop {
            let mut func = match handed.take() {
                Some(func) => func,
                None if wait || first.is_some() => Func::lock(region, fid, host),
                None => match Func::try_lock(region, fid, host) {
                    Some(func) => func,
                    None => return,
                },
            };
            let outcome = self.locked(adapter, host, now, &mut func, first.take());
            // Frames of a function enter the wire in the order it made them, so before another can run it.
            if hands < HANDS {
                handed = self.hand_over(adapter, host, now, fid);
                hands += 1;
            }
            if handed.is_none() {
                self.deliver(adapter, host, now, fid);
            }
            drop(func);
            // A frame pushed while we held the lock was left to us: look once more now that we do not.
            fence(SeqCst);
            match outcome {
                Outcome::More => self.due |= 1 << fid,
                Outcome::Blocked(party) => host.wake(party),
                Outcome::Idle if !WireRing::of(region, fid).waits() => {}
                Outcome::Idle if handed.is_some() => self.due |= 1 << fid,
                Outcome::Idle => continue,
            }
            match &handed {
                Some(next) => fid = next.fid(),
                None => return,
            }
        }
    }

    /// Takes the frames of `from`, still locked, in hand for the one function they all go to, and locks it. `None`: they
    /// must take the ring, for somebody watches the wire, tends or holds that function, or frames wait there already.
    #[inline]
    fn hand_over<'r>(
        &mut self,
        adapter: &'r Adapter,
        host: &mut dyn Host,
        now: u64,
        from: u8,
    ) -> Option<Func<'r>> {
        let first = self.buffers.out.first()?;
        let mac = &first.headers[..6];
        let to = adapter.owner_of_mac(&first.headers)?;
        if to == from
            || self.link.is_some()
            || adapter.config().sealed
            || self.buffers.out.iter().any(|frame| frame.headers[..6] != *mac)
            || WireRing::of(adapter.region(), to).waits()
            || host.is_tended(Rid(to))
        {
            return None;
        }
        let func = Func::try_lock(adapter.region(), to, host).filter(|func| !func.has_frame())?;
        std::mem::swap(&mut self.hand.frames, &mut self.buffers.out);
        std::mem::swap(&mut self.hand.staged, &mut self.buffers.staged);
        (self.hand.from, self.hand.next, self.hand.committed) = (from, 0, 0);
        for frame in &self.hand.frames {
            let headers = &frame.headers[..frame.header_len as usize];
            trace(&mut self.trace, now, from, Traced::Frame(headers, frame.payload.len()));
        }
        self.buffers.delivered();
        Some(func)
    }

    /// Works on a locked function.
    fn locked(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        func: &mut Func<'_>,
        first: Option<Job>,
    ) -> Outcome {
        let mut careful = false;
        let mut first = first;
        'again: loop {
            let mut budget = adapter.config().budget;
            let mut kept = first;
            loop {
                let mut step = Step::new(host, now, adapter.config(), careful, &mut self.buffers);
                // A job and all that follows from it within the function is the least that commits.
                if let Some(frame) = self.hand.frames.get(self.hand.next) {
                    self.hand.next += 1;
                    step.more_in_hand = self.hand.next < self.hand.frames.len();
                    if pcie::may_dma(func) {
                        trace(&mut self.trace, now, func.fid(), Traced::Job(Job::Arrive));
                        let headers = &frame.headers[..frame.header_len as usize];
                        let payload = payload_of(frame, self.hand.from, &self.hand.staged);
                        arrive_in_hand(func, &mut step, headers, payload);
                    }
                } else {
                    let source = kept.take().or_else(|| next(func, &mut step));
                    let Some(job) = source else { break };
                    trace(&mut self.trace, now, func.fid(), Traced::Job(job));
                    dispatch(job, func, &mut step);
                }
                while let Some(job) = step.buffers.jobs.pop_front() {
                    trace(&mut self.trace, now, func.fid(), Traced::Job(job));
                    dispatch(job, func, &mut step);
                }
                let Step { yielded, refused, settle, blocked, more_in_hand, .. } = step;
                if refused || blocked.is_some() {
                    self.take_back(func);
                    match blocked {
                        // Only the one job was taken back: it waits for the party that can do it.
                        Some(party) if careful => {
                            self.lay_down(adapter, host, func.fid());
                            return Outcome::Blocked(party);
                        }
                        _ => {
                            careful = true;
                            continue 'again;
                        }
                    }
                }
                budget = budget.saturating_sub(1);
                let full = !more_in_hand && (yielded || budget == 0 || self.buffers.out.len() >= OUT);
                if careful || full || settle || !func.has_room() {
                    if self.commit(func, host).is_err() {
                        careful = true;
                        continue 'again;
                    }
                    first = None;
                    if full {
                        return Outcome::More;
                    }
                }
            }
            if self.commit(func, host).is_err() {
                careful = true;
                continue 'again;
            }
            return Outcome::Idle;
        }
    }

    fn commit(&mut self, func: &mut Func<'_>, host: &mut dyn Host) -> Result<(), Abort> {
        if !self.buffers.moves.is_empty() {
            let done = host.copy(&self.buffers.staged, &self.buffers.moves);
            self.buffers.moves.clear();
            if let Err(abort) = done {
                self.take_back(func);
                return Err(abort);
            }
        }
        func.commit(host);
        self.buffers.committed();
        self.hand.committed = self.hand.next;
        Ok(())
    }

    /// Takes the jobs since the last commit back.
    fn take_back(&mut self, func: &mut Func<'_>) {
        func.rollback();
        self.buffers.rollback();
        self.hand.next = self.hand.committed;
    }

    /// Puts the frames in hand for `fid`, still locked, into its ring: another party must take them.
    #[cold]
    fn lay_down(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8) {
        let hand = std::mem::take(&mut self.hand);
        for frame in &hand.frames[hand.next..] {
            self.enter(adapter, host, fid, hand.from, frame, &hand.staged);
        }
    }

    /// Brings the frames of a step to their destinations.
    fn deliver(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, from: u8) {
        let mut out = std::mem::take(&mut self.buffers.out);
        for frame in &out {
            let headers = &frame.headers[..frame.header_len as usize];
            trace(&mut self.trace, now, from, Traced::Frame(headers, frame.payload.len()));
            self.put(adapter, host, from, frame);
        }
        out.clear();
        self.buffers.out = out;
        self.buffers.delivered();
    }

    fn put(&mut self, adapter: &Adapter, host: &mut dyn Host, from: u8, frame: &Frame) {
        let headers = &frame.headers[..frame.header_len as usize];
        let to = adapter.owner_of_mac(headers);
        if self.link.is_some() || to.is_none() || adapter.config().sealed {
            let mut whole = std::mem::take(&mut self.sealed);
            whole.clear();
            if seal(host, from, frame, &self.buffers.staged, &mut whole).is_ok() {
                self.transmit(adapter, host, from, &mut whole);
            }
            self.sealed = whole;
            return;
        }
        if let Some(to) = to {
            let staged = std::mem::take(&mut self.buffers.staged);
            self.enter(adapter, host, to, from, frame, &staged);
            self.buffers.staged = staged;
        }
    }

    /// Puts a frame of `from` into the ring of `to`.
    #[inline]
    fn enter(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        to: u8,
        from: u8,
        frame: &Frame,
        staged: &[u8],
    ) {
        let headers = &frame.headers[..frame.header_len as usize];
        let mut payload = payload_of(frame, from, staged);
        if matches!(payload, SlotPayload::Pieces(..)) && !host.by_reference() {
            self.sealed.clear();
            // What can't be read is lost on the way; the sender's retries find out.
            if fetch(host, from, &frame.payload, staged, &mut self.sealed).is_err() {
                return;
            }
            payload = SlotPayload::Bytes(&self.sealed);
        }
        if WireRing::of(adapter.region(), to).push(host, headers, payload, false) {
            self.arrived(host, to);
        } else {
            adapter.count_ring_full(to);
        }
    }

    /// A frame waits at `to`: it runs next, unless somebody is about to run it anyway.
    #[inline]
    fn arrived(&mut self, host: &mut dyn Host, to: u8) {
        // The frame before the question, for who stops looking after `to` looks once more; and before we look whether
        // `to` is locked.
        fence(SeqCst);
        if !host.is_tended(Rid(to)) {
            self.due |= 1 << to;
        }
    }

    fn transmit(&mut self, adapter: &Adapter, host: &mut dyn Host, from: u8, whole: &mut Vec<u8>) {
        let mut more = Vec::new();
        let verdict = match &mut self.link {
            Some(link) => link.transmit(from, whole, &mut more),
            None => Verdict::Deliver,
        };
        let times = match verdict {
            Verdict::Deliver => 1,
            Verdict::Drop => 0,
            Verdict::Duplicate => 2,
        };
        for _ in 0..times {
            self.carry(adapter, host, whole);
        }
        for frame in more {
            self.carry(adapter, host, &frame);
        }
    }

    fn carry(&mut self, adapter: &Adapter, host: &mut dyn Host, whole: &[u8]) {
        match adapter.owner_of_mac(whole) {
            Some(to) => {
                // A frame that makes no sense is cut anywhere; the receiver counts it.
                let cut = Headers::parse(whole).map_or(64, |h| h.payload_start()).min(whole.len());
                let (headers, rest) = whole.split_at(cut);
                if WireRing::of(adapter.region(), to).push(host, headers, SlotPayload::Bytes(rest), true) {
                    self.arrived(host, to);
                } else {
                    adapter.count_ring_full(to);
                }
            }
            None => {
                if let Some(link) = &mut self.link {
                    link.leave(whole);
                }
            }
        }
    }
}

/// What came of working on a function.
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
        watch(&TraceEvent { now, fid, what });
    }
}

/// What the function does next: frames before timers before new requests, so that acknowledgements free their QPs.
fn next(func: &mut Func<'_>, step: &mut Step<'_>) -> Option<Job> {
    if !pcie::may_dma(func) {
        // Without bus mastering nothing can be received, and nothing goes out.
        while func.has_frame() {
            func.take_front();
        }
        return None;
    }
    if func.has_frame() {
        return Some(Job::Arrive);
    }
    if let Some((qp, kind)) = func.take_timer(step.now) {
        return Some(Job::Timeout { qp, kind });
    }
    func.take_ready().map(|qp| Job::Execute { qp })
}

/// Appends the bytes of a payload.
fn fetch(
    host: &mut dyn Host,
    from: u8,
    payload: &Payload,
    staged: &[u8],
    bytes: &mut Vec<u8>,
) -> Result<(), Abort> {
    match payload {
        Payload::Empty => {}
        Payload::Staged(at, len) => {
            bytes.extend_from_slice(staged.get(*at as usize..(*at + *len) as usize).unwrap_or(&[]));
        }
        Payload::Pieces(n, pieces) => {
            for piece in &pieces[..*n as usize] {
                let start = bytes.len();
                bytes.resize(start + piece.len as usize, 0);
                host.read(Rid(from), piece.at, &mut bytes[start..])?;
            }
        }
    }
    Ok(())
}

/// Writes the frame as it goes over a real wire: payload, pad and ICRC behind the headers.
fn seal(
    host: &mut dyn Host,
    from: u8,
    frame: &Frame,
    staged: &[u8],
    whole: &mut Vec<u8>,
) -> Result<(), Abort> {
    whole.extend_from_slice(&frame.headers[..frame.header_len as usize]);
    fetch(host, from, &frame.payload, staged, whole)?;
    let pad = (4 - frame.payload.len() % 4) % 4;
    whole.resize(whole.len() + pad, 0);
    let ip = Ethernet::SIZE;
    let icrc = Icrc::new(whole.get(ip..).unwrap_or_default()).finish();
    whole.extend_from_slice(&icrc);
    Ok(())
}

impl Adapter {
    /// Whether `fid` has anything to do at `now`, without its lock.
    #[inline]
    pub fn has_work(&self, fid: u8, now: u64) -> bool {
        let region = self.region();
        WireRing::of(region, fid).waits()
            || region.sync(fid, Sync::Ready).load(std::sync::atomic::Ordering::Relaxed) != 0
            || region.timer_due(fid, now)
    }
}
