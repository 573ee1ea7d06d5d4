//! Whose turn it is to send: the queue pairs of a card go one after the other, and no faster than its port.

use super::{Happened, Task, Timed, What, wire::Flight};
use crate::{
    Adapter,
    engine::{
        sched::Ps,
        spans::{Cause, Part},
    },
    host::Host,
};
use std::collections::VecDeque;

/// Packets that a queue pair sends before others have their turn.
pub(super) const QUANTUM: u32 = 16;
/// A card makes more packets when its port has no longer than this to do.
const BACKLOG: Ps = 2_000_000;

/// The queue pairs of a card that wait for their turn.
#[derive(Clone, Default)]
pub(super) struct Turns {
    waiting: VecDeque<Task>,
    /// There is an event for the next.
    is_called: bool,
}

impl<T> Timed<'_, T> {
    /// Until when a trial has stopped a function, if it has.
    pub(super) fn stopped(&self, fid: u8) -> Option<Ps> {
        self.trial.as_ref()?.stopped(fid, self.schedule.now())
    }

    /// A frame that is there is taken up `until` which its function is stopped.
    pub(super) fn later(&mut self, until: Ps, fid: u8, mut flight: Box<Flight>) {
        flight.cause = self.spans.then(flight.cause, self.place(fid), Part::WaitReceiver, until);
        self.schedule.at(until, What::Frame(fid, flight));
    }

    /// A task's time has come. Nothing is returned if its function is stopped, or if its queue pair has to wait for its turn, which comes behind
    /// those before it, and when the port has little left to do.
    pub(super) fn begin_task(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        mut task: Task,
    ) -> Option<Cause> {
        let here = self.place(task.fid);
        if let Some(until) = self.stopped(task.fid) {
            task.cause = self.spans.then(task.cause, here, Part::WaitReceiver, until);
            self.schedule.at(until, What::Job(task));
            return None;
        }
        if task.sends() {
            let now = self.schedule.now();
            if !self.turns[here].waiting.is_empty() || self.is_held(here) || self.pace(here) > now {
                self.turns[here].waiting.push_back(task);
                self.call(here);
                return None;
            }
            task.cause = self.with_context(adapter, &task);
        }
        Some(self.carry_out(adapter, host, &task))
    }

    /// Sees to it that the next turn of a card comes, if anybody waits for one and its port is not held: who lets that go on calls again.
    pub(super) fn call(&mut self, here: usize) {
        if self.turns[here].is_called || self.turns[here].waiting.is_empty() || self.is_held(here) {
            return;
        }
        self.turns[here].is_called = true;
        self.schedule.at(self.pace(here), What::Turn(here));
    }

    /// The turn of whoever has waited longest at a card.
    pub(super) fn next_turn(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        here: usize,
    ) -> Option<Happened<T>> {
        self.turns[here].is_called = false;
        let now = self.schedule.now();
        if self.is_held(here) || self.pace(here) > now {
            self.call(here);
            return None;
        }
        let mut task = self.turns[here].waiting.pop_front()?;
        task.cause = self.spans.then(task.cause, here, Part::Turn, now);
        let stopped = self.stopped(task.fid);
        match stopped {
            Some(until) => self.schedule.at(until, What::Job(task)),
            None => {
                task.cause = self.with_context(adapter, &task);
                task.cause = self.carry_out(adapter, host, &task);
            }
        }
        self.call(here);
        stopped.is_none().then_some(Happened::Function { fid: task.fid, cause: task.cause, ends: None })
    }

    /// When a card may make more packets.
    fn pace(&self, here: usize) -> Ps {
        self.cards[here].port_free().saturating_sub(BACKLOG)
    }

    /// Whether the port of a card is paused, or others than its own packets wait there.
    fn is_held(&self, here: usize) -> bool {
        self.network.as_ref().is_some_and(|network| network.fabric.is_held(here))
    }
}
