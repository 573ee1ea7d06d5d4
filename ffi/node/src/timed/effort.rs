//! The running time of threads.
#![allow(unsafe_code)]

use clock::{Board, Player, State};
use nix::{
    time::ClockId,
    unistd::{Pid, read},
};
use std::{
    collections::HashMap,
    os::fd::{FromRawFd, OwnedFd},
    time::Duration,
};

/// `perf_event_attr` (perf_event_open(2)) in its first size; all other fields are zero.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    unused: [u64; 3],
    flags: u64,
    more: [u64; 2],
}

/// PERF_TYPE_SOFTWARE.
const SOFTWARE: u32 = 1;
/// PERF_COUNT_SW_TASK_CLOCK: nanoseconds that a thread ran on a processor.
const TASK_CLOCK: u64 = 1;
/// exclude_kernel and exclude_hv, so that no privileges are needed.
const EXCLUDE: u64 = 1 << 5 | 1 << 6;
/// PERF_FLAG_FD_CLOEXEC.
const CLOEXEC: u32 = 1 << 3;

/// Interval between checks of running threads.
pub const LOOK: Duration = Duration::from_micros(20);

/// Clocks of threads. The kernel updates a thread's own clock only at its ticks, milliseconds apart; counters are exact. If counters are
/// not permitted, the clocks are used, and programs that poll memory are slower.
#[derive(Default)]
pub struct Efforts {
    counters: HashMap<u32, Option<OwnedFd>>,
}

impl Efforts {
    /// The thread's running time. `None` if it is gone.
    pub fn of(&mut self, player: &Player) -> Option<Duration> {
        let (tid, pid) = player.thread();
        let counter = self.counters.entry(tid).or_insert_with(|| counter(tid));
        match counter.as_ref().and_then(value) {
            Some(nanos) if is_there(tid, pid) => Some(Duration::from_nanos(nanos)),
            Some(_) => None,
            None => process_time(pid),
        }
    }

    /// True if a thread that polls memory notices a change, or does something else, before it has run for `patience`.
    pub fn noticed(&mut self, board: &Board, player: &Player, patience: Duration) -> bool {
        let mut spent = Spent::begin(self, player, patience);
        loop {
            let heard = board.heard();
            match (player.state(), spent.as_mut().and_then(|spent| spent.is_all(self, player))) {
                (State::Noticed, _) => return true,
                // A thread that yields gets the processor back late; one that waits for something else may never get it.
                (State::Spinning, Some(false)) if activity(player) == Activity::Runs => {
                    board.listen(heard, LOOK)
                }
                // It may have noticed the change after its state was read, and sleep because of that.
                _ => return player.state() == State::Noticed,
            }
        }
    }

    /// Forgets a thread that is gone.
    pub fn forget(&mut self, player: &Player) {
        self.counters.remove(&player.thread().0);
    }
}

/// The running time of a thread since a wait for it began. At most a tenth of the patience counts between two checks: if this machine
/// shares its processors, the kernel counts the time of other machines as the thread's.
pub struct Spent {
    patience: Duration,
    last: Duration,
    sum: Duration,
}

impl Spent {
    /// Begins to wait for `player`, at most until it has run for `patience`. `None` if it is gone.
    pub fn begin(efforts: &mut Efforts, player: &Player, patience: Duration) -> Option<Self> {
        Some(Self { patience, last: efforts.of(player)?, sum: Duration::ZERO })
    }

    /// True if it has run for that long. `None` if it is gone.
    pub fn is_all(&mut self, efforts: &mut Efforts, player: &Player) -> Option<bool> {
        Some(self.add(efforts.of(player)?))
    }

    fn add(&mut self, now: Duration) -> bool {
        self.sum += now.saturating_sub(self.last).min(self.patience / 10);
        self.last = now;
        self.sum >= self.patience
    }
}

fn counter(tid: u32) -> Option<OwnedFd> {
    let attributes = Attributes {
        kind: SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: TASK_CLOCK,
        flags: EXCLUDE,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads as many bytes of the attributes as their size field says, and returns a descriptor without another owner.
    unsafe {
        let fd = libc::syscall(libc::SYS_perf_event_open, &raw const attributes, tid, -1, -1, CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
    }
}

fn value(counter: &OwnedFd) -> Option<u64> {
    let mut value = [0; size_of::<u64>()];
    (read(counter, &mut value) == Ok(value.len())).then(|| u64::from_ne_bytes(value))
}

/// The running time of all threads of a process.
fn process_time(pid: u32) -> Option<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid as libc::pid_t)).ok()?;
    clock.now().ok().map(Duration::from)
}

/// True if a thread exists.
pub fn is_there(tid: u32, pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let asked = || unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    // A thread of another user exists, too.
    pid == 0 || asked() == 0 || nix::errno::Errno::last() == nix::errno::Errno::EPERM
}

/// The activity of a thread in the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It runs or is about to: it waits for nothing, or only for something that ends by itself, such as the kernel mapping pages or a call
    /// of ours.
    Runs,
    /// It waits.
    Rests,
    /// It is gone, or has ended and its parent has not waited for it.
    Ended,
}

/// The activity of a thread at this moment.
pub fn activity(player: &Player) -> Activity {
    let (tid, pid) = player.thread();
    if pid == 0 {
        return Activity::Runs;
    }
    match clock::state(tid, pid) {
        Some('Z' | 'X') => Activity::Ended,
        None if !is_there(tid, pid) => Activity::Ended,
        Some('R' | 'D') => Activity::Runs,
        _ if player.calls() => Activity::Runs,
        _ => Activity::Rests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_between_two_looks_is_no_patience() {
        let ms = Duration::from_millis;
        let mut spent = Spent { patience: ms(10), last: ms(5), sum: Duration::ZERO };
        assert!(!spent.add(ms(1000)), "the processor was somewhere else");
        assert!((1..=8).all(|i| !spent.add(ms(1000 + i))));
        assert!(spent.add(ms(1009)));
    }
}
