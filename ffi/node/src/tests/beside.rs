//! Frames between two nodes that a link joins directly.

use super::bed::{OnNode, Scratch};
use crate::{Node, NodeOptions, NodeTransport, core::Core, uplink::UplinkHold};
use devmodel::{
    identity,
    region::{Outlet, Sync, WireRing},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::{Arc, atomic::Ordering::*},
    thread,
};

/// Two nodes with their uplinks, joined.
struct Joined {
    dirs: [Scratch; 2],
    nodes: [Arc<Node>; 2],
    holds: [UplinkHold; 2],
}

impl Joined {
    fn new() -> Self {
        let dirs = [Scratch::new(), Scratch::new()];
        let node = |i: usize| {
            let id = Some(i as u16 + 1);
            dirs[i].node_with(&NodeOptions { vfs: Some(3), node_id: id, ..NodeOptions::default() })
        };
        let nodes = [node(0), node(1)];
        let holds = [0, 1].map(|i| UplinkHold::new(&nodes[i]).unwrap());
        holds[0].join(&holds[1]);
        Self { dirs, nodes, holds }
    }
}

const PEER: [u8; 6] = identity::mac(2, 1);

/// Sends a frame of function 1 of the first node to function 1 of the second. Returns true if it was delivered.
fn send(core: &Core) -> bool {
    let headers = [&PEER[..], &identity::mac(1, 1), &[0x88, 0xb5], &[0; 46]].concat();
    let due = core.deliver_beside(&headers, b"payload");
    assert_eq!(due.map(|due| core.run_beside(due)).unwrap_or_default(), 0);
    due.is_some()
}

#[test]
fn a_frame_is_delivered_by_its_sender_until_the_link_ends() {
    let Joined { dirs: _dirs, nodes, holds } = Joined::new();
    let _open = [0, 1].map(|i| NodeTransport::open(&nodes[i], 1).unwrap());
    let [here, there] = [0, 1].map(|i| nodes[i].core());
    let came = || there.adapter.region().sync(1, Sync::RxTail).load(Acquire);
    let ring = WireRing::of(there.adapter.region(), 1);
    assert!(send(here));
    assert_eq!((came(), holds[0].passed(), ring.waits()), (1, 1, false));
    assert_eq!(here.room_beside(PEER), Some(ring.free()));
    assert_eq!(here.room_beside([2, 0, 0, 0, 0, 9]), None, "no function has it");
    let capture = there.outlet_ring(Outlet::Capture);
    capture.open(true);
    assert_eq!((here.room_beside(PEER), send(here)), (None, false), "captures have whole frames");
    capture.open(false);

    let [_hold, beside] = holds;
    drop(beside);
    assert!(!send(here), "no frame would come back this way");
    assert_eq!((came(), here.room_beside(PEER)), (1, None));
}

#[test]
fn the_other_node_is_open_as_long_as_a_function_of_either_is() {
    let Joined { dirs: _dirs, nodes, holds: _holds } = Joined::new();
    let counts = || [0, 1].map(|i| Arc::strong_count(&nodes[i]));
    let before = counts();
    let first = NodeTransport::open(&nodes[0], 1).unwrap();
    let second = NodeTransport::open(&nodes[0], 2).unwrap();
    let other = NodeTransport::open(&nodes[1], 1).unwrap();
    drop(first);
    assert!(send(nodes[0].core()));
    drop(second);
    assert!(send(nodes[0].core()), "the other node is in use");
    drop(other);
    assert!(!send(nodes[0].core()));
    assert_eq!(counts(), before);
}

#[test]
fn functions_are_opened_and_closed_while_others_send() {
    let Joined { dirs: _dirs, nodes, holds: _holds } = Joined::new();
    let counts = || [0, 1].map(|i| Arc::strong_count(&nodes[i]));
    let before = counts();
    thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| (0..200).for_each(|_| drop(NodeTransport::open(node, 1).unwrap())));
        }
        scope.spawn(|| (0..20_000).for_each(|_| _ = send(nodes[0].core())));
    });
    assert_eq!(counts(), before);
}

#[test]
fn nothing_is_opened_but_the_adapter_that_the_link_joined_and_the_same_users_can_change() {
    let Joined { dirs, nodes: [here, there], holds: [_hold, beside] } = Joined::new();
    let delivers = || {
        let _open = NodeTransport::open(&here, 1).unwrap();
        send(here.core())
    };
    assert!(delivers());
    let mode = |mode| fs::set_permissions(&dirs[1].0, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    assert!(!delivers(), "others may read it");
    mode(0o700);
    let recorded = &here.core().map.header().beside;
    let inode = recorded.file[1].load(Acquire);
    recorded.file[1].store(inode + 1, Release);
    assert!(!delivers(), "another adapter has taken its place");
    recorded.file[1].store(inode, Release);
    assert!(delivers());
    let back = &there.core().map.header().beside;
    back.file[1].store(inode + 1, Release);
    assert!(!delivers(), "it is not joined to this one");
    drop(beside);
}
