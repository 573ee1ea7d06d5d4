//! Programs on a node that run out of space, memory, descriptors or processes, at each call in turn that can fail for that reason: they
//! report an error or do without, and leave nothing behind. `tests/programs/shortage.c` makes the calls fail.
//!
//! `IRONVERBS_SHORTAGES` sets the number of calls of each kind to try in each program (10), `all` tries every one; `IRONVERBS_SEED` (1)
//! selects them.

mod lab;
mod run;

use lab::{Lab, Program};
use run::{KINDS, Kind, Shortage};

/// Number of calls of each kind to try in each program.
fn samples() -> usize {
    match std::env::var("IRONVERBS_SHORTAGES").as_deref() {
        Ok("all") => usize::MAX,
        Ok(count) => count.parse().expect("IRONVERBS_SHORTAGES: a number, or all"),
        Err(_) => 10,
    }
}

/// Chooses `wanted` of the numbers from 1 to `count`, one from each of equal ranges.
fn chosen(count: u32, wanted: usize) -> Vec<u32> {
    let seed = ironverbs_tests::program::seed();
    let parts = u64::from(count).min(wanted as u64);
    let part = |i: u64| u64::from(count) * i / parts.max(1);
    let number = |i: u64| {
        let (from, to) = (part(i), part(i + 1));
        // splitmix64's last steps are enough to spread them.
        let spread = (seed ^ i << 32 ^ u64::from(count)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (from + (spread ^ spread >> 31) % (to - from)) as u32 + 1
    };
    (0..parts).map(number).collect()
}

/// Runs `program` once for each call that is to fail.
fn tried(program: Program) {
    let Some(mut lab) = Lab::new(program) else { return };
    let counts = lab.counts();
    let (mut errors, mut without, mut wrong) = (0, 0, Vec::new());
    let mut attempt = |shortage: Shortage| {
        match lab.attempt(&shortage) {
            Ok(true) => without += 1,
            Ok(false) => errors += 1,
            Err(why) => wrong.push(format!("{shortage}: {why}")),
        };
    };
    for (kind, count) in KINDS.iter().zip(counts) {
        for first in chosen(count, samples()) {
            attempt(Shortage::once(kind, first));
        }
        // All calls from one on, as when a resource is exhausted.
        for first in chosen(count, samples() / 3) {
            attempt(Shortage::lasting(kind, first));
        }
    }
    let counts: Vec<String> =
        KINDS.iter().zip(counts).map(|(Kind { name, .. }, count)| format!("{name} {count}")).collect();
    println!("{program:?}: calls {}; {errors} errors, {without} went without", counts.join(", "));
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), errors + without + wrong.len(), wrong.join("\n"));
}

ironverbs_tests::each! {
    a_node_is_made_or_an_error: tried(Program::Create);
    a_node_is_looked_at_or_an_error: tried(Program::Status);
    a_program_is_launched_or_an_error: tried(Program::True);
    devices_are_listed_or_an_error: tried(Program::Devices);
    netlink_requests_are_answered_or_fail_with_an_error: tried(Program::Rdma);
    objects_are_made_and_memory_is_lent_or_an_error: tried(Program::Objects);
    connections_are_made_or_an_error: tried(Program::Connects);
    functions_are_served_or_an_error: tried(Program::Serve);
}
