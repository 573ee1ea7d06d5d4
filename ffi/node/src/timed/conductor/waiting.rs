//! How the conductor waits for threads: time stands still while a thread runs.

use super::Conductor;
use crate::timed::effort::{Activity, LOOK, Spent, activity};
use clock::{Player, State};
use devmodel::engine::Ps;
use std::time::{Duration, Instant};

/// Running time after which a thread is assumed to poll memory until that changes.
const COMPUTES: Duration = Duration::from_millis(2);
/// The same for a thread that did so the last [`STEADY`] times. One poll takes some nanoseconds.
const SPINS: Duration = Duration::from_micros(150);
/// Number of times for [`SPINS`].
const STEADY: u32 = 3;
/// Before time advances by this much at once, every waiting thread polls once more, ps.
pub(super) const LONG: Ps = 10_000_000;
/// Programs that read clocks between polls may poll until a deadline. For them time advances by a fraction of the time for which they have
/// done so, within these bounds, ps.
const LEAPS: (Ps, Ps) = (1_000_000, 50_000_000);
/// The fraction for [`LEAPS`].
const PART: Ps = 64;
/// Before time advances by this much at once, a running thread gets [`THINKS`] of a processor, because it may not be polling memory, ps.
const LONGER: Ps = 1_000_000_000;
/// Running time for [`LONGER`].
const THINKS: Duration = Duration::from_millis(100);
/// Maximum wait for a thread to receive a message.
const HEARS: Duration = Duration::from_millis(200);

impl Conductor {
    /// Before much time passes, until `soonest`, threads get one more chance to do something. Returns true if they just got it, so that they
    /// must be checked again.
    pub(super) fn hesitates(&mut self, soonest: Ps, players: &[Player]) -> bool {
        let now = self.engine.now();
        if soonest > now + LONG && self.looked != now {
            // A thread that received a message, or was interrupted, may have caused what another one waits for.
            self.looked = now;
            self.looks = looks(players);
            self.board.speak();
            return true;
        }
        if soonest > now + LONG && looks(players) == self.looks {
            self.measuring = None;
        } else if soonest > now + LONG {
            let since = *self.measuring.get_or_insert(now);
            let next = now + ((now - since) / PART).clamp(LEAPS.0, LEAPS.1);
            if next < soonest {
                self.begin(next);
                return true;
            }
        }
        soonest > now + LONGER && players.iter().any(|player| self.thinks(player))
    }

    /// True if a thread that seemed to poll memory did something else once it had enough time, or no longer runs. Each thread gets the
    /// extra time once at each point of the adapter's time.
    fn thinks(&mut self, player: &Player) -> bool {
        let (this, thought) = ((self.engine.now(), player.thread().0), &mut self.thought[player.number()]);
        if player.state() != State::Spinning || *thought == this {
            return false;
        }
        *thought = this;
        // A thread that rests or has ended by now may have resumed another one.
        self.efforts.noticed(&self.board, player, THINKS) || activity(player) != Activity::Runs
    }

    /// True if a thread runs, or ran during this check. If so, it was waited for.
    pub(super) fn wait_for(&mut self, players: &[Player], heard: u32) -> bool {
        let may_run = |player: &&Player| matches!(player.state(), State::Running | State::Limited);
        let is_busy = |player: &&Player| may_run(player) && activity(player) == Activity::Runs;
        // A thread may have resumed another one that was already checked. By now it rests, of which it notifies the conductor, or it has
        // ended without a word.
        let mut found = players.iter().filter(may_run).map(|player| (player, activity(player)));
        let busy = match found.find(|(_, activity)| *activity != Activity::Rests) {
            None => return self.board.heard() != heard,
            Some((player, Activity::Ended)) => {
                self.part_with(&[player]);
                return true;
            }
            Some((player, _)) => player,
        };
        let patience = self.patience(busy);
        let (mut time, mut spent) = (busy.time(), Spent::begin(&mut self.efforts, busy, patience));
        loop {
            self.board.listen(heard, LOOK);
            if self.board.heard() != heard || !is_busy(&busy) {
                return true;
            }
            self.collect(busy);
            if busy.time() != time || busy.calls() {
                // It reads clocks, or the kernel makes it wait.
                (time, spent) = (busy.time(), Spent::begin(&mut self.efforts, busy, patience));
            }
            match spent.as_mut().and_then(|spent| spent.is_all(&mut self.efforts, busy)) {
                Some(false) => continue,
                // It ran for long without a call.
                Some(true) => _ = busy.spins(),
                None => self.part_with(&[busy]),
            }
            // Others may still run.
            return true;
        }
    }

    /// True if a thread is about to receive a message: it does nothing before the kernel resumes it, and then continues at the time of the
    /// message.
    pub(super) fn calls(&mut self, players: &[Player], heard: u32) -> bool {
        if !players.iter().any(Player::is_called) {
            self.called = None;
            return false;
        }
        let since = *self.called.get_or_insert_with(Instant::now);
        if since.elapsed() > HEARS {
            return false;
        }
        self.board.listen(heard, LOOK);
        true
    }

    /// Running time after which a thread is taken to poll memory.
    fn patience(&self, player: &Player) -> Duration {
        if self.spinners[player.number()] >= STEADY { SPINS } else { COMPUTES }
    }

    /// Resumes threads that noticed a change, once no more data of their function is about to become visible. Returns true if there were any.
    pub(super) fn release(&mut self, players: &[Player]) -> bool {
        let mut any = false;
        for player in players.iter().filter(|player| player.state() == State::Noticed) {
            let fid = player.fid().map_or(0, usize::from);
            if self.early.get(fid).is_none_or(|early| *early == 0) {
                // It ran, and did not poll memory.
                self.spinners[player.number()] = 0;
                player.wake();
                any = true;
            }
        }
        any
    }
}

/// Resumes threads that wait for completions, if a message was sent meanwhile that they may also poll for. Returns true if there were any.
pub(super) fn look_again(players: &[Player]) -> bool {
    let waits = |player: &&Player| player.state() == State::Waiting && player.may_hear();
    players.iter().filter(waits).map(Player::wake).count() > 0
}

/// A number that changes when a polling thread reads a clock.
pub(super) fn looks(players: &[Player]) -> u64 {
    let polls = players.iter().filter(|player| player.state() == State::Waiting);
    polls.map(Player::time).fold(0, u64::wrapping_add)
}
