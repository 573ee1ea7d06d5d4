//! Torture in real time: two programs on a node, or on two nodes joined by a link, with a wire that loses, duplicates, reorders, corrupts
//! and delays frames. The programs check every byte, the order and the count on all services ([`ironverbs_tests::torture`]).
//!
//! IRONVERBS_TORTURE sets the duration in seconds, IRONVERBS_SEED the first seed.

use devmodel::wire::Faults;
use ironverbs_tests::program::{Program, Scratch, free_port, number, seed};
use link::{LinkSpec, Uplink};
use node::{Node, NodeOptions};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Fault plans: each fault by itself, and combined, up to 30 %.
const MIXES: [&str; 9] = [
    "drop=5%",
    "duplicate=10%",
    "reorder=5%",
    "corrupt=5%",
    "delay=200us",
    "drop=1%,duplicate=1%,reorder=1%,corrupt=1%",
    "drop=5%,reorder=10%",
    "drop=7%,duplicate=8%,reorder=8%,corrupt=7%",
    "drop=1%,duplicate=2%,reorder=1%,corrupt=1%,delay=50us",
];
/// Time during which requests are posted in a round.
const ROUND: Duration = Duration::from_millis(1500);
/// Time limit for a round: program start and the outstanding work at the end (at most 20 s in the program), on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The nodes of a round, and the link that joins them.
struct Bench {
    _uplink: Option<Uplink>,
    nodes: Vec<(Arc<Node>, Scratch)>,
}

impl Bench {
    /// Makes one node with `faults` between its functions. A delay needs a link, and therefore two nodes.
    fn of(faults: Faults) -> Self {
        let node = |faults, id| {
            let scratch = Scratch::new();
            let options = NodeOptions { vfs: Some(2), faults, node_id: id, ..NodeOptions::default() };
            (scratch.node_with(&options), scratch)
        };
        if faults.delay == 0 {
            return Self { _uplink: None, nodes: vec![node(Some(faults), None)] };
        }
        let nodes = vec![node(None, Some(1)), node(None, Some(2))];
        let spec = LinkSpec::Node(nodes[1].1.dir().into());
        let uplink = Uplink::hold(&nodes[0].0, &[spec], faults).expect("a link");
        Self { _uplink: Some(uplink), nodes }
    }

    /// Returns directory and function of side `side`.
    fn place(&self, side: usize) -> (&Path, &'static str) {
        match self.nodes.get(side) {
            Some((_, scratch)) if self.nodes.len() > 1 => (scratch.dir(), "1"),
            _ => (self.nodes[0].1.dir(), ["1", "2"][side]),
        }
    }
}

/// Runs a round with the faults of `mix`. Returns the summaries of both sides.
fn round(mix: &str, seed: u64) -> Result<String, String> {
    let faults: Faults = format!("{mix},seed={}", seed as u32).parse().expect("faults");
    let bench = Bench::of(faults);
    let (port, seed, time) =
        (free_port().expect("a port").to_string(), seed.to_string(), ROUND.as_millis().to_string());
    let side = |side: usize, role| {
        let (dir, fid) = bench.place(side);
        let dir = dir.to_str().expect("a path in UTF-8");
        Program::start(Path::new(env!("CARGO_BIN_EXE_torture")), &[dir, fid, role, &port, &seed, &time, mix])
    };
    let mut sides = [side(0, "listen")?, side(1, "connect")?];
    let said = sides.each_mut().map(|side| side.hear(LIMIT));
    let [a, b] = said;
    drop(sides);
    let said = format!("{}\n{}", a?, b?);
    for (node, scratch) in &bench.nodes {
        let status = node.status().expect("status");
        let left: Vec<_> = status.functions.iter().filter(|f| !f.objects.is_empty()).collect();
        if !(left.is_empty() && status.parties.is_empty()) && bench._uplink.is_none() {
            return Err(format!("left in {}: {left:?}, {:?}", scratch.dir().display(), status.parties));
        }
    }
    Ok(said)
}

#[test]
fn every_byte_is_right_in_order_and_counted_under_any_faults() {
    let length = Duration::from_secs(number("IRONVERBS_TORTURE").unwrap_or(0));
    let first = seed();
    let begin = Instant::now();
    let mut seed = first;
    // Each mix at least once, unless IRONVERBS_MIXES sets the number.
    let mixes = number("IRONVERBS_MIXES").unwrap_or(MIXES.len() as u64);
    while seed < first + mixes || begin.elapsed() < length {
        let mix = MIXES[(seed % MIXES.len() as u64) as usize];
        let said = round(mix, seed).unwrap_or_else(|what| panic!("IRONVERBS_SEED={seed}, {mix}: {what}"));
        println!("seed {seed}, {mix}:\n{said}");
        seed += 1;
    }
    println!("{} rounds in {:?}", seed - first, begin.elapsed());
}
