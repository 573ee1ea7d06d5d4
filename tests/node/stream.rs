//! Our driver's stream to a VF, recorded and compared with the stock drivers' streams in `tests/streams/`.

use driver::{
    Device, OpenOptions, Pd, QpInit, RecvWr, SendFlags, SendOp, SendWr, Service, Srq, SrqInit, Target,
};
use ironverbs_tests::{
    end::{End, Make, QKEY, in_cqes},
    program::Scratch,
};
use node::{Node, NodeTransport, open_device_of};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use stream::{
    RecordingTransport,
    event::Event,
    file::{self, Recorder},
    lines,
    text::Detail,
    words::{Allowed, Words as Said},
};

const LEN: usize = 64 << 10;

/// The address that the node assigns to function `fid`.
fn v4(fid: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, fid + 1]
}

/// Opens function 1 of a node with a recorder. Short messages come in CQEs, as to programs of the provider.
fn recorded(node: &Arc<Node>, recorder: Arc<Recorder>) -> Arc<Device> {
    let transport = NodeTransport::open(node, 1).expect("a function");
    let transport = RecordingTransport::new(Arc::new(transport), 1, recorder);
    let options = OpenOptions { link_local: true, gids: vec![v4(1)], ..OpenOptions::default() };
    in_cqes(Device::open(Arc::new(transport), options).expect("a device"))
}

/// One RC connection with the traffic of perftest's programs, both ways.
fn reliable(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let [a, b] = [ours, theirs].map(|device| End::new(device.clone(), LEN).expect("an end"));
    a.join(&b);
    a.cq.arm(false);
    for (x, y) in [(&a, &b), (&b, &a)] {
        for inline in [false, true] {
            y.receive(1, 4096, 64);
            let sge = [x.sge(0, 64)];
            let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
            let posted = match inline {
                false => x.qp.post_send([wr]),
                true => x.qp.post_inline(wr, &Target::Peer, &x.words.bytes(0, 64)),
            };
            posted.expect("a send");
            x.succeeded();
            y.succeeded();
        }
        let (raddr, rkey) = (y.words.addr(), y.mr.rkey());
        let swap = SendOp::CmpSwap { raddr, rkey, compare: 3, swap: 4 };
        for op in [y.to_write(0), y.to_read(0), y.to_add(0, 3), swap] {
            x.post(2, op, &[x.sge(8192, 8)]);
            x.succeeded();
        }
    }
}

/// Sends a datagram to the other function.
fn datagrams(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let [from, to] = [ours, theirs].map(|device| End::alone(device, Service::Ud));
    to.receive(1, 0, 4096);
    let ah = from.ah(v4(2));
    from.send_to(1, 64, &Target::Datagram { ah: &ah, qpn: to.qp.qpn(), qkey: QKEY });
    from.succeeded();
    to.succeeded();
}

/// Receives through a shared receive queue.
fn shared(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let pd = Pd::alloc(ours).expect("a PD");
    let srq = Srq::create(&pd, &SrqInit { max_wr: 7, max_sge: 1, xrc: None, cookie: 0 }).expect("an SRQ");
    let share = |init: &mut QpInit| {
        init.srq = Some(srq.clone());
        (init.max_recv_wr, init.max_recv_sge) = (0, 0);
    };
    let own = End::of(&pd, &Make { qp: &share, ..Make::default() }).expect("an end");
    let peer = End::new(theirs.clone(), LEN).expect("an end");
    own.join(&peer);
    for round in 0..3 {
        srq.post_recv([RecvWr { wr_id: round, sge: &[own.sge(0, 64)] }]).expect("a receive");
        peer.post(round, SendOp::Send, &[peer.sge(0, 64)]);
        peer.succeeded();
        own.succeeded();
    }
}

/// Records the life of a VF under our driver, with the verbs of the stock driver's stream. Returns the file.
fn life(scratch: &Scratch) -> PathBuf {
    let node = scratch.node(2);
    let file = scratch.dir().join("recorded");
    let recorder = Recorder::create(&file).expect("a file");
    let theirs = open_device_of(&node, 2).expect("a device");
    let ours = recorded(&node, recorder);
    reliable(&ours, &theirs);
    datagrams(&ours, &theirs);
    shared(&ours, &theirs);
    drop(ours);
    file
}

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("streams").join(name)
}

#[test]
fn our_stream_differs_from_those_of_stock_drivers_as_reviewed_and_not_otherwise() {
    let scratch = Scratch::new();
    let ours = Said::of(&lines::read(&life(&scratch), Some(1)).expect("our stream"));
    let mut stock = Vec::new();
    for name in ["stock-vf.txt", "rdma-core-vfio.txt"] {
        stock.extend(lines::read(&kept(name), None).expect("a stock driver's stream"));
    }
    let stock = Said::of(&stock);
    let text = std::fs::read_to_string(kept("differences.txt")).expect("the list");
    let list = Allowed::parse(&text).expect("a list");
    let (refused, idle) = list.judge(&ours.unlike(&stock));
    println!("{} differences from the stock driver are listed", list.len());
    assert!(
        refused.is_empty() && idle.is_empty(),
        "not in tests/streams/differences.txt:\n{}\nin it for nothing:\n{}",
        refused.join("\n"),
        idle.join("\n")
    );
}

#[test]
fn a_recording_has_commands_with_their_answers_requests_and_registers() {
    let scratch = Scratch::new();
    let file = life(&scratch);
    let (records, cut) = file::read(&file).expect("a stream");
    assert!(!cut);
    let count = |what: fn(&Event) -> bool| records.iter().filter(|record| what(&record.event)).count();
    assert_eq!(count(|event| matches!(event, Event::Command { delivery: None, .. })), 0, "unanswered");
    assert!(count(|event| matches!(event, Event::Command { .. })) > 50);
    // Everything that a program posted is there: two SENDs, a WRITE, a READ, two atomics and a datagram.
    let all = lines::lines(&records, None, Detail::Named);
    let posted = |begin: &str| all.iter().filter(|line| line.starts_with(begin)).count();
    let sent = [
        "post:Rc:Send ",
        "post:Rc:RdmaWrite ",
        "post:Rc:RdmaRead ",
        "post:Rc:AtomicFa ",
        "post:Rc:AtomicCs ",
        "post:Ud:Send ",
    ];
    assert_eq!(sent.map(posted), [2, 1, 1, 1, 1, 1]);
    assert_eq!(["post:receive ", "post:shared "].map(posted), [2, 3]);
    assert!(posted("write cmdq_phy_addr_31_12=") >= 1);
    // Objects are named by their order, so that two recordings match.
    assert!(
        all.iter().any(|line| line.starts_with("CREATE_QP ") && line.contains("qpc.pd=pd#1")),
        "{all:#?}"
    );
}

#[test]
fn what_goes_beyond_the_limit_is_left_out_and_the_file_says_so() {
    let (scratch, node) = Scratch::with_node(1);
    let file = scratch.dir().join("short");
    drop(recorded(&node, Recorder::with_limit(&file, 10_000).expect("a file")));
    assert!(std::fs::metadata(&file).expect("the file").len() < 10_200);
    let (records, _) = file::read(&file).expect("a stream");
    assert!(records.iter().any(|record| record.event == Event::Full));
}
