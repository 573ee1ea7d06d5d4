//! perftest's latency and throughput figures.

use super::super::sched::Ps;

/// Latencies in microseconds, with perftest's columns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Latency {
    pub min: f64,
    pub max: f64,
    pub typical: f64,
    pub avg: f64,
    pub stdev: f64,
    pub p99: f64,
    pub p99_9: f64,
}

/// Throughput with perftest's columns: MB/s of 2^20 bytes, and millions of messages per second.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Bandwidth {
    pub peak: f64,
    pub average: f64,
    pub mpps: f64,
}

impl Bandwidth {
    /// The average in Gb/s.
    pub fn gbps(&self) -> f64 {
        self.average * MIB * 8.0 / 1e9
    }
}

const PS_PER_US: f64 = 1e6;
const MIB: f64 = 1048576.0;

/// Computes perftest's columns of latencies.
pub(super) fn latency(samples: &[Ps]) -> Latency {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    let us = |ps: Ps| ps as f64 / PS_PER_US;
    let avg = sorted.iter().map(|s| us(*s)).sum::<f64>() / n as f64;
    let variance = sorted.iter().map(|s| (us(*s) - avg).powi(2)).sum::<f64>() / n as f64;
    let rank = |q: f64| us(sorted[((n as f64 * q) as usize).min(n - 1)]);
    Latency {
        min: us(sorted[0]),
        max: us(sorted[n - 1]),
        typical: us(sorted[n / 2]),
        avg,
        stdev: variance.sqrt(),
        p99: rank(0.99),
        p99_9: rank(0.999),
    }
}

/// Computes the bandwidth of messages of `bytes` from their post times and from the completions: time at which each was seen,
/// and the number of messages that it covers. Both lists are in order of time and not empty.
pub(super) fn bandwidth(bytes: u32, posted: &[Ps], done: &[(Ps, u32)]) -> Bandwidth {
    const PS: f64 = 1e12;
    let average = posted.len() as f64 / done.last().map_or(1.0, |(at, _)| (*at).max(1) as f64);
    // The peak is the smallest rate that no stretch exceeds.
    let mut peak = average;
    while let Some(better) = faster_stretch(posted, done, peak) {
        peak = better;
    }
    Bandwidth {
        peak: peak * PS * f64::from(bytes) / MIB,
        average: average * PS * f64::from(bytes) / MIB,
        mpps: average * PS / 1e6,
    }
}

/// Finds one of perftest's stretches that is faster than `rate`, and returns its rate in messages per picosecond. A stretch is
/// the time from the post of a message to the completion of as many messages as were posted by then.
fn faster_stretch(posted: &[Ps], done: &[(Ps, u32)], rate: f64) -> Option<f64> {
    // Messages in excess of `rate` at a time.
    let ahead = |messages: usize, at: Ps| messages as f64 - rate * at as f64;
    let (mut from, mut tried, mut completed) = (0, 0, 0);
    let mut best = (1e-6, None);
    for (at, messages) in done {
        completed += *messages as usize;
        while tried < completed.min(posted.len()) {
            if ahead(tried, posted[tried]) < ahead(from, posted[from]) {
                from = tried;
            }
            tried += 1;
        }
        let gain = ahead(completed, *at) - ahead(from, posted[from]);
        if gain > best.0 {
            let faster = (completed - from) as f64 / (at - posted[from]).max(1) as f64;
            best = (gain, Some(faster).filter(|faster| *faster > rate));
        }
    }
    best.1
}
