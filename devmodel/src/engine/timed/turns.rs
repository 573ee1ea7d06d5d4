//! Turns to send: the queue pairs of a card take turns, and send no faster than its port.

use super::{Happened, Task, Timed, What, qp_mask, wire::Flight};
use crate::engine::{
    faults::FaultKind,
    route::At,
    sched::Ps,
    spans::{Cause, Part},
};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of packets that a queue pair sends in a turn.
pub(super) const QUANTUM: u32 = 16;
/// The same while other queue pairs wait: fewer, because the port still has packets to send when a turn begins.
const CONTESTED: u32 = 12;
/// A card generates more packets when its port has at most this much left to send.
const BACKLOG: Ps = 2_000_000;

/// A queue pair: its function and its number there.
type Queue = (u8, u32);

/// The queue pairs of a card that wait for their turn.
#[derive(Clone, Default)]
pub(super) struct Turns {
    /// Waiting queue pairs in order, each once regardless of its number of doorbells.
    order: VecDeque<Queue>,
    /// The tasks of each queue pair, one per turn, without duplicates.
    waiting: BTreeMap<Queue, VecDeque<Task>>,
    /// The queue pair that had the last turn; others that start to wait go before it.
    last: Option<Queue>,
    /// An event for the next turn is scheduled.
    is_called: bool,
}

impl Turns {
    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Queues `task` of a queue pair. For doorbells on the same page only the latest send counter is kept.
    fn wait(&mut self, queue: Queue, task: Task) {
        let tasks = self.waiting.entry(queue).or_default();
        if tasks.is_empty() {
            let had_its_turn = self.order.back().copied().filter(|back| Some(*back) == self.last);
            let place = self.order.len() - usize::from(had_its_turn.is_some());
            self.order.insert(place, queue);
        }
        match tasks.iter_mut().find(|waiting| waiting.job == task.job) {
            Some(waiting) => {
                let is_later = |(before, now): (u16, u16)| now.wrapping_sub(before) as i16 > 0;
                if waiting.posted.zip(task.posted).is_none_or(is_later) {
                    waiting.posted = task.posted;
                }
            }
            None => tasks.push_back(task),
        }
    }

    /// The next task of the queue pair that has waited longest.
    fn next(&mut self) -> Option<Task> {
        let queue = self.order.pop_front()?;
        let tasks = self.waiting.get_mut(&queue)?;
        let task = tasks.pop_front();
        match tasks.is_empty() {
            true => drop(self.waiting.remove(&queue)),
            false => self.order.push_back(queue),
        }
        self.last = Some(queue);
        task
    }

    /// Maximum number of packets in the next turn.
    pub(super) fn quantum(&self) -> u32 {
        if self.is_empty() { QUANTUM } else { CONTESTED }
    }
}

impl<T> Timed<'_, T> {
    /// Time until which a fault plan stops a function, if it does now.
    pub(super) fn stopped(&self, fid: u8) -> Option<Ps> {
        self.injector.as_ref()?.until(FaultKind::Stop, fid, self.schedule.now())
    }

    /// Delays an arrived frame until its function is no longer stopped.
    pub(super) fn later(&mut self, until: Ps, fid: u8, mut flight: Box<Flight>) {
        flight.cause = self.spans.then(flight.cause, self.place(fid), Part::WaitReceiver, until);
        self.schedule.at(until, What::Frame(fid, flight));
    }

    /// Starts a task that is due. Returns `None` if its function is stopped, or if its queue pair has to wait for its turn:
    /// after those before it, and until the port has little left to send.
    pub(super) fn begin_task(&mut self, at: &mut At<'_>, mut task: Task) -> Option<Cause> {
        let here = self.place(task.fid);
        if let Some(until) = self.stopped(task.fid) {
            task.cause = self.spans.then(task.cause, here, Part::WaitReceiver, until);
            self.schedule.at(until, What::Job(task));
            return None;
        }
        if task.sends() {
            let queue = (task.fid, task.queue().unwrap_or(0) & qp_mask(at.adapter));
            if !self.turns[here].is_empty() || self.is_held(here) || self.pace(here) > at.now {
                self.turns[here].wait(queue, task);
                self.call(here);
                return None;
            }
            self.turns[here].last = Some(queue);
            task.cause = self.with_context(at.adapter, &task);
        }
        Some(self.run_task(at, &task))
    }

    /// Schedules the next turn of a card, if a queue pair waits for one and the port is not held; releasing the port calls this again.
    pub(super) fn call(&mut self, here: usize) {
        if self.turns[here].is_called || self.turns[here].is_empty() || self.is_held(here) {
            return;
        }
        self.turns[here].is_called = true;
        self.schedule.at(self.pace(here), What::Turn(here));
    }

    /// The turn of the queue pair that has waited longest at a card.
    pub(super) fn next_turn(&mut self, at: &mut At<'_>, here: usize) -> Option<Happened<T>> {
        self.turns[here].is_called = false;
        let now = self.schedule.now();
        if self.is_held(here) || self.pace(here) > now {
            self.call(here);
            return None;
        }
        let mut task = self.turns[here].next()?;
        task.cause = self.spans.then(task.cause, here, Part::Turn, now);
        let stopped = self.stopped(task.fid);
        match stopped {
            Some(until) => self.schedule.at(until, What::Job(task)),
            None => {
                task.cause = self.with_context(at.adapter, &task);
                task.cause = self.run_task(at, &task);
            }
        }
        self.call(here);
        stopped.is_none().then_some(Happened::Function { fid: task.fid, cause: task.cause, ends: None })
    }

    /// Time at which a card may generate more packets.
    fn pace(&self, here: usize) -> Ps {
        self.cards[here].port_free().saturating_sub(BACKLOG)
    }

    /// True if the port of a card is paused or has packets queued.
    fn is_held(&self, here: usize) -> bool {
        self.network.as_ref().is_some_and(|network| network.fabric.is_held(here))
    }
}
