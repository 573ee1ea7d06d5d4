//! Packets on their way through links and switches.
//!
//! A switch has a queue per port and one shared buffer. It uses the shortest path, and hashes the connection to choose among
//! several. It marks packets when a queue is long (ECN), pauses the sender to a port through which much has arrived (PFC), and
//! drops when the buffer is full. Congestion notifications have priority and are never paused.

use super::Topology;
use crate::engine::{
    sched::Ps,
    timing::{Dice, Rate},
};
use serde::Deserialize;
use std::collections::VecDeque;

/// Bytes of a pause frame without its FCS.
const PAUSE_FRAME: u64 = 60;

/// Marking by switches: never below `kmin` queued bytes, with a probability that rises to `pmax` at `kmax`, and always above.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Ecn {
    pub kmin: u64,
    pub kmax: u64,
    pub pmax: f64,
}

/// Pausing by switches: the sender to a port is paused once `pause` bytes that arrived through the port are buffered, and
/// resumed when fewer than `resume` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Pfc {
    pub pause: u64,
    pub resume: u64,
}

/// Settings of the switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Size of a switch's buffer in bytes.
    pub buffer: u64,
    /// Forwarding latency of a switch, in picoseconds.
    pub latency: Ps,
    /// A switch receives a packet completely before it forwards it.
    pub store_and_forward: bool,
    /// ECN marking, if enabled.
    pub ecn: Option<Ecn>,
    /// PFC, if enabled.
    pub pfc: Option<Pfc>,
}

/// A packet that carries a `T`.
pub(crate) struct Packet<T> {
    /// Index of the destination host.
    pub to: usize,
    /// Hash of its connection.
    pub hash: u32,
    /// Bytes from the first header to the ICRC.
    pub bytes: u64,
    /// It has priority and is never paused.
    pub urgent: bool,
    /// Its sender is ECN-capable.
    pub may_mark: bool,
    /// It has met congestion.
    pub marked: bool,
    /// Port through which it entered its current node.
    by: usize,
    /// Time at which its last bit arrives.
    whole: Ps,
    pub item: T,
}

impl<T> Packet<T> {
    pub(crate) fn new(to: usize, hash: u32, bytes: u64, item: T) -> Self {
        Self { to, hash, bytes, urgent: false, may_mark: false, marked: false, by: 0, whole: 0, item }
    }
}

/// An event in the fabric.
pub(crate) enum Move<T> {
    /// The last bit of a packet has left a host's card.
    Left(usize, Packet<T>),
    /// A packet has arrived at a node; a switch may forward it now.
    Arrived(usize, Packet<T>),
    /// A port has sent a packet.
    Sent(usize, usize),
    /// The peer of a port pauses or resumes it.
    Pause(usize, usize, bool),
}

/// A port was paused or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Time, in picoseconds.
    pub at: Ps,
    /// The node of the port.
    pub node: usize,
    /// The port, in the order of the node's links.
    pub port: usize,
    /// True for a pause, false for its end.
    pub on: bool,
}

/// The load of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortLoad {
    /// Bytes queued.
    pub queued: u64,
    /// Maximum of bytes queued.
    pub most: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets dropped for lack of buffer space.
    pub dropped: u64,
    /// Packets lost on the link.
    pub lost: u64,
    /// Total pause time, in picoseconds.
    pub paused: Ps,
}

struct Port<T> {
    /// The node at the other end, and its port.
    peer: (usize, usize),
    rate: Rate,
    delay: Ps,
    loss: f64,
    queue: VecDeque<Packet<T>>,
    urgent: VecDeque<Packet<T>>,
    /// The packet being sent: its bytes, and the port through which it arrived.
    sending: Option<(u64, usize)>,
    /// Start of the current pause.
    paused: Option<Ps>,
    load: PortLoad,
}

impl<T> Port<T> {
    fn time(&self, bytes: u64) -> Ps {
        self.rate.frame(bytes)
    }

    fn is_free(&self) -> bool {
        self.sending.is_none() && self.queue.is_empty() && self.urgent.is_empty() && self.paused.is_none()
    }
}

struct Node<T> {
    is_switch: bool,
    ports: Vec<Port<T>>,
    /// For each host, the ports on the shortest paths to it.
    ways: Vec<Vec<u16>>,
    /// Bytes in the buffer: total, and by arrival port.
    used: u64,
    came: Vec<u64>,
    /// For each port, true if the sender to it is paused.
    pauses: Vec<bool>,
}

/// All links and switches, and the packets in them.
pub(crate) struct Fabric<T> {
    nodes: Vec<Node<T>>,
    /// The nodes that are hosts.
    hosts: Vec<usize>,
    settings: Settings,
    dice: Dice,
    /// Starts and ends of pauses.
    pub pauses: Vec<Pause>,
    /// Hosts with a port that may send again.
    pub released: Vec<usize>,
}

/// Schedules an event.
type Then<'a, T> = &'a mut dyn FnMut(Ps, Move<T>);

impl<T> Fabric<T> {
    pub(crate) fn new(topology: &Topology, settings: Settings, seed: u64) -> Self {
        let hosts = topology.hosts();
        let links_of: Vec<Vec<usize>> =
            (0..topology.switches().len()).map(|node| topology.links_of(node).collect()).collect();
        let port = |node: usize, link: usize| {
            let one = topology.links()[link];
            let other = if one.ends[0] == node { one.ends[1] } else { one.ends[0] };
            let there = links_of[other].iter().position(|l| *l == link).unwrap_or(0);
            Port {
                peer: (other, there),
                rate: one.gbps,
                delay: one.delay,
                loss: one.loss,
                queue: VecDeque::new(),
                urgent: VecDeque::new(),
                sending: None,
                paused: None,
                load: PortLoad::default(),
            }
        };
        let distances: Vec<Vec<usize>> = hosts.iter().map(|host| topology.distances(*host)).collect();
        let nodes = links_of.iter().enumerate().map(|(node, links)| {
            let ports: Vec<_> = links.iter().map(|link| port(node, *link)).collect();
            let ways = hosts.iter().zip(&distances).map(|(host, distance)| {
                let peers = ports.iter().map(|port| port.peer.0).enumerate();
                let nearer = peers.filter(|(_, peer)| {
                    let passes = topology.switches()[*peer] || peer == host;
                    passes && distance[*peer] != usize::MAX && distance[*peer] < distance[node]
                });
                nearer.map(|(port, _)| port as u16).collect()
            });
            let (ways, count) = (ways.collect(), ports.len());
            Node {
                is_switch: topology.switches()[node],
                ports,
                ways,
                used: 0,
                came: vec![0; count],
                pauses: vec![false; count],
            }
        });
        let nodes = nodes.collect();
        Self { nodes, hosts, settings, dice: Dice::new(seed), pauses: Vec::new(), released: Vec::new() }
    }

    /// The loads of the ports of all nodes.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (usize, usize, PortLoad)> + '_ {
        let of = |(number, node): (usize, &'_ Node<T>)| {
            node.ports
                .iter()
                .map(|port| port.load)
                .enumerate()
                .map(move |(p, load)| (number, p, load))
                .collect::<Vec<_>>()
        };
        self.nodes.iter().enumerate().flat_map(of)
    }

    /// True if a host's card must not generate more packets now.
    pub(crate) fn is_held(&self, host: usize) -> bool {
        let port = &self.nodes[self.hosts[host]].ports[0];
        port.paused.is_some() || !port.queue.is_empty()
    }

    /// Pauses or resumes the sender to a host, on behalf of its card.
    pub(crate) fn hold(&mut self, now: Ps, host: usize, on: bool, then: Then<'_, T>) {
        self.tell(now, (self.hosts[host], 0), on, then);
    }

    /// Handles an event. Returns a packet that has arrived at its host.
    pub(crate) fn happen(&mut self, now: Ps, what: Move<T>, then: Then<'_, T>) -> Option<Packet<T>> {
        match what {
            Move::Left(host, packet) => self.leave(now, self.hosts[host], packet, then),
            Move::Arrived(node, packet) if self.nodes[node].is_switch => {
                self.forward(now, node, packet, then)
            }
            Move::Arrived(_, packet) => return Some(packet),
            Move::Sent(node, port) => self.sent(now, node, port, then),
            Move::Pause(node, port, on) => self.pause(now, (node, port), on, then),
        }
        None
    }

    /// Puts a packet that a card has sent completely on the link, or queues it if the link is paused or busy.
    fn leave(&mut self, now: Ps, node: usize, packet: Packet<T>, then: Then<'_, T>) {
        if self.nodes[node].ports[0].is_free() || packet.urgent && self.nodes[node].ports[0].sending.is_none()
        {
            self.nodes[node].ports[0].load.packets += 1;
            self.cross(now, (node, 0), packet, then);
        } else {
            self.enqueue(now, (node, 0), packet, then);
        }
    }

    /// Puts a packet with its last bit leaving at `left` on the link of a port.
    fn cross(&mut self, left: Ps, (node, port): (usize, usize), mut packet: Packet<T>, then: Then<'_, T>) {
        let from = &mut self.nodes[node].ports[port];
        if from.loss > 0.0 && self.dice.throw() < from.loss {
            from.load.lost += 1;
            return;
        }
        let (peer, there) = from.peer;
        let (whole, took) = (left + from.delay, from.time(packet.bytes));
        (packet.by, packet.whole) = (there, whole);
        let at = match self.nodes[peer].is_switch {
            // A switch forwards it when its first bits have arrived, or only when all have.
            true if self.settings.store_and_forward => whole + self.settings.latency,
            true => whole.saturating_sub(took) + self.settings.latency,
            false => whole,
        };
        then(at, Move::Arrived(peer, packet));
    }

    /// Forwards a packet in a switch.
    fn forward(&mut self, now: Ps, node: usize, mut packet: Packet<T>, then: Then<'_, T>) {
        let Settings { buffer, ecn, pfc, .. } = self.settings;
        let here = &mut self.nodes[node];
        let ways = &here.ways[packet.to];
        let Some(out) = ways.get(packet.hash as usize % ways.len().max(1)).map(|way| usize::from(*way))
        else {
            return;
        };
        let load = &mut here.ports[out].load;
        if here.used + packet.bytes > buffer {
            load.dropped += 1;
            return;
        }
        if let Some(ecn) = ecn.filter(|_| packet.may_mark && !packet.urgent) {
            let mark = match load.queued {
                queued if queued < ecn.kmin => false,
                queued if queued >= ecn.kmax => true,
                queued => {
                    let share = (queued - ecn.kmin) as f64 / (ecn.kmax - ecn.kmin).max(1) as f64;
                    self.dice.throw() < share * ecn.pmax
                }
            };
            packet.marked |= mark;
            load.marked += u64::from(mark);
        }
        here.used += packet.bytes;
        let by = packet.by;
        here.came[by] += packet.bytes;
        if let Some(pfc) = pfc.filter(|pfc| here.came[by] >= pfc.pause && !here.pauses[by]) {
            debug_assert!(pfc.resume <= pfc.pause);
            here.pauses[by] = true;
            self.tell(now, (node, by), true, then);
        }
        self.enqueue(now, (node, out), packet, then);
    }

    /// Tells the sender to a port to pause or to resume.
    fn tell(&mut self, now: Ps, (node, port): (usize, usize), on: bool, then: Then<'_, T>) {
        let from = &self.nodes[node].ports[port];
        let at = now + from.rate.frame(PAUSE_FRAME) + from.delay;
        then(at, Move::Pause(from.peer.0, from.peer.1, on));
    }

    fn enqueue(&mut self, now: Ps, (node, port): (usize, usize), packet: Packet<T>, then: Then<'_, T>) {
        let out = &mut self.nodes[node].ports[port];
        out.load.queued += packet.bytes;
        out.load.most = out.load.most.max(out.load.queued);
        match packet.urgent {
            true => out.urgent.push_back(packet),
            false => out.queue.push_back(packet),
        }
        self.begin(now, (node, port), then);
    }

    /// Starts sending the next packet of a port, if there is one and the port is not paused.
    fn begin(&mut self, now: Ps, (node, port): (usize, usize), then: Then<'_, T>) {
        let latency = self.settings.latency;
        let here = &mut self.nodes[node];
        let (is_switch, out) = (here.is_switch, &mut here.ports[port]);
        if out.sending.is_some() {
            return;
        }
        let next = out.urgent.pop_front();
        let next = if next.is_none() && out.paused.is_none() { out.queue.pop_front() } else { next };
        let Some(packet) = next else { return };
        out.load.queued -= packet.bytes;
        out.load.packets += 1;
        out.sending = Some((packet.bytes, packet.by));
        let alone = now + out.time(packet.bytes);
        // The last bit cannot leave before it has arrived.
        let end = if is_switch { alone.max(packet.whole + latency) } else { alone };
        then(end, Move::Sent(node, port));
        self.cross(end, (node, port), packet, then);
    }

    /// Frees the buffer space of a packet that a port has sent.
    fn sent(&mut self, now: Ps, node: usize, port: usize, then: Then<'_, T>) {
        let here = &mut self.nodes[node];
        let Some((bytes, by)) = here.ports[port].sending.take() else { return };
        if here.is_switch {
            here.used -= bytes;
            here.came[by] -= bytes;
            let resume = self.settings.pfc.is_some_and(|pfc| here.came[by] < pfc.resume);
            if here.pauses[by] && resume {
                here.pauses[by] = false;
                self.tell(now, (node, by), false, then);
            }
        }
        self.begin(now, (node, port), then);
        self.release(node);
    }

    fn pause(&mut self, now: Ps, (node, port): (usize, usize), on: bool, then: Then<'_, T>) {
        let here = &mut self.nodes[node].ports[port];
        match (here.paused, on) {
            (None, true) => here.paused = Some(now),
            (Some(since), false) => {
                here.load.paused += now - since;
                here.paused = None;
            }
            _ => return,
        }
        self.pauses.push(Pause { at: now, node, port, on });
        if !on {
            self.begin(now, (node, port), then);
            self.release(node);
        }
    }

    /// Releases a host's card once its port is not paused and its queue is empty.
    fn release(&mut self, node: usize) {
        let here = &self.nodes[node];
        if !here.is_switch && here.ports[0].paused.is_none() && here.ports[0].queue.is_empty() {
            if let Ok(host) = self.hosts.binary_search(&node) {
                self.released.push(host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sched::Schedule;

    const SETTINGS: Settings =
        Settings { buffer: 1 << 20, latency: 0, store_and_forward: true, ecn: None, pfc: None };
    /// 1000 with the framing overhead.
    const BYTES: u64 = 976;
    /// Time of a packet at 100 Gb/s.
    const TIME: Ps = 80_000;

    /// A run of packets that leave hosts at given times; records arrival times and marks.
    struct Run {
        fabric: Fabric<u32>,
        schedule: Schedule<Move<u32>>,
        there: Vec<(Ps, u32, bool)>,
    }

    impl Run {
        fn new(topology: &Topology, settings: Settings) -> Self {
            Self {
                fabric: Fabric::new(topology, settings, 1),
                schedule: Schedule::default(),
                there: Vec::new(),
            }
        }

        fn send(&mut self, at: Ps, from: usize, to: usize, item: u32) {
            let packet = Packet { may_mark: true, ..Packet::new(to, item, BYTES, item) };
            self.schedule.at(at, Move::Left(from, packet));
        }

        fn run(&mut self) -> &[(Ps, u32, bool)] {
            while let Some(what) = self.schedule.take() {
                let now = self.schedule.now();
                let schedule = &mut self.schedule;
                let there = self.fabric.happen(now, what, &mut |at, what| schedule.at(at, what));
                self.there.extend(there.map(|packet| (now, packet.item, packet.marked)));
            }
            &self.there
        }

        fn load(&self, node: usize, port: usize) -> PortLoad {
            self.fabric.loads().find(|(n, p, _)| (*n, *p) == (node, port)).unwrap().2
        }
    }

    fn star(hosts: usize) -> Topology {
        Topology::star(hosts, Rate(100.0), 500_000).unwrap()
    }

    #[test]
    fn a_packet_takes_links_and_switches_as_they_are() {
        let stored = Settings { latency: 300_000, ..SETTINGS };
        let mut run = Run::new(&star(2), stored);
        run.send(7, 0, 1, 1);
        assert_eq!(run.run(), [(7 + 500_000 + 300_000 + TIME + 500_000, 1, false)]);
        let mut run = Run::new(&star(2), Settings { store_and_forward: false, ..stored });
        run.send(TIME, 0, 1, 1);
        assert_eq!(run.run(), [(TIME + 500_000 + 300_000 + 500_000, 1, false)]);
    }

    #[test]
    fn two_that_send_to_one_share_its_link_and_the_queue_grows() {
        let mut run = Run::new(&star(3), SETTINGS);
        for i in 0..100 {
            run.send((1 + i) * TIME, 0, 2, 0);
            run.send((1 + i) * TIME, 1, 2, 1);
        }
        let there = run.run().to_vec();
        assert_eq!(there.len(), 200);
        assert_eq!(there[199].0 - there[0].0, 199 * TIME);
        let firsts = there[..100].iter().filter(|(_, item, _)| *item == 0).count();
        assert!((45..=55).contains(&firsts), "{firsts}");
        assert!((95..=101).contains(&(run.load(3, 2).most / BYTES)), "{}", run.load(3, 2).most / BYTES);
    }

    #[test]
    fn a_long_queue_marks_and_a_full_buffer_drops() {
        let ecn = Some(Ecn { kmin: 10 * BYTES, kmax: 30 * BYTES, pmax: 0.2 });
        let mut run = Run::new(&star(3), Settings { ecn, buffer: 50 * BYTES, ..SETTINGS });
        for i in 0..200 {
            run.send((1 + i) * TIME, 0, 2, 0);
            run.send((1 + i) * TIME, 1, 2, 1);
        }
        let there = run.run().to_vec();
        assert!(there[..20].iter().all(|(.., marked)| !marked));
        let (marked, load) = (there.iter().filter(|(.., marked)| *marked).count() as u64, run.load(3, 2));
        assert_eq!((marked, there.len() as u64), (load.marked, 400 - load.dropped));
        assert!(load.dropped > 100 && load.most <= 50 * BYTES && marked > 100, "{load:?}");
    }

    #[test]
    fn a_port_that_is_paused_holds_all_and_nothing_is_dropped() {
        let pfc = Some(Pfc { pause: 20 * BYTES, resume: 10 * BYTES });
        let mut run = Run::new(&star(3), Settings { pfc, buffer: 60 * BYTES, ..SETTINGS });
        for i in 0..200 {
            run.send((1 + i) * TIME, 0, 2, 0);
            run.send((1 + i) * TIME, 1, 2, 1);
        }
        assert_eq!(run.run().len(), 400);
        let load = run.load(3, 2);
        assert!(load.dropped == 0 && load.most <= 60 * BYTES, "{load:?}");
        assert!(run.load(0, 0).paused > 20 * TIME);
        let pauses = &run.fabric.pauses;
        assert!(
            pauses.iter().all(|pause| pause.node < 2)
                && pauses.iter().filter(|p| p.on).count() * 2 == pauses.len()
        );
        assert!((0..2).all(|host| !run.fabric.is_held(host)));
    }

    #[test]
    fn connections_keep_to_a_way_and_use_them_all() {
        let topology = Topology::leaf_spine(2, 2, 4, Rate(100.0), 500_000).unwrap();
        let mut run = Run::new(&topology, SETTINGS);
        for i in 0..400 {
            run.send((1 + u64::from(i)) * TIME, 0, 3, i % 40);
        }
        let there = run.run().to_vec();
        assert_eq!(there.len(), 400);
        for connection in 0..40 {
            let own: Vec<_> = there.iter().filter(|(_, item, _)| *item == connection).collect();
            assert!(own.len() == 10 && own.is_sorted());
        }
        // A leaf's ports: two hosts, then the spines.
        assert!((2..6).all(|port| run.load(4, port).packets == 100));
    }

    #[test]
    fn a_link_loses_its_share() {
        let mut topology = star(2);
        topology = Topology::new(
            topology.switches().to_vec(),
            topology.links().iter().map(|link| super::super::Link { loss: 0.1, ..*link }).collect(),
        )
        .unwrap();
        let mut run = Run::new(&topology, SETTINGS);
        (0..10_000).for_each(|i| run.send((1 + i) * TIME, 0, 1, 1));
        let there = run.run().len();
        assert!((7900..8300).contains(&there), "{there}");
    }
}
