//! The driver's verbs over a node: bring-up, attach, every operation at every size with data checks, errors that programs get, and many
//! objects.

use driver::{
    AccessFlags, Completion, Cq, Mr, Pd, Qp, QpAttr, QpAttrMask, QpInit, QpState, SendFlags, SendOp, SendWr,
    Service, Target, WcOpcode, WcStatus,
};
use ironverbs_tests::{
    cost::Cpu,
    end::{
        Card, End, Patience, SOON, Words, all_rights, connect, every_operation, pair, pattern, queue_pair,
        register,
    },
    program::Scratch,
};
use node::{Node, open_device, open_device_of};
use std::{path::Path, sync::Arc, time::Instant};

/// Bytes of memory at each end.
const LEN: usize = 9 << 20;
/// Sizes from zero or one word to several MiB, around the MTU and page boundaries.
const SIZES: [usize; 13] =
    [8, 16, 64, 128, 1000, 4088, 4096, 4104, 8192, 65536, 100_000, 1 << 20, (4 << 20) + 8];

#[test]
fn every_operation_between_two_functions() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b) = pair(&node, 1, 2, LEN);
    every_operation(&a, &b, &SIZES);
    every_operation(&b, &a, &SIZES);
}

#[test]
fn every_operation_between_a_function_and_itself() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b) = pair(&node, 1, 1, LEN);
    every_operation(&a, &b, &SIZES);
}

#[test]
fn every_operation_with_the_physical_function() {
    let (_scratch, node) = Scratch::with_node(1);
    let (a, b) = pair(&node, 0, 1, LEN);
    every_operation(&a, &b, &SIZES);
}

#[test]
fn inline_data_are_taken_when_posted() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b) = pair(&node, 1, 2, 4096);
    for len in [1, 8, 28, 29, 60, 64] {
        let data = pattern(len, len as u8);
        let mut then = data.clone();
        let wr = SendWr { wr_id: 1, op: b.to_write(0), sge: &[], flags: SendFlags::SIGNALED };
        a.qp.post_inline(wr, &Target::Peer, &then).expect("post");
        then.fill(0);
        a.good(WcOpcode::RdmaWrite);
        assert_eq!(b.words.bytes(0, len), data);
    }
}

#[test]
fn errors_are_those_a_program_knows() {
    let (_scratch, node) = Scratch::with_node(2);
    type Fault = fn(&End, &End) -> (SendOp, driver::Sge);
    let cases: [(&str, Fault, WcStatus); 5] = [
        (
            "bad rkey",
            |a, b| (SendOp::Write { raddr: b.words.addr(), rkey: b.mr.rkey() ^ 0x100 }, a.sge(0, 64)),
            WcStatus::RemAccessErr,
        ),
        (
            "out of bounds",
            |a, b| (SendOp::Read { raddr: b.words.addr() + 4090, rkey: b.mr.rkey() }, a.sge(0, 64)),
            WcStatus::RemAccessErr,
        ),
        (
            "bad lkey",
            |a, b| (b.to_write(0), driver::Sge { lkey: 0x7_0000, ..a.sge(0, 64) }),
            WcStatus::LocProtErr,
        ),
        (
            "misaligned atomic",
            |a, b| (SendOp::FetchAdd { raddr: b.words.addr() + 4, rkey: b.mr.rkey(), add: 1 }, a.sge(0, 8)),
            WcStatus::RemInvReqErr,
        ),
        (
            "receive too short",
            |a, b| {
                b.receive(1, 0, 16);
                (SendOp::Send, a.sge(0, 64))
            },
            WcStatus::RemInvReqErr,
        ),
    ];
    for (what, fault, status) in cases {
        let (a, b) = pair(&node, 1, 2, 4096);
        let (op, sge) = fault(&a, &b);
        a.post(11, op, &[sge]);
        a.post(12, SendOp::Send, &[a.sge(0, 8)]);
        let (first, second) = (a.wait(), a.wait());
        assert_eq!((first.wr_id, first.status), (11, status), "{what}: {first:?}");
        assert_eq!((second.wr_id, second.status), (12, WcStatus::WrFlushErr), "{what}");
        assert_eq!(a.qp.query().expect("query").qp_state, QpState::Err, "{what}");
    }
}

#[test]
fn verbs_refuse_what_they_must() {
    let (scratch, node) = Scratch::with_node(1);
    let end = End::new(open_device_of(&node, 1).expect("open"), 4096).expect("an end");
    // Invalid transitions change nothing.
    let rts = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
    assert_eq!(end.qp.modify(&rts, QpAttrMask::STATE).map_err(|e| e.errno()), Err(22));
    assert_eq!(end.qp.query().expect("query").qp_state, QpState::Reset);
    // Posts before the QP is ready.
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
    assert!(end.qp.post_send([wr]).is_err());
    // Remote write requires local write.
    let words = Words::new(4096);
    assert_eq!(
        register(&end.pd, &words, AccessFlags::REMOTE_WRITE).map(drop).map_err(|e| e.errno()),
        Err(22)
    );
    // A missing VF and a missing node.
    assert!(open_device(scratch.dir(), 9).is_err());
    assert!(Node::open(Path::new("/dev/shm/no-such-node-anywhere")).is_err());
    // A CQ used by QPs cannot be destroyed.
    assert!(Cq::create(&end.device, 0, 0).is_err());
}

/// Of every size, up to the one where the other ring would no longer fit.
#[test]
fn a_queue_pair_may_have_one_queue_only() {
    let (scratch, _node) = Scratch::with_node(1);
    let device = open_device(scratch.dir(), 1).expect("open");
    let (pd, cq) = (Pd::alloc(&device).expect("PD"), Cq::create(&device, 16, 0).expect("CQ"));
    for (max_send_wr, max_recv_wr) in (0..12).flat_map(|log| [(1 << log, 0), (0, 1 << log)]).chain([(0, 0)]) {
        let sge = |wrs: u32| wrs.min(4);
        let init = QpInit {
            max_send_wr,
            max_recv_wr,
            max_send_sge: sge(max_send_wr),
            max_recv_sge: sge(max_recv_wr),
            ..QpInit::new(Service::Rc, &cq, &cq)
        };
        let qp = Qp::create(&pd, &init).unwrap_or_else(|e| panic!("{max_send_wr}/{max_recv_wr}: {e}"));
        qp.destroy().expect("destroy");
    }
}

/// libfabric creates a queue pair with the sizes that an earlier one returned.
#[test]
fn sizes_that_were_given_can_be_asked_for() {
    let (scratch, _node) = Scratch::with_node(1);
    let device = open_device(scratch.dir(), 1).expect("open");
    let (pd, cq) = (Pd::alloc(&device).expect("PD"), Cq::create(&device, 16, 0).expect("CQ"));
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        for inline in [0, 1, 100, 500, 900] {
            let mut init = QpInit {
                max_send_wr: 100,
                max_recv_wr: 100,
                max_send_sge: 3,
                max_recv_sge: 3,
                max_inline: inline,
                ..QpInit::new(service, &cq, &cq)
            };
            for _ in 0..3 {
                let qp =
                    Qp::create(&pd, &init).unwrap_or_else(|e| panic!("{service:?}, inline {inline}: {e}"));
                let cap = qp.cap();
                assert!(cap.max_inline >= init.max_inline && cap.max_send_sge >= init.max_send_sge);
                (init.max_send_wr, init.max_recv_wr) = (cap.max_send_wr, cap.max_recv_wr);
                (init.max_send_sge, init.max_recv_sge) = (cap.max_send_sge, cap.max_recv_sge);
                init.max_inline = cap.max_inline;
                qp.destroy().expect("destroy");
            }
        }
    }
}

#[test]
fn closing_gives_everything_back() {
    let (_scratch, node) = Scratch::with_node(3);
    for by_hand in [true, false, false] {
        let ends = [0, 1, 2, 3]
            .map(|fid| End::new(open_device_of(&node, fid).expect("open"), 1 << 16).expect("an end"));
        ends[1].join(&ends[2]);
        assert!(node.status().expect("status").driver_memory > 0);
        for end in ends {
            if by_hand {
                let End { qp, cq, receives, mr, pd, device, .. } = end;
                drop(receives);
                qp.destroy().expect("QP");
                cq.destroy().expect("CQ");
                mr.deregister().expect("MR");
                pd.dealloc().expect("PD");
                device.close().expect("device");
            }
        }
        let after = node.status().expect("status");
        assert_eq!(after.driver_memory, 0);
        assert!(after.functions.iter().all(|f| f.objects.is_empty()), "{:?}", after.functions);
    }
}

#[test]
fn memory_of_destroyed_objects_comes_back_while_the_device_is_open_and_after() {
    const OBJECTS: usize = 600;
    let (_scratch, node) = Scratch::with_node(1);
    let memory = || node.status().expect("status").memory;
    let open = || End::new(open_device_of(&node, 1).expect("open"), 1 << 16).expect("an end");
    drop(open());
    let fresh = memory();
    let end = open();
    let before = memory();
    for round in 0..3 {
        let make = |_| {
            let cq = Cq::create(&end.device, 16, 0).expect("CQ");
            let mr = register(&end.pd, &end.words, AccessFlags::LOCAL_WRITE).expect("MR");
            (queue_pair(&end.pd, &cq).expect("QP"), cq, mr)
        };
        let made: Vec<_> = (0..OBJECTS).map(make).collect();
        let most = memory();
        assert!(most > before + (4 << 20), "{before} bytes before, {most} with {OBJECTS} of each");
        drop(made);
        let left = memory();
        assert!(left < before + (1 << 20), "round {round}: {before} bytes before, {left} after");
    }
    drop(end);
    let left = memory();
    assert!(left < fresh + (1 << 19), "{fresh} bytes before, {left} after");
}

/// Nanoseconds per QP with its region: created and connected, used, destroyed; and bytes of the node for each.
fn cost(n: usize) -> [f64; 4] {
    let (_scratch, node) = Scratch::with_node(2);
    let device = open_device_of(&node, 1).expect("open");
    let pd = Pd::alloc(&device).expect("PD");
    let cq = Cq::create(&device, 256, 0).expect("CQ");
    let gid = device.gid(1).expect("GID");
    let before = node.status().expect("status");
    let per = |begin: Cpu| begin.nanos() / n as f64;

    let begin = Cpu::start();
    let words: Vec<Arc<Words>> = (0..n).map(|_| Arc::new(Words::new(64))).collect();
    let regions: Vec<Mr> = words.iter().map(|w| register(&pd, w, all_rights()).expect("MR")).collect();
    let qps: Vec<Arc<Qp>> = (0..n).map(|_| queue_pair(&pd, &cq).expect("QP")).collect();
    for pair in qps.chunks(2) {
        for (one, other) in [(0, 1), (1, 0)] {
            let card = Card { gid, qpn: pair[other].qpn(), addr: 0, rkey: 0 };
            connect(&pair[one], &card, Patience::default()).expect("connect");
        }
    }
    let create = per(begin);
    let full = node.status().expect("status");
    assert_eq!(full.functions[1].objects[0], ("qp", n as u32));
    let bytes = (full.memory - before.memory) as f64 / n as f64;

    let begin = Cpu::start();
    for i in (0..n).step_by(2) {
        words[i].set_word(0, i as u64 + 1);
        let sge = driver::Sge { addr: words[i].addr(), length: 8, lkey: regions[i].lkey() };
        let op = SendOp::Write { raddr: words[i + 1].addr(), rkey: regions[i + 1].rkey() };
        qps[i]
            .post_send([SendWr { wr_id: i as u64, op, sge: &[sge], flags: SendFlags::SIGNALED }])
            .expect("post");
        let (mut out, begin) = ([Completion::default()], Instant::now());
        while cq.poll(&mut out) == 0 {
            assert!(begin.elapsed() < SOON, "QP {i} hangs");
        }
        assert_eq!((out[0].status, out[0].wr_id), (WcStatus::Success, i as u64));
        assert_eq!(words[i + 1].word(0), i as u64 + 1);
    }
    let used = per(begin);

    let begin = Cpu::start();
    qps.into_iter().for_each(|qp| qp.destroy().expect("QP"));
    regions.into_iter().for_each(|mr| mr.deregister().expect("MR"));
    let destroy = per(begin);
    let after = node.status().expect("status");
    assert_eq!(after.functions[1].objects, before.functions[1].objects);
    // The driver keeps its doorbell record pages until the device is closed.
    assert!(after.driver_memory <= before.driver_memory + 128 * n as u64);
    [create, used, destroy, bytes]
}

#[test]
fn ten_thousand_qps_and_regions_in_one_program() {
    println!("objects   create ns   use ns   destroy ns   node bytes   (each QP with its region)");
    let [few, many] = [1_000, 10_000].map(|n| {
        let [create, used, destroy, bytes] = cost(n);
        println!("{n:7}   {create:9.0}   {used:6.0}   {destroy:10.0}   {bytes:10.0}");
        assert!(bytes < (64 << 10) as f64, "{bytes} bytes");
        [create, used, destroy, bytes]
    });
    for ((what, few), many) in ["create", "use", "destroy", "bytes"].into_iter().zip(few).zip(many) {
        assert!(many < 4.0 * few, "{what}: {few:.0} each of a thousand, {many:.0} each of ten thousand");
    }
}
