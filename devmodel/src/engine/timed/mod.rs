//! The timed runner: executes the same stages, and models their packets and writes on a card's units in virtual picoseconds.

mod turns;
mod wire;

use self::{
    turns::Turns,
    wire::{Bound, Flight, Network},
};
use super::{
    card::{For, Load, Station, Units},
    dispatch::dispatch,
    eswitch::Switch,
    faults::{FaultInjector, FaultKind, FaultPlan, FaultReport, Refusing},
    mirror::Mirror,
    network::Move,
    route::At,
    runner::{self, Trace, Traced, ready_job},
    sched::{Ps, Schedule},
    spans::{Cause, Part, Spans},
    timing::TimingProfile,
};
use crate::{
    Adapter, Config,
    host::Host,
    mlx5::{Job, Step, rates, step::Buffers},
    region::{Func, Lookup, Lookups, TimerKind},
    transport::Timer,
    wire::Link,
};
use std::collections::BTreeMap;

/// A job of a function.
#[derive(Clone, Copy)]
struct Task {
    cause: Cause,
    job: Job,
    /// The send counter of a doorbell.
    posted: Option<u16>,
    fid: u8,
}

impl Task {
    fn new(fid: u8, job: Job, cause: Cause) -> Self {
        Self { cause, job, posted: None, fid }
    }

    /// The queue pair that the task sends on; `None` if it sends nothing.
    fn queue(&self) -> Option<u32> {
        match self.job {
            Job::Doorbell { qpn, .. } => Some(qpn),
            Job::Execute { qp } => Some(qp),
            _ => None,
        }
    }

    fn sends(&self) -> bool {
        self.queue().is_some()
    }
}

/// A scheduled event. Tasks are copied as a whole: splitting and reassembling them would stall on their pending stores.
enum What<T> {
    /// A job of a function.
    Job(Task),
    /// A frame has arrived.
    Frame(u8, Box<Flight>),
    /// A card may generate more packets.
    Turn(usize),
    /// A delayed frame continues.
    Late(Bound),
    /// A packet moves through the network, or a sender is paused.
    Net(Move<(u8, Box<Flight>)>),
    /// A card may have receive buffer space again.
    Room(usize),
    /// An event of the caller.
    Other(T),
}

/// Classifies a packet that is the last of a message or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// A message of the peer.
    Message,
    /// The response to a request of the function.
    Answer,
}

/// An event that has occurred.
pub enum Happened<T> {
    /// A function has executed a job.
    Function {
        /// The function.
        fid: u8,
        /// The time and chain of spans of its writes.
        cause: Cause,
        /// Set if it processed the last packet of a message or response.
        ends: Option<Ends>,
    },
    /// An event scheduled by [`Timed::at`].
    Other(T),
}

/// Runs the pipeline in virtual time, as described in the [module](self).
pub struct Timed<'w, T> {
    schedule: Schedule<What<T>>,
    profile: TimingProfile,
    /// The adapter's configuration as modified by the profile, once anything has run.
    behaviour: Option<Config>,
    cards: Vec<Units>,
    /// The card of each function.
    card_of: Vec<usize>,
    /// For each card, the queue pairs that wait for their turn to send.
    turns: Vec<Turns>,
    buffers: Buffers,
    /// Buffer for the lookups of a job.
    lookups: Vec<Lookup>,
    /// For each function, the earliest timer that has an event scheduled.
    timer: BTreeMap<u8, Option<Ps>>,
    /// Frames sent, and the number of acknowledgements among them.
    pub(crate) frames: [u64; 2],
    pub(crate) trace: Option<Trace>,
    /// The recorded spans.
    pub(crate) spans: Spans,
    /// Receives copies of the frames.
    pub(crate) mirror: Option<Mirror<'w>>,
    /// A copy of the e-switch's settings, used if its manager has made any.
    switch: Switch,
    /// An observer of all frames, which then travel as bytes.
    link: Option<Box<dyn Link>>,
    /// The network between the cards, if it is more than the profile's wire.
    network: Option<Network>,
    /// The fault plan in progress.
    injector: Option<Box<FaultInjector<Bound>>>,
}

impl<T> Timed<'_, T> {
    /// Cards of `profile`; `card_of` gives the card of each function.
    pub fn new(profile: TimingProfile, card_of: Vec<usize>) -> Self {
        let count = card_of.iter().copied().max().unwrap_or(0) + 1;
        let cards = (0..count).map(|here| Units::new(&profile, here)).collect();
        let turns = vec![Turns::default(); count];
        Self {
            schedule: Schedule::default(),
            profile,
            behaviour: None,
            cards,
            card_of,
            turns,
            buffers: Buffers::default(),
            lookups: Vec::new(),
            timer: BTreeMap::new(),
            frames: [0; 2],
            trace: None,
            spans: Spans::default(),
            mirror: None,
            switch: Switch::default(),
            link: None,
            network: None,
            injector: None,
        }
    }

    /// Applies `plan` to frames from now on.
    pub fn inject(&mut self, plan: FaultPlan) {
        self.injector = Some(Box::new(FaultInjector::new(plan, self.schedule.now())));
    }

    /// The outcome of the plan, if there is one.
    pub fn found(&mut self) -> Option<FaultReport> {
        let injector = self.injector.take()?;
        Some(FaultReport { hits: injector.hits, timeline: injector.timeline })
    }

    /// Behaves as `config` says, and not as the profile's card.
    pub fn behave(&mut self, config: Config) {
        self.behaviour = Some(config);
    }

    /// Sets an observer of every frame that is sent.
    pub fn set_link(&mut self, link: Option<Box<dyn Link>>) {
        self.link = link;
    }

    /// The loads of the units of each card.
    pub(crate) fn loads(&self) -> Vec<[Load; Station::ALL.len()]> {
        self.cards.iter().map(|card| *card.loads()).collect()
    }

    fn place(&self, fid: u8) -> usize {
        self.card_of.get(usize::from(fid)).copied().unwrap_or(0)
    }

    /// Current time: that of the last event.
    pub fn now(&self) -> Ps {
        self.schedule.now()
    }

    /// Time of the next event, if there is one.
    pub fn next(&mut self, adapter: &Adapter) -> Option<Ps> {
        self.forget_timers(adapter);
        self.schedule.peek().map(|(at, _)| at)
    }

    /// Advances the time to `at`, before any event.
    pub fn begin(&mut self, at: Ps) {
        self.schedule.begin(at);
    }

    /// Schedules an event of the caller at `at`.
    pub fn at(&mut self, at: Ps, what: T) {
        self.schedule.at(at, What::Other(what));
    }

    /// Handles the next event. Returns `None` if there is none.
    pub fn step(&mut self, adapter: &Adapter, host: &mut dyn Host) -> Option<Happened<T>> {
        loop {
            self.forget_timers(adapter);
            let what = self.schedule.take()?;
            let at = &mut At { adapter, host: &mut *host, now: self.schedule.now() };
            return Some(match what {
                What::Job(task) => match self.begin_task(at, task) {
                    Some(cause) => Happened::Function { fid: task.fid, cause, ends: None },
                    None => continue,
                },
                What::Frame(fid, flight) => match self.stopped(fid) {
                    Some(until) => {
                        self.later(until, fid, flight);
                        continue;
                    }
                    None => self.receive(at, fid, flight),
                },
                What::Net(what) => match self.network_event(what) {
                    Some((fid, flight)) => self.receive(at, fid, flight),
                    None => continue,
                },
                What::Late(bound) => {
                    self.enter_wire(bound);
                    continue;
                }
                What::Room(card) => {
                    self.watch_inbox(card);
                    continue;
                }
                What::Turn(card) => match self.next_turn(at, card) {
                    Some(happened) => happened,
                    None => continue,
                },
                What::Other(what) => Happened::Other(what),
            });
        }
    }

    /// Looks up the context of the queue pair of a task; returns the time at which it is available.
    fn with_context(&mut self, adapter: &Adapter, task: &Task) -> Cause {
        let Some(qp) = task.queue() else { return task.cause };
        let here = self.place(task.fid);
        let queue = (task.fid, qp & qp_mask(adapter), For::Sending);
        self.cards[here].context(&mut self.spans, queue, task.cause)
    }

    /// Drops the next events that are timers stopped in the meantime, so that the time does not advance for them.
    fn forget_timers(&mut self, adapter: &Adapter) {
        let is_stopped = |at, what: &What<T>| match what {
            What::Job(Task { fid, job: Job::Timeout { .. }, .. }) => !adapter.region().timer_due(*fid, at),
            _ => false,
        };
        while self.schedule.peek().is_some_and(|(at, what)| is_stopped(at, what)) {
            if let Some(What::Job(Task { fid, .. })) = self.schedule.drop_next() {
                // A timer started since then needs another event.
                let next = adapter.region().timer_hint(fid, self.schedule.now());
                self.timer.insert(fid, next);
                if let Some(at) = next {
                    self.begin_timer(fid, at);
                }
            }
        }
    }

    fn begin_timer(&mut self, fid: u8, at: Ps) {
        // `run_task` determines the timers that are due.
        let kind = TimerKind::Connection(Timer::Ack);
        self.submit(Cause::new(at), fid, Job::Timeout { qp: 0, kind });
    }

    /// Like [`Timed::step`], but drops all frames.
    pub(crate) fn step_alone(&mut self, adapter: &Adapter, host: &mut dyn Host) -> Option<Happened<T>> {
        while self.schedule.peek().is_some_and(|(_, what)| matches!(what, What::Frame(..))) {
            self.schedule.take();
        }
        self.step(adapter, host)
    }

    /// Schedules `job` of `fid` at the time of `cause`.
    pub fn submit(&mut self, cause: Cause, fid: u8, job: Job) {
        self.schedule.at(cause.at, What::Job(Task::new(fid, job, cause)));
    }

    /// Like [`Timed::submit`], for a doorbell; `posted` is the send counter in the doorbell record at that time.
    pub fn ring(&mut self, cause: Cause, fid: u8, job: Job, posted: u16) {
        let task = Task { posted: Some(posted), ..Task::new(fid, job, cause) };
        self.schedule.at(cause.at, What::Job(task));
    }

    /// Executes a job. Returns the time and chain of spans of its writes: it may have waited for keys and translations, and
    /// requests without acknowledgement complete when they have left the port.
    fn run_task(&mut self, at: &mut At<'_>, task: &Task) -> Cause {
        let Task { cause, ref job, posted, fid } = *task;
        let At { adapter, now, .. } = *at;
        let mut refusing = Refusing(at.host);
        let host: &mut dyn Host = match &self.injector {
            Some(injector) if injector.until(FaultKind::Abort, fid, now).is_some() => &mut refusing,
            _ => &mut *refusing.0,
        };
        let unmapped = self
            .injector
            .as_ref()
            .is_some_and(|injector| injector.until(FaultKind::Unmap, fid, now).is_some());
        let here = self.place(fid);
        let quantum = self.turns[here].quantum();
        let lookups = Lookups::new(std::mem::take(&mut self.lookups), unmapped);
        let mut func = Func::lock(adapter.region(), fid, host);
        func.note_lookups(&lookups);
        runner::trace(&mut self.trace, now, fid, Traced::Job(*job));
        let Self { behaviour, profile, buffers, .. } = self;
        let config = behaviour.get_or_insert_with(|| profile.behaviour(adapter.config()));
        let mut step = Step::new(host, now, (adapter.region(), config), buffers);
        (step.careful, step.posted, step.quantum) = (true, posted, quantum);
        step.takes_turns = !task.sends();
        // Without bus mastering, nothing is received or sent, and timers wait.
        let awake = func.function().may_dma();
        if matches!(job, Job::Timeout { .. }) && awake {
            // Those that the stages arm come later, and need an event of their own even if they are for the same time.
            self.timer.entry(fid).and_modify(|known| *known = known.filter(|at| *at > now));
            let due: Vec<_> = std::iter::from_fn(|| func.take_timer(now)).collect();
            for (qp, kind) in due {
                dispatch(&Job::Timeout { qp, kind }, &mut func, &mut step);
            }
        } else if matches!(job, Job::Arrive) && !awake && !runner::has_agents(step.config) {
            // There may be none: a written register has the function look for work.
            if func.has_frame() {
                func.take_front();
            }
        } else if !matches!(job, Job::Timeout { .. }) {
            dispatch(job, &mut func, &mut step);
        }
        let reads = step.reads;
        self.lookups = lookups.take();
        let cause = self.cards[here].look_up(&mut self.spans, (fid, &self.lookups), cause);
        // A QP with more to send continues in its next turn.
        while let Some(job) = if awake { func.take_ready().map(ready_job) } else { None } {
            self.submit(cause, fid, job);
        }
        if adapter.region().is_switched() {
            rates::sent(&mut func, now, self.buffers.bytes());
        }
        let timer = if awake { func.next_timer() } else { None };
        if let Some(at) = timer.filter(|_| self.timer.insert(fid, timer) != Some(timer)) {
            self.begin_timer(fid, at);
        }
        func.commit(host);
        drop(func);
        self.buffers.committed();
        let left = self.transmit(&mut At { adapter, host, now }, fid, reads, cause);
        left.filter(|_| task.sends()).unwrap_or(cause)
    }

    /// `fid` wrote `len` bytes of a completion or of data. Returns the time at which a program can see them: they are in memory
    /// and the program is not descheduled.
    pub fn written(&mut self, fid: u8, len: u32, completion: bool, cause: Cause) -> Cause {
        let here = self.place(fid);
        let Self { cards, spans, injector, .. } = self;
        let there = match completion {
            true => cards[here].complete(spans, cause, len.into()),
            false => cards[here].write(spans, cause, len.into()),
        };
        let awake =
            injector.as_ref().and_then(|injector| injector.until(FaultKind::Sleep, fid, 0)).unwrap_or(0);
        spans.then(there, here, Part::Asleep, awake)
    }
}

/// Mask of the bits of a QP number that distinguish the QPs of a function.
fn qp_mask(adapter: &Adapter) -> u32 {
    (1 << adapter.region().geometry().log_qp) - 1
}

#[cfg(test)]
mod tests {
    use super::{turns::QUANTUM, *};
    use crate::{
        Config,
        engine::rig::{Link, Rig, Sizes},
        state::VportRow,
    };
    use hwspec::{cqe::CqeOpcode, wqe::WqeOpcode};

    #[test]
    fn frames_go_where_the_e_switch_says_and_take_their_time() {
        let mut took = Vec::new();
        for switched in [false, true] {
            let mut rig = Rig::new(Config::default(), Link::default());
            if switched {
                rig.adapter.region().always_switch();
            }
            let mut timed: Timed<'_, ()> =
                Timed::new(TimingProfile::load("direct-x16").unwrap(), vec![0, 0, 1]);
            rig.data(0, 0, 9000).fill(7);
            rig.post_send(0, WqeOpcode::RdmaWrite, 9000, 0, true);
            timed.submit(Cause::new(0), rig.sides[0].fid, rig.doorbell(0));
            while timed.step(&rig.adapter, &mut rig.machine).is_some() {}
            assert_eq!(rig.poll(0).map(|cqe| cqe.opcode()), Some(CqeOpcode::Req));
            assert!(rig.data(1, 0, 9000).iter().all(|byte| *byte == 7));
            took.push(timed.now());
        }
        assert_eq!(took[0], took[1]);
    }

    #[test]
    fn a_port_whose_rate_the_manager_limits_keeps_to_it_in_virtual_time() {
        let took = |limit: u32| {
            let mut rig = Rig::new(Config::default(), Link::default());
            rig.adapter.region().always_switch();
            let mut pf = Func::lock(rig.adapter.region(), 0, &mut rig.machine);
            pf.row_at::<VportRow>(rig.sides[0].fid.into()).unwrap().limit = limit;
            pf.commit(&mut rig.machine);
            drop(pf);
            let mut timed: Timed<'_, ()> =
                Timed::new(TimingProfile::load("direct-x16").unwrap(), vec![0, 0, 1]);
            (0..16).for_each(|_| _ = rig.post_send(0, WqeOpcode::RdmaWrite, 1 << 20, 0, true));
            timed.submit(Cause::new(0), rig.sides[0].fid, rig.doorbell(0));
            let mut completed = 0;
            for _ in 0..1_000_000 {
                timed.step(&rig.adapter, &mut rig.machine).expect("something to do until all is done");
                completed += usize::from(rig.poll(0).is_some());
                if completed == 16 {
                    break;
                }
            }
            assert_eq!(completed, 16);
            timed.now() as f64 / 1e9
        };
        // 16 MiB at 1 Gb/s take 134 ms, less the burst of a rested port.
        let (free, limited) = (took(0), took(1000));
        assert!(free < 2.0 && (125.0..140.0).contains(&limited), "{free} ms, {limited} ms with a limit");
    }

    #[test]
    fn a_queue_pair_waits_for_one_turn_of_another_however_often_that_ones_doorbell_rang() {
        // Two queue pairs of one function, or of two functions of one card.
        for pairs in [[[1, 2], [1, 2]], [[1, 2], [0, 2]]] {
            let waits = |doorbells: u16, at: Ps| {
                let mut rig = Rig::of_pairs(Config::default(), Link::default(), &pairs, Sizes::MEASURE);
                let mut timed: Timed<'_, ()> =
                    Timed::new(TimingProfile::load("direct-x16").unwrap(), vec![0, 0, 1]);
                let (bulk, small) = (rig.sides[0].fid, rig.sides[2].fid);
                for posted in 1..=doorbells {
                    rig.post_send(0, WqeOpcode::RdmaWrite, 64 << 10, 0, true);
                    timed.ring(Cause::new(0), bulk, rig.doorbell(0), posted);
                }
                rig.post_send(2, WqeOpcode::RdmaWrite, 8, 0, true);
                timed.ring(Cause::new(at), small, rig.doorbell(2), 1);
                while rig.poll(2).is_none() {
                    timed.step(&rig.adapter, &mut rig.machine).expect("the small one completes");
                }
                let waited = timed.now() - at;
                while timed.step(&rig.adapter, &mut rig.machine).is_some() {}
                let completed = std::iter::from_fn(|| rig.poll(0)).count();
                assert_eq!(completed, usize::from(doorbells), "all of the other complete too");
                waited
            };
            // 16 packets of 4096 bytes and their headers at 100 Gb/s.
            let turn = u64::from(QUANTUM) * (4096 + 86) * 80;
            // At various moments of the other's turn.
            let moments = |doorbells| (0..8).map(move |n| (doorbells, 1 + n * 1_700_000));
            for (doorbells, at) in [1, 8, 32, 100].into_iter().flat_map(moments) {
                let waited = waits(doorbells, at);
                assert!(
                    waited < turn + 3_000_000,
                    "{doorbells} doorbells, at {at}: {} us",
                    waited as f64 / 1e6
                );
            }
        }
    }

    #[test]
    fn a_doorbell_of_a_thread_whose_time_lags_behind_takes_no_counter_back() {
        let mut rig = Rig::new(Config::default(), Link::default());
        let mut timed: Timed<'_, ()> = Timed::new(TimingProfile::load("direct-x16").unwrap(), vec![0, 0, 1]);
        (0..2).for_each(|_| _ = rig.post_send(0, WqeOpcode::RdmaWrite, 64, 0, true));
        let (fid, job) = (rig.sides[0].fid, rig.doorbell(0));
        // The doorbell of the second request comes first.
        timed.ring(Cause::new(10), fid, job, 2);
        timed.ring(Cause::new(20), fid, job, 1);
        while timed.step(&rig.adapter, &mut rig.machine).is_some() {}
        let completions: Vec<_> = std::iter::from_fn(|| rig.poll(0)).map(|cqe| cqe.opcode()).collect();
        assert_eq!(completions, [CqeOpcode::Req; 2]);
    }
}
