//! Tracks the parties that the runners of this process wait for.
//!
//! Waits use the machine's clock even in programs with virtual clocks: virtual time stands still while the conductor waits for a lock that
//! the waiting thread may hold.

use super::sys;
use devmodel::host::Party;
use std::{sync::Mutex, time::Duration};

/// A holder without progress for this long is taken to be stopped even if the kernel does not report it, because another PID namespace may
/// hide it, or a freezer may hold it. Locks are held for microseconds, and a preempted holder runs again long before.
const STUCK: Duration = Duration::from_millis(200);
/// Time of waiting for a stopped program after which it is reported.
const TELL: Duration = Duration::from_millis(400);
/// Time for which a finding about a party stays valid.
const KNOWN: Duration = Duration::from_secs(1);
/// Number of yields before a waiting thread sleeps.
const YIELDS: u32 = 50;
/// Length of each sleep.
const NAP: Duration = Duration::from_millis(1);

/// A moment, as the time since the machine's boot.
pub type Moment = Duration;

/// The current moment.
pub fn now() -> Moment {
    Duration::from_nanos(clock::monotonic_ns())
}

/// A runner's findings about the parties it waited for.
#[derive(Default)]
pub struct Waits {
    /// The party it waits for, and since when.
    since: Option<(Party, Moment)>,
    /// A party without progress for [`STUCK`], and when that was found.
    stuck: Option<(Party, Moment)>,
    /// A party found stopped, with the first and the last time. A runner that returns to it later still waits.
    stopped: Option<(Party, Moment, Moment)>,
}

/// The last party that this program reported as stopped, and when.
pub type LastReport = Mutex<Option<(Party, Moment)>>;

/// The findings of a wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// The party is stopped.
    pub stopped: bool,
    /// It has been stopped for so long that the user should be told.
    pub long: bool,
}

impl Waits {
    /// Yields or sleeps a little, for the `times`th time in a row that the runner waits for `party`. `ask` asks the kernel whether `party`
    /// is stopped, which takes longer than nearly every wait.
    pub fn wait(&mut self, party: Party, times: u32, ask: impl FnOnce() -> bool) -> Waited {
        if times < YIELDS {
            sys::yield_now();
        } else {
            clock::sleep(NAP);
        }
        let now = now();
        let begun = match self.since {
            Some((before, begun)) if before == party && times > 1 => begun,
            _ => now,
        };
        self.since = Some((party, begun));
        let waited = now.saturating_sub(begun);
        let suspected =
            self.stopped.is_some_and(|(who, _, last)| who == party && now.saturating_sub(last) < KNOWN);
        if times < 4 && !suspected && !self.is_known(party, now) {
            return Waited::default();
        }
        if waited >= STUCK {
            self.stuck = Some((party, now));
        }
        if !self.is_known(party, now) && !ask() {
            return Waited::default();
        }
        let first = match self.stopped {
            Some((before, first, last)) if before == party && now.saturating_sub(last) < KNOWN => first,
            _ => begun,
        };
        self.stopped = Some((party, first, now));
        Waited { stopped: true, long: now.saturating_sub(first) >= TELL }
    }

    /// The party that was last found stopped.
    pub fn last_stopped(&self) -> Option<Party> {
        self.stopped.map(|(party, ..)| party)
    }

    /// True if `party` was found stuck shortly before `now`.
    pub fn is_known(&self, party: Party, now: Moment) -> bool {
        self.stuck.is_some_and(|(who, when)| who == party && now.saturating_sub(when) < KNOWN)
    }
}
