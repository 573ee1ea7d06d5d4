//! Receive side scaling by the driver over a node: work queues, indirection tables, and the QPs that distribute frames over them.

use devmodel::LinkLayer;
use driver::{
    Completion, Cq, Device, Error, Event, Flow, FlowAttr, FlowKind, Mr, Pd, Qp, QpAttr, QpAttrMask as Mask,
    QpState, RawCompletion, RecvWr, RssInit, RwqTable, RxHash, RxHashFields as Fields, SendFlags, SendOp,
    SendWr, Service, Sge, Target, WcFlags, WcOpcode, WcStatus, Wq, WqAttr, WqInit, WqState,
};
use ironverbs_tests::{
    end::{End, SOON, Words, all_rights, completion as next, register},
    program::Scratch,
};
use node::{Node, NodeOptions, open_device_of};
use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};
use testkit::until;

const ROOM: usize = 2048;
/// Number of work queues, and of entries in the table over them.
const QUEUES: usize = 4;
const ENTRIES: usize = 64;

/// Key of the verification suite that defines RSS ("Verifying the RSS Hash Calculation", Microsoft).
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The suite: source, destination, hash of the addresses, and of addresses and ports.
const SUITE_V4: [(&str, u16, &str, u16, u32, u32); 5] = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
];
const SUITE_V6: [(&str, u16, &str, u16, u32, u32); 3] = [
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
    (
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        "fe80::200:f8ff:fe21:67cf",
        38024,
        0x4b61_e985,
        0x02d1_feef,
    ),
];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The sender of frames, on function 1, and their receiver on function 2.
fn sides(node: &Arc<Node>) -> (End, Receiver) {
    let device = open_device_of(node, 1).expect("a function");
    (End::alone(&device, Service::RawPacket), Receiver::new(node, 2))
}

fn send(from: &End, frame: &[u8]) {
    from.words.put(0, frame);
    from.send_to(0, frame.len(), &Target::Peer);
    from.good(WcOpcode::Send);
}

/// Work queues on two CQs of one function, all ready, and a table over them.
struct Receiver {
    table: Option<Arc<RwqTable>>,
    wqs: Vec<Arc<Wq>>,
    cqs: [Arc<Cq>; 2],
    pd: Arc<Pd>,
    mr: Mr,
    words: Words,
    device: Arc<Device>,
}

/// Returns the queue of a table entry.
fn queue_of(entry: usize) -> usize {
    entry / 5 % QUEUES
}

impl Receiver {
    fn new(node: &Arc<Node>, fid: u8) -> Self {
        let device = open_device_of(node, fid).expect("a function");
        let pd = Pd::alloc(&device).expect("a PD");
        let cqs = [0; 2].map(|_| Cq::create(&device, 256, 0).expect("a CQ"));
        let words = Words::new(QUEUES * ROOM);
        let mr = register(&pd, &words, all_rights()).expect("a region");
        let wqs: Vec<_> = (0..QUEUES)
            .map(|q| Wq::create(&pd, &wanted(&cqs[q % 2])).expect("a WQ"))
            .inspect(|wq| to(wq, WqState::Rdy).expect("ready"))
            .collect();
        let entries: Vec<_> = (0..ENTRIES).map(|entry| wqs[queue_of(entry)].clone()).collect();
        let table = Some(RwqTable::create(&device, &entries).expect("a table"));
        Self { table, wqs, cqs, pd, mr, words, device }
    }

    fn mac(&self) -> [u8; 6] {
        self.device.port().expect("the port").mac
    }

    fn sge(&self, q: usize) -> Sge {
        Sge { addr: self.words.addr() + (q * ROOM) as u64, length: ROOM as u32, lkey: self.mr.lkey() }
    }

    fn post(&self, q: usize, wr_id: u64) -> Result<(), i32> {
        self.wqs[q].post_recv([RecvWr { wr_id, sge: &[self.sge(q)] }]).map_err(|error| error.errno)
    }

    fn rss(&self, fields: Fields) -> Result<Arc<Qp>, Error> {
        let init = RssInit {
            table: self.table.clone().expect("a table"),
            hash: RxHash { key: KEY, fields },
            block_multicast_loopback: false,
        };
        Qp::create_rss(&self.pd, &init)
    }

    /// Waits for the next frame in any queue, one from `src`.
    #[track_caller]
    fn frame(&self, src: &str) -> Completion {
        let mut found = None;
        until(format_args!("a frame from {src}"), SOON, || {
            found = self.cqs.iter().find_map(|cq| next(cq, Duration::ZERO));
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// A flow that sends all frames without another receiver to `qp`.
    fn everything(qp: &Arc<Qp>) -> Flow {
        Flow::create(qp, &FlowAttr { kind: FlowKind::AllDefault, ..FlowAttr::default() }).expect("a flow")
    }
}

fn wanted(cq: &Arc<Cq>) -> WqInit {
    WqInit { cq: cq.clone(), max_wr: 64, max_sge: 2, strip_vlan: false, cookie: 0 }
}

fn to(wq: &Wq, state: WqState) -> Result<(), Error> {
    wq.modify(&WqAttr { state: Some(state), ..WqAttr::default() })
}

/// Both sides on a separate node, and a flow of every frame to the second, hashed by `fields`.
fn stage(fields: Fields) -> (Scratch, End, Receiver, Flow) {
    let (scratch, node) = Scratch::with_node(3);
    let (a, b) = sides(&node);
    let flow = Receiver::everything(&b.rss(fields).expect("a QP"));
    (scratch, a, b, flow)
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, errno: i32) {
    assert_eq!(result.err().map(|error| error.errno()), Some(errno));
}

/// Builds a frame with ports at the offsets common to TCP and UDP; checksums are not checked.
fn packet(to: [u8; 6], protocol: u8, (src, sport): (&str, u16), (dst, dport): (&str, u16)) -> Vec<u8> {
    let rest = [&sport.to_be_bytes()[..], &dport.to_be_bytes(), &[0; 8], &[0x50, 0x10], &[0; 16]].concat();
    let len = rest.len() as u8;
    let (kind, ip) = match (src.parse::<Ipv4Addr>(), dst.parse::<Ipv4Addr>()) {
        (Ok(src), Ok(dst)) => {
            let head = [0x45, 0, 0, 20 + len, 0, 1, 0, 0, 64, protocol, 0, 0];
            ([8, 0], [&head[..], &src.octets(), &dst.octets()].concat())
        }
        _ => {
            let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
            let head = [0x60, 0, 0, 0, 0, len, protocol, 64];
            ([0x86, 0xdd], [&head[..], &address(src), &address(dst)].concat())
        }
    };
    [&to[..], &[2, 0, 0, 0, 0, 9], &kind, &ip, &rest].concat()
}

#[test]
fn frames_go_where_the_hash_of_the_verification_suite_says() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = sides(&node);
    let (v4, v6) = (Fields::SRC_IPV4 | Fields::DST_IPV4, Fields::SRC_IPV6 | Fields::DST_IPV6);
    let tcp = Fields::SRC_PORT_TCP | Fields::DST_PORT_TCP;
    let udp = Fields::SRC_PORT_UDP | Fields::DST_PORT_UDP;
    // Hash fields, protocol of the frame, and whether the ports are hashed.
    let kinds = [(tcp, TCP, true), (tcp, UDP, false), (udp, UDP, true), (Fields::empty(), TCP, false)];
    let suites = [(v4, &SUITE_V4[..]), (v6, &SUITE_V6[..])];
    for ((addresses, suite), (ports, protocol, counts)) in
        suites.into_iter().flat_map(|suite| kinds.map(|kind| (suite, kind)))
    {
        let qp = b.rss(addresses | ports).expect("a QP");
        let _flow = Receiver::everything(&qp);
        for (src, sport, dst, dport, without, with) in suite {
            let hash = if counts { with } else { without };
            let q = queue_of(*hash as usize % ENTRIES);
            b.post(q, 7).expect("a receive");
            let sent = packet(b.mac(), protocol, (src, *sport), (dst, *dport));
            send(&a, &sent);
            let (mut wc, mut cqe) = (Completion::default(), RawCompletion::zeroed());
            let what = format!("{src} to {dst}: in queue {q}");
            until(what, SOON, || b.cqs[q % 2].poll_raw(&mut wc, &mut cqe));
            assert_eq!((wc.status, wc.wr_id, wc.qpn), (WcStatus::Success, 7, b.wqs[q].wqn()));
            assert_eq!(cqe.rx_hash_result(), *hash, "{src} to {dst}");
            assert_eq!((wc.byte_len as usize, b.words.bytes(q * ROOM, sent.len())), (sent.len(), sent));
        }
    }
}

#[test]
fn flows_spread_over_all_queues_and_each_stays_in_its_own() {
    let (_scratch, a, b, _flow) = stage(Fields::SRC_IPV4 | Fields::SRC_PORT_UDP);
    (0..QUEUES * 64).for_each(|i| b.post(i % QUEUES, (i % QUEUES) as u64).expect("a receive"));
    let mut got = [0; QUEUES];
    for flow in 1..=60 {
        let (src, port) = (format!("10.1.{}.{flow}", 7 * flow % 251), 1024 + 977 * flow);
        let frame = packet(b.mac(), UDP, (&src, port), ("10.0.0.2", 53));
        let mut queues = [0, 1].map(|_| {
            send(&a, &frame);
            let wc = b.frame(&src);
            let q = b.wqs.iter().position(|wq| wq.wqn() == wc.qpn).expect("a queue of ours");
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, q as u64));
            q
        });
        queues.sort();
        assert_eq!(queues[0], queues[1], "{src}");
        got[queues[0]] += 2;
    }
    assert!(got.iter().all(|frames| *frames >= 8), "{got:?}");
}

#[test]
fn a_work_queue_takes_receives_when_ready_and_flushes_them_in_error() {
    let (_scratch, a, b, _flow) = stage(Fields::SRC_IPV4);
    // All frames of one source go to the same queue; the first frame shows which.
    let frame = packet(b.mac(), TCP, ("10.0.0.1", 1), ("10.0.0.2", 2));
    (0..QUEUES).for_each(|q| b.post(q, q as u64).expect("a receive"));
    send(&a, &frame);
    let wc = b.frame("10.0.0.1");
    assert!(!wc.flags.contains(WcFlags::IP_CSUM), "its checksum is 0");
    let q = wc.wr_id as usize;
    let (wq, cq) = (&b.wqs[q], &b.cqs[q % 2]);
    assert_eq!(wq.state(), WqState::Rdy);

    let of = |state, current| WqAttr { state, current, strip_vlan: None };
    refused(wq.modify(&of(Some(WqState::Err), Some(WqState::Reset))), libc::EINVAL);
    (10..13).for_each(|wr_id| b.post(q, wr_id).expect("a receive"));
    wq.modify(&of(Some(WqState::Err), Some(WqState::Rdy))).expect("error");
    b.post(q, 13).expect("it is flushed too");
    for wr_id in 10..14 {
        let wc = next(cq, SOON).expect("flushed");
        assert_eq!((wc.wr_id, wc.status, wc.qpn), (wr_id, WcStatus::WrFlushErr, wq.wqn()));
    }
    refused(to(wq, WqState::Rdy), libc::EINVAL);

    to(wq, WqState::Reset).expect("reset");
    assert_eq!(b.post(q, 14), Err(libc::EINVAL), "in RESET");
    send(&a, &frame);
    to(wq, WqState::Rdy).expect("ready");
    b.post(q, 15).expect("a receive");
    send(&a, &frame);
    assert_eq!(next(cq, SOON).map(|wc| (wc.wr_id, wc.status)), Some((15, WcStatus::Success)));
    assert_eq!(next(cq, Duration::from_millis(30)), None, "what came in RESET is lost");

    // An unpolled frame is discarded by the transition.
    b.post(q, 16).expect("a receive");
    send(&a, &frame);
    until("a frame", SOON, || cq.is_ready());
    to(wq, WqState::Reset).expect("reset");
    assert_eq!(next(cq, Duration::from_millis(30)), None);
    to(wq, WqState::Rdy).expect("ready");
    let (fit, pieces) = wq.size();
    for wr_id in 0..u64::from(fit) {
        b.post(q, wr_id).expect("a receive");
    }
    assert_eq!(b.post(q, 99), Err(libc::ENOMEM));
    let long = vec![b.sge(q); pieces as usize + 1];
    let error = wq.post_recv([RecvWr { wr_id: 0, sge: &long }]).expect_err("too many pieces");
    assert_eq!(error.errno, libc::EINVAL);
}

#[test]
fn vlan_tags_are_taken_out_where_the_queue_says_so() {
    let (_scratch, a, b, _flow) = stage(Fields::DST_IPV4);
    let plain = packet(b.mac(), TCP, ("10.0.0.1", 1), ("10.0.0.2", 2));
    let tagged = [&plain[..12], &[0x81, 0, 0x61, 0x23], &plain[12..]].concat();
    for strip in [true, false] {
        for (q, wq) in b.wqs.iter().enumerate() {
            wq.modify(&WqAttr { strip_vlan: Some(strip), ..WqAttr::default() }).expect("a change");
            b.post(q, q as u64).expect("a receive");
        }
        send(&a, &tagged);
        let wc = b.frame("10.0.0.1");
        let got = b.words.bytes(wc.wr_id as usize * ROOM, wc.byte_len as usize);
        assert_eq!(&got, if strip { &plain } else { &tagged });
    }
}

#[test]
fn a_work_queue_that_cannot_say_what_came_is_an_event() {
    const COOKIE: u64 = 0x77;
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = sides(&node);
    let cq = Cq::create(&b.device, 1, 0x55).expect("a CQ");
    let wq = Wq::create(&b.pd, &WqInit { cookie: COOKIE, ..wanted(&cq) }).expect("a WQ");
    to(&wq, WqState::Rdy).expect("ready");
    let table = Some(RwqTable::create(&b.device, std::slice::from_ref(&wq)).expect("a table"));
    let b = Receiver { table, ..b };
    let qp = b.rss(Fields::SRC_IPV4).expect("a QP");
    let _flow = Receiver::everything(&qp);
    let frame = packet(b.mac(), TCP, ("10.0.0.1", 1), ("10.0.0.2", 2));
    // More than the CQ has room for.
    let room = cq.entries();
    for wr_id in 0..2 + u64::from(room) {
        wq.post_recv([RecvWr { wr_id, sge: &[b.sge(0)] }]).expect("a receive");
        send(&a, &frame);
    }
    let (mut failed, end) = (0, Instant::now() + SOON);
    while failed < 2 {
        assert!(Instant::now() < end, "{failed} of two events");
        match b.device.events().next() {
            None => drop(b.device.events().wait(Some(Duration::from_millis(20)))),
            Some(Event::CqError { cookie, .. }) => {
                assert_eq!(cookie, 0x55);
                failed += 1;
            }
            Some(Event::WqFatal { wqn, cookie }) => {
                assert_eq!((wqn, cookie), (wq.wqn(), COOKIE));
                failed += 1;
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_is_refused_and_what_is_in_use_stays() {
    let (_scratch, node) = Scratch::with_node(3);
    let (mut b, other) = (Receiver::new(&node, 2), Receiver::new(&node, 3));
    let attr = b.device.attr();
    let (most_wr, most_sge, most) = (attr.max_wq_wr, attr.max_sge, attr.max_rwq_table_size as usize);
    let create = |change: &dyn Fn(&mut WqInit)| {
        let mut init = wanted(&b.cqs[0]);
        change(&mut init);
        Wq::create(&b.pd, &init)
    };
    refused(create(&|init| init.max_wr = 0), libc::EINVAL);
    refused(create(&|init| init.max_wr = most_wr + 1), libc::EINVAL);
    refused(create(&|init| init.max_sge = most_sge + 1), libc::EINVAL);
    refused(create(&|init| init.cq = other.cqs[0].clone()), libc::EINVAL);
    // A refused WQ leaves no trace on the CQ: the next one works.
    let spare = create(&|init| (init.max_wr, init.max_sge) = (3, 0)).expect("a WQ");
    assert_eq!(spare.size(), (4, 1));
    spare.destroy().expect("nothing holds it");

    let table = |wqs: &[Arc<Wq>]| RwqTable::create(&b.device, wqs);
    refused(table(&[]), libc::EINVAL);
    refused(table(&b.wqs[..3]), libc::EINVAL);
    refused(table(&vec![b.wqs[0].clone(); 2 * most]), libc::EINVAL);
    refused(table(&other.wqs[..1]), libc::EINVAL);
    for size in [1, 2, most] {
        table(&vec![b.wqs[0].clone(); size]).expect("a table").destroy().expect("nothing holds it");
    }

    refused(b.rss(Fields::SRC_IPV4 | Fields::DST_IPV6), libc::EINVAL);
    refused(b.rss(Fields::SRC_PORT_TCP | Fields::DST_PORT_UDP), libc::EINVAL);
    refused(b.rss(Fields::empty()), libc::EINVAL);
    let one = RssInit {
        table: table(&b.wqs[..1]).expect("a table"),
        hash: RxHash { key: KEY, fields: Fields::empty() },
        block_multicast_loopback: true,
    };
    Qp::create_rss(&b.pd, &one).expect("one entry needs no hash");
    refused(Qp::create_rss(&other.pd, &one), libc::EINVAL);

    let qp = b.rss(Fields::SRC_IPV4).expect("a QP");
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, ..QpAttr::default() };
    refused(qp.modify(&attr, Mask::STATE | Mask::PORT), libc::EOPNOTSUPP);
    refused(qp.query(), libc::EOPNOTSUPP);
    let error = qp.post_recv([RecvWr { wr_id: 0, sge: &[] }]).expect_err("its queues take them");
    assert_eq!(error.errno, libc::EINVAL);
    let wr = SendWr { wr_id: 0, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
    assert_eq!(qp.post_send([wr]).expect_err("it only receives").errno, libc::EINVAL);

    let wq = b.wqs[0].clone();
    drop(std::mem::take(&mut b.wqs));
    refused(wq.destroy(), libc::EBUSY);
    refused(b.table.take().expect("a table").destroy(), libc::EBUSY);
    qp.destroy().expect("nothing holds it, and the rest goes with it");
    let [first, _] = b.cqs;
    drop(one);
    first.destroy().expect("no work queue is left on it");
}

#[test]
fn a_port_that_is_not_ethernet_has_no_work_queues() {
    let scratch = Scratch::new();
    let options =
        NodeOptions { vfs: Some(1), link_layer: Some(LinkLayer::Infiniband), ..NodeOptions::default() };
    let node = scratch.node_with(&options);
    let device = open_device_of(&node, 1).expect("a function");
    let (pd, cq) = (Pd::alloc(&device).expect("a PD"), Cq::create(&device, 8, 0).expect("a CQ"));
    refused(Wq::create(&pd, &wanted(&cq)), libc::EOPNOTSUPP);
    refused(RwqTable::create(&device, &[]), libc::EOPNOTSUPP);
}
