//! The laboratory: programs with their own drivers and runners on one adapter, interleaved step by step by a seed, and stopped, killed and
//! restarted at any step of a lock, a journal or a ring.
//!
//! A run fails if a byte is wrong; if a completion is lost, duplicated or out of order; if a call does not end although no program that
//! shares anything with the caller is stopped; if anything does not continue when the stopped programs continue; or if anything is left
//! over when all programs have ended. docs/stress.md says how to repeat a seed and how to run for a night.
#![deny(unsafe_code)]

mod host;
mod machine;
mod program;
mod scenario;
mod schedule;
mod transport;

use machine::Fault;
use scenario::{Outcome, run};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// Default for `IRONVERBS_LAB_SECONDS`.
const SECONDS: u64 = 60;
/// Number of seeds per process: memory of killed programs is not freed until the process exits.
const AT_ONCE: u64 = 200;
/// The test that a process reruns itself with for some of the seeds, and the variable with the first of these.
const MINUTE: &str = "whatever_is_stopped_or_killed_nobody_else_notices";
const FROM: &str = "IRONVERBS_LAB_FROM";

fn number(name: &str) -> Option<u64> {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number, found {text:?}"));
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(parse)
}

#[test]
fn whatever_is_stopped_or_killed_nobody_else_notices() {
    if let Some(seed) = number("IRONVERBS_SEED") {
        let outcome = run(seed, None).unwrap_or_else(|fault| panic!("{fault}"));
        return eprintln!("seed {seed}: {outcome:?}");
    }
    if let Some(from) = number(FROM) {
        return try_seeds(from);
    }
    let limit = Duration::from_secs(number("IRONVERBS_LAB_SECONDS").unwrap_or(SECONDS));
    let first = number("IRONVERBS_LAB_FIRST").unwrap_or(1);
    let (begin, ours) = (Instant::now(), std::env::current_exe().expect("our own path"));
    for from in (first..).step_by(AT_ONCE as usize).take_while(|_| begin.elapsed() < limit) {
        let mut seeds = Command::new(&ours);
        seeds.args([MINUTE, "--exact", "--nocapture"]).env(FROM, from.to_string());
        assert!(seeds.status().expect("a process for some seeds").success(), "above is what is wrong");
    }
}

/// Runs the seeds of one process.
fn try_seeds(from: u64) {
    let mut all = Outcome::default();
    for seed in from..from + AT_ONCE {
        let outcome =
            run(seed, None).unwrap_or_else(|fault| panic!("{fault}\nIRONVERBS_SEED={seed} repeats it"));
        all.programs += outcome.programs;
        all.stops += outcome.stops;
        all.kills += outcome.kills;
        all.trace.0 += outcome.trace.0;
        all.longest = all.longest.max(outcome.longest);
    }
    eprintln!(
        "seeds from {from} on: {} programs, {} stops, {} kills, {} steps, {} in the longest call",
        all.programs, all.stops, all.kills, all.trace.0, all.longest
    );
    assert!(all.stops > 0 && all.kills > 0, "nobody was stopped or killed");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..=20 {
        let first = run(seed, None).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(run(seed, None), Ok(first), "seed {seed}");
        assert_ne!(run(seed + 1000, None).map(|other| other.trace), Ok(first.trace));
    }
}

#[test]
fn faults_of_the_machine_are_found() {
    for (fault, words) in
        [(Fault::PatienceIsEndless, "shares nothing with whoever is stopped"), (Fault::DeadStay, "places of")]
    {
        let found = (1..=2000).find_map(|seed| run(seed, Some(fault)).err());
        let found = found.unwrap_or_else(|| panic!("no seed finds {fault:?}"));
        assert!(found.contains(words), "{fault:?} is found, but not for what it is: {found}");
        eprintln!("{fault:?}: {}", found.lines().next().unwrap_or_default());
    }
}
