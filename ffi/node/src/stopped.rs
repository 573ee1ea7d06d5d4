//! Programs that are stopped while others need what they hold.
//!
//! A program that is stopped (SIGSTOP, a debugger, a frozen cgroup) lives, so nobody may take over what it was at; whoever
//! needs that waits until it goes on or is killed, and says on stderr for whom. docs/node.md says who that can be.

use super::{core::Core, holder::Holder, sys};
use devmodel::host::Party;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A holder that makes no progress for so long is taken for stopped, where the kernel does not say so: another PID namespace hides
/// it, or a freezer holds it. A lock is held for microseconds, and who has a processor taken away has it back long before.
const STUCK: Duration = Duration::from_millis(200);
/// After so long somebody who waits for a stopped program says so.
const TELL: Duration = Duration::from_millis(400);
/// What was said of a program is not said again so soon.
const AGAIN: Duration = Duration::from_secs(30);
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

impl Waits {
    /// The runner waits for `party`, for the `times`th time in a row: yields or sleeps a little. True if `party` is stopped.
    pub fn wait(&mut self, core: &Core, party: Party, times: u32) -> bool {
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
        // Asking the kernel takes longer than nearly every wait does.
        let suspected = self.stopped.is_some_and(|(who, _, last)| who == party && now - last < KNOWN);
        if times < 4 && !suspected && !self.is_known(party, now) {
            return false;
        }
        if waited >= STUCK {
            self.stuck = Some((party, now));
        }
        let stopped = self.is_known(party, now) || is_stopped(core, party);
        if stopped {
            let first = match self.stopped {
                Some((before, first, last)) if before == party && now - last < KNOWN => first,
                _ => begun,
            };
            self.stopped = Some((party, first, now));
            if now - first >= TELL {
                core.tell_of_stopped(party);
            }
        }
        stopped
    }

    /// Who was found stopped last by waiting for it.
    pub fn last_stopped(&self) -> Option<Party> {
        self.stopped.map(|(party, ..)| party)
    }

    /// Whether `party` was found stuck a moment ago.
    fn is_known(&self, party: Party, now: Instant) -> bool {
        self.stuck.is_some_and(|(who, when)| who == party && now - when < KNOWN)
    }

    /// Whether `party`, for which a timer ran out, is stopped. Says so on stderr if it is.
    pub fn is_stopped(&self, core: &Core, party: Party) -> bool {
        let stopped = self.is_known(party, Instant::now()) || is_stopped(core, party);
        if stopped {
            core.tell_of_stopped(party);
        }
        stopped
    }
}

/// Whether the kernel says that the program of `party` is stopped.
pub fn is_stopped(core: &Core, party: Party) -> bool {
    party.0 != core.me.slot && Holder::of(core.pid(party.0)).stopped.is_some()
}

impl Core {
    /// Whether a party that has `fid` open is stopped.
    pub fn has_stopped_opener(&self, waits: &Waits, fid: u8) -> bool {
        self.openers(fid).any(|slot| waits.is_stopped(self, Party(slot)))
    }

    /// Says on stderr, once in a while, for whom this program waits.
    fn tell_of_stopped(&self, party: Party) {
        let now = Instant::now();
        let mut last = self.last_report.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|(who, when)| who == party && now - when < AGAIN) {
            return;
        }
        *last = Some((party, now));
        drop(last);
        let region = self.adapter.region();
        let holds = |fid: &u8| {
            region.is_present(*fid)
                && [region.function_lock(*fid), region.ring_lock(*fid)]
                    .iter()
                    .any(|lock| lock.holder() == Some(party))
        };
        let held: Vec<String> =
            (0..region.functions()).filter(holds).map(|fid| format!("iron{fid}")).collect();
        let what = match held.as_slice() {
            [] => "what only it can do".into(),
            held => format!("what needs {}", held.join(", ")),
        };
        eprintln!("ironverbs: {what} waits for {}", Holder::of(self.pid(party.0)));
    }
}
