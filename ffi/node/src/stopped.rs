//! Stopped programs that hold locks which others need.
//!
//! A stopped program (SIGSTOP, a debugger, a frozen cgroup) is alive, so its work must not be taken over. A program that needs one of its
//! locks waits until it continues or is killed, and reports on stderr which program that is. docs/limits.md describes which programs can be
//! affected.

use super::{
    core::Core,
    holder::Holder,
    waits::{self, Waits},
};
use devmodel::host::Party;
use std::{sync::PoisonError, time::Duration};

/// Minimum interval between two reports about the same program.
const AGAIN: Duration = Duration::from_secs(30);

/// True if the kernel reports the program of `party` as stopped.
pub fn is_stopped(core: &Core, party: Party) -> bool {
    party.0 != core.me.slot && Holder::of(core.pid(party.0)).stopped.is_some()
}

impl Core {
    /// Like [`Waits::wait`]. Returns whether `party` is stopped, and reports it on stderr if it has been stopped for long.
    pub fn wait_for(&self, waits: &mut Waits, party: Party, times: u32) -> bool {
        let waited = waits.wait(party, times, || is_stopped(self, party));
        if waited.long {
            self.tell_of_stopped(party);
        }
        waited.stopped
    }

    /// True if `party`, which let a timer expire, is stopped. If so, reports it on stderr.
    pub fn is_stopped(&self, waits: &Waits, party: Party) -> bool {
        let stopped = waits.is_known(party, waits::now()) || is_stopped(self, party);
        if stopped {
            self.tell_of_stopped(party);
        }
        stopped
    }

    /// True if a party that has `fid` open is stopped.
    pub fn has_stopped_opener(&self, waits: &Waits, fid: u8) -> bool {
        self.openers(fid).any(|slot| self.is_stopped(waits, Party(slot)))
    }

    /// Reports on stderr, at intervals, the program that this one is waiting for.
    fn tell_of_stopped(&self, party: Party) {
        let now = waits::now();
        let mut last = self.last_report.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|(who, when)| who == party && now.saturating_sub(when) < AGAIN) {
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
