//! The driver's verbs on a node, between programs.
#![allow(unsafe_code)]

use super::bed::{OnNode, Other, Pages, Scratch, listen, say, start};
use crate::{Node, NodeOptions, open_device, open_device_of};
use driver::{
    AccessFlags, AddressHandle, Completion, Cq, Device, Event, Mr, Pd, Qp, QpAttr, QpInit, QpState, RecvWr,
    SendFlags, SendOp, SendWr, Service, Sge, WcStatus,
};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// One end of a connection.
struct End {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    mr: Mr,
    pages: Pages,
    pd: Arc<Pd>,
    device: Arc<Device>,
}

/// Connection data for the other end: GID, QP number, address, rkey.
struct Card([u8; 16], u32, u64, u32);

impl Card {
    fn text(&self) -> String {
        let gid: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        format!("{gid} {} {} {}", self.1, self.2, self.3)
    }
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        let gid = std::array::from_fn(|i| u8::from_str_radix(&words[0][2 * i..2 * i + 2], 16).unwrap());
        Self(gid, words[1].parse().unwrap(), words[2].parse().unwrap(), words[3].parse().unwrap())
    }
}

fn new_qp(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Qp> {
    let init = QpInit {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 64,
        ..QpInit::new(Service::Rc, cq, cq)
    };
    Qp::create(pd, &init).unwrap()
}

impl End {
    fn new(device: Arc<Device>) -> Self {
        let pd = Pd::alloc(&device).unwrap();
        let cq = Cq::create(&device, 256, 0).unwrap();
        let pages = Pages::new(64);
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        // SAFETY: the pages outlive the region.
        let mr = unsafe { Mr::register(&pd, pages.base(), 64 * 4096, pages.base() as u64, all) }.unwrap();
        let qp = new_qp(&pd, &cq);
        Self { qp, cq, mr, pages, pd, device }
    }

    fn card(&self) -> Card {
        Card(self.device.gid(1).unwrap(), self.qp.qpn(), self.pages.base() as u64, self.mr.rkey())
    }

    fn connect(&self, peer: &Card) {
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let way = AddressHandle { dgid: peer.0, sgid_index: 1, hop_limit: 64, ..AddressHandle::default() };
        let attr = QpAttr {
            qp_access_flags: access,
            port_num: 1,
            ah: AddressHandle { is_global: true, port_num: 1, ..way },
            path_mtu: 4096,
            dest_qp_num: peer.1,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.qp.advance_to(QpState::Rts, &attr).unwrap();
    }

    fn sge(&self, offset: u64, length: u32) -> [Sge; 1] {
        [Sge { addr: self.pages.base() as u64 + offset, length, lkey: self.mr.lkey() }]
    }

    fn post(&self, op: SendOp, sge: &[Sge]) {
        let wr = SendWr { wr_id: 1, op, sge, flags: SendFlags::SIGNALED };
        self.qp.post_send([wr]).unwrap();
    }

    fn receive(&self, offset: u64, length: u32) {
        self.qp.post_recv([RecvWr { wr_id: 2, sge: &self.sge(offset, length) }]).unwrap();
    }

    /// Waits until the work request `id` has succeeded; skips others that succeed.
    fn wait_for(&self, id: u64) {
        loop {
            let got = self.wait();
            assert_eq!(got.status, WcStatus::Success);
            if got.wr_id == id {
                return;
            }
        }
    }

    /// Keeps all kinds of requests in flight while `on` returns true and none fails. Returns the first failure.
    fn blast(&self, peer: &Card, on: impl Fn() -> bool) -> Option<WcStatus> {
        let mut out = [Completion::default(); 16];
        let (mut waiting, mut turn, begin) = (0, 0u64, Instant::now());
        while waiting > 0 || on() {
            while waiting < 16 && on() {
                let (raddr, rkey) = (peer.2 + turn % 4096, peer.3);
                let len = [8, 3000, 20_000, 64, 9000][turn as usize % 5];
                match turn % 7 {
                    0 | 3 => self.post(SendOp::Read { raddr, rkey }, &self.sge(65536, len)),
                    5 => self.post(SendOp::FetchAdd { raddr: peer.2, rkey, add: 1 }, &self.sge(0, 8)),
                    _ => self.post(SendOp::Write { raddr, rkey }, &self.sge(65536, len)),
                }
                (waiting, turn) = (waiting + 1, turn + 1);
            }
            let got = self.cq.poll(&mut out);
            for got in &out[..got] {
                if got.status != WcStatus::Success {
                    return Some(got.status);
                }
                waiting -= 1;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{waiting} requests hang");
        }
        None
    }

    fn wait(&self) -> Completion {
        let begin = Instant::now();
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(5), "no completion within 5 s");
        }
        out[0]
    }
}

/// The other end: executes the commands it reads.
pub fn serves(dir: &Path, fid: u8) {
    let end = End::new(open_device(dir, fid).unwrap());
    let mut end = end;
    say(end.card().text());
    loop {
        let line = listen();
        let (order, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match order {
            "connect" => end.connect(&Card::parse(rest)),
            "fill" => end.pages.bytes().fill(rest.parse().unwrap()),
            "byte" => return_byte(&mut end, rest.parse().unwrap()),
            "receive" => end.receive(0, 4096),
            "wait" => {
                let got = end.wait();
                say(format!("{:?} {}", got.status, got.byte_len));
                continue;
            }
            "echo" => {
                // Answers that many messages with as many of its own.
                let rounds: u32 = rest.parse().unwrap();
                say("ok");
                for _ in 0..rounds {
                    end.wait_for(2);
                    end.receive(0, 4096);
                    end.post(SendOp::Send, &end.sge(0, 8));
                }
                continue;
            }
            "blast" => {
                // Writes, reads and sends as fast as possible until it is killed.
                let card = Card::parse(rest);
                say("ok");
                end.blast(&card, || true);
                continue;
            }
            other => panic!("an unknown command {other}"),
        }
        say("ok");
    }
}

fn return_byte(end: &mut End, at: usize) {
    say(end.pages.bytes()[at]);
}

fn tell(other: &mut Other, what: &str) -> String {
    other.tell(what);
    other.hear()
}

/// Both ends, connected: the local one on VF 1, the other process's on VF 2.
fn pair(scratch: &Scratch, node: &Arc<Node>) -> (End, Other, Card) {
    pair_with(scratch, node, "verbs")
}

fn pair_with(scratch: &Scratch, node: &Arc<Node>, role: &str) -> (End, Other, Card) {
    let mut other = start(scratch, role);
    // The other process starts first, and brings up a function that both open.
    let card = Card::parse(&other.hear());
    let end = End::new(open_device_of(node, 1).unwrap());
    end.connect(&card);
    tell(&mut other, &format!("connect {}", end.card().text()));
    (end, other, card)
}

fn data_goes_both_ways(scratch: &Scratch, node: &Arc<Node>, role: &str) {
    let (mut end, mut other, card) = pair_with(scratch, node, role);
    end.pages.bytes().fill(7);
    end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 100_000));
    std::thread::sleep(Duration::from_millis(20));
    for f in &node.status().unwrap().functions {
        eprintln!("{} {:?} {:?}", f.fid, f.objects, f.counters);
    }
    assert_eq!(end.wait().status, WcStatus::Success);
    assert_eq!(tell(&mut other, "byte 99999"), "7");
    assert_eq!(other.hear(), "ok");
    tell(&mut other, "fill 9");
    end.post(SendOp::Read { raddr: card.2, rkey: card.3 }, &end.sge(0, 200_000));
    assert_eq!(end.wait().status, WcStatus::Success);
    assert!(end.pages.bytes()[..200_000].iter().all(|b| *b == 9));
    assert_eq!(end.pages.bytes()[200_000], 7);
    tell(&mut other, "receive");
    end.post(SendOp::Send, &end.sge(200_000, 3000));
    assert_eq!(end.wait().status, WcStatus::Success);
    assert_eq!(tell(&mut other, "wait"), "Success 3000");
    end.post(SendOp::FetchAdd { raddr: card.2 + 8192, rkey: card.3, add: 5 }, &end.sge(0, 8));
    assert_eq!(end.wait().status, WcStatus::Success);
    assert_eq!(end.pages.bytes()[..8], [9; 8]);
}

#[test]
fn programs_write_read_send_and_add() {
    let scratch = Scratch::new();
    let node = scratch.node();
    data_goes_both_ways(&scratch, &node, "verbs");
    drop(scratch);
}

#[test]
fn parked_threads_do_it_where_direct_copies_are_forbidden() {
    let scratch = Scratch::new();
    let node =
        scratch.node_with(&NodeOptions { vfs: Some(3), no_direct_copies: true, ..NodeOptions::default() });
    data_goes_both_ways(&scratch, &node, "verbs");
}

#[test]
fn two_programs_on_one_function_talk_to_each_other() {
    let scratch = Scratch::new();
    data_goes_both_ways(&scratch, &scratch.node(), "verbs-1");
    let scratch = Scratch::new();
    let forbidden = NodeOptions { no_direct_copies: true, ..NodeOptions::default() };
    data_goes_both_ways(&scratch, &scratch.node_with(&forbidden), "verbs-1");
}

#[test]
fn a_function_goes_on_when_the_program_that_brought_it_up_is_killed() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let (end, mut first, card) = pair_with(&scratch, &node, "verbs-1");
    end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
    assert_eq!(end.wait().status, WcStatus::Success);
    first.kill();
    let status = node.status().unwrap();
    assert_eq!((status.functions[1].up, status.functions[1].parties.len()), (true, 1));
    assert_eq!(status.functions[1].objects[0], ("qp", 1));
    // Commands still work, and a third program can join.
    let mut third = start(&scratch, "verbs-1");
    let card = Card::parse(&third.hear());
    let again = End::new(end.device.clone());
    again.connect(&card);
    tell(&mut third, &format!("connect {}", again.card().text()));
    again.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &again.sge(0, 10_000));
    assert_eq!(again.wait().status, WcStatus::Success);
}

#[test]
fn timers_and_events_need_no_poller() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let end = End::new(open_device_of(&node, 1).unwrap());
    // This QP does not exist.
    end.connect(&Card(end.device.gid(1).unwrap(), 0x1_ff00, 0, 0));
    end.cq.arm(false);
    end.post(SendOp::Write { raddr: 0, rkey: 0 }, &end.sge(0, 8));
    let begin = Instant::now();
    loop {
        let _ = end.device.events().wait(Some(Duration::from_secs(5))).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5), "no event");
        if let Some(Event::Cq { .. }) = end.device.events().next() {
            break;
        }
    }
    assert!(begin.elapsed() > Duration::from_millis(300), "eight timeouts of 67 ms: {:?}", begin.elapsed());
    assert_eq!(end.wait().status, WcStatus::RetryExcErr);
}

#[test]
fn a_passive_target_sleeps_through_writes_and_reads() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let (end, other, card) = pair(&scratch, &node);
    let pid = other.child.id();
    let ran = || {
        let status = node.status().unwrap();
        status.parties.iter().find(|p| p.pid == pid).map(|p| (p.wakes, p.ticks)).unwrap()
    };
    // Its startup work is done when its parked thread has gone to sleep.
    let begin = Instant::now();
    let before = loop {
        let now = ran();
        std::thread::sleep(Duration::from_millis(20));
        if ran() == now {
            break now;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "it does not sleep: {now:?}");
    };
    for _ in 0..100 {
        end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
        assert_eq!(end.wait().status, WcStatus::Success);
        end.post(SendOp::Read { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
        assert_eq!(end.wait().status, WcStatus::Success);
    }
    assert_eq!(ran(), before);
}

#[test]
fn a_killed_peer_ends_requests_with_an_error_and_leaves_nothing() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let (end, mut other, card) = pair(&scratch, &node);
    end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
    assert_eq!(end.wait().status, WcStatus::Success);
    other.kill();
    end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
    let status = end.wait().status;
    assert!(
        matches!(status, WcStatus::RetryExcErr | WcStatus::RemOpErr | WcStatus::RemAccessErr),
        "{status:?}"
    );
    let status = node.status().unwrap();
    assert!(status.functions[2].objects.is_empty() && !status.functions[2].up, "{:?}", status.functions[2]);
    assert!(status.functions[2].parties.is_empty());
    // The same again, on the remaining state.
    let (end, _other, card) = pair(&scratch, &node);
    end.post(SendOp::Write { raddr: card.2, rkey: card.3 }, &end.sge(0, 10_000));
    assert_eq!(end.wait().status, WcStatus::Success);
}

/// Kills the other end `times` times at random instants under full load in both directions.
fn kill_in_full_flow(times: u64) {
    let scratch = Scratch::new();
    let node = scratch.node();
    let device = open_device_of(&node, 1).unwrap();
    // The memory that a driver keeps for later objects is allocated with the first one.
    drop(End::new(device.clone()));
    let base = node.status().unwrap();
    for round in 0..times {
        let mut other = start(&scratch, "verbs");
        let end = End::new(device.clone());
        let card = Card::parse(&other.hear());
        end.connect(&card);
        tell(&mut other, &format!("connect {}", end.card().text()));
        tell(&mut other, &format!("blast {}", end.card().text()));
        let begin = Instant::now();
        let life = Duration::from_micros(round.wrapping_mul(2_654_435_761) % 4000);
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(life);
                other.kill();
            });
            end.blast(&card, || begin.elapsed() < Duration::from_secs(8))
        });
        let failed = failed.unwrap();
        assert!(
            matches!(failed, WcStatus::RetryExcErr | WcStatus::RemOpErr | WcStatus::RemAccessErr),
            "{failed:?} in round {round}"
        );
        drop(end);
        let status = node.status().unwrap();
        assert!(status.functions[2].objects.is_empty(), "{:?} in round {round}", status.functions[2].objects);
        assert_eq!(status.functions[1].objects, base.functions[1].objects, "round {round}");
        assert_eq!(status.driver_memory, base.driver_memory, "round {round}");
        assert_eq!(status.reaped as u64, round + 1);
    }
}

#[test]
fn programs_killed_in_full_flow_leave_nothing() {
    kill_in_full_flow(12);
}

#[test]
#[ignore = "long: a thousand deaths"]
fn a_thousand_programs_killed_in_full_flow_leave_nothing() {
    kill_in_full_flow(1000);
}

#[test]
fn memory_of_destroyed_objects_comes_back_while_the_device_is_open_and_after() {
    const OBJECTS: usize = 600;
    let scratch = Scratch::new();
    let node = scratch.node();
    drop(End::new(open_device_of(&node, 1).unwrap()));
    let fresh = node.status().unwrap().memory;
    let end = End::new(open_device_of(&node, 1).unwrap());
    let open = node.status().unwrap().memory;
    let mut memory = vec![0u8; 1 << 16];
    for round in 0..3 {
        let made: Vec<_> = (0..OBJECTS)
            .map(|_| {
                let cq = Cq::create(&end.device, 16, 0).unwrap();
                let (at, access) = (memory.as_mut_ptr(), AccessFlags::LOCAL_WRITE);
                // SAFETY: the memory outlives the region.
                let mr = unsafe { Mr::register(&end.pd, at, 1 << 16, at as u64, access) }.unwrap();
                (new_qp(&end.pd, &cq), cq, mr)
            })
            .collect();
        let most = node.status().unwrap().memory;
        assert!(most > open + (4 << 20), "{open} bytes before, {most} with {OBJECTS} of each");
        drop(made);
        let left = node.status().unwrap().memory;
        assert!(left < open + (1 << 20), "round {round}: {open} bytes before, {left} after");
    }
    drop(end);
    let left = node.status().unwrap().memory;
    assert!(left < fresh + (1 << 19), "{fresh} bytes before, {left} after");
}

#[test]
fn devices_that_are_closed_leave_nothing() {
    let scratch = Scratch::new();
    let node = scratch.node();
    for _ in 0..3 {
        let devices: Vec<_> = (0..=3).map(|fid| open_device_of(&node, fid).unwrap()).collect();
        let ends: Vec<End> = devices.into_iter().map(End::new).collect();
        assert!(node.status().unwrap().driver_memory > 0);
        drop(ends);
        let status = node.status().unwrap();
        assert_eq!(status.driver_memory, 0);
        assert!(status.functions.iter().all(|f| f.objects.is_empty()), "{:?}", status.functions);
    }
}

#[test]
fn messages_are_echoed_quickly() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let (end, mut other, _) = pair(&scratch, &node);
    tell(&mut other, "receive");
    const ROUNDS: u32 = 2000;
    tell(&mut other, &format!("echo {ROUNDS}"));
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        end.receive(4096, 4096);
        end.post(SendOp::Send, &end.sge(0, 8));
        end.wait_for(2);
    }
    let each = begin.elapsed() / ROUNDS;
    assert!(each < Duration::from_millis(2), "{each:?} a round");
}

/// Processor time of this thread, which excludes other load of the machine.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local timespec that outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor times and memory of `count` QPs, a CQ for every ten of them, and as many memory regions.
fn many_objects(count: usize) -> (Vec<Duration>, u64) {
    let scratch = Scratch::new();
    let node = scratch.node();
    let end = End::new(open_device_of(&node, 1).unwrap());
    let before = node.status().unwrap();
    let mut times = Vec::new();
    let mut timed = |f: &mut dyn FnMut()| {
        let begin = processor_time();
        f();
        times.push(processor_time() - begin);
    };
    let (mut qps, mut mrs) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        timed(&mut || {
            for _ in 0..count / 10 {
                qps.push(new_qp(&end.pd, &end.cq));
                let access = AccessFlags::LOCAL_WRITE;
                let at = end.pages.base();
                // SAFETY: the pages outlive the region.
                mrs.push(unsafe { Mr::register(&end.pd, at, 4096, at as u64, access) }.unwrap());
            }
        });
    }
    let full = node.status().unwrap();
    assert_eq!(full.functions[1].objects[0], ("qp", count as u32 + 1));
    drop((qps, mrs));
    let after = node.status().unwrap();
    assert_eq!(after.functions[1].objects, before.functions[1].objects);
    // The driver keeps its doorbell record pages until the device is closed.
    assert!(after.driver_memory <= before.driver_memory + 128 * count as u64);
    drop(end);
    assert_eq!(node.status().unwrap().driver_memory, 0);
    (times, full.memory - before.memory)
}

#[test]
fn the_thousandth_qp_costs_no_more_than_the_first() {
    let (times, memory) = many_objects(1000);
    let least = |t: &[Duration]| t.iter().min().copied().unwrap_or_default();
    let (early, late) = (least(&times[..5]), least(&times[5..]));
    assert!(late < 3 * early, "{times:?}");
    assert!(memory < 1000 * (64 << 10), "{memory} bytes");
}

#[test]
#[ignore = "long: ten thousand queue pairs and memory regions"]
fn ten_thousand_qps_and_regions() {
    let (times, memory) = many_objects(10_000);
    let each: Vec<Duration> = times.iter().map(|t| *t / 1000).collect();
    println!("each QP and MR: {each:?}, {} bytes", memory / 10_000);
}
