//! The nodes of a network, and the links between them.

use crate::engine::{
    sched::Ps,
    text::{TextError, Words},
    timing::Rate,
};
use std::collections::VecDeque;

/// A cable between two nodes, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The nodes it connects.
    pub ends: [usize; 2],
    /// Its rate.
    pub gbps: Rate,
    /// Propagation delay, in picoseconds.
    pub delay: Ps,
    /// Share of frames that are lost, 0 to 1.
    pub loss: f64,
}

/// Hosts, switches, and the links between them. Each host has one link.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// For each node, true if it is a switch.
    switches: Vec<bool>,
    links: Vec<Link>,
}

/// Error in a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TopologyError {
    #[error("link {0}: expected nodes 0 to {2}, found {1}")]
    Node(usize, usize, usize),
    #[error("link {0}: expected two nodes, found {1} twice")]
    Loop(usize, usize),
    #[error("host {0}: expected one link, found {1}")]
    Links(usize, usize),
    #[error("expected 2 to {most} hosts, found {0}", most = Topology::MOST_HOSTS)]
    Hosts(usize),
    #[error("expected all hosts to be joined, found no way from host {0} to host {1}")]
    Apart(usize, usize),
}

impl Topology {
    /// The maximum number of hosts; each is a function of the model's adapter.
    pub const MOST_HOSTS: usize = 128;

    /// Nodes numbered from 0, of which those with `true` in `switches` are switches, connected by `links`.
    ///
    /// # Errors
    ///
    /// A link ends at a nonexistent node, a host has no link or several, there are too many hosts, or the network is not connected.
    pub fn new(switches: Vec<bool>, links: Vec<Link>) -> Result<Self, TopologyError> {
        let mut count = vec![0; switches.len()];
        for (number, link) in links.iter().enumerate() {
            for node in link.ends {
                *count.get_mut(node).ok_or(TopologyError::Node(
                    number,
                    node,
                    switches.len().saturating_sub(1),
                ))? += 1;
            }
            if link.ends[0] == link.ends[1] {
                return Err(TopologyError::Loop(number, link.ends[0]));
            }
        }
        let topology = Self { switches, links };
        let hosts = topology.hosts();
        if !(2..=Self::MOST_HOSTS).contains(&hosts.len()) {
            return Err(TopologyError::Hosts(hosts.len()));
        }
        if let Some(host) = hosts.iter().find(|host| count[**host] != 1) {
            return Err(TopologyError::Links(*host, count[*host]));
        }
        let distance = topology.distances(hosts[0]);
        match hosts.iter().find(|host| distance[**host] == usize::MAX) {
            Some(host) => Err(TopologyError::Apart(hosts[0], *host)),
            None => Ok(topology),
        }
    }

    /// `hosts` at one switch, each with a link of `gbps` and `delay`. Hosts are the nodes from 0 on.
    ///
    /// # Errors
    ///
    /// There are too few hosts, or too many.
    pub fn star(hosts: usize, gbps: Rate, delay: Ps) -> Result<Self, TopologyError> {
        let links = (0..hosts).map(|host| Link { ends: [host, hosts], gbps, delay, loss: 0.0 }).collect();
        let switches = (0..=hosts).map(|node| node == hosts).collect();
        Self::new(switches, links)
    }

    /// `leaves` switches with `hosts` each, connected by `spines` others; all links have `gbps` and `delay`. Hosts are the
    /// nodes from 0 on, followed by the leaves.
    ///
    /// # Errors
    ///
    /// There are too few hosts or too many, or there is no spine for several leaves.
    pub fn leaf_spine(
        leaves: usize,
        hosts: usize,
        spines: usize,
        gbps: Rate,
        delay: Ps,
    ) -> Result<Self, TopologyError> {
        let all = leaves.saturating_mul(hosts);
        if all > Self::MOST_HOSTS {
            return Err(TopologyError::Hosts(all));
        }
        let link = |a, b| Link { ends: [a, b], gbps, delay, loss: 0.0 };
        let down = (0..all).map(|host| link(host, all + host / hosts.max(1)));
        let up =
            (0..leaves).flat_map(|leaf| (0..spines).map(move |spine| (all + leaf, all + leaves + spine)));
        let links = down.chain(up.map(|(leaf, spine)| link(leaf, spine))).collect();
        let switches = (0..all + leaves + spines).map(|node| node >= all).collect();
        Self::new(switches, links)
    }

    /// Parses a topology file of HPCC's simulator: the numbers of nodes, switches and links; the switches' node numbers; and
    /// for each link its nodes, rate (`100Gbps`), delay (`1000ns`) and loss. `file` is its name, for errors.
    ///
    /// # Errors
    ///
    /// A word is invalid, or the topology is.
    pub fn parse(file: &str, text: &str) -> Result<Self, TextError> {
        let mut words = Words::of(file, text);
        let nodes: usize = words.next("the number of nodes")?;
        let count: usize = words.next("the number of switches")?;
        let links: usize = words.next("the number of links")?;
        if nodes > 1 << 16 || count > nodes || links > 1 << 20 {
            return Err(
                words.wrong("at most 65536 nodes and 1048576 links", format!("{nodes} {count} {links}"))
            );
        }
        let mut switches = vec![false; nodes];
        for _ in 0..count {
            let node: usize = words.next("the number of a switch")?;
            *switches.get_mut(node).ok_or_else(|| words.wrong("the number of a switch", node))? = true;
        }
        let mut all = Vec::new();
        for _ in 0..links {
            let ends = [words.next("a link's first node")?, words.next("a link's second node")?];
            let word = words.word("a link's rate")?;
            let gbps = rate(word).ok_or_else(|| words.wrong("a link's rate, as 100Gbps", word))?;
            let word = words.word("a link's delay")?;
            let delay = time(word).ok_or_else(|| words.wrong("a link's delay, as 1000ns", word))?;
            let loss: f64 = words.next("a link's loss")?;
            if !(0.0..=1.0).contains(&loss) {
                return Err(words.wrong("a link's loss, 0 to 1", loss));
            }
            all.push(Link { ends, gbps, delay, loss });
            if ends.iter().any(|end| *end >= nodes) {
                return Err(
                    words.wrong("nodes below the number of nodes", format!("{} and {}", ends[0], ends[1]))
                );
            }
        }
        Self::new(switches, all).map_err(|e| words.refused(e))
    }

    /// For each node, true if it is a switch.
    pub fn switches(&self) -> &[bool] {
        &self.switches
    }

    /// The links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The nodes that are hosts, in order.
    pub fn hosts(&self) -> Vec<usize> {
        (0..self.switches.len()).filter(|node| !self.switches[*node]).collect()
    }

    /// The links of a node, by number.
    pub(super) fn links_of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.links.len()).filter(move |link| self.links[*link].ends.contains(&node))
    }

    /// Time, in picoseconds, for `bytes` from one host to another and their acknowledgement back on an otherwise idle path with
    /// a switch latency of `latency`; 0 if there is no path.
    pub(crate) fn alone(&self, from: usize, to: usize, bytes: u64, latency: Ps) -> Ps {
        let distance = self.distances(to);
        let (mut at, mut delay, mut slowest) = (from, 0, f64::MAX);
        while at != to {
            let next = self.links_of(at).map(|link| self.links[link]).find_map(|link| {
                let other = if link.ends[0] == at { link.ends[1] } else { link.ends[0] };
                (distance[other] < distance[at]).then_some((other, link))
            });
            let Some((other, link)) = next else { return 0 };
            delay += link.delay + if self.switches[other] { latency } else { 0 };
            slowest = slowest.min(link.gbps.0);
            at = other;
        }
        2 * delay + Rate(slowest).time(bytes)
    }

    /// Number of links from each node to `host`, on paths that pass no other host.
    pub(super) fn distances(&self, host: usize) -> Vec<usize> {
        let mut joined = vec![Vec::new(); self.switches.len()];
        for link in &self.links {
            joined[link.ends[0]].push(link.ends[1]);
            joined[link.ends[1]].push(link.ends[0]);
        }
        let mut distance = vec![usize::MAX; self.switches.len()];
        distance[host] = 0;
        let mut next = VecDeque::from([host]);
        while let Some(node) = next.pop_front() {
            for other in &joined[node] {
                if distance[*other] == usize::MAX {
                    distance[*other] = distance[node] + 1;
                    if self.switches[*other] {
                        next.push_back(*other);
                    }
                }
            }
        }
        distance
    }
}

/// Parses a number with a unit and multiplies it by the unit's value.
fn with_unit(word: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (unit, by) = units.iter().find(|(unit, _)| word.ends_with(unit))?;
    let number: f64 = word[..word.len() - unit.len()].parse().ok()?;
    Some(number * by).filter(|number| number.is_finite() && *number >= 0.0)
}

/// Parses a rate in ns-3's notation.
fn rate(word: &str) -> Option<Rate> {
    let gbps = with_unit(word, &[("Gbps", 1.0), ("Gb/s", 1.0), ("Mbps", 1e-3), ("Mb/s", 1e-3)])?;
    (1e-3..1e6).contains(&gbps).then_some(Rate(gbps))
}

/// Parses a time in ns-3's notation.
fn time(word: &str) -> Option<Ps> {
    let ps = with_unit(word, &[("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12)])?;
    (ps < 1e15).then_some(ps as Ps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_RACKS: &str = "6 2 5\n4 5\n0 4 100Gbps 1us 0\n1 4 100Gbps 1000ns 0\n2 5 25Gbps 0.001ms 0.5\n3 5 25Gbps 1us 0\n4 5 400Gbps 2us 0\n";

    #[test]
    fn a_file_of_hpcc_is_read() {
        let topology = Topology::parse("two.txt", TWO_RACKS).unwrap();
        assert_eq!(topology.hosts(), [0, 1, 2, 3]);
        assert_eq!(topology.distances(0), [0, 2, 3, 3, 1, 2]);
        let third = Link { ends: [2, 5], gbps: Rate(25.0), delay: 1_000_000, loss: 0.5 };
        assert_eq!(topology.links()[2], third);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        let said = |from: &str, to: &str| {
            Topology::parse("two.txt", &TWO_RACKS.replace(from, to)).unwrap_err().to_string()
        };
        assert_eq!(said("25Gbps 1us", "25 1us"), "two.txt:6: expected a link's rate, as 100Gbps, found 25");
        assert_eq!(
            said("400Gbps 2us", "400Gbps -2us"),
            "two.txt:7: expected a link's delay, as 1000ns, found -2us"
        );
        assert_eq!(said("0.5", "2"), "two.txt:5: expected a link's loss, 0 to 1, found 2");
        assert_eq!(
            said("3 5 25", "3 9 25"),
            "two.txt:6: expected nodes below the number of nodes, found 3 and 9"
        );
        assert_eq!(
            said("6 2 5", "6 2 6"),
            "two.txt:7: expected a link's first node, found the end of the file"
        );
        assert_eq!(said("4 5\n0", "4 7\n0"), "two.txt:2: expected the number of a switch, found 7");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let link = |a, b| Link { ends: [a, b], gbps: Rate(100.0), delay: 0, loss: 0.0 };
        let refused =
            |switches: &[bool], links: &[Link]| Topology::new(switches.to_vec(), links.to_vec()).unwrap_err();
        let two_stars = [link(0, 2), link(1, 3)];
        assert_eq!(refused(&[false, false, true, true], &two_stars), TopologyError::Apart(0, 1));
        assert_eq!(refused(&[false, false, true], &[link(0, 2)]), TopologyError::Links(1, 0));
        assert_eq!(refused(&[false, false, true], &[link(0, 3)]), TopologyError::Node(0, 3, 2));
        assert_eq!(refused(&[false, false, true], &[link(0, 0)]), TopologyError::Loop(0, 0));
        assert_eq!(Topology::star(1, Rate(100.0), 0).unwrap_err(), TopologyError::Hosts(1));
        assert_eq!(Topology::star(129, Rate(100.0), 0).unwrap_err(), TopologyError::Hosts(129));
        assert!(Topology::leaf_spine(2, 4, 0, Rate(100.0), 0).is_err());
        assert_eq!(Topology::leaf_spine(4, 32, 4, Rate(100.0), 0).unwrap().hosts().len(), 128);
    }
}
