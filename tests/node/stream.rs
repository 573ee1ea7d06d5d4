//! Our driver's stream to a VF, recorded and compared with the stock drivers' streams in `tests/streams/`.

use driver::{
    AddressHandle, Ah, Cq, Device, OpenOptions, Pd, Qp, QpAttr, QpInit, QpState, RecvWr, SendFlags, SendOp,
    SendWr, Service, Sge, Srq, SrqInit, Target, WcStatus,
};
use ironverbs_tests::{
    end::{End, Patience, Words, all_rights, completion, connect, register},
    program::Scratch,
};
use node::{Node, NodeTransport, open_device_of};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use stream::{
    RecordingTransport,
    event::Event,
    file::{self, Recorder},
    lines,
    text::Detail,
    words::{Allowed, Words as Said},
};

const SOON: Duration = Duration::from_secs(10);
const LEN: usize = 64 << 10;
const QKEY: u32 = 0x1111_1111;

/// The address that the node assigns to function `fid`.
fn v4(fid: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, fid + 1]
}

/// Opens function 1 of a node with a recorder.
fn recorded(node: &Arc<Node>, recorder: Arc<Recorder>) -> Arc<Device> {
    let transport = NodeTransport::open(node, 1).expect("a function");
    let transport = RecordingTransport::new(Arc::new(transport), 1, recorder);
    let options = OpenOptions { link_local: true, gids: vec![v4(1)], ..OpenOptions::default() };
    Device::open(Arc::new(transport), options).expect("a device")
}

#[track_caller]
fn good(cq: &Cq) {
    let found = completion(cq, SOON).expect("a completion");
    assert_eq!(found.status, WcStatus::Success, "{found:?}");
}

/// One RC connection with the traffic of perftest's programs, both ways.
fn reliable(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let (a, b) =
        (End::new(ours.clone(), LEN).expect("an end"), End::new(theirs.clone(), LEN).expect("an end"));
    a.connect(&b.card().expect("a card"), Patience::default()).expect("connected");
    b.connect(&a.card().expect("a card"), Patience::default()).expect("connected");
    a.cq.arm(false);
    for (x, y) in [(&a, &b), (&b, &a)] {
        let (raddr, rkey) = (y.words.addr(), y.mr.rkey());
        for inline in [false, true] {
            y.receive(1, 4096, 64).expect("a receive");
            let sge = [x.sge(0, 64)];
            let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
            let posted = match inline {
                false => x.qp.post_send([wr]),
                true => x.qp.post_inline(wr, &Target::Peer, &x.words.bytes(0, 64)),
            };
            posted.expect("a send");
            good(&x.cq);
            good(&y.cq);
        }
        for op in [
            SendOp::Write { raddr, rkey },
            SendOp::Read { raddr, rkey },
            SendOp::FetchAdd { raddr, rkey, add: 3 },
            SendOp::CmpSwap { raddr, rkey, compare: 3, swap: 4 },
        ] {
            x.post(2, op, &[x.sge(8192, 8)]).expect("a request");
            good(&x.cq);
        }
    }
}

/// Sends datagrams to the other function.
fn datagrams(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let end = |device: &Arc<Device>| {
        let pd = Pd::alloc(device).expect("a PD");
        let cq = Cq::create(device, 64, 0).expect("a CQ");
        let words = Words::new(LEN);
        let mr = register(&pd, &words, all_rights()).expect("a region");
        let init = QpInit {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(Service::Ud, &cq, &cq)
        };
        let qp = Qp::create(&pd, &init).expect("a QP");
        let attr = QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() };
        qp.advance_to(QpState::Rts, &attr).expect("RTS");
        (qp, cq, mr, pd, words)
    };
    let ((qp, cq, mr, pd, words), (peer, peer_cq, peer_mr, _peer_pd, peer_words)) = (end(ours), end(theirs));
    let there = Sge { addr: peer_words.addr(), length: 4096, lkey: peer_mr.lkey() };
    peer.post_recv([RecvWr { wr_id: 1, sge: &[there] }]).expect("a receive");
    let way = AddressHandle { dgid: v4(2), sgid_index: 1, hop_limit: 64, ..AddressHandle::default() };
    let ah =
        Ah::create(&pd, &AddressHandle { is_global: true, port_num: 1, ..way }).expect("an address handle");
    let here = Sge { addr: words.addr(), length: 64, lkey: mr.lkey() };
    let send = SendWr { wr_id: 1, op: SendOp::Send, sge: &[here], flags: SendFlags::SIGNALED };
    let target = Target::Datagram { ah: &ah, qpn: peer.qpn(), qkey: QKEY };
    qp.post_send_to([(send, target)]).expect("a send");
    good(&cq);
    good(&peer_cq);
}

/// Receives through a shared receive queue.
fn shared(ours: &Arc<Device>, theirs: &Arc<Device>) {
    let peer = End::new(theirs.clone(), LEN).expect("an end");
    let pd = Pd::alloc(ours).expect("a PD");
    let cq = Cq::create(ours, 64, 0).expect("a CQ");
    let words = Words::new(LEN);
    let mr = register(&pd, &words, all_rights()).expect("a region");
    let srq = Srq::create(&pd, &SrqInit { max_wr: 7, max_sge: 1, xrc: None, cookie: 0 }).expect("an SRQ");
    let init = QpInit {
        max_send_wr: 8,
        max_send_sge: 1,
        srq: Some(srq.clone()),
        ..QpInit::new(Service::Rc, &cq, &cq)
    };
    let qp = Qp::create(&pd, &init).expect("a QP");
    connect(&qp, &peer.card().expect("a card"), Patience::default()).expect("connected");
    let card = ironverbs_tests::end::Card { gid: v4(1), qpn: qp.qpn(), addr: words.addr(), rkey: mr.rkey() };
    peer.connect(&card, Patience::default()).expect("connected");
    for round in 0..3 {
        let sge = Sge { addr: words.addr(), length: 64, lkey: mr.lkey() };
        srq.post_recv([RecvWr { wr_id: round, sge: &[sge] }]).expect("a receive");
        peer.post(round, SendOp::Send, &[peer.sge(0, 64)]).expect("a send");
        good(&peer.cq);
        good(&cq);
    }
}

/// Records the life of a VF under our driver, with the verbs of the stock driver's stream. Returns the file.
fn life(scratch: &Scratch) -> PathBuf {
    let node = scratch.node(2).expect("a node");
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
    let scratch = Scratch::new();
    let node = scratch.node(1).expect("a node");
    let file = scratch.dir().join("short");
    drop(recorded(&node, Recorder::with_limit(&file, 10_000).expect("a file")));
    assert!(std::fs::metadata(&file).expect("the file").len() < 10_200);
    let (records, _) = file::read(&file).expect("a stream");
    assert!(records.iter().any(|record| record.event == Event::Full));
}
