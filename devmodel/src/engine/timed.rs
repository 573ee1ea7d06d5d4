//! The timed runner: the same stages, their packets and writes on the units of a card, in virtual picoseconds.

use super::{
    card::{Load, Made, Outgoing, Station, Units},
    delivery::seal,
    dispatch::dispatch,
    faults::{FaultPlan, Found, Refusing, Trial},
    mirror::Mirror,
    network::{Fabric, Move, Packet, Pause, PortLoad, Settings, Topology},
    runner::{self, Trace, TraceEvent, Traced},
    sched::{Ps, Schedule},
    spans::{Cause, Part, Spans},
    timing::Profile,
};
use crate::{
    Adapter,
    host::{Host, Rid},
    mlx5::{Frame, Job, Payload, Step, step::Buffers},
    region::{Func, SlotPayload, TimerKind, WireRing},
    transport::Timer,
};
use hwspec::wire::{BthOpcode, Headers, ICRC_SIZE, Operation, ip::mark_congested};
use std::collections::{BTreeMap, VecDeque};

/// Packets that a queue pair sends before others have their turn.
const QUANTUM: u32 = 16;
/// What a card has given to its port before it makes more packets.
const BACKLOG: Ps = 2_000_000;

/// A frame between two functions.
#[derive(Clone)]
struct Flight {
    frame: Frame,
    bytes: Vec<u8>,
    from: u8,
    cause: Cause,
    /// All of it, if it was damaged on the way.
    damaged: Option<Vec<u8>>,
    /// Its number in the timeline of a trial.
    number: Option<usize>,
}

impl Flight {
    fn headers(&self) -> &[u8] {
        &self.frame.headers[..self.frame.header_len as usize]
    }
}

/// Something that happens at a time.
enum What<T> {
    /// A function has a job.
    Job(u8, Job, Cause, Option<u16>),
    /// A frame is there.
    Frame(u8, Box<Flight>),
    /// A card may make more packets.
    Turn(usize),
    /// A frame that was held back sets out.
    Late(Bound),
    /// A frame is on its way, or whoever sends one is paused.
    Net(Move<(u8, Box<Flight>)>),
    /// What whoever runs this has in mind.
    Other(T),
}

impl<T> What<T> {
    /// The function that does something then.
    fn function(&self) -> Option<u8> {
        match self {
            Self::Job(fid, ..) | Self::Frame(fid, _) => Some(*fid),
            _ => None,
        }
    }
}

/// What happened.
pub enum Happened<T> {
    /// A function did something.
    Function {
        /// Which.
        fid: u8,
        /// It came about by this.
        cause: Cause,
        /// It took up the last packet of a message.
        ends: bool,
    },
    /// What was to happen by [`Timed::at`].
    Other(T),
}

/// Runs the pipeline in virtual time; see the [module](self).
pub struct Timed<'w, T> {
    schedule: Schedule<What<T>>,
    profile: Profile,
    cards: Vec<Units>,
    /// Which card a function is on.
    card_of: Vec<usize>,
    /// Of each card, the queue pairs that wait for their turn to send.
    turns: Vec<VecDeque<Turn>>,
    buffers: Buffers,
    /// The earliest timer of each function for which there is an event.
    timer: BTreeMap<u8, Option<Ps>>,
    /// Frames that were sent, and how many of them were acknowledgements.
    pub(crate) frames: [u64; 2],
    pub(crate) trace: Option<Trace>,
    /// What took time.
    pub(crate) spans: Spans,
    /// Who wants copies of the frames.
    pub(crate) mirror: Option<Mirror<'w>>,
    /// What joins the cards, if it is more than the profile's wire.
    network: Option<Network>,
    /// What befalls frames.
    trial: Option<Box<Trial<Bound>>>,
}

/// A turn to send: the function, its job, what it came about by, and the send counter of a doorbell.
type Turn = (u8, Job, Cause, Option<u16>);

/// A frame for a function, and how many bytes it has on the wire.
type Bound = (u8, u64, Box<Flight>);

/// Links and switches between the cards, each of which is a host's.
struct Network {
    fabric: Fabric<(u8, Box<Flight>)>,
    /// Bytes of payload that came from each card.
    came: Vec<u64>,
}

impl<T> Timed<'_, T> {
    /// Cards of `profile`: `card_of` says by function which it is on.
    pub fn new(profile: Profile, card_of: Vec<usize>) -> Self {
        let count = card_of.iter().copied().max().unwrap_or(0) + 1;
        let cards = (0..count).map(|_| Units::new(&profile)).collect();
        let turns = vec![VecDeque::new(); count];
        Self {
            schedule: Schedule::default(),
            profile,
            cards,
            card_of,
            turns,
            buffers: Buffers::default(),
            timer: BTreeMap::new(),
            frames: [0; 2],
            trace: None,
            spans: Spans::default(),
            mirror: None,
            network: None,
            trial: None,
        }
    }

    /// What happens from now on goes by `plan`.
    pub fn try_out(&mut self, plan: FaultPlan) {
        self.trial = Some(Box::new(Trial::new(plan, self.schedule.now())));
    }

    /// What came of the plan, if there is one.
    pub fn found(&mut self) -> Option<Found> {
        let trial = self.trial.take()?;
        Some(Found { befell: trial.befell, timeline: trial.timeline })
    }

    /// The cards are those of the hosts of `topology`, in order.
    pub(crate) fn join(&mut self, topology: &Topology, settings: Settings, seed: u64) {
        let (fabric, cards) = (Fabric::new(topology, settings, seed), self.cards.len());
        self.network = Some(Network { fabric, came: vec![0; cards] });
    }

    /// What the ports of hosts and switches have done, by node and port.
    pub(crate) fn ports(&self) -> Vec<(usize, usize, PortLoad)> {
        self.network.iter().flat_map(|network| network.fabric.loads()).collect()
    }

    /// Pauses of ports since this was asked last.
    pub(crate) fn pauses(&mut self) -> Vec<Pause> {
        self.network.as_mut().map(|network| std::mem::take(&mut network.fabric.pauses)).unwrap_or_default()
    }

    /// Bytes of payload that arrived from each card.
    pub(crate) fn came(&self) -> &[u64] {
        self.network.as_ref().map_or(&[], |network| &network.came)
    }

    /// What the units of each card have done.
    pub(crate) fn loads(&self) -> Vec<[Load; Station::ALL.len()]> {
        self.cards.iter().map(|card| *card.loads()).collect()
    }

    fn place(&self, fid: u8) -> usize {
        self.card_of.get(usize::from(fid)).copied().unwrap_or(0)
    }

    /// The time: that of what happened last.
    pub fn now(&self) -> Ps {
        self.schedule.now()
    }

    /// When the next thing happens, if any does.
    pub fn next(&mut self, adapter: &Adapter) -> Option<Ps> {
        self.forget_timers(adapter);
        self.schedule.peek().map(|(at, _)| at)
    }

    /// Nothing happens before `at`, which becomes the time.
    pub fn begin(&mut self, at: Ps) {
        self.schedule.begin(at);
    }

    /// Lets something happen at `at`.
    pub fn at(&mut self, at: Ps, what: T) {
        self.schedule.at(at, What::Other(what));
    }

    /// Lets the next thing happen. `None` if nothing is to happen any more.
    pub fn step(&mut self, adapter: &Adapter, host: &mut dyn Host) -> Option<Happened<T>> {
        loop {
            self.forget_timers(adapter);
            let what = self.schedule.take()?;
            let Some(what) = self.unless_stopped(what).and_then(|what| self.in_turn(what)) else { continue };
            return Some(match what {
                What::Job(fid, job, cause, posted) => {
                    let cause = self.with_context(adapter, fid, &job, cause);
                    self.carry_out(adapter, host, fid, (job, posted), cause);
                    Happened::Function { fid, cause, ends: false }
                }
                What::Frame(fid, flight) => self.take_up(adapter, host, fid, flight),
                What::Net(what) => match self.move_on(what) {
                    Some((fid, flight)) => self.take_up(adapter, host, fid, flight),
                    None => continue,
                },
                What::Late(bound) => {
                    self.set_out(bound);
                    continue;
                }
                What::Turn(card) => match self.next_turn(adapter, host, card) {
                    Some(happened) => happened,
                    None => continue,
                },
                What::Other(what) => Happened::Other(what),
            });
        }
    }

    /// What a function that a trial has stopped would do it does later: then nothing is returned.
    fn unless_stopped(&mut self, what: What<T>) -> Option<What<T>> {
        let Some(trial) = &self.trial else { return Some(what) };
        let stopped = what.function().and_then(|fid| Some((fid, trial.stopped(fid, self.schedule.now())?)));
        let Some((fid, until)) = stopped else { return Some(what) };
        let here = self.place(fid);
        let later = match what {
            What::Job(fid, job, cause, posted) => {
                What::Job(fid, job, self.spans.then(cause, here, Part::WaitReceiver, until), posted)
            }
            What::Frame(fid, mut flight) => {
                flight.cause = self.spans.then(flight.cause, here, Part::WaitReceiver, until);
                What::Frame(fid, flight)
            }
            other => other,
        };
        self.schedule.at(until, later);
        None
    }

    /// A queue pair's turn to send comes behind those before it, and when the port has little left to do: until then it waits, and nothing is
    /// returned.
    fn in_turn(&mut self, what: What<T>) -> Option<What<T>> {
        let What::Job(fid, job @ (Job::Doorbell { .. } | Job::Execute { .. }), cause, posted) = what else {
            return Some(what);
        };
        let (now, here) = (self.schedule.now(), self.place(fid));
        let pace = self.pace(here);
        if self.turns[here].is_empty() && !self.is_held(here) && pace <= now {
            return Some(What::Job(fid, job, cause, posted));
        }
        if self.turns[here].is_empty() {
            self.schedule.at(pace, What::Turn(here));
        }
        self.turns[here].push_back((fid, job, cause, posted));
        None
    }

    /// The turn of whoever has waited longest at a card.
    fn next_turn(&mut self, adapter: &Adapter, host: &mut dyn Host, here: usize) -> Option<Happened<T>> {
        if self.is_held(here) {
            // Whoever lets the port go on says so.
            return None;
        }
        let now = self.schedule.now();
        let (fid, job, cause, posted) = self.turns[here].pop_front()?;
        let mut turn = self.spans.then(cause, here, Part::Turn, now);
        let stopped = self.trial.as_ref().and_then(|trial| trial.stopped(fid, now));
        match stopped {
            Some(until) => self.schedule.at(until, What::Job(fid, job, turn, posted)),
            None => {
                turn = self.with_context(adapter, fid, &job, turn);
                self.carry_out(adapter, host, fid, (job, posted), turn);
            }
        }
        if !self.turns[here].is_empty() {
            self.schedule.at(self.pace(here), What::Turn(here));
        }
        stopped.is_none().then_some(Happened::Function { fid, cause: turn, ends: false })
    }

    /// When a card may make more packets.
    fn pace(&self, here: usize) -> Ps {
        self.cards[here].port_free().saturating_sub(BACKLOG)
    }

    /// Whether the port of a card is paused, or others than its own packets wait there.
    fn is_held(&self, here: usize) -> bool {
        self.network.as_ref().is_some_and(|network| network.fabric.is_held(here))
    }

    fn take_up(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        fid: u8,
        mut flight: Box<Flight>,
    ) -> Happened<T> {
        let size = flight.headers().len() + flight.frame.payload.len() + ICRC_SIZE;
        let bth = Headers::of_built(flight.headers(), size).map(|headers| headers.bth());
        let (mut ends, here) = (false, self.place(fid));
        if let Ok(bth) = bth {
            ends = bth.opcode().is_last();
            let qp = (fid, bth.dest_qp().0 & qp_mask(adapter));
            let Self { cards, profile, spans, .. } = self;
            flight.cause = cards[here].context(profile, spans, here, qp, flight.cause);
        }
        self.arrive(adapter, host, fid, &flight);
        Happened::Function { fid, cause: flight.cause, ends }
    }

    /// When the context of the queue pair that a job is of is at hand.
    fn with_context(&mut self, adapter: &Adapter, fid: u8, job: &Job, cause: Cause) -> Cause {
        let qp = match job {
            Job::Doorbell { qpn, .. } => *qpn,
            Job::Execute { qp } => *qp,
            _ => return cause,
        };
        let here = self.place(fid);
        let Self { cards, profile, spans, .. } = self;
        cards[here].context(profile, spans, here, (fid, qp & qp_mask(adapter)), cause)
    }

    /// Drops timers that are next and were stopped meanwhile: time need not go on for them.
    fn forget_timers(&mut self, adapter: &Adapter) {
        let is_stopped = |at, what: &What<T>| match what {
            What::Job(fid, Job::Timeout { .. }, ..) => !adapter.region().timer_due(*fid, at),
            _ => false,
        };
        while self.schedule.peek().is_some_and(|(at, what)| is_stopped(at, what)) {
            if let Some(What::Job(fid, ..)) = self.schedule.drop_next() {
                // One that was begun since is to have an event of its own.
                let next = adapter.region().timer_hint(fid, self.schedule.now());
                self.timer.insert(fid, next);
                if let Some(at) = next {
                    self.begin_timer(fid, at);
                }
            }
        }
    }

    fn begin_timer(&mut self, fid: u8, at: Ps) {
        // Which timers are due is asked when it is time.
        let kind = TimerKind::Connection(Timer::Ack);
        self.submit(Cause::new(at), fid, Job::Timeout { qp: 0, kind });
    }

    /// As [`Timed::step`], where all frames get lost.
    pub(crate) fn step_alone(&mut self, adapter: &Adapter, host: &mut dyn Host) -> Option<Happened<T>> {
        while self.schedule.peek().is_some_and(|(_, what)| matches!(what, What::Frame(..))) {
            self.schedule.take();
        }
        self.step(adapter, host)
    }

    /// Gives `job` to `fid` when `cause` says.
    pub fn submit(&mut self, cause: Cause, fid: u8, job: Job) {
        self.schedule.at(cause.at, What::Job(fid, job, cause, None));
    }

    /// As [`Timed::submit`], for a doorbell: `posted` was the send counter of the doorbell record then.
    pub fn ring(&mut self, cause: Cause, fid: u8, job: Job, posted: u16) {
        self.schedule.at(cause.at, What::Job(fid, job, cause, Some(posted)));
    }

    /// A frame is there: the receiver takes it up.
    fn arrive(&mut self, adapter: &Adapter, host: &mut dyn Host, to: u8, flight: &Flight) {
        if let Some((trial, number)) = self.trial.as_mut().zip(flight.number) {
            trial.arrived(number, self.schedule.now());
        }
        if let Some(whole) = &flight.damaged {
            let (headers, rest) = whole.split_at(usize::from(flight.frame.header_len));
            if WireRing::of(adapter.region(), to).push(host, headers, SlotPayload::Bytes(rest), true) {
                self.carry_out(adapter, host, to, (Job::Arrive, None), flight.cause);
            }
            return;
        }
        let payload = match &flight.frame.payload {
            Payload::Empty => SlotPayload::Bytes(&[]),
            Payload::Staged(..) => SlotPayload::Bytes(&flight.bytes),
            Payload::Pieces(n, pieces) => SlotPayload::Pieces(Rid(flight.from), &pieces[..*n as usize]),
        };
        if WireRing::of(adapter.region(), to).push(host, flight.headers(), payload, false) {
            self.carry_out(adapter, host, to, (Job::Arrive, None), flight.cause);
        }
    }

    /// Carries out a job whose time has come.
    fn carry_out(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        fid: u8,
        (job, posted): (Job, Option<u16>),
        cause: Cause,
    ) {
        let now = self.schedule.now();
        let mut refusing;
        let host: &mut dyn Host = match &self.trial {
            Some(trial) if trial.is_refused(fid, now) => {
                refusing = Refusing(host);
                &mut refusing
            }
            _ => host,
        };
        let mut func = Func::lock(adapter.region(), fid, host);
        runner::trace(&mut self.trace, now, fid, Traced::Job(job));
        let mut step = Step::new(host, now, (adapter.region(), adapter.config()), &mut self.buffers);
        (step.careful, step.posted, step.quantum) = (true, posted, QUANTUM);
        step.takes_turns = !matches!(job, Job::Doorbell { .. } | Job::Execute { .. });
        if let Job::Timeout { .. } = job {
            while let Some((qp, kind)) = func.take_timer(now) {
                step.push(Job::Timeout { qp, kind });
            }
        } else {
            dispatch(&job, &mut func, &mut step);
        }
        while let Some(job) = step.buffers.jobs.pop_front() {
            dispatch(&job, &mut func, &mut step);
        }
        let reads = step.reads;
        // What a QP has more to send it sends when it is its turn again.
        while let Some(qp) = func.take_ready() {
            self.submit(cause, fid, Job::Execute { qp });
        }
        let timer = func.next_timer();
        if let Some(at) = timer.filter(|_| self.timer.insert(fid, timer) != Some(timer)) {
            self.begin_timer(fid, at);
        }
        func.commit(host);
        drop(func);
        self.buffers.committed();
        self.transmit(adapter, host, fid, reads, cause);
    }

    /// Sends what a step has made: payload from memory, then over the wire.
    fn transmit(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8, reads: bool, cause: Cause) {
        let now = self.schedule.now();
        let mut out = std::mem::take(&mut self.buffers.out);
        for frame in out.iter().copied() {
            let headers = &frame.headers[..frame.header_len as usize];
            if let Some(watch) = &mut self.trace {
                let what = Traced::Frame(headers, frame.payload.len());
                watch(&TraceEvent { now, fid, what });
            }
            let Some(to) = adapter.owner(headers) else { continue };
            let Some(out) = outgoing(&frame, reads) else { continue };
            self.frames[0] += 1;
            self.frames[1] += u64::from(out.made == Made::Acknowledgement);
            let here = self.place(fid);
            let Self { cards, profile, spans, mirror, buffers, .. } = self;
            let sent = cards[here].send(profile, spans, here, cause, out);
            if let Some(mirror) = mirror {
                let (mut whole, link_layer) = (Vec::new(), adapter.config().link_layer);
                mirror.pass(now);
                if seal(host, link_layer, fid, &frame, &buffers.staged, &mut whole).is_ok() {
                    mirror.frame(sent.at, whole);
                }
            }
            let staged = match frame.payload {
                Payload::Staged(at, len) => {
                    buffers.staged.get(at as usize..(at + len) as usize).unwrap_or(&[]).to_vec()
                }
                _ => Vec::new(),
            };
            let flight = Flight { frame, bytes: staged, from: fid, cause: sent, damaged: None, number: None };
            let bound = (to, out.frame, Box::new(flight));
            if self.trial.is_some() {
                self.try_frame(adapter, host, fid, bound);
            } else {
                self.set_out(bound);
            }
        }
        out.clear();
        self.buffers.out = out;
        self.buffers.delivered();
    }

    /// A frame that has left its card goes over the wire.
    fn set_out(&mut self, (to, bytes, mut flight): Bound) {
        let (here, there) = (self.place(flight.from), self.place(to));
        let sent = flight.cause;
        if self.network.is_some() {
            let packet = packet_of(there, bytes, (to, flight));
            return self.schedule.at(sent.at, What::Net(Move::Left(here, packet)));
        }
        let Self { cards, profile, spans, .. } = self;
        let across = sent.at + profile.wire.across(bytes);
        let cable = spans.then(sent, here, Part::Cable, sent.at + profile.wire.propagation.ps());
        let across = spans.then(cable, here, Part::Switch, across);
        flight.cause = cards[there].receive(profile, spans, there, across);
        self.schedule.at(flight.cause.at, What::Frame(to, flight));
    }

    /// The same for one that something may befall.
    #[cold]
    fn try_frame(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8, (to, bytes, mut flight): Bound) {
        let now = self.schedule.now();
        let here = self.place(fid);
        let Some(trial) = &mut self.trial else { return };
        let (left, data) = (flight.cause.at, flight.frame.payload.len() as u32);
        let Ok(headers) = Headers::of_built(flight.headers(), bytes as usize) else { return };
        let (number, fate) = trial.sent((now, left), (fid, to), &headers, data);
        let passed = if fate.lost { Vec::new() } else { trial.passed(fid) };
        flight.number = number;
        if fate.pause > 0 {
            self.cards[here].pause(now + fate.pause);
        }
        if fate.mark {
            let len = usize::from(flight.frame.header_len);
            mark_congested(&mut flight.frame.headers[..len]);
        }
        if fate.corrupt {
            let (mut whole, link_layer) = (Vec::new(), adapter.config().link_layer);
            // What it refers to was read a moment ago.
            let mut frame = flight.frame;
            if let Payload::Staged(_, len) = frame.payload {
                frame.payload = Payload::Staged(0, len);
            }
            if seal(host, link_layer, fid, &frame, &flight.bytes, &mut whole).is_ok() {
                if let Some(last) = whole.last_mut() {
                    *last ^= 1;
                }
                flight.damaged = Some(whole);
            }
        }
        if fate.lost {
            return;
        }
        if fate.behind > 0 {
            if let Some(trial) = &mut self.trial {
                trial.held.push((fid, fate.behind, (to, bytes, flight)));
            }
        } else {
            let copy = fate.twice.then(|| (to, bytes, flight.clone()));
            for mut one in copy.into_iter().chain([(to, bytes, flight)]) {
                if fate.delay > 0 {
                    one.2.cause = self.spans.then(one.2.cause, here, Part::Cable, left + fate.delay);
                    self.schedule.at(left + fate.delay, What::Late(one));
                } else {
                    self.set_out(one);
                }
            }
        }
        for (to, bytes, mut late) in passed {
            late.cause = self.spans.then(late.cause, here, Part::Cable, left);
            self.set_out((to, bytes, late));
        }
    }

    /// Something happens between the cards. Returns a frame that its receiver takes up at once, and whose it is.
    fn move_on(&mut self, what: Move<(u8, Box<Flight>)>) -> Option<(u8, Box<Flight>)> {
        let now = self.schedule.now();
        let Self { network, schedule, spans, card_of, cards, profile, turns, .. } = self;
        let network = network.as_mut()?;
        let there = network.fabric.happen(now, what, &mut |at, what| schedule.at(at, What::Net(what)));
        for card in std::mem::take(&mut network.fabric.released) {
            if !turns[card].is_empty() {
                schedule.at(now, What::Turn(card));
            }
        }
        let packet = there?;
        let (to, mut flight) = packet.item;
        if packet.marked {
            let len = usize::from(flight.frame.header_len);
            mark_congested(&mut flight.frame.headers[..len]);
        }
        network.came[card_of[usize::from(flight.from)]] += flight.frame.payload.len() as u64;
        let across = spans.then(flight.cause, packet.to, Part::Switch, now);
        flight.cause = cards[packet.to].receive(profile, spans, packet.to, across);
        if flight.cause.at == now {
            return Some((to, flight));
        }
        schedule.at(flight.cause.at, What::Frame(to, flight));
        None
    }

    /// `fid` wrote `len` bytes, of a completion or of data: when a program can see them, for then they are in memory.
    pub fn written(&mut self, fid: u8, len: u32, completion: bool, cause: Cause) -> Cause {
        let here = self.place(fid);
        let Self { cards, profile, spans, .. } = self;
        match completion {
            true => cards[here].complete(profile, spans, here, cause, len.into()),
            false => cards[here].write(profile, spans, here, cause, len.into()),
        }
    }
}

/// A frame for a card on its way through links and switches. Connections are told apart by their queue pairs, for a switch would by the UDP
/// port that follows from them.
fn packet_of(to: usize, bytes: u64, item: (u8, Box<Flight>)) -> Packet<(u8, Box<Flight>)> {
    let mut packet = Packet::new(to, 0, bytes, item);
    if let Ok(headers) = Headers::of_built(packet.item.1.headers(), bytes as usize) {
        let bth = headers.bth();
        let (urgent, may_mark) =
            (bth.opcode() == BthOpcode::Cnp, matches!(headers.traffic_class() & 3, 1 | 2));
        // Neighbouring numbers fall on different ways (Knuth's multiplicative hash).
        let hash = (bth.dest_qp().0 ^ u32::from(packet.item.1.from) << 16).wrapping_mul(0x9e37_79b1) >> 8;
        (packet.urgent, packet.may_mark, packet.hash) = (urgent, may_mark, hash);
    }
    packet
}

/// What tells a function's queue pairs apart in their numbers.
fn qp_mask(adapter: &Adapter) -> u32 {
    (1 << adapter.region().geometry().log_qp) - 1
}

/// What a frame is made of; nothing if it cannot be read, which no stage makes. `reads`: its data was copied from host memory.
fn outgoing(frame: &Frame, reads: bool) -> Option<Outgoing> {
    let head = &frame.headers[..frame.header_len as usize];
    let data = frame.payload.len() as u64;
    let size = head.len() as u64 + data + ICRC_SIZE as u64;
    let made = match Headers::of_built(head, size as usize).ok()?.bth().opcode().operation() {
        Some(Operation::ReadResponse) => Made::ReadAnswer,
        Some(Operation::AtomicAck) => Made::AtomicAnswer,
        Some(Operation::Ack) => Made::Acknowledgement,
        _ if data > 0 && (reads || matches!(frame.payload, Payload::Pieces(..))) => Made::Read,
        _ => Made::Inline,
    };
    Some(Outgoing { made, frame: size, data })
}
