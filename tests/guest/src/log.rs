//! Checks a guest's kernel log.

use crate::machine::Guest;
use crate::{Outcome, failed};

/// Lines that the kernel prints because of a slow processor or QEMU, whatever devices there are.
const OF_THE_BED: [&str; 11] = [
    "clocksource:",
    "TSC found unstable",
    "sched: DL replenish lagged",
    "rcu: INFO: rcu_preempt detected expedited stalls",
    "speed is unknown, defaulting",
    "hrtimer: interrupt took",
    "workqueue: ",
    "x86/split lock",
    "perf: interrupt took",
    "process '",
    "reboot: ",
];

/// Words that indicate trouble at any level.
const TROUBLE: [&str; 10] = [
    "WARNING:",
    "BUG:",
    "Call Trace",
    "Oops",
    "syndrome",
    "timeout",
    "DMAR: ",
    "failed",
    "error",
    "blocked for more than",
];

/// Returns true if a raw line `<LEVEL>[time] text` reports a problem.
pub(crate) fn bad(line: &str) -> bool {
    let (level, text) = line.strip_prefix('<').and_then(|l| l.split_once('>')).unwrap_or(("6", line));
    if OF_THE_BED.iter().any(|known| text.contains(known)) {
        return false;
    }
    let level = level.parse::<u32>().unwrap_or(6) & 7;
    let ours =
        ["mlx5", "infiniband", "vfio", "rdma", "igb", "BUG", "WARNING", "Call Trace", "DMAR", "blocked for"];
    level <= 4
        || (TROUBLE.iter().any(|word| text.contains(word)) && ours.iter().any(|word| text.contains(word)))
}

/// Returns true if a line of the console, which shows only warnings and worse, reports a problem.
pub(crate) fn trouble(line: &str) -> bool {
    line.starts_with('[') && bad(&format!("<4>{line}"))
}

/// Checks that the log has reported no problems since the last look.
pub fn clean(guest: &mut Guest) -> Outcome {
    clean_but(guest, &[])
}

/// Checks that the log has reported no problems since the last look, except in lines that contain one of the words.
pub fn clean_but(guest: &mut Guest, known: &[&str]) -> Outcome {
    let lines = guest.dmesg()?;
    let wrong = |line: &&String| bad(line) && !known.iter().any(|word| line.contains(word));
    if lines.iter().any(|line| wrong(&line)) {
        let marked: Vec<String> =
            lines.iter().map(|line| format!("{} {line}", if wrong(&line) { "!" } else { " " })).collect();
        let tail = &marked[marked.len().saturating_sub(60)..];
        return failed(format!("{}: its kernel complains (lines with !)\n{}", guest.name(), tail.join("\n")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::bad;

    #[test]
    fn warnings_are_found_and_the_beds_own_are_not() {
        assert!(bad("<4>[    5.1] mlx5_core 0000:00:10.0: wait_func: timeout"));
        assert!(bad(
            "<6>[    5.1] mlx5_core 0000:00:10.0: CREATE_CQ(0x400) op_mod(0x0) failed, syndrome (0x1)"
        ));
        assert!(bad("<4>[    5.1] WARNING: CPU: 0 PID: 1 at kernel/x.c"));
        assert!(!bad("<4>[    5.1] clocksource: timekeeping watchdog on CPU1"));
        assert!(!bad("<6>[    5.1] mlx5_core 0000:00:10.0: firmware version: 16.35.2000"));
    }
}
