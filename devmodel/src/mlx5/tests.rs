//! The pipeline from doorbell to completion, between two functions.

use super::{Job, Step, completion, event, flush, step, work::QpStage};
use crate::{
    Config,
    engine::{
        Runner, Traced,
        rig::{Link, Rig},
    },
    host::{Abort, Bus, FlatMachine, Iova, Move, Parties, Party, Rid, forward},
    region::{Effect, Func, Outlet, OutletRing, SLOTS, SlotPayload, WireRing},
    state::{Counters, CqRow, EqRow, FunctionRow, QpFlags, QpRow},
    transport::Timer,
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::{Cqe64, CqeOpcode, CqeSyndrome},
    wire::{Headers, ICRC_SIZE, IpPair, ip::gid_of_v4},
    wqe::WqeOpcode,
};
use std::sync::{Arc, Mutex};

mod trains;

fn rig() -> (Rig, Runner) {
    (Rig::new(Config::default(), Link::default()), Runner::new())
}

fn go(rig: &mut Rig, runner: &mut Runner, now: u64) {
    let job = rig.doorbell(0);
    runner.submit(&rig.adapter, &mut rig.machine, now, rig.sides[0].fid, job);
}

fn pattern(rig: &mut Rig, i: usize, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251) as u8).collect();
    rig.data(i, 0, len).copy_from_slice(&bytes);
    bytes
}

#[test]
fn a_write_lands_and_completes() {
    for len in [1, 2, 255, 256, 257, 4096, 4097, 65536, 1 << 20] {
        let (mut rig, mut runner) = rig();
        let bytes = pattern(&mut rig, 0, len);
        rig.post_send(0, WqeOpcode::RdmaWrite, len as u32, 0, true);
        go(&mut rig, &mut runner, 1);
        assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req), "{len}");
        assert_eq!(rig.data(1, 0, len), bytes);
        assert!(rig.poll(0).is_none() && rig.poll(1).is_none());
    }
}

fn uplink(rig: &Rig) -> OutletRing<'_> {
    OutletRing::of(rig.adapter.region(), Outlet::Uplink)
}

/// Side 0, a function that is returned, with a peer beyond the open uplink.
fn connected_outside() -> (Rig, Runner, u8) {
    let (mut rig, runner) = rig();
    let (near, qpn) = (rig.sides[0].fid, rig.sides[0].qpn);
    rig.with(0, |func| func.get_mut::<QpRow>(qpn).expect("the QP").path.dmac = [6, 0, 0, 0, 0, 1]);
    uplink(&rig).open(true);
    (rig, runner, near)
}

/// As under priority flow control (IEEE 802.1Qbb), packets that do not fit stay at the sender.
#[test]
fn a_connection_to_somebody_outside_pauses_while_the_uplink_is_full_and_loses_nothing() {
    let (mut rig, mut runner, near) = connected_outside();
    rig.post_send(0, WqeOpcode::RdmaWrite, 1 << 20, 0, true);
    go(&mut rig, &mut runner, 1);
    let (mut frame, mut payload, mut rounds) = (Vec::new(), 0, 0);
    while uplink(&rig).waits() {
        while uplink(&rig).pop(&mut frame).is_some() {
            let headers = Headers::parse(&frame).expect("a frame of ours");
            payload += frame.len() - headers.payload_start() - ICRC_SIZE;
        }
        uplink(&rig).note_taken(1);
        runner.run(&rig.adapter, &mut rig.machine, 1, near);
        rounds += 1;
    }
    assert_eq!((payload, uplink(&rig).lost()), (1 << 20, 0));
    assert!(rounds > 10, "half of a ring of 64 KiB at a time: {rounds} rounds");
}

#[test]
fn a_connection_that_the_uplink_pauses_is_not_tried_again_and_again() {
    let (mut rig, mut runner, near) = connected_outside();
    rig.post_send(0, WqeOpcode::RdmaWrite, 1 << 20, 0, true);
    go(&mut rig, &mut runner, 1);
    assert_eq!((runner.take_due(), runner.take_paused()), (0, 1 << near), "it has more to send");
    let tries = Arc::new(Mutex::new(0));
    let count = tries.clone();
    runner.set_trace(Some(Box::new(move |_| *count.lock().unwrap() += 1)));
    runner.run(&rig.adapter, &mut rig.machine, 1, near);
    assert_eq!((runner.take_due(), runner.take_paused()), (0, 1 << near));
    assert_eq!(*tries.lock().unwrap(), 1);
}

/// A host with an adapter beside this one, which takes all frames.
struct Joined<'a> {
    machine: &'a mut FlatMachine,
    /// Payload bytes taken so far.
    taken: usize,
}

impl Bus for Joined<'_> {
    forward! { self.machine:
        fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort>;
        fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort>;
        fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort>;
    }
}

impl Parties for Joined<'_> {
    forward! { self.machine:
        fn party(&self) -> Party;
        fn reaches(&mut self, party: Party) -> bool;
        fn wake(&mut self, party: Party);
        fn alive(&mut self, party: Party) -> bool;
        fn relax(&mut self, holder: Party, times: u32) -> bool;
    }
    fn room_beside(&mut self, _: [u8; 6]) -> Option<usize> {
        Some(SLOTS)
    }
    fn deliver_beside(&mut self, _: &[u8], payload: &[u8]) -> bool {
        self.taken += payload.len();
        true
    }
}

#[test]
fn frames_to_an_adapter_beside_this_one_do_not_overtake_those_in_the_uplink() {
    let (mut rig, mut runner, near) = connected_outside();
    uplink(&rig).note_taken(1);
    // The uplink's holder has taken a frame and not delivered it yet.
    uplink(&rig).set_carried(true);
    rig.post_send(0, WqeOpcode::RdmaWrite, 8192, 0, true);
    let job = rig.doorbell(0);
    let Rig { adapter, machine, .. } = &mut rig;
    let mut host = Joined { machine, taken: 0 };
    runner.submit(adapter, &mut host, 1, near, job);
    let uplink = OutletRing::of(adapter.region(), Outlet::Uplink);
    assert_eq!((host.taken, uplink.waits()), (0, false), "they wait");
    uplink.set_carried(false);
    runner.run(adapter, &mut host, 1, near);
    assert_eq!((host.taken, uplink.waits()), (8192, false));
    // A sender does not wait for an uplink that stays busy because its holder is stopped or other senders fill it.
    rig.post_send(0, WqeOpcode::RdmaWrite, 8192, 0, true);
    let job = rig.doorbell(0);
    let Rig { adapter, machine, .. } = &mut rig;
    let mut host = Joined { machine, taken: 0 };
    let uplink = OutletRing::of(adapter.region(), Outlet::Uplink);
    uplink.set_carried(true);
    uplink.note_taken(2_000_000_000);
    runner.submit(adapter, &mut host, 2_000_000_000, near, job);
    assert_eq!((host.taken, uplink.waits()), (0, true));
}

#[test]
fn frames_left_to_who_only_reads_a_register_are_taken_when_it_looks_again() {
    let (mut rig, mut runner) = rig();
    let bytes = pattern(&mut rig, 0, 64);
    rig.post_send(0, WqeOpcode::RdmaWrite, 64, 0, true);
    let job = rig.doorbell(0);
    let (near, far) = (rig.sides[0].fid, rig.sides[1].fid);
    let reading = Func::lock(rig.adapter.region(), far, &mut rig.machine);
    runner.submit(&rig.adapter, &mut rig.machine, 1, near, job);
    drop(reading);
    assert!(rig.poll(0).is_none(), "the frame waits");
    runner.look_again(&rig.adapter, &mut rig.machine, 1, far);
    assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
    assert_eq!(rig.data(1, 0, 64), bytes);
}

#[test]
fn a_runner_that_defers_carries_out_what_it_is_given_and_nothing_else() {
    let (mut rig, mut runner) = rig();
    let bytes = pattern(&mut rig, 0, 64);
    rig.post_send(0, WqeOpcode::RdmaWrite, 64, 0, true);
    let (near, far) = (rig.sides[0].fid, rig.sides[1].fid);
    let job = rig.doorbell(0);
    let held = Func::lock(rig.adapter.region(), far, &mut rig.machine);
    runner.submit(&rig.adapter, &mut rig.machine, 1, near, job);
    drop(held);
    runner.defer(true);
    let eq = rig.with(1, |func| func.number::<EqRow>(0));
    let arm = Job::EqUpdate { eqn: eq, uar: 0, ci: 0, arm: true };
    runner.submit(&rig.adapter, &mut rig.machine, 1, far, arm);
    assert!(rig.with(1, |func| func.row::<EqRow>(0).expect("the EQ").armed != 0));
    runner.run(&rig.adapter, &mut rig.machine, 1, far);
    assert_eq!(rig.data(1, 0, 64), [0; 64], "the frame waits");
    assert_eq!(runner.take_due(), 1 << far);
    runner.defer(false);
    runner.run(&rig.adapter, &mut rig.machine, 1, far);
    assert_eq!(rig.data(1, 0, 64), bytes);
    assert!(rig.poll(0).is_some() && !rig.adapter.has_work(near, 1));
}

/// The headers of the first packet of a small WRITE.
fn head_of_a_packet(rig: &mut Rig, runner: &mut Runner) -> Vec<u8> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = seen.clone();
    runner.set_trace(Some(Box::new(move |event| {
        if let Traced::Frame(headers, _) = event.what {
            keep.lock().expect("alone").push(headers.to_vec());
        }
    })));
    rig.post_send(0, WqeOpcode::RdmaWrite, 4, 0, true);
    go(rig, runner, 1);
    let first = seen.lock().expect("alone").first().cloned();
    first.expect("a packet")
}

#[test]
fn what_a_queue_pair_or_its_function_is_given_anew_the_next_packet_says() {
    let (mut rig, mut runner) = rig();
    let qpn = rig.sides[0].qpn;
    let (src, dst) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    type Change = (&'static str, fn(&mut QpRow), fn(&mut FunctionRow), fn(&Headers<'_>) -> bool);
    let changes: [Change; 7] = [
        ("nothing", |_| {}, |_| {}, |h| h.ipv4().is_some() && h.vlan().is_none()),
        ("hop limit", |q| q.path.hop_limit = 9, |_| {}, |h| h.ipv4().map(|ip| ip.ttl()) == Some(9)),
        ("port", |q| q.path.udp_sport = 0xd00d, |_| {}, |h| h.udp().src_port() == 0xd00d),
        ("class", |q| q.path.tclass = 0x40, |_| {}, |h| h.traffic_class() == 0x42),
        ("MAC", |_| {}, |f| f.roce.iter_mut().for_each(|r| r.mac = [2; 6]), |h| h.ethernet().src() == [2; 6]),
        (
            "VLAN",
            |_| {},
            |f| f.roce.iter_mut().for_each(|r| r.vlan = [0x10, 5]),
            |h| h.vlan().map(|v| v.vid()) == Some(5),
        ),
        (
            "addresses",
            |q| q.path.dgid = gid_of_v4([192, 0, 2, 2]),
            |f| f.roce.iter_mut().for_each(|r| r.gid = gid_of_v4([192, 0, 2, 1])),
            |h| h.vlan().is_some() && h.ipv4().is_some_and(|ip| ip.src() == [192, 0, 2, 1]),
        ),
    ];
    for (what, of_queue_pair, of_function, shows) in changes {
        rig.with(0, |func| {
            of_queue_pair(func.get_mut::<QpRow>(qpn).expect("the queue pair"));
            of_function(func.function_mut(|f| f));
        });
        let head = head_of_a_packet(&mut rig, &mut runner);
        let headers = Headers::parse_head(&head, head.len() + 4 + 4).expect("right lengths and checksums");
        assert!(shows(&headers), "{what}: {headers:?}");
    }
    let head = head_of_a_packet(&mut rig, &mut runner);
    let headers = Headers::parse_head(&head, head.len() + 8).expect("lengths");
    assert_eq!(headers.addresses(), IpPair::V4 { src, dst });
}

#[test]
fn a_send_fills_the_receive_and_completes_on_both_sides() {
    for len in [0, 1, 32, 33, 4096, 5000, 200_000] {
        let (mut rig, mut runner) = rig();
        let bytes = pattern(&mut rig, 0, len);
        let to = rig.sides[1].data;
        rig.post_recv(1, to, 1 << 20);
        rig.post_send(0, WqeOpcode::SendImm, len as u32, 0xabcd, true);
        go(&mut rig, &mut runner, 1);
        let cqe = rig.poll(1).expect("a receive completion");
        assert_eq!(
            (cqe.opcode(), cqe.byte_cnt(), cqe.imm_inval_pkey()),
            (CqeOpcode::RespSendImm, len as u32, 0xabcd)
        );
        assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
        assert_eq!(rig.data(1, 0, len), bytes);
    }
}

#[test]
fn a_read_fetches() {
    for len in [0, 1, 4096, 4097, 65536, 1 << 20] {
        let (mut rig, mut runner) = rig();
        let bytes = pattern(&mut rig, 1, len);
        rig.post_send(0, WqeOpcode::RdmaRead, len as u32, 0, true);
        go(&mut rig, &mut runner, 1);
        let cqe = rig.poll(0).expect("a completion");
        assert_eq!((cqe.opcode(), cqe.byte_cnt()), (CqeOpcode::Req, len as u32));
        assert_eq!(rig.data(0, 0, len), bytes);
    }
}

#[test]
fn atomics_add_once_each_and_return_what_was_there() {
    let (mut rig, mut runner) = rig();
    rig.data(1, 0, 8).copy_from_slice(&5u64.to_le_bytes());
    for i in 0..10u64 {
        let (side, peer) = (rig.sides[0], rig.sides[1]);
        let list = [(side.key, side.data + 8 * i, 8)];
        rig.post_list(0, WqeOpcode::AtomicFa, &list, (peer.data, peer.key), 3, true);
    }
    go(&mut rig, &mut runner, 1);
    for i in 0..10 {
        assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
        assert_eq!(rig.data(0, 8 * i, 8), (5 + 3 * i).to_le_bytes());
    }
    assert_eq!(rig.data(1, 0, 8), 35u64.to_le_bytes());
}

#[test]
fn many_messages_in_a_row_keep_their_order() {
    let (mut rig, mut runner) = rig();
    let bytes = pattern(&mut rig, 0, 9000);
    for round in 0..50u32 {
        for i in 0..20 {
            let opcode = [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead, WqeOpcode::RdmaWrite][i % 3];
            rig.post_send(0, opcode, 9000, round, i % 4 == 3);
        }
        go(&mut rig, &mut runner, 1 + u64::from(round));
        for _ in 0..5 {
            assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
        }
        assert!(rig.poll(0).is_none());
    }
    assert_eq!(rig.data(1, 0, 9000), bytes);
    let q = rig.qp(0);
    assert_eq!((q.requester.head, q.requester.una_psn), (q.requester.tail, q.requester.psn));
}

#[test]
fn a_large_write_is_one_copy_and_one_acknowledgement() {
    let (mut rig, mut runner) = rig();
    pattern(&mut rig, 0, 65536);
    rig.post_send(0, WqeOpcode::RdmaWrite, 65536, 0, true);
    rig.machine.written.clear();
    go(&mut rig, &mut runner, 1);
    let to = rig.sides[1].data;
    let data: Vec<_> = rig.machine.written.iter().filter(|(at, _)| (to..to + 65536).contains(at)).collect();
    assert_eq!(data, [&(to, 65536)], "sixteen packets, one move");
    let sent = rig.with(1, |func| func.function().counters[Counters::TxPackets as usize]);
    assert_eq!(sent, 1);
}

/// Sends a request of side 0 and leaves its packet waiting at side 1.
fn waiting_at_the_peer(rig: &mut Rig, runner: &mut Runner) {
    rig.post_send(0, WqeOpcode::RdmaWrite, 64, 0, true);
    let job = rig.doorbell(0);
    let (near, far) = (rig.sides[0].fid, rig.sides[1].fid);
    let held = Func::lock(rig.adapter.region(), far, &mut rig.machine);
    runner.submit(&rig.adapter, &mut rig.machine, 1, near, job);
    drop(held);
}

/// Expires the acknowledgement timer of side 0.
fn time_out(rig: &mut Rig, runner: &mut Runner) {
    let at = rig.qp(0).requester.timers.deadline(Timer::Ack).expect("a timer that runs");
    assert_ne!(at, 0, "no timer runs");
    runner.run(&rig.adapter, &mut rig.machine, at, rig.sides[0].fid);
}

#[test]
fn a_lost_packet_is_sent_again_though_a_bystander_at_the_peer_is_stopped() {
    let (mut rig, mut runner) = rig();
    waiting_at_the_peer(&mut rig, &mut runner);
    rig.with(1, |func| func.take_front());
    rig.machine.has_stopped_program = true;
    for timeout in 0.. {
        // Others continue to send to that function, and it consumes their frames.
        rig.with(1, |func| func.has_frame().then(|| func.take_front()));
        let ring = WireRing::of(rig.adapter.region(), rig.sides[1].fid);
        assert!(ring.push(&mut rig.machine, &[7; 60], SlotPayload::Bytes(&[]), false));
        time_out(&mut rig, &mut runner);
        if rig.poll(0).is_some_and(|cqe| cqe.opcode() == CqeOpcode::Req) {
            break;
        }
        assert!(timeout < 3, "it is not sent again");
    }
}

#[test]
fn no_retry_is_spent_while_only_one_who_is_stopped_could_take_what_waits() {
    let (mut rig, mut runner) = rig();
    waiting_at_the_peer(&mut rig, &mut runner);
    rig.machine.has_stopped_program = true;
    let held = Func::lock(rig.adapter.region(), rig.sides[1].fid, &mut rig.machine);
    let mut now = 0;
    for _ in 0..20 {
        let qp = rig.adapter.region();
        let near = Func::lock(qp, rig.sides[0].fid, &mut rig.machine);
        let timers = near.get::<QpRow>(rig.sides[0].qpn).expect("the rig's QP").requester.timers;
        now = timers.deadline(Timer::Ack).expect("a timer that runs");
        drop(near);
        runner.run(&rig.adapter, &mut rig.machine, now, rig.sides[0].fid);
    }
    drop(held);
    let link = Link::default();
    assert_eq!(rig.qp(0).requester.retries_left, link.retry_count);
    runner.run(&rig.adapter, &mut rig.machine, now, rig.sides[1].fid);
    assert_eq!(rig.poll(0).map(|cqe| cqe.opcode()), Some(CqeOpcode::Req));
}

#[test]
fn memory_that_is_gone_fails_the_one_request_and_not_those_before() {
    let (mut rig, mut runner) = rig();
    let (side, peer) = (rig.sides[0], rig.sides[1]);
    let list = [(side.key, side.data, 8192)];
    for to in [0, 1 << 20] {
        rig.post_list(0, WqeOpcode::RdmaWrite, &list, (peer.data + to, peer.key), 0, true);
    }
    rig.machine.hole = peer.data + (1 << 20) + 4096..peer.data + (2 << 20);
    let bytes = pattern(&mut rig, 0, 8192);
    go(&mut rig, &mut runner, 1);
    assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
    let failed = rig.poll(0).expect("the failure").as_error();
    assert_eq!(failed.syndrome(), CqeSyndrome::RemoteAccessErr);
    assert_eq!(rig.data(1, 0, 8192), bytes);
}

#[test]
fn a_key_that_is_wrong_ends_both_sides() {
    let (mut rig, mut runner) = rig();
    let (side, peer) = (rig.sides[0], rig.sides[1]);
    let list = [(side.key, side.data, 100)];
    rig.post_list(0, WqeOpcode::RdmaWrite, &list, (peer.data, peer.key ^ 1), 0, true);
    rig.post_send(0, WqeOpcode::RdmaWrite, 10, 0, false);
    rig.post_recv(1, peer.data, 100);
    go(&mut rig, &mut runner, 1);
    let first = rig.poll(0).expect("the failure").as_error();
    assert_eq!((first.syndrome(), first.vendor_err_synd()), (CqeSyndrome::RemoteAccessErr, 0x88));
    assert_eq!(first.wqe_counter(), 0);
    let second = rig.poll(0).expect("the flush").as_error();
    assert_eq!((second.syndrome(), second.wqe_counter()), (CqeSyndrome::WrFlushErr, 1));
    let receive = rig.poll(1).expect("the flushed receive").as_error();
    assert_eq!((receive.opcode(), receive.syndrome()), (CqeOpcode::RespErr, CqeSyndrome::WrFlushErr));
}

#[test]
#[ignore = "prints figures; run with --release --nocapture"]
fn cost_of_the_pipeline() {
    for (name, opcode, len) in [
        ("write", WqeOpcode::RdmaWrite, 2u32),
        ("read", WqeOpcode::RdmaRead, 2),
        ("send", WqeOpcode::Send, 2),
        ("write", WqeOpcode::RdmaWrite, 65536),
        ("read", WqeOpcode::RdmaRead, 65536),
    ] {
        for depth in [1u32, 32] {
            let (mut rig, mut runner) = rig();
            // The minimum of many runs, because other programs on the machine can only add time.
            let (stretches, each) = if len > 4096 { (50, 256) } else { (200, 1024) };
            let mut best = u128::MAX;
            for stretch in 0..stretches {
                let mut spent = std::time::Duration::ZERO;
                for round in 0..each / depth {
                    for _ in 0..depth {
                        if opcode == WqeOpcode::Send {
                            let to = rig.sides[1].data;
                            rig.post_recv(1, to, 64);
                        }
                        rig.post_send(0, opcode, len, 0, true);
                    }
                    let start = std::time::Instant::now();
                    go(&mut rig, &mut runner, 1 + u64::from(stretch * each + round));
                    spent += start.elapsed();
                    for _ in 0..depth {
                        assert_eq!(rig.poll(0).map(|c| c.opcode()), Some(CqeOpcode::Req));
                        if opcode == WqeOpcode::Send {
                            assert!(rig.poll(1).is_some());
                        }
                    }
                    rig.machine.written.clear();
                }
                best = best.min(spent.as_nanos() / u128::from(each));
            }
            println!("{name} {len} B, {depth} deep: {best} ns each");
        }
    }
}

#[test]
fn sending_that_stops_is_not_waited_for_any_more() {
    let (mut rig, _) = rig();
    let (fid, qpn) = (rig.sides[0].fid, rig.sides[0].qpn);
    let region = rig.adapter.region();
    let mut func = Func::lock(region, fid, &mut rig.machine);
    let qp = func.index::<QpRow>(qpn).expect("a QP");
    let row = func.row_mut::<QpRow>(qp).expect("a QP");
    row.service = ServiceType::Uc.raw();
    row.state = QpState::SqDrained.raw();
    row.set(QpFlags::DRAINING, true);
    let mut buffers = step::Buffers::default();
    let context = (region, rig.adapter.config());
    let mut step = Step::new(&mut rig.machine, 1, context, &mut buffers);
    step.careful = true;
    QpStage::on(&mut func, &mut step, qp, flush::stop).expect("a QP");
    let row = func.row::<QpRow>(qp).expect("a QP");
    assert_eq!((row.state, row.has(QpFlags::DRAINING)), (QpState::SqErr.raw(), false));
}

/// A gap in the queue would stall its consumer forever.
#[test]
fn a_completion_or_an_event_that_its_job_has_no_room_for_leaves_no_gap() {
    let (mut rig, _) = rig();
    let (fid, qpn) = (rig.sides[0].fid, rig.sides[0].qpn);
    let region = rig.adapter.region();
    let mut func = Func::lock(region, fid, &mut rig.machine);
    let cqn = func.get::<QpRow>(qpn).expect("a QP").cqn_snd;
    let mut buffers = step::Buffers::default();
    let mut step = Step::new(&mut rig.machine, 1, (region, rig.adapter.config()), &mut buffers);
    let ends = |func: &Func<'_>| {
        let cq = func.get::<CqRow>(cqn).expect("a CQ");
        let eq = func.row::<EqRow>(cq.eqn).expect("an EQ");
        (cq.pi, eq.pi, eq.overflowed)
    };
    let eqn = func.get::<CqRow>(cqn).expect("a CQ").eqn;
    assert!(completion::append(&mut func, &mut step, cqn, Cqe64::zeroed(), false));
    event::completion(&mut func, eqn, cqn);
    let before = ends(&func);
    assert_eq!(before.2, 0);
    while func.effect(Effect::Msix { vector: 0, address: 0, data: 0 }) {}
    assert!(!completion::append(&mut func, &mut step, cqn, Cqe64::zeroed(), false));
    event::completion(&mut func, eqn, cqn);
    assert_eq!(ends(&func), (before.0, before.1, 1));
}
