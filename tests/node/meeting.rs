//! Programs that connect by communication management, each with its own queue pair 1.

use driver::{Gsi, Mad};
use hwspec::wire::mad::{MadAddress, MgmtClass};
use ironverbs_tests::program::{Program, Scratch};
use link::{LinkSpec, Uplink};
use node::{Node, NodeOptions, open_device_of};
use std::{path::Path, sync::Arc, time::Duration};

use devmodel::{LinkLayer, wire::Faults};

const SOON: Duration = Duration::from_secs(30);

fn options(link_layer: LinkLayer, id: u16) -> NodeOptions {
    NodeOptions { vfs: Some(4), link_layer: Some(link_layer), node_id: Some(id), ..NodeOptions::default() }
}

fn start(scratch: &Scratch, fid: u8, role: &str) -> (Program, String) {
    let path = Path::new(env!("CARGO_BIN_EXE_meet"));
    let dir = scratch.dir().display().to_string();
    let mut program = Program::start(path, &[&dir, &fid.to_string(), role]).expect("a program");
    let port = program.expect("port", SOON).expect("its port");
    (program, port)
}

fn connect(passive: &mut Program, port: &str, active: &mut Program, service: u16) {
    active.tell(&format!("{port} {service}")).unwrap();
    for word in ["connected", "heard", "ended"] {
        active.expect(word, SOON).unwrap();
        passive.expect(word, SOON).unwrap();
    }
}

/// Connects the active program to the passive one, twice.
fn meet(passive: &mut Program, port: &str, active: &mut Program, service: u16) {
    passive.tell(&service.to_string()).unwrap();
    passive.expect("listening", SOON).unwrap();
    for _ in 0..2 {
        connect(passive, port, active, service);
    }
    active.tell(&format!("{port} {}", service + 1)).unwrap();
    active.expect("rejected InvalidServiceId", SOON).unwrap();
}

fn on_one_node(options: &NodeOptions, functions: [u8; 2]) {
    let scratch = Scratch::new();
    let _node = scratch.node_with(options);
    let (mut passive, port) = start(&scratch, functions[0], "listen");
    let (mut active, _) = start(&scratch, functions[1], "connect");
    meet(&mut passive, &port, &mut active, 7);
}

#[test]
fn programs_on_two_functions_meet() {
    on_one_node(&options(LinkLayer::Ethernet, 0), [1, 2]);
}

#[test]
fn programs_on_two_functions_of_a_subnet_meet() {
    on_one_node(&options(LinkLayer::Infiniband, 0), [1, 2]);
}

/// Both have a QP1 on that function, and receive messages for either.
#[test]
fn programs_that_share_a_function_meet() {
    on_one_node(&options(LinkLayer::Ethernet, 0), [1, 1]);
    on_one_node(&options(LinkLayer::Infiniband, 0), [3, 3]);
}

/// Where programs may not copy to each other's memory, each processes its own messages.
#[test]
fn programs_that_share_a_function_but_no_memory_meet() {
    let apart = NodeOptions { no_direct_copies: true, ..options(LinkLayer::Ethernet, 0) };
    on_one_node(&apart, [1, 1]);
}

#[test]
fn programs_that_are_killed_leave_queue_pair_1_to_the_others() {
    let scratch = Scratch::new();
    let _node = scratch.node_with(&options(LinkLayer::Ethernet, 0));
    let (mut passive, port) = start(&scratch, 1, "listen");
    for i in 0..3 {
        let (mut bystander, _) = start(&scratch, 1, "listen");
        let (mut active, _) = start(&scratch, 1, "connect");
        bystander.kill();
        if i == 0 {
            passive.tell("7").unwrap();
            passive.expect("listening", SOON).unwrap();
        }
        connect(&mut passive, &port, &mut active, 7);
        active.kill();
    }
}

fn hold(node: &Arc<Node>, end: &str) -> Uplink {
    Uplink::hold(node, &[end.parse::<LinkSpec>().expect("a link")], Faults::default()).expect("an uplink")
}

#[test]
fn programs_of_two_nodes_meet_over_a_link() {
    let [here, there] = [Scratch::new(), Scratch::new()];
    let nodes =
        [(&here, 1), (&there, 2)].map(|(scratch, id)| scratch.node_with(&options(LinkLayer::Ethernet, id)));
    let at = |name| here.dir().join(name).display().to_string();
    let _links = [
        hold(&nodes[0], &format!("dgram:{},{}", at("a"), at("b"))),
        hold(&nodes[1], &format!("dgram:{},{}", at("b"), at("a"))),
    ];
    let (mut passive, port) = start(&here, 1, "listen");
    let (mut active, _) = start(&there, 2, "connect");
    meet(&mut passive, &port, &mut active, 9);
}

fn mad(text: &[u8]) -> Mad {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, MgmtClass::ComMgt.raw(), 2, 3]);
    mad[24..24 + text.len()].copy_from_slice(text);
    mad
}

fn open(node: &Arc<Node>, fid: u8) -> Gsi {
    Gsi::open(&open_device_of(node, fid).expect("a device"), 0).expect("a QP1")
}

fn address(from: &Gsi, remote_gid: [u8; 16]) -> MadAddress {
    let local_gid = from.device().gid(1).unwrap();
    let route = MadAddress { grh: true, hop_limit: 64, pkey: 0xffff, ..MadAddress::default() };
    MadAddress { local_gid, remote_gid, remote_qpn: 1, ..route }
}

#[test]
fn every_opener_of_a_function_gets_every_mad_until_it_leaves() {
    let scratch = Scratch::new();
    let node = scratch.node_with(&options(LinkLayer::Ethernet, 0));
    let [first, second, sender] = [1, 1, 2].map(|fid| open(&node, fid));
    let (to, from) = (first.device().gid(1).unwrap(), sender.device().gid(1).unwrap());
    let address = address(&sender, to);
    sender.send(&address, &mad(b"to whom it may concern")).unwrap();
    for gsi in [&first, &second] {
        assert!(gsi.wait(SOON).unwrap());
        let (from_there, got) = gsi.next().unwrap().expect("a MAD");
        assert_eq!(*got, mad(b"to whom it may concern"));
        let seen = (from_there.local_gid, from_there.remote_gid, from_there.remote_qpn, from_there.pkey);
        assert_eq!(seen, (to, from, 1, 0xffff));
        // The answer reaches the sender.
        gsi.send(&from_there, &mad(b"thanks")).unwrap();
        assert!(sender.wait(SOON).unwrap());
        assert_eq!(*sender.next().unwrap().expect("an answer").1, mad(b"thanks"));
    }
    drop(first);
    sender.send(&address, &mad(b"still there?")).unwrap();
    assert!(second.wait(SOON).unwrap());
    assert_eq!(*second.next().unwrap().expect("a MAD").1, mad(b"still there?"));
    assert!(!sender.wait(Duration::ZERO).unwrap());
}

#[test]
fn more_mads_than_fit_at_once_all_arrive() {
    let scratch = Scratch::new();
    let node = scratch.node_with(&options(LinkLayer::Ethernet, 0));
    let [receiver, sender] = [1, 2].map(|fid| open(&node, fid));
    let address = address(&sender, receiver.device().gid(1).unwrap());
    for number in 0..1000u32 {
        sender.send(&address, &mad(&number.to_be_bytes())).unwrap();
        if number % 64 == 63 {
            assert!(receiver.wait(SOON).unwrap());
        }
    }
    for number in 0..1000u32 {
        assert!(receiver.wait(SOON).unwrap(), "{number}");
        assert_eq!(*receiver.next().unwrap().expect("a MAD").1, mad(&number.to_be_bytes()));
    }
}

#[test]
fn a_peer_that_nobody_answers_for_holds_up_nobody_twice() {
    let scratch = Scratch::new();
    let node = scratch.node_with(&options(LinkLayer::Ethernet, 1));
    let at = |name| scratch.dir().join(name).display().to_string();
    let _link = hold(&node, &format!("dgram:{},{}", at("a"), at("b")));
    let gsi = open(&node, 1);
    let nobody = address(&gsi, hwspec::wire::ip::gid_of_v4([10, 9, 9, 9]));
    let took = || {
        let begin = std::time::Instant::now();
        assert!(gsi.send(&nobody, &mad(b"hello?")).is_err());
        begin.elapsed()
    };
    let first = took();
    assert!(first > Duration::from_millis(500), "it was not asked for: {first:?}");
    let more: Duration = (0..20).map(|_| took()).sum();
    assert!(more < Duration::from_millis(300), "{more:?}");
}
