//! Whose turn it is to send: the queue pairs of a card go one after the other, and no faster than its port.

use super::{Happened, Timed, What};
use crate::{
    Adapter,
    engine::{
        sched::Ps,
        spans::{Cause, Part},
    },
    host::Host,
    mlx5::Job,
};
use std::collections::VecDeque;

/// Packets that a queue pair sends before others have their turn.
pub(super) const QUANTUM: u32 = 16;
/// A card makes more packets when its port has no longer than this to do.
const BACKLOG: Ps = 2_000_000;

/// A turn to send: the function, its job, what it came about by, and the send counter of a doorbell.
type Turn = (u8, Job, Cause, Option<u16>);

/// The queue pairs of a card that wait for their turn.
#[derive(Clone, Default)]
pub(super) struct Turns {
    waiting: VecDeque<Turn>,
    /// There is an event for the next.
    is_called: bool,
}

impl<T> Timed<'_, T> {
    /// What a function that a trial has stopped would do it does later: then nothing is returned.
    pub(super) fn unless_stopped(&mut self, what: What<T>) -> Option<What<T>> {
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
    pub(super) fn in_turn(&mut self, what: What<T>) -> Option<What<T>> {
        let What::Job(fid, job @ (Job::Doorbell { .. } | Job::Execute { .. }), cause, posted) = what else {
            return Some(what);
        };
        let (now, here) = (self.schedule.now(), self.place(fid));
        let pace = self.pace(here);
        if self.turns[here].waiting.is_empty() && !self.is_held(here) && pace <= now {
            return Some(What::Job(fid, job, cause, posted));
        }
        self.turns[here].waiting.push_back((fid, job, cause, posted));
        self.call(here);
        None
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
        let (fid, job, cause, posted) = self.turns[here].waiting.pop_front()?;
        let mut turn = self.spans.then(cause, here, Part::Turn, now);
        let stopped = self.trial.as_ref().and_then(|trial| trial.stopped(fid, now));
        match stopped {
            Some(until) => self.schedule.at(until, What::Job(fid, job, turn, posted)),
            None => {
                turn = self.with_context(adapter, fid, &job, turn);
                turn = self.carry_out(adapter, host, fid, (job, posted), turn);
            }
        }
        self.call(here);
        stopped.is_none().then_some(Happened::Function { fid, cause: turn, ends: None })
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
