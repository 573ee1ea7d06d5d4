//! The rules by which the conductor waits: time stands still while a thread does something.

use super::Conductor;
use crate::timed::effort::{LOOK, Spent, runs};
use clock::{Player, State};
use devmodel::engine::Ps;
use std::time::{Duration, Instant};

/// How long a thread may compute before it is taken to look at memory until that changes.
const COMPUTES: Duration = Duration::from_millis(2);
/// The same for a thread that did so the last [`STEADY`] times. A look takes some nanoseconds.
const SPINS: Duration = Duration::from_micros(150);
/// See [`SPINS`].
const STEADY: u32 = 3;
/// Before so much time passes at once, every waiting thread has another look, ps.
pub(super) const LONG: Ps = 10_000_000;
/// Programs that look at clocks between their polls may poll until a deadline. For them time advances by a part of the time for which they have
/// done so, but by no less and no more than this, ps.
const LEAPS: (Ps, Ps) = (1_000_000, 50_000_000);
/// See [`LEAPS`].
const PART: Ps = 64;
/// Before so much time passes at once, a computing thread has [`THINKS`] of a processor, because it may not be looking at memory, ps.
const LONGER: Ps = 1_000_000_000;
/// See [`LONGER`].
const THINKS: Duration = Duration::from_millis(100);
/// Wait for a thread to hear something that was said to it, at most.
const HEARS: Duration = Duration::from_millis(200);

impl Conductor {
    /// Before much time passes, until `soonest`, threads may do something after all. Returns whether they were asked to.
    pub(super) fn hesitates(&mut self, soonest: Ps, players: &[Player]) -> bool {
        let now = self.engine.now();
        if soonest > now + LONG && self.looked != now {
            // A thread that heard something, or was interrupted, may have done what another one waits for.
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

    /// True if a thread that seemed to look at memory did something else, once it had time enough. It has that once at a time.
    fn thinks(&mut self, player: &Player) -> bool {
        let (this, thought) = ((self.engine.now(), player.thread().0), &mut self.thought[player.number()]);
        if player.state() != State::Spinning || *thought == this {
            return false;
        }
        *thought = this;
        self.efforts.noticed(&self.board, player, THINKS)
    }

    /// True if a thread does something, or did while this looked. If so it was waited for.
    pub(super) fn wait_for(&mut self, players: &[Player], heard: u32) -> bool {
        let may_run = |state| matches!(state, State::Running | State::Limited);
        let is_busy = |player: &&Player| may_run(player.state()) && runs(player);
        // A thread may have let another one go on that was looked at before it, and rest by now. It tells of that, as of all it does for others.
        let Some(busy) = players.iter().find(is_busy) else { return self.board.heard() != heard };
        let patience = self.patience(busy);
        let (mut time, mut spent) = (busy.time(), Spent::begin(&mut self.efforts, busy, patience));
        loop {
            self.board.listen(heard, LOOK);
            if self.board.heard() != heard || !is_busy(&busy) {
                return true;
            }
            self.collect(busy);
            if busy.time() != time || busy.calls() {
                // It looks at clocks, or the kernel has it wait.
                (time, spent) = (busy.time(), Spent::begin(&mut self.efforts, busy, patience));
            }
            match spent.as_mut().and_then(|spent| spent.is_all(&mut self.efforts, busy)) {
                Some(false) => continue,
                // It computed for long without a call.
                Some(true) => _ = busy.spins(),
                None => self.leaves(busy),
            }
            // Others may still do something.
            return true;
        }
    }

    /// True if a thread is about to hear something: it does nothing before the kernel lets it, but then at the time at which that was said.
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

    /// How long a thread may compute before it is taken to look at memory.
    fn patience(&self, player: &Player) -> Duration {
        if self.spinners[player.number()] >= STEADY { SPINS } else { COMPUTES }
    }

    /// Lets threads go on that noticed something of which nothing more is to come. Returns whether there were any.
    pub(super) fn release(&mut self, players: &[Player]) -> bool {
        let mut any = false;
        for player in players.iter().filter(|player| player.state() == State::Noticed) {
            let fid = player.fid().map_or(0, usize::from);
            if self.early.get(fid).is_none_or(|early| *early == 0) {
                // It computed, and did not look at memory.
                self.spinners[player.number()] = 0;
                player.wake();
                any = true;
            }
        }
        any
    }
}

/// Lets threads go on that wait for completions, if something was said meanwhile that they may look for too. Returns whether there were any.
pub(super) fn look_again(players: &[Player]) -> bool {
    let waits = |player: &&Player| player.state() == State::Waiting && player.may_hear();
    players.iter().filter(waits).map(Player::wake).count() > 0
}

/// A number that changes when a thread that polls looks at a clock.
pub(super) fn looks(players: &[Player]) -> u64 {
    let polls = players.iter().filter(|player| player.state() == State::Waiting);
    polls.map(Player::time).fold(0, u64::wrapping_add)
}
