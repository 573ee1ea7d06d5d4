//! Uplinks of nodes: exclusive holding, routing, and unresponsive peers.

use super::{LinkSpec, Uplink};
use devmodel::{LinkLayer, identity, strict::Strict, wire::Faults};
use driver::{Device, OpenOptions, transport::Transport};
use hwspec::{
    handle::Qpn,
    wire::{Packet, Route, write_routed},
};
use node::{CaptureThread, Frames, Node, NodeError, NodeOptions, NodeTransport, Observer};
use std::{
    net::IpAddr,
    os::unix::net::UnixDatagram,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use testkit::{Other, Scratch, say, until_killed};

fn node_with_id(scratch: &Scratch, id: u16) -> Arc<Node> {
    let options = NodeOptions { vfs: Some(2), node_id: Some(id), ..NodeOptions::default() };
    Node::open_or_create(&scratch.0, &options).unwrap()
}

fn hold(node: &Arc<Node>, links: &[String]) -> Uplink {
    let links: Vec<LinkSpec> = links.iter().map(|link| link.parse().unwrap()).collect();
    Uplink::hold(node, &links, Faults::default()).unwrap()
}

/// The two ends of a datagram link in the directory of `scratch`.
fn ends(scratch: &Scratch) -> [String; 2] {
    let at = |name| scratch.0.join(name).display().to_string();
    [format!("dgram:{},{}", at("a"), at("b")), format!("dgram:{},{}", at("b"), at("a"))]
}

fn gid(ip: &str) -> [u8; 16] {
    node::gid::gid_of_ip(ip.parse().unwrap())
}

#[test]
fn neighbours_on_another_node_are_found_and_nobody_else_is() {
    let [a, b] = [Scratch::new(), Scratch::new()];
    let nodes = [node_with_id(&a, 1), node_with_id(&b, 2)];
    nodes[0].set_address(1, Some("10.0.0.1/24".parse().unwrap())).unwrap();
    nodes[1].set_address(2, Some("10.0.0.2/24".parse().unwrap())).unwrap();
    let there = NodeTransport::open(&nodes[0], 1).unwrap();
    let start = Instant::now();
    assert_eq!(there.resolve(&gid("10.0.0.2")), None);
    assert!(start.elapsed() < Duration::from_millis(500), "without an uplink there is nobody to ask");
    let [one, other] = ends(&a);
    let _up = [hold(&nodes[0], &[one]), hold(&nodes[1], &[other])];
    assert_eq!(there.resolve(&gid("10.0.0.2")), Some([2, 0x1b, 0x56, 0, 2, 2]));
    assert_eq!(there.resolve(&gid("127.0.2.2")), Some([2, 0x1b, 0x56, 0, 2, 1]));
    nodes[1].set_address(1, Some("fd00::7/64".parse().unwrap())).unwrap();
    assert_eq!(there.resolve(&gid("fd00::7")), Some([2, 0x1b, 0x56, 0, 2, 1]));
    let start = Instant::now();
    assert_eq!(there.resolve(&gid("10.0.0.3")), None);
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(5), "{waited:?}");
}

/// Otherwise frames that it gathers later could overtake them.
#[test]
fn frames_to_a_joined_node_are_carried_by_the_thread_that_sent_them() {
    let [a, b] = [Scratch::new(), Scratch::new()];
    let (here, _there) = (node_with_id(&a, 1), node_with_id(&b, 2));
    let up = hold(&here, &[format!("node:{}", b.0.display())]);
    let bearer = up.port.links()[0].bearer();
    let came = || up.joined[0].port.links()[0].received.load(Relaxed);
    bearer.send(&[0xff; 64]).unwrap();
    thread::scope(|scope| scope.spawn(|| bearer.flush()).join().unwrap());
    assert_eq!(came(), 0);
    bearer.flush();
    assert_eq!(came(), 1);
}

/// Not a test itself: the entry point of the other process.
#[test]
fn other_process() {
    let Some((role, dir)) = testkit::role() else { return };
    let node = Node::open(&dir).unwrap();
    let _held = (role == "holder").then(|| Uplink::hold(&node, &[], Faults::default()).unwrap());
    let _used = (role == "user").then(|| NodeTransport::open(&node, 1).unwrap());
    say("ready");
    until_killed()
}

#[test]
fn a_program_that_dies_is_found_if_only_a_link_is_left() {
    let [a, b] = [Scratch::new(), Scratch::new()];
    let (here, _there) = (node_with_id(&a, 1), node_with_id(&b, 2));
    let _up = hold(&here, &[format!("node:{}", b.0.display())]);
    for scratch in [&a, &b] {
        let mut other = Other::start(&mut Other::command("tests::other_process", "user", &scratch.0));
        other.hear();
        other.kill();
        let seen = Observer::open(&scratch.0).unwrap();
        testkit::until("the dead is found", Duration::from_secs(5), || seen.status().reaped == 1);
    }
}

#[test]
fn an_uplink_has_one_holder_and_comes_free_when_that_is_killed() {
    let scratch = Scratch::new();
    let node = node_with_id(&scratch, 1);
    let mut other = Other::start(&mut Other::command("tests::other_process", "holder", &scratch.0));
    assert_eq!(other.hear(), "ready");
    let refused = Uplink::hold(&node, &[], Faults::default()).err().unwrap();
    assert_eq!(
        refused.to_string(),
        format!(
            "the uplink of the adapter in {} is held by process {}",
            scratch.0.display(),
            other.child.id()
        )
    );
    other.kill();
    drop(hold(&node, &[]));
    drop(hold(&node, &[]));
}

#[test]
fn a_peer_that_takes_nothing_costs_frames_and_nothing_else() {
    let scratch = Scratch::new();
    let node = node_with_id(&scratch, 1);
    let [one, _] = ends(&scratch);
    let _silent = UnixDatagram::bind(scratch.0.join("b")).unwrap();
    let up = hold(&node, &[one]);
    let start = Instant::now();
    (0..2000).for_each(|_| up.port.leave(&[6; 1500]));
    assert!(up.status()[0].lost > 0, "its socket has room for fewer");
    // It is waited for once, not once for each frame.
    assert!(start.elapsed() < Duration::from_secs(2));
    let start = Instant::now();
    drop(up);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(!scratch.0.join("a").exists(), "the socket is gone");
}

#[test]
fn a_peer_that_comes_late_is_found() {
    let [a, b] = [Scratch::new(), Scratch::new()];
    let nodes = [node_with_id(&a, 1), node_with_id(&b, 2)];
    let [one, other] = ["listen", "connect"].map(|how| format!("stream:{how}:{}", a.0.join("s").display()));
    let there = NodeTransport::open(&nodes[1], 1).unwrap();
    let _connects = hold(&nodes[1], &[other]);
    assert_eq!(there.resolve(&gid("127.0.1.2")), None);
    let _listens = hold(&nodes[0], &[one]);
    assert_eq!(there.resolve(&gid("127.0.1.2")), Some([2, 0x1b, 0x56, 0, 1, 1]));
}

#[test]
fn what_cannot_be_linked_is_said() {
    let [a, b] = [Scratch::new(), Scratch::new()];
    let (node, same) = (node_with_id(&a, 1), node_with_id(&b, 1));
    let said = |link: String| {
        let error = Uplink::hold(&node, &[link.parse().unwrap()], Faults::default()).err();
        error.map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(said(format!("node:{}", same.dir().display())).contains("has id 1"));
    assert!(said("node:/dev/shm/no-such-node".into()).contains("no adapter in"));
    assert!(said("tap:a-name-too-long-for-it".into()).contains("at most 15 bytes"));
    assert!(said("udp:192.0.2.1".into()).contains("UDP port 4791 of 192.0.2.1"));
    let file = a.0.join("file");
    std::fs::write(&file, "").unwrap();
    assert!(said(format!("dgram:{},/x", file.display())).contains("expected room for a socket"));
    let subnet = Scratch::new();
    let infiniband = NodeOptions { link_layer: Some(LinkLayer::Infiniband), ..NodeOptions::default() };
    let infiniband = Node::open_or_create(&subnet.0, &infiniband).unwrap();
    let refused = Uplink::hold(&infiniband, &["udp:".parse().unwrap()], Faults::default()).err();
    assert!(matches!(refused, Some(NodeError::NotCarried { .. })), "{refused:?}");
    assert!(said(format!("node:{}", infiniband.dir().display())).contains("ports of infiniband"));
    hold(&infiniband, &[]);
    let _bound = UnixDatagram::bind(a.0.join("taken")).unwrap();
    assert!(said(format!("dgram:{},/x", a.0.join("taken").display())).contains("another process listens"));
    hold(&node, &[]);
}

/// MACs other than a function's permanent one are those that its driver lists, whether chosen by it or assigned.
#[test]
fn frames_to_a_mac_that_a_function_has_come_in_and_go_no_further() {
    let scratch = Scratch::new();
    let strict = Some(Strict { owner: true, ..Strict::default() });
    let options = NodeOptions { vfs: Some(2), node_id: Some(1), strict, ..NodeOptions::default() };
    let node = Node::open_or_create(&scratch.0, &options).unwrap();
    let at = |name| scratch.0.join(name).display().to_string();
    let up = hold(&node, &[("a", "b"), ("c", "d")].map(|(a, b)| format!("dgram:{},{}", at(a), at(b))));
    let beside = UnixDatagram::bind(at("d")).unwrap();
    beside.set_nonblocking(true).unwrap();
    // Returns whether a frame that arrives over the first link enters the node, and whether it leaves over the second.
    let goes = |mac: [u8; 6]| {
        let capture = CaptureThread::start(&node, || Ok(Vec::new())).unwrap();
        let mut frames = Frames::default();
        frames.push(&[&mac, &[0x52, 0x54, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]]);
        up.port.arrive(0, &frames, false);
        (capture.finish().unwrap().frames == 1, beside.recv(&mut [0; 100]).is_ok())
    };
    let (chosen, other) = ([2, 1, 2, 3, 4, 5], [2, 9, 9, 9, 9, 9]);
    assert_eq!(goes(chosen), (false, true));
    let transport = Arc::new(NodeTransport::open(&node, 1).unwrap());
    let options = OpenOptions { own_mac: Some(chosen), ..OpenOptions::default() };
    let device = Device::open(transport, options).unwrap();
    assert_eq!(goes(chosen), (true, false));
    assert_eq!(goes(other), (false, true));
    assert_eq!(goes([2, 0x1b, 0x56, 0, 1, 1]), (true, false), "born with it");
    assert_eq!(goes([1, 0, 0x5e, 1, 2, 3]), (true, true), "a group");
    drop(device);
    assert_eq!(goes(chosen), (false, true));
}

#[test]
fn infiniband_frames_go_by_lid_and_come_only_from_the_adapter_behind_their_link() {
    let scratches = [1, 2, 3].map(|id| (id, Scratch::new()));
    let nodes = scratches.each_ref().map(|(id, scratch)| {
        let link_layer = Some(LinkLayer::Infiniband);
        let options = NodeOptions { vfs: Some(2), node_id: Some(*id), link_layer, ..NodeOptions::default() };
        Node::open_or_create(&scratch.0, &options).unwrap()
    });
    let [_, second, third] = nodes.each_ref().map(|node| format!("node:{}", node.dir().display()));
    let up = hold(&nodes[0], &[second, third]);
    let passed = || [0, 1].map(|i| up.joined[i].port.links()[0].received.load(Relaxed));
    // Returns whether a frame over the link to adapter 2 enters adapter 1, and how many go to the two others.
    let goes = |slid, dlid| {
        let route = Route { slid, dlid, ..Route::default() };
        let (mut frame, mut packet) = (vec![0; 100], Packet::default());
        packet.bth.set().dest_qp(Qpn(2));
        let len = write_routed(&mut frame, &route, &packet, &[]).unwrap();
        frame.truncate(len);
        let before = passed();
        let capture = CaptureThread::start(&nodes[0], || Ok(Vec::new())).unwrap();
        let mut frames = Frames::default();
        frames.push(&[&frame]);
        up.port.arrive(0, &frames, false);
        let after = passed();
        (capture.finish().unwrap().frames == 1, [after[0] - before[0], after[1] - before[1]])
    };
    let [own, sender, other] = [1, 2, 3].map(|id| identity::lid(id, 1));
    assert_eq!(goes(sender, own), (true, [0, 0]));
    assert_eq!(goes(sender, other), (false, [0, 1]));
    assert_eq!(goes(sender, 0xc001), (true, [0, 1]), "a group");
    for forged in [own, other, identity::lid(4, 1), 0, 0xc001] {
        assert_eq!(goes(forged, own), (false, [0, 0]), "{forged:#x}");
        assert_eq!(goes(forged, other), (false, [0, 0]), "{forged:#x}");
    }
}

/// Requests of a guest's kernel are answered for functions that programs drive, even without any link.
#[test]
fn requests_for_our_addresses_are_answered() {
    let scratch = Scratch::new();
    let node = node_with_id(&scratch, 1);
    let [one, _] = ends(&scratch);
    let peer = UnixDatagram::bind(scratch.0.join("b")).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _up = hold(&node, &[one]);
    let ask = |target: &str| {
        let mut frame = vec![0xff; 6];
        frame.extend([0x52, 0x54, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0, 0, 9]);
        frame.extend([10, 0, 0, 9, 0, 0, 0, 0, 0, 0]);
        let target: IpAddr = target.parse().unwrap();
        let IpAddr::V4(target) = target else { unreachable!() };
        frame.extend(target.octets());
        peer.send_to(&frame, scratch.0.join("a")).unwrap();
    };
    ask("10.0.0.77");
    ask("127.0.1.3");
    let mut answer = [0; 100];
    let len = peer.recv(&mut answer).unwrap();
    assert_eq!(len, 60);
    assert_eq!(answer[..12], [0x52, 0x54, 0, 0, 0, 9, 2, 0x1b, 0x56, 0, 1, 2]);
    assert_eq!(answer[20..32], [0, 2, 2, 0x1b, 0x56, 0, 1, 2, 127, 0, 1, 3]);
}
