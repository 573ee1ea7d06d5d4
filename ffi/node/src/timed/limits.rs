//! Time limits of threads' waits in the kernel and for each other. Time passes them, but does not advance only for them.

use clock::{Board, Player, State};
use devmodel::engine::Ps;
use std::time::{Duration, Instant};

/// The end of a thread's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit {
    /// The time.
    pub at: Ps,
    /// The player's place.
    player: usize,
}

impl Limit {
    /// The earliest limit.
    pub fn first(players: &[Player]) -> Option<Self> {
        let limited =
            players.iter().filter(|player| matches!(player.state(), State::Limited | State::Parked));
        limited.map(|player| Self { at: player.until(), player: player.number() }).min()
    }

    /// Ends the wait at its limit.
    pub fn pass(self, board: &Board) {
        board.at(self.player).expire(self.at);
        // The thread may do something that others wait for before it rests again, so they poll once more.
        board.speak();
    }
}

/// Decides when limits are passed.
#[derive(Default)]
pub struct Limits {
    /// A limit while it is the only next event, and since when.
    alone: Option<(Limit, Instant, Ps)>,
}

impl Limits {
    /// The first limit, if it is passed now, before the next other event at `soonest`. If there is no other event, a program that is not
    /// on the board may be about to send a message; the limit is then passed only after the same duration in real time.
    pub fn due(&mut self, players: &[Player], soonest: Option<Ps>, now: Ps) -> Option<Limit> {
        let first = Limit::first(players);
        let Some((limit, None)) = first.map(|limit| (limit, soonest)) else {
            self.alone = None;
            return first
                .zip(soonest)
                .filter(|(limit, soonest)| limit.at <= *soonest)
                .map(|(limit, _)| limit);
        };
        let (_, since, then) = match self.alone {
            Some(alone) if alone.0 == limit => alone,
            _ => *self.alone.insert((limit, Instant::now(), now)),
        };
        let left = Duration::from_nanos(limit.at.saturating_sub(then) / 1000);
        (since.elapsed() >= left).then_some(limit)
    }
}
