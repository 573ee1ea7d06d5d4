//! The outcomes of scenarios, compared with the limits of links and switches.

use super::*;
use crate::engine::{network::Link, timing::Rate};

fn profile() -> TimingProfile {
    TimingProfile::load("direct-x16").unwrap()
}

fn star(hosts: usize, gbps: f64) -> Scenario {
    Scenario::new(profile(), Topology::star(hosts, Rate(gbps), 500_000).unwrap())
}

/// Rate of a flow in Gb/s.
fn gbps(flow: &FlowOutcome) -> f64 {
    flow.flow.bytes as f64 * 8e3 / flow.took().unwrap() as f64
}

#[test]
fn a_flow_alone_takes_what_its_links_take() {
    for operation in [Operation::Write, Operation::Send, Operation::Read] {
        let mut scenario = star(2, 40.0);
        scenario.flows = vec![Flow { operation, ..Flow::write(0, 1, 10_000_000) }];
        let outcome = scenario.run().unwrap();
        let flow = &outcome.flows[0];
        let (took, alone) = (flow.took().unwrap() as f64, flow.alone as f64);
        assert!((1.0..1.02).contains(&(took / alone)), "{operation:?}: {took} ps, {alone} alone");
    }
}

#[test]
fn an_incast_without_anything_against_it_fills_the_buffer_and_loses() {
    let mut scenario = star(9, 100.0);
    scenario.switches.buffer = 1 << 20;
    scenario.flows = incast(&(0..8).collect::<Vec<_>>(), 8, 1_000_000);
    let outcome = scenario.run().unwrap();
    assert!(outcome.dropped() > 0 && outcome.sequence_errors > 0, "{outcome:?}");
    assert!(outcome.flows.iter().all(|flow| flow.end.is_some()), "all is sent again");
}

#[test]
fn pauses_keep_an_incast_from_losing_anything() {
    let mut scenario = star(9, 100.0).with_pfc();
    scenario.switches.buffer = 1 << 20;
    let mut scenario = scenario.with_pfc();
    scenario.flows = incast(&(0..8).collect::<Vec<_>>(), 8, 1_000_000);
    let outcome = scenario.run().unwrap();
    assert_eq!((outcome.dropped(), outcome.sequence_errors, outcome.timeouts), (0, 0, 0));
    assert!(outcome.pauses.len() > 16, "{}", outcome.pauses.len());
    // The link of the ninth host is never idle, and all flows have their share of it.
    let whole = outcome.flows.iter().map(|flow| flow.end.unwrap()).max().unwrap();
    let rate = 8e6 * 8e3 / whole as f64;
    assert!((94.0..98.5).contains(&rate), "{rate} Gb/s");
    for flow in &outcome.flows {
        assert!((10.0..16.0).contains(&gbps(flow)), "{} Gb/s", gbps(flow));
    }
}

#[test]
fn a_card_makes_no_more_packets_while_its_port_is_paused_however_often_that_was() {
    let mut scenario = star(9, 100.0).with_pfc();
    scenario.flows = incast(&(0..8).collect::<Vec<_>>(), 8, 1 << 40);
    scenario.until = Some(20_000_000_000);
    let outcome = scenario.run().unwrap();
    let hosts = outcome.ports.iter().filter(|(node, ..)| *node < 8);
    let most = hosts.map(|(.., load)| load.most).max().unwrap();
    // Bytes that keep its port busy for 2 us, and a turn of 16 packets.
    assert!(
        outcome.pauses.len() > 500 && most < 25_000 + 17 * 4200,
        "{most} bytes, {} pauses",
        outcome.pauses.len()
    );
}

#[test]
fn a_card_whose_slot_is_slower_than_its_port_pauses_its_switch() {
    let topology = Topology::star(3, Rate(100.0), 500_000).unwrap();
    let mut scenario = Scenario::new(TimingProfile::load("direct-x8").unwrap(), topology).with_pfc();
    scenario.flows = (0..2).map(|from| Flow::write(from, 2, 20_000_000)).collect();
    scenario.sample = 10_000_000;
    let outcome = scenario.run().unwrap();
    assert_eq!((outcome.dropped(), outcome.sequence_errors, outcome.timeouts), (0, 0, 0));
    // Both share the bandwidth of the slot.
    let rates: Vec<f64> = outcome.flows.iter().map(gbps).collect();
    assert!((54.0..56.0).contains(&rates.iter().sum::<f64>()), "{rates:?}");
    // The third host pauses the switch, which therefore pauses the other hosts.
    let paused: Vec<usize> = outcome.pauses.iter().filter(|pause| pause.on).map(|pause| pause.node).collect();
    let of = |node| paused.iter().filter(|paused| **paused == node).count();
    assert!(of(3) > 100 && of(0) > 2 && of(1) > 2 && of(2) == 0, "{} {} {}", of(0), of(1), of(3));
    // So the data waits in the switch.
    let (_, _, to_third) = outcome.ports[outcome.ports.len() - 1];
    assert!(to_third.most > 256 << 10 && to_third.paused > 1_000_000_000, "{to_third:?}");
}

/// An 8-to-1 incast by programs that never finish; returns the samples of the queue.
fn long_incast(scenario: Scenario) -> (Outcome, Vec<u64>) {
    let mut scenario = scenario;
    scenario.flows = incast(&(0..8).collect::<Vec<_>>(), 8, 1 << 40);
    (scenario.until, scenario.sample) = (Some(60_000_000_000), 10_000_000);
    let outcome = scenario.run().unwrap();
    // The last port is the switch's port to the ninth host.
    let queue = outcome.samples.iter().map(|sample| sample.queued[outcome.ports.len() - 1]).collect();
    (outcome, queue)
}

#[test]
fn notified_senders_keep_the_queue_short_and_the_link_busy() {
    let (paused, long) = long_incast(star(9, 100.0).with_pfc());
    let (outcome, short) = long_incast(star(9, 100.0).with_pfc().with_ecn());
    assert!(outcome.marked() > 0 && outcome.notifications > 0);
    let late = |queue: &[u64]| queue[queue.len() / 2..].iter().sum::<u64>() / (queue.len() / 2) as u64;
    assert!(late(&short) * 4 < late(&long), "{} bytes, {} without", late(&short), late(&long));
    let late_pauses =
        |outcome: &Outcome| outcome.pauses.iter().filter(|pause| pause.at > 30_000_000_000).count();
    assert!(
        late_pauses(&outcome) * 10 < late_pauses(&paused),
        "{} {}",
        late_pauses(&outcome),
        late_pauses(&paused)
    );
    // Bytes received in the second half: the link is nearly full, and no sender starves.
    let half = outcome.samples.len() / 2;
    let (first, last) = (&outcome.samples[half], outcome.samples.last().unwrap());
    let rates: Vec<f64> = (0..8)
        .map(|host| (last.came[host] - first.came[host]) as f64 * 8e3 / (last.at - first.at) as f64)
        .collect();
    assert!(rates.iter().sum::<f64>() > 80.0, "{rates:?}");
    assert!(rates.iter().all(|rate| (3.0..30.0).contains(rate)), "{rates:?}");
}

#[test]
fn a_link_that_loses_costs_time_and_nothing_else() {
    let links =
        (0..3).map(|host| Link { ends: [host, 3], gbps: Rate(100.0), delay: 500_000, loss: 0.001 }).collect();
    let topology = Topology::new(vec![false, false, false, true], links).unwrap();
    let mut scenario = Scenario::new(profile(), topology);
    scenario.flows = vec![Flow::write(0, 2, 20_000_000), Flow::write(1, 2, 20_000_000)];
    let outcome = scenario.run().unwrap();
    assert!(outcome.flows.iter().all(|flow| flow.end.is_some()) && outcome.sequence_errors > 0);
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let run = |seed| {
        let topology = Topology::leaf_spine(4, 4, 2, Rate(100.0), 500_000).unwrap();
        let hosts = topology.hosts();
        let mut scenario = Scenario::new(profile(), topology).with_pfc().with_ecn();
        scenario.flows = permutation(&hosts, 500_000, 7);
        scenario.seed = seed;
        scenario.run().unwrap()
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert!(first.flows.iter().all(|flow| flow.end.is_some()));
    assert_ne!(first.fct(), run(2).fct());
}

#[test]
fn a_permutation_and_all_to_all_have_everybody_once() {
    let hosts: Vec<usize> = (0..16).collect();
    let flows = permutation(&hosts, 1, 3);
    let (mut from, mut to): (Vec<_>, Vec<_>) = flows.iter().map(|flow| (flow.from, flow.to)).unzip();
    assert!(flows.iter().all(|flow| flow.from != flow.to));
    from.sort_unstable();
    to.sort_unstable();
    assert_eq!((&from, &to), (&hosts, &hosts));
    assert_eq!(all_to_all(&hosts, 1).len(), 16 * 15);
}

#[test]
fn files_of_flows_are_read() {
    let flows =
        hpcc("flow.txt", "2\n2 1 3 100 200000 2\n3 1 3 101 50 2.5\n\nFirst line: # of flows\n").unwrap();
    assert_eq!(flows[0], Flow { start: 2_000_000_000_000, ..Flow::write(2, 1, 200_000) });
    assert_eq!(flows[1], Flow { start: 2_500_000_000_000, port: 101, ..Flow::write(3, 1, 50) });
    let said = |text| hpcc("flow.txt", text).unwrap_err().to_string();
    assert_eq!(said("1\n2 one 3 100 5 0"), "flow.txt:2: expected the host a flow is for, found one");
    assert_eq!(said("1\n2 1 3 100 5 -1"), "flow.txt:2: expected when a flow begins, in seconds, found -1");
    let flows =
        htsim("a.cm", "Nodes 4\nConnections 2\n1->0 id 1 start 0 size 2000\n3->2 start 5 size 9\n").unwrap();
    assert_eq!(flows, [Flow::write(1, 0, 2000), Flow { start: 5, ..Flow::write(3, 2, 9) }]);
    let said = |text| htsim("a.cm", text).unwrap_err().to_string();
    assert_eq!(
        said("Nodes 4\nConnections 1\n1->4 size 2"),
        "a.cm:3: expected hosts below the number of nodes, found 1->4"
    );
    assert_eq!(said("Nodes 4\nConnections 1\n1>0 size 2"), "a.cm:3: expected 1 connections, found 0");
    assert_eq!(
        said("Nodes 4\nConnections 1\n1->0 trigger 2"),
        "a.cm:3: expected id, start or size, found trigger"
    );
    assert_eq!(said("Hosts 4"), "a.cm:1: expected Nodes, found Hosts");
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |change: fn(&mut Scenario)| {
        let mut scenario = star(3, 100.0);
        scenario.flows = vec![Flow::write(0, 1, 100)];
        change(&mut scenario);
        scenario.run().unwrap_err().to_string()
    };
    assert_eq!(refused(|s| s.flows[0].to = 9), "flow 0: expected the number of a host, found 9");
    assert_eq!(refused(|s| s.flows[0].to = 3), "flow 0: expected the number of a host, found 3");
    assert_eq!(refused(|s| s.flows[0].to = 0), "flow 0: expected two hosts, found 0 twice");
    assert_eq!(refused(|s| s.flows.clear()), "expected 1 to 16384 flows, found 0");
    assert_eq!(
        refused(|s| s.profile = TimingProfile::load("edr-x16").unwrap()),
        "expected a profile of Ethernet, found edr-x16, which is of InfiniBand"
    );
    assert_eq!(refused(|s| s.message = 0), "bytes of a message: expected 1 to 1048576, found 0");
    assert_eq!(
        refused(|s| s.moderation = 5),
        "messages from one completion to the next: expected 1 to 4, found 5"
    );
    assert_eq!(refused(|s| s.mtu = 1500), "MTU: expected 256, 512, 1024, 2048 or 4096, found 1500");
    assert!(
        refused(|s| s.switches.pfc = Some(Pfc { pause: 5, resume: 6 }))
            .starts_with("PFC: expected resume <= pause")
    );
    assert!(refused(|s| s.switches.buffer = 100).starts_with("a switch's buffer: expected 4224 bytes"));
}

#[test]
fn outputs_have_the_form_of_hpcc() {
    let mut scenario = star(9, 100.0);
    scenario.switches.buffer = 1 << 20;
    let mut scenario = scenario.with_pfc();
    scenario.flows = incast(&(0..8).collect::<Vec<_>>(), 8, 1_000_000);
    scenario.sample = 1_000_000;
    let outcome = scenario.run().unwrap();
    let numbers = |line: &str| line.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let fct = outcome.fct();
    assert_eq!(fct.lines().count(), 8);
    for line in fct.lines() {
        let (sip, rest) = line.split_once(' ').unwrap();
        let (dip, rest) = rest.split_once(' ').unwrap();
        assert!(sip.starts_with("0b000") && dip == "0b000801", "{line}");
        let rest = numbers(rest);
        assert!(rest.len() == 6 && rest[2] == 1_000_000 && rest[4] > rest[5], "{line}");
    }
    let pfc: Vec<_> = outcome.pfc().lines().map(&numbers).collect();
    assert!(pfc.iter().all(|line| line.len() == 5 && line[1] < 8 && line[2] == 0 && line[3] == 1));
    let qlen = outcome.qlen();
    let mut lines = qlen.lines();
    assert!(lines.next().unwrap().starts_with("time: "));
    let ports: Vec<_> = lines.map(numbers).collect();
    assert_eq!(ports.len(), 9);
    assert!(ports.iter().all(|port| port[2..].iter().sum::<u64>() == outcome.samples.len() as u64));
}
