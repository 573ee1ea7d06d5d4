//! Compares the model with measurements of cards: the table of docs/time.md.

use super::{Figures, Latency, Measure, Operation, Plan, Report, SimError, bench, run};
use crate::engine::{
    network::{Topology, TopologyError},
    scenario::{Flow, Scenario, ScenarioError},
    timing::{ProfileError, Rate, TimingProfile},
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

/// A kind of figure: its unit, tolerance, and location in a report.
type Kind = (&'static str, f64, fn(&Report) -> f64);

const LEAST: Kind = ("us", LATENCY, |report| latency(report).min);
const TYPICAL: Kind = ("us", LATENCY, |report| latency(report).typical);
const AVERAGE: Kind = ("us", LATENCY, |report| latency(report).avg);
const P99: Kind = ("us", LATENCY, |report| latency(report).p99);
const P99_9: Kind = ("us", LATENCY, |report| latency(report).p99_9);
const GBPS: Kind = ("Gb/s", RATE, gbps);
/// MB/s of perftest, of 2^20 bytes.
const MBPS: Kind = ("MB/s", RATE, |report| gbps(report) * 1e9 / 8.0 / 1048576.0);
/// Millions of messages per second.
const MPPS: Kind = ("M/s", RATE, |report| gbps(report) * 1e3 / 8.0 / f64::from(report.bytes));
/// Packets other than acknowledgements, for each acknowledgement.
const PACKETS: Kind = ("", RATE, |r| (r.frames[0] - r.frames[1]) as f64 / r.frames[1] as f64);

/// A figure of a run: its name, published value, kind, and the profile parameters that it decides.
type Figure = (&'static str, f64, Kind, &'static str);

/// A run: its number, profile, pattern, options that differ from perftest's defaults, and the published figures for it.
type Run = (u32, &'static str, (Operation, Measure, u32), fn(&mut Plan), &'static [Figure]);

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

const NONE: fn(&mut Plan) = |_| ();

use Measure::{Bandwidth as Bw, Latency as Lat};
use Operation::{FetchAdd, Read, Send, Write};

const RUNS: &[Run] = &[
    (
        1,
        "direct-x16",
        (Send, Lat, 2),
        |plan| plan.iters = MANY,
        &[
            ("SEND lat 2 B, typical", 0.83, TYPICAL, "send, receive"),
            ("99 %", 1.01, P99, "spread_cq"),
            ("99.9 %", 2.14, P99_9, "spread_cq"),
        ],
    ),
    (2, "direct-x16", (Send, Lat, 64), NONE, &[("SEND lat 64 B", 0.91, TYPICAL, "write, pio_block")]),
    (2, "direct-x16", (Send, Lat, 128), NONE, &[("SEND lat 128 B", 0.95, TYPICAL, "pio_block, send_block")]),
    (3, "direct-x16", (Send, Lat, 256), NONE, &[("SEND lat 256 B", 1.30, TYPICAL, "memory, one_way")]),
    (4, "direct-x16", (Send, Lat, 4096), NONE, &[("SEND lat 4096 B", 2.18, TYPICAL, "read_pace")]),
    (5, "direct-x16", (Send, Bw, 65536), NONE, &[("SEND bandwidth 64 KiB", 98.15, GBPS, "")]),
    (6, "direct-x16", (Send, Bw, 64), NONE, &[("SEND rate 64 B", 7.83, MPPS, "post_rate")]),
    (
        7,
        "direct-x8",
        (Write, Lat, 8),
        |plan| plan.iters = MANY,
        &[
            ("WRITE lat 8 B, least", 0.93, LEAST, "poll_memory"),
            ("typical", 0.99, TYPICAL, "spread_memory"),
            ("99 %", 1.15, P99, "spread_memory"),
            ("99.9 %", 1.40, P99_9, "spread_memory"),
        ],
    ),
    (
        8,
        "direct-x8",
        (Send, Lat, 8),
        |plan| plan.iters = MANY,
        &[
            ("SEND lat 8 B, least", 0.89, LEAST, "post, poll_cq"),
            ("typical", 0.92, TYPICAL, "spread_cq"),
            ("99 %", 0.95, P99, "spread_cq"),
        ],
    ),
    (
        9,
        "direct-x8",
        (Write, Bw, 1 << 20),
        |plan| plan.iters = 1000,
        &[("WRITE bandwidth 1 MiB", 55.87, GBPS, "overhead")],
    ),
    (
        9,
        "direct-x8",
        (Send, Bw, 1 << 20),
        |plan| plan.iters = 1000,
        &[("SEND bandwidth 1 MiB", 55.88, GBPS, "")],
    ),
    (10, "pods-switch", (Read, Lat, 2), NONE, &[("READ lat 2 B", 2.69, TYPICAL, "memory, one_way, answer")]),
    (10, "pods-switch", (Write, Lat, 2), NONE, &[("WRITE lat 2 B", 1.58, TYPICAL, "post, poll_memory")]),
    (10, "pods-switch", (Send, Lat, 2), NONE, &[("SEND lat 2 B", 1.68, TYPICAL, "poll_cq")]),
    (11, "pods-switch", (FetchAdd, Lat, 8), NONE, &[("FETCH_ADD lat 8 B", 2.65, TYPICAL, "")]),
    (11, "pods-switch", (FetchAdd, Bw, 8), NONE, &[("FETCH_ADD rate, 16 under way", 2.17, MPPS, "atomic")]),
    (12, "pods-switch", (Write, Bw, 65536), NONE, &[("WRITE bandwidth 64 KiB", 11024.0, MBPS, "")]),
    (12, "pods-switch", (Send, Bw, 65536), NONE, &[("SEND bandwidth 64 KiB", 10986.0, MBPS, "")]),
    (12, "pods-switch", (Read, Bw, 65536), NONE, &[("READ bandwidth 64 KiB", 10401.0, MBPS, "read_answer")]),
    (
        13,
        "switch-25g",
        (Write, Lat, 8),
        |plan| plan.iters = MANY,
        &[("WRITE lat 8 B, typical", 2.13, TYPICAL, "switch, post"), ("99 %", 2.19, P99, "spread_memory")],
    ),
    (
        14,
        "pods-switch",
        (Write, Bw, 1),
        |plan| (plan.depth, plan.inline) = (1, 1),
        &[("WRITE 1 B, one under way", 0.478, MPPS, "complete")],
    ),
    (
        14,
        "pods-switch",
        (Write, Bw, 1),
        |plan| (plan.depth, plan.moderation, plan.inline) = (8, 1, 1),
        &[("WRITE 1 B, eight under way", 3.1, MPPS, "")],
    ),
    (
        15,
        "direct-x16",
        (Write, Bw, 1 << 20),
        |plan| plan.iters = 200,
        &[("packets for an ACK, WRITE 1 MiB", 28.5, PACKETS, "ack_every")],
    ),
    (
        17,
        "pods-slow-host",
        (Read, Lat, 2),
        |plan| plan.iters = MANY,
        &[
            ("READ lat 2 B, least", 6.66, LEAST, "post, poll_cq"),
            ("typical", 6.74, TYPICAL, "spread_cq"),
            ("average", 6.82, AVERAGE, "spread_cq"),
            ("99 %", 7.15, P99, "spread_cq"),
            ("99.9 %", 20.37, P99_9, "spread_cq"),
        ],
    ),
];

/// Runs all rows. `load` loads profiles like [`TimingProfile::load`].
///
/// # Errors
///
/// A profile cannot be loaded, or a run is refused.
pub fn all(load: impl Fn(&str) -> Result<TimingProfile, ProfileError>) -> Result<Vec<Row>, RowError> {
    let mut rows = Vec::new();
    for (number, profile, (operation, measure, bytes), change, figures) in RUNS {
        let mut plan = Plan::new(*operation, *measure, load(profile)?);
        plan.bytes = *bytes;
        change(&mut plan);
        let report = run(&plan)?;
        rows.extend(figures.iter().map(|(what, published, (unit, tolerance, value), fitted)| Row {
            number: *number,
            profile,
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
fn reads(load: impl Fn(&str) -> Result<TimingProfile, ProfileError>, qps: usize) -> Result<f64, RowError> {
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
        let rows = all(TimingProfile::load).unwrap();
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
