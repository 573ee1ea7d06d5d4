//! Compares the model with measurements of cards: the table of docs/time.md.

use super::{Figures, Latency, Measure, Operation, Plan, Report, SimError, bench, run};
use crate::engine::{
    network::{Topology, TopologyError},
    scenario::{Flow, Scenario, ScenarioError},
    timing::{Profile, ProfileError, Rate},
};

/// A published figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its number in the table; several figures of one measurement share it.
    pub number: u32,
    /// Name of its profile.
    pub profile: &'static str,
    /// Names the measurement.
    pub what: String,
    /// The unit of both figures.
    pub unit: &'static str,
    /// The published figure, measured on a card.
    pub published: f64,
    /// The figure of the model.
    pub model: f64,
    /// Tolerated relative deviation of the model.
    pub tolerance: f64,
    /// The profile parameters that it decides.
    pub fitted: &'static str,
}

impl Row {
    /// Relative deviation of the model from the published figure.
    pub fn error(&self) -> f64 {
        self.model / self.published - 1.0
    }

    /// True if the model is within the tolerance.
    pub fn holds(&self) -> bool {
        self.error().abs() <= self.tolerance
    }
}

/// Computing a row failed.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Loading its profile failed.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Its run failed.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// Its hosts and links are invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Its flows are invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// Latencies may be off by this share.
const LATENCY: f64 = 0.05;
/// Rates and bandwidths may be off by this share.
const RATE: f64 = 0.03;

/// Tolerance for figures of an older card, of which only the shape counts.
const SHAPE: f64 = 0.1;

/// Messages of a latency run with a 99.9 % quantile to compare.
const MANY: u32 = 200_000;

/// A figure of a run: its name, unit, published value, tolerance, the profile parameters that it decides, and its location in a report.
type Figure = (&'static str, &'static str, f64, f64, &'static str, fn(&Report) -> f64);

/// A run, and the published figures for it. `change` sets options that differ from perftest's defaults.
struct Run {
    number: u32,
    profile: &'static str,
    operation: Operation,
    measure: Measure,
    bytes: u32,
    change: fn(&mut Plan),
    figures: &'static [Figure],
}

impl Run {
    const fn of(
        number: u32,
        profile: &'static str,
        (operation, measure, bytes): (Operation, Measure, u32),
        change: fn(&mut Plan),
        figures: &'static [Figure],
    ) -> Self {
        Self { number, profile, operation, measure, bytes, change, figures }
    }
}

fn latency(report: &Report) -> Latency {
    match report.figures {
        Figures::Latency(latency) => latency,
        Figures::Bandwidth(_) => unreachable!("a row of latencies is a run of latencies"),
    }
}

/// In Gb/s.
fn gbps(report: &Report) -> f64 {
    match report.figures {
        Figures::Bandwidth(bandwidth) => bandwidth.gbps(),
        Figures::Latency(_) => unreachable!("a row of bandwidths is a run of bandwidths"),
    }
}

/// In MB/s of perftest, of 2^20 bytes.
fn mbps(report: &Report) -> f64 {
    gbps(report) * 1e9 / 8.0 / 1048576.0
}

/// In millions of messages per second.
fn mpps(report: &Report) -> f64 {
    gbps(report) * 1e3 / 8.0 / f64::from(report.bytes)
}

const NONE: fn(&mut Plan) = |_| ();

use Measure::{Bandwidth as Bw, Latency as Lat};
use Operation::{FetchAdd, Read, Send, Write};

const RUNS: &[Run] = &[
    Run::of(
        1,
        "direct-x16",
        (Send, Lat, 2),
        |plan| plan.iters = MANY,
        &[
            ("SEND lat 2 B, typical", "us", 0.83, LATENCY, "send, receive", |r| latency(r).typical),
            ("99 %", "us", 1.01, LATENCY, "spread_cq", |r| latency(r).p99),
            ("99.9 %", "us", 2.14, LATENCY, "spread_cq", |r| latency(r).p99_9),
        ],
    ),
    Run::of(
        2,
        "direct-x16",
        (Send, Lat, 64),
        NONE,
        &[("SEND lat 64 B", "us", 0.91, LATENCY, "write, pio_block", |r| latency(r).typical)],
    ),
    Run::of(
        2,
        "direct-x16",
        (Send, Lat, 128),
        NONE,
        &[("SEND lat 128 B", "us", 0.95, LATENCY, "pio_block, send_block", |r| latency(r).typical)],
    ),
    Run::of(
        3,
        "direct-x16",
        (Send, Lat, 256),
        NONE,
        &[("SEND lat 256 B", "us", 1.30, LATENCY, "memory, one_way", |r| latency(r).typical)],
    ),
    Run::of(
        4,
        "direct-x16",
        (Send, Lat, 4096),
        NONE,
        &[("SEND lat 4096 B", "us", 2.18, LATENCY, "read_pace", |r| latency(r).typical)],
    ),
    Run::of(
        5,
        "direct-x16",
        (Send, Bw, 65536),
        NONE,
        &[("SEND bandwidth 64 KiB", "Gb/s", 98.15, RATE, "", gbps)],
    ),
    Run::of(
        6,
        "direct-x16",
        (Send, Bw, 64),
        NONE,
        &[("SEND rate 64 B", "M/s", 7.83, RATE, "post_rate", mpps)],
    ),
    Run::of(
        7,
        "direct-x8",
        (Write, Lat, 8),
        |plan| plan.iters = MANY,
        &[
            ("WRITE lat 8 B, least", "us", 0.93, LATENCY, "poll_memory", |r| latency(r).min),
            ("typical", "us", 0.99, LATENCY, "spread_memory", |r| latency(r).typical),
            ("99 %", "us", 1.15, LATENCY, "spread_memory", |r| latency(r).p99),
            ("99.9 %", "us", 1.40, LATENCY, "spread_memory", |r| latency(r).p99_9),
        ],
    ),
    Run::of(
        8,
        "direct-x8",
        (Send, Lat, 8),
        |plan| plan.iters = MANY,
        &[
            ("SEND lat 8 B, least", "us", 0.89, LATENCY, "post, poll_cq", |r| latency(r).min),
            ("typical", "us", 0.92, LATENCY, "spread_cq", |r| latency(r).typical),
            ("99 %", "us", 0.95, LATENCY, "spread_cq", |r| latency(r).p99),
        ],
    ),
    Run::of(
        9,
        "direct-x8",
        (Write, Bw, 1 << 20),
        |plan| plan.iters = 1000,
        &[("WRITE bandwidth 1 MiB", "Gb/s", 55.87, RATE, "overhead", gbps)],
    ),
    Run::of(
        9,
        "direct-x8",
        (Send, Bw, 1 << 20),
        |plan| plan.iters = 1000,
        &[("SEND bandwidth 1 MiB", "Gb/s", 55.88, RATE, "", gbps)],
    ),
    Run::of(
        10,
        "pods-switch",
        (Read, Lat, 2),
        NONE,
        &[("READ lat 2 B", "us", 2.69, LATENCY, "memory, one_way, answer", |r| latency(r).typical)],
    ),
    Run::of(
        10,
        "pods-switch",
        (Write, Lat, 2),
        NONE,
        &[("WRITE lat 2 B", "us", 1.58, LATENCY, "post, poll_memory", |r| latency(r).typical)],
    ),
    Run::of(
        10,
        "pods-switch",
        (Send, Lat, 2),
        NONE,
        &[("SEND lat 2 B", "us", 1.68, LATENCY, "poll_cq", |r| latency(r).typical)],
    ),
    Run::of(
        11,
        "pods-switch",
        (FetchAdd, Lat, 8),
        NONE,
        &[("FETCH_ADD lat 8 B", "us", 2.65, LATENCY, "", |r| latency(r).typical)],
    ),
    Run::of(
        11,
        "pods-switch",
        (FetchAdd, Bw, 8),
        NONE,
        &[("FETCH_ADD rate, 16 under way", "M/s", 2.17, RATE, "atomic", mpps)],
    ),
    Run::of(
        12,
        "pods-switch",
        (Write, Bw, 65536),
        NONE,
        &[("WRITE bandwidth 64 KiB", "MB/s", 11024.0, RATE, "", mbps)],
    ),
    Run::of(
        12,
        "pods-switch",
        (Send, Bw, 65536),
        NONE,
        &[("SEND bandwidth 64 KiB", "MB/s", 10986.0, RATE, "", mbps)],
    ),
    Run::of(
        12,
        "pods-switch",
        (Read, Bw, 65536),
        NONE,
        &[("READ bandwidth 64 KiB", "MB/s", 10401.0, RATE, "read_answer", mbps)],
    ),
    Run::of(
        13,
        "switch-25g",
        (Write, Lat, 8),
        |plan| plan.iters = MANY,
        &[
            ("WRITE lat 8 B, typical", "us", 2.13, LATENCY, "switch, post", |r| latency(r).typical),
            ("99 %", "us", 2.19, LATENCY, "spread_memory", |r| latency(r).p99),
        ],
    ),
    Run::of(
        14,
        "pods-switch",
        (Write, Bw, 1),
        |plan| (plan.depth, plan.inline) = (1, 1),
        &[("WRITE 1 B, one under way", "M/s", 0.478, RATE, "complete", mpps)],
    ),
    Run::of(
        14,
        "pods-switch",
        (Write, Bw, 1),
        |plan| (plan.depth, plan.moderation, plan.inline) = (8, 1, 1),
        &[("WRITE 1 B, eight under way", "M/s", 3.1, RATE, "", mpps)],
    ),
    Run::of(
        15,
        "direct-x16",
        (Write, Bw, 1 << 20),
        |plan| plan.iters = 200,
        &[("packets for an ACK, WRITE 1 MiB", "", 28.5, RATE, "ack_every", |r| {
            (r.frames[0] - r.frames[1]) as f64 / r.frames[1] as f64
        })],
    ),
    Run::of(
        17,
        "pods-slow-host",
        (Read, Lat, 2),
        |plan| plan.iters = MANY,
        &[
            ("READ lat 2 B, least", "us", 6.66, LATENCY, "post, poll_cq", |r| latency(r).min),
            ("typical", "us", 6.74, LATENCY, "spread_cq", |r| latency(r).typical),
            ("average", "us", 6.82, LATENCY, "spread_cq", |r| latency(r).avg),
            ("99 %", "us", 7.15, LATENCY, "spread_cq", |r| latency(r).p99),
            ("99.9 %", "us", 20.37, LATENCY, "spread_cq", |r| latency(r).p99_9),
        ],
    ),
];

/// Runs all rows. `load` loads profiles like [`Profile::load`].
///
/// # Errors
///
/// A profile cannot be loaded, or a run is refused.
pub fn all(load: impl Fn(&str) -> Result<Profile, ProfileError>) -> Result<Vec<Row>, RowError> {
    let mut rows = Vec::new();
    for one in RUNS {
        let mut plan = Plan::new(one.operation, one.measure, load(one.profile)?);
        plan.bytes = one.bytes;
        (one.change)(&mut plan);
        let report = run(&plan)?;
        rows.extend(one.figures.iter().map(|(what, unit, published, tolerance, fitted, value)| Row {
            number: one.number,
            profile: one.profile,
            what: (*what).into(),
            unit,
            published: *published,
            model: value(&report),
            tolerance: *tolerance,
            fitted,
        }));
    }
    let plan = Plan::new(Write, Lat, load("direct-x16")?);
    let dead = bench::Bench::new(&plan).until_the_peer_is_dead();
    let at = rows.iter().position(|row| row.number > 16).unwrap_or(rows.len());
    rows.insert(
        at,
        Row {
            number: 16,
            profile: "direct-x16",
            what: "dead peer, timeout 14, 7 retries".into(),
            unit: "s",
            published: 3.68,
            model: dead as f64 / 1e12,
            tolerance: RATE,
            fitted: "ack_timeouts",
        },
    );
    let rate = |qps| reads(&load, qps);
    let first = rate(154)?;
    for (qps, published) in [(308, 43.1), (616, 36.7), (924, 34.0)] {
        rows.push(Row {
            number: 18,
            profile: "direct-x16",
            what: format!("READs of 32 B by {qps} queue pairs, of the rate of 154"),
            unit: "",
            published: published / 47.7,
            model: rate(qps)? / first,
            tolerance: SHAPE,
            fitted: "contexts, miss",
        });
    }
    Ok(rows)
}

/// Rate of 32-byte READs by `qps` queue pairs of one card, with one program each, in millions per second.
fn reads(load: impl Fn(&str) -> Result<Profile, ProfileError>, qps: usize) -> Result<f64, RowError> {
    const EACH: u64 = 40;
    let topology = Topology::star(2, Rate(100.0), 10_000)?;
    let mut scenario = Scenario::new(load("direct-x16")?, topology);
    (scenario.message, scenario.moderation) = (32, Scenario::UNDER_WAY);
    scenario.flows = vec![Flow { operation: Read, ..Flow::write(0, 1, 32 * EACH) }; qps];
    let outcome = scenario.run()?;
    Ok(qps as f64 * EACH as f64 * 1e6 / outcome.duration as f64)
}

/// The rows as a Markdown table, as in docs/time.md.
pub fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| Row | Profile | | Published | Model | Error | Decides |\n|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let digits = if row.published >= 100.0 { 0 } else { 2 };
        let figure = |value: f64| format!("{value:.digits$} {}", row.unit).trim_end().to_owned();
        let off = if row.holds() { "" } else { ", off" };
        table += &format!(
            "| {} | {} | {} | {} | {} | {:+.1} %{off} | {} |\n",
            row.number,
            row.profile,
            row.what,
            figure(row.published),
            figure(row.model),
            100.0 * row.error(),
            row.fitted
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_and_are_as_the_documents_have_them() {
        let rows = all(Profile::load).unwrap();
        let off: Vec<_> = rows.iter().filter(|row| !row.holds()).collect();
        assert!(off.is_empty(), "{off:?}");
        let document = include_str!("../../../../docs/time.md");
        let table = table(&rows);
        assert!(
            document.contains(&table),
            "docs/time.md: expected the table of `ironverbs sim calibrate`:\n{table}"
        );
    }
}
