//! For whom the runners of this process wait.

use super::sys;
use devmodel::host::Party;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// A holder that makes no progress for so long is taken for stopped, where the kernel does not say so: another PID namespace hides
/// it, or a freezer holds it. A lock is held for microseconds, and who has a processor taken away has it back long before.
const STUCK: Duration = Duration::from_millis(200);
/// After so long somebody who waits for a stopped program says so.
const TELL: Duration = Duration::from_millis(400);
/// What was found out about a party by waiting for it holds for so long.
const KNOWN: Duration = Duration::from_secs(1);
/// Times a waiting thread just lets others run before it sleeps in between.
const YIELDS: u32 = 50;
/// How long it sleeps then.
const NAP: Duration = Duration::from_millis(1);

/// What a runner knows of those it waited for.
#[derive(Default)]
pub struct Waits {
    /// Since when it waits for whom.
    since: Option<(Party, Instant)>,
    /// Who made no progress for [`STUCK`], and when that was seen.
    stuck: Option<(Party, Instant)>,
    /// Who was found stopped, when first and when last: those who come back later wait as well.
    stopped: Option<(Party, Instant, Instant)>,
}

/// Of whom this program said on stderr that it waits for them, and when.
pub type LastReport = Mutex<Option<(Party, Instant)>>;

/// What a wait found out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// The party is stopped.
    pub stopped: bool,
    /// It has been stopped for so long that the user should know.
    pub long: bool,
}

impl Waits {
    /// Yields or sleeps a little, for the `times`th time in a row that the runner waits for `party`. `ask` asks the kernel whether
    /// `party` is stopped, which takes longer than nearly every wait does.
    pub fn wait(&mut self, party: Party, times: u32, ask: impl FnOnce() -> bool) -> Waited {
        if times < YIELDS {
            sys::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
        let now = Instant::now();
        let begun = match self.since {
            Some((before, begun)) if before == party && times > 1 => begun,
            _ => now,
        };
        self.since = Some((party, begun));
        let waited = now - begun;
        let suspected = self.stopped.is_some_and(|(who, _, last)| who == party && now - last < KNOWN);
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
            Some((before, first, last)) if before == party && now - last < KNOWN => first,
            _ => begun,
        };
        self.stopped = Some((party, first, now));
        Waited { stopped: true, long: now - first >= TELL }
    }

    /// Who was found stopped last by waiting for it.
    pub fn last_stopped(&self) -> Option<Party> {
        self.stopped.map(|(party, ..)| party)
    }

    /// Whether `party` was found stuck a moment before `now`.
    pub fn is_known(&self, party: Party, now: Instant) -> bool {
        self.stuck.is_some_and(|(who, when)| who == party && now - when < KNOWN)
    }
}
