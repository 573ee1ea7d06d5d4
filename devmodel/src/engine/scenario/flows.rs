//! Patterns of flows, and parsers of flow files.

use super::Flow;
use crate::engine::{
    sched::Ps,
    sim::Operation,
    text::{TextError, Words},
    timing::Dice,
};

/// Each host in `from` writes `bytes` to `to`.
pub fn incast(from: &[usize], to: usize, bytes: u64) -> Vec<Flow> {
    from.iter().filter(|host| **host != to).map(|host| Flow::write(*host, to, bytes)).collect()
}

/// Each of `hosts` writes `bytes` to every other.
pub fn all_to_all(hosts: &[usize], bytes: u64) -> Vec<Flow> {
    hosts.iter().flat_map(|to| incast(hosts, *to, bytes)).collect()
}

/// Each of `hosts` writes `bytes` to one other and is written to by one; `seed` determines the pairs.
pub fn permutation(hosts: &[usize], bytes: u64, seed: u64) -> Vec<Flow> {
    let mut dice = Dice::new(seed);
    // A random cycle through all of them (Sattolo's shuffle), so that no host writes to itself.
    let mut order: Vec<usize> = hosts.to_vec();
    for i in (1..order.len()).rev() {
        order.swap(i, (dice.throw() * (i + 1) as f64) as usize);
    }
    let next = order.iter().cycle().skip(1);
    order
        .iter()
        .zip(next)
        .filter(|(from, to)| from != to)
        .map(|(from, to)| Flow::write(*from, *to, bytes))
        .collect()
}

/// Parses a flow file of HPCC's simulator: the number of flows; then for each the two hosts, priority, port, bytes, and start
/// time in seconds. Text after that is ignored. `file` is its name, for errors.
///
/// # Errors
///
/// A word is invalid.
pub fn hpcc(file: &str, text: &str) -> Result<Vec<Flow>, TextError> {
    let mut words = Words::of(file, text);
    let count: usize = words.next("the number of flows")?;
    let mut flows = Vec::new();
    for _ in 0..count {
        let (from, to) = (words.next("the host a flow is from")?, words.next("the host a flow is for")?);
        let _: u8 = words.next("a flow's priority")?;
        let (port, bytes) = (words.next("a flow's port")?, words.next("a flow's bytes")?);
        let start: f64 = words.next("when a flow begins, in seconds")?;
        let start = seconds(start).ok_or_else(|| words.wrong("when a flow begins, in seconds", start))?;
        flows.push(Flow { from, to, bytes, start, operation: Operation::Write, port });
    }
    Ok(flows)
}

/// Converts seconds, at most a day.
fn seconds(seconds: f64) -> Option<Ps> {
    (0.0..86400.0).contains(&seconds).then_some((seconds * 1e12) as Ps)
}

/// Parses a connection matrix of htsim: `Nodes`, `Connections`, and for each connection a line such as `1->0 id 1 start 0 size
/// 2000000`, with the start in picoseconds. `file` is its name, for errors.
///
/// # Errors
///
/// A word is invalid; connections that wait for others (`trigger`) are not supported.
pub fn htsim(file: &str, text: &str) -> Result<Vec<Flow>, TextError> {
    let mut words = Words::of(file, text);
    let mut number = |name: &str| -> Result<usize, TextError> {
        match words.word(name)? {
            word if word == name => words.next(name),
            word => Err(words.wrong(name, word)),
        }
    };
    let (nodes, count) = (number("Nodes")?, number("Connections")?);
    let mut flows = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains("->"));
    for (at, line) in lines.take(count) {
        let wrong = |expected: &str, found: &str| TextError::expected(file, at + 1, expected, found);
        let mut parts = line.split_whitespace();
        let pair = parts.next().unwrap_or_default();
        let hosts = pair.split_once("->").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to) = hosts.ok_or_else(|| wrong("two hosts, as 1->0", pair))?;
        if nodes <= from || nodes <= to {
            return Err(wrong("hosts below the number of nodes", pair));
        }
        let mut flow = Flow::write(from, to, 0);
        while let Some(key) = parts.next() {
            let word = parts.next().unwrap_or("the end of the line");
            let value: Option<f64> = word.parse().ok().filter(|value| (0.0..1e18).contains(value));
            match (key, value) {
                ("id", Some(_)) => {}
                ("start", Some(start)) => flow.start = start as Ps,
                ("size", Some(bytes)) => flow.bytes = bytes as u64,
                ("id" | "start" | "size", None) => return Err(wrong("a number", word)),
                _ => return Err(wrong("id, start or size", key)),
            }
        }
        flows.push(flow);
    }
    match flows.len() == count {
        true => Ok(flows),
        false => {
            let (line, expected) = (text.lines().count(), format!("{count} connections"));
            Err(TextError::expected(file, line, &expected, flows.len()))
        }
    }
}
