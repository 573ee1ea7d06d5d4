//! Shared receive queues and XRC in programs: receives shared by several QPs, limit events and last-WQE events, domains and target QPs
//! shared between processes, and what is left of them after SIGKILL.

use driver::{
    AccessFlags, Device, Dm, Error, Event, FileId, Qp, QpAttr, QpAttrMask, QpEvent, QpInit, QpState, RecvWr,
    SendFlags, SendOp, SendWr, Service, Srq, SrqEvent, SrqInit, Target, WcOpcode, WcStatus, XrcDomain,
    XrcOpen,
};
use ironverbs_tests::{
    end::{Card, End, Make, Patience, SOON, connect},
    program::{Program, Scratch},
};
use node::{Node, NodeOptions, open_device_of};
use std::{ops::Deref, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

const ROOM: usize = 256;

/// An end with an SRQ of seven receives, and further queue pairs.
struct Side {
    srq: Arc<Srq>,
    end: End,
}

impl Deref for Side {
    type Target = End;
    fn deref(&self) -> &End {
        &self.end
    }
}

impl Side {
    fn of(device: &Arc<Device>, domain: Option<&Arc<XrcDomain>>) -> Self {
        let end = End::on(device, &Make::default());
        let xrc = domain.map(|domain| (domain.clone(), end.cq.clone()));
        let init = SrqInit { max_wr: 7, max_sge: 2, xrc, cookie: 5 };
        Self { srq: Srq::create(&end.pd, &init).expect("an SRQ"), end }
    }

    fn new(node: &Arc<Node>, fid: u8) -> Self {
        Self::of(&open_device_of(node, fid).expect("a device"), None)
    }

    fn qp(&self, service: Service, shared: bool) -> Arc<Qp> {
        let init = QpInit {
            max_send_wr: 16,
            max_send_sge: 1,
            srq: shared.then(|| self.srq.clone()),
            cookie: 9,
            ..QpInit::new(service, &self.cq, &self.cq)
        };
        Qp::create(&self.pd, &init).expect("a QP")
    }

    fn receive(&self, slot: usize) -> Result<(), i32> {
        let sge = [self.sge(slot * ROOM, 16), self.sge(slot * ROOM + 16, ROOM - 16)];
        self.srq.post_recv([RecvWr { wr_id: slot as u64, sge: &sge }]).map_err(|e| e.errno)
    }

    fn receive_all(&self) {
        (0..7).for_each(|slot| self.receive(slot).expect("room"));
    }

    /// Posts `op` with `len` bytes of `slot`.
    fn post_to(&self, qp: &Qp, op: SendOp, slot: usize, len: usize, target: Target<'_>) {
        let sge = [self.sge(slot * ROOM, len)];
        let wr = SendWr { wr_id: 1, op, sge: &sge, flags: SendFlags::SIGNALED };
        qp.post_send_to([(wr, target)]).expect("a request");
    }

    fn send(&self, qp: &Qp, slot: usize, len: usize) {
        self.post_to(qp, SendOp::Send, slot, len, Target::Peer);
    }
}

/// QPs that are connected.
type Pairs = Vec<(Arc<Qp>, Arc<Qp>)>;

/// Makes two sides, and `n` RC QPs of the second on its SRQ, each connected to a QP of the first.
fn sides(node: &Arc<Node>, n: usize) -> (Side, Side, Pairs) {
    let (a, b) = (Side::new(node, 1), Side::new(node, 2));
    let pair = |_| {
        let (x, y) = (a.qp(Service::Rc, false), b.qp(Service::Rc, true));
        connect(&x, &b.card_of(&y), Patience::default()).expect("connected");
        connect(&y, &a.card_of(&x), Patience::default()).expect("connected");
        (x, y)
    };
    let pairs = (0..n).map(pair).collect();
    (a, b, pairs)
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("a refusal").errno()
}

#[test]
fn queue_pairs_take_receives_in_the_order_of_their_messages() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b, pairs) = sides(&node, 3);
    // Many rounds, with sizes that fit into the CQE and sizes that do not.
    for round in 0..40usize {
        b.receive_all();
        assert_eq!(b.receive(7), Err(libc::ENOMEM));
        for slot in 0..7 {
            let len = [8, 24, 100, 200][(round + slot) % 4];
            let data: Vec<u8> = (0..len).map(|i| (i * 3 + slot + round) as u8).collect();
            a.words.put(slot * ROOM, &data);
            let (x, y) = &pairs[(round + slot) % 3];
            a.send(x, slot, len);
            let wc = b.wait();
            let found = (wc.status, wc.opcode, wc.wr_id, wc.qpn, wc.byte_len as usize);
            assert_eq!(found, (WcStatus::Success, WcOpcode::Recv, slot as u64, y.qpn(), len));
            assert_eq!(b.words.bytes(slot * ROOM, len), data, "round {round}, slot {slot}");
            assert_eq!(a.wait().status, WcStatus::Success);
        }
    }
}

#[test]
fn an_empty_queue_makes_senders_wait() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b, pairs) = sides(&node, 1);
    a.send(&pairs[0].0, 0, 64);
    assert_eq!(a.next(Duration::from_millis(50)), None, "no receive, no acknowledgement");
    b.receive(3).expect("room");
    assert_eq!((b.wait().wr_id, a.wait().status), (3, WcStatus::Success));
}

#[test]
fn completions_nobody_took_give_their_receives_back() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b, mut pairs) = sides(&node, 2);
    for slot in 0..7 {
        b.receive(slot).expect("room");
        a.send(&pairs[0].0, 0, 64);
        assert_eq!(a.wait().status, WcStatus::Success);
    }
    let (_x, y) = pairs.remove(0);
    y.destroy().expect("destroyed");
    b.receive_all();
    a.send(&pairs[0].0, 0, 64);
    assert_eq!((b.wait().wr_id, a.wait().status), (0, WcStatus::Success));
}

#[test]
fn the_limit_event_comes_once_for_each_arming() {
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b, pairs) = sides(&node, 1);
    for _ in 0..2 {
        b.receive_all();
        b.srq.arm(4).expect("armed");
        assert_eq!(b.srq.query().expect("attributes").limit, 4);
        let mut events = 0;
        for used in 1..=7 {
            a.send(&pairs[0].0, 0, 64);
            assert_eq!((a.wait().status, b.wait().status), (WcStatus::Success, WcStatus::Success));
            let event = b.event(Duration::from_millis(20));
            let (srqn, kind) = (b.srq.srqn(), SrqEvent::LimitReached);
            match event {
                Some(event) => assert_eq!(event, Event::Srq { srqn, cookie: 5, kind }),
                None => continue,
            }
            assert_eq!(used, 4, "three are left");
            events += 1;
        }
        assert_eq!((events, b.srq.query().expect("attributes").limit), (1, 0));
    }
}

#[test]
fn a_queue_pair_in_error_tells_that_it_takes_no_more() {
    let (_scratch, node) = Scratch::with_node(2);
    let (_a, b, pairs) = sides(&node, 1);
    let qp = &pairs[0].1;
    let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, QpAttrMask::STATE).expect("to the error state");
    let kind = QpEvent::LastWqeReached;
    assert_eq!(b.event(SOON), Some(Event::Qp { qpn: qp.qpn(), cookie: 9, kind }));
    assert_eq!(b.event(Duration::from_millis(20)), None, "once");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let (_scratch, node) = Scratch::with_node(2);
    let b = Side::new(&node, 2);
    let most = b.device.attr().clone();
    let make = |max_wr, max_sge| Srq::create(&b.pd, &SrqInit { max_wr, max_sge, xrc: None, cookie: 0 });
    for (max_wr, max_sge) in [(most.max_srq_wr + 1, 1), (1, most.max_srq_sge + 1)] {
        assert_eq!(errno(make(max_wr, max_sge)), libc::EINVAL, "{max_wr} of {max_sge}");
    }
    // As in libmlx5: a size of zero means the minimum size.
    assert!(make(0, 1).expect("the smallest").size().0 > 0);
    let largest = make(most.max_srq_wr, most.max_srq_sge).expect("what the device says");
    assert_eq!(largest.size(), (most.max_srq_wr, most.max_srq_sge));
    largest.arm(most.max_srq_wr).expect("as much as fits");
    assert_eq!(errno(b.srq.arm(8)), libc::EINVAL);
    assert_eq!(b.srq.query().expect("attributes").limit, 0);
    let more = vec![b.sge(0, 8); b.srq.size().1 as usize + 1];
    let refused = b.srq.post_recv([RecvWr { wr_id: 0, sge: &more }]).expect_err("a piece too many");
    assert_eq!((refused.index, refused.errno), (0, libc::EINVAL));
    // A QP on an SRQ has no receives of its own, and keeps the SRQ in use.
    let qp = b.qp(Service::Rc, true);
    assert_eq!(qp.cap().max_recv_wr, 0);
    let init = QpAttr { qp_state: QpState::Init, port_num: 1, ..QpAttr::default() };
    let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    qp.modify(&init, mask).expect("to INIT");
    let own = qp.post_recv([RecvWr { wr_id: 0, sge: &[] }]).expect_err("a receive of its own");
    assert_eq!(own.errno, libc::EINVAL);
    assert_eq!(errno(b.srq.clone().destroy()), libc::EBUSY);
}

/// A file on the node's own file system, which identifies a domain.
fn file(scratch: &Scratch) -> (String, FileId) {
    let path = scratch.dir().join("domain");
    std::fs::write(&path, b"").expect("a file");
    let meta = std::fs::metadata(&path).expect("its number");
    (path.to_string_lossy().into_owned(), FileId { dev: meta.dev(), ino: meta.ino() })
}

/// Starts a program with a target and an SRQ in the domain of the file at `path`.
fn start(scratch: &Scratch, path: &str) -> Program {
    let dir = scratch.dir().to_string_lossy();
    Program::start(Path::new(env!("CARGO_BIN_EXE_xrc")), &[&dir, "2", path]).expect("started")
}

fn named(file: FileId) -> XrcOpen {
    XrcOpen { file: Some(file), create: true, exclusive: false }
}

#[test]
fn a_file_names_one_domain() {
    let (scratch, node) = Scratch::with_node(2);
    let (_, file) = file(&scratch);
    let device = open_device_of(&node, 1).expect("a device");
    let open = |create, exclusive| XrcDomain::open(&device, XrcOpen { file: Some(file), create, exclusive });
    assert_eq!(errno(open(false, false)), libc::EAGAIN, "there is none yet");
    let first = open(true, true).expect("a new one");
    let second = open(false, false).expect("the same");
    assert_eq!(first.xrcdn(), second.xrcdn());
    assert_eq!(errno(open(true, true)), libc::EINVAL, "it is not new");
    let private = XrcDomain::open(&device, XrcOpen::default()).expect("one without a file");
    assert_ne!(private.xrcdn(), first.xrcdn());
    first.close().expect("closed");
    assert_eq!(open(false, false).expect("still there").xrcdn(), second.xrcdn());
    let target = Qp::create_target(&second, 0).expect("a target");
    assert_eq!(errno(second.clone().close()), libc::EBUSY);
    let (qpn, other) = (target.qpn(), open(true, false).expect("again"));
    assert_eq!(errno(Qp::open_target(&private, qpn, 0)), libc::EINVAL, "of another domain");
    assert_eq!(errno(Qp::open_target(&other, qpn + 1, 0)), libc::EINVAL, "of no such number");
    let again = Qp::open_target(&other, qpn, 0).expect("opened");
    target.destroy().expect("closed by one");
    assert_eq!(again.query().expect("still there").qp_state, QpState::Reset);
    again.destroy().expect("destroyed by the last");
    assert_eq!(errno(Qp::open_target(&other, qpn, 0)), libc::EINVAL, "gone");
}

fn send_to(side: &Side, qp: &Qp, srqn: u32, len: usize) -> WcStatus {
    side.post_to(qp, SendOp::Send, 0, len, Target::Srq(srqn));
    side.wait().status
}

#[test]
fn processes_share_a_domain_and_a_target_until_the_last_is_gone() {
    shared_by_processes(false);
}

/// A message then waits for the process that owns the SRQ it names, whichever process created the target.
#[test]
fn they_do_where_no_process_reaches_the_memory_of_another() {
    shared_by_processes(true);
}

fn shared_by_processes(no_direct_copies: bool) {
    let scratch = Scratch::new();
    let options = NodeOptions { vfs: Some(2), no_direct_copies, ..NodeOptions::default() };
    let node = scratch.node_with(&options);
    // Opens the function like any other program; its object counts are the baseline.
    let device = open_device_of(&node, 2).expect("a device");
    let (path, file) = file(&scratch);
    let warm = XrcDomain::open(&device, XrcOpen::default()).expect("XRC is there");
    warm.close().expect("closed");
    let a = Side::new(&node, 1);
    let initiator = a.qp(Service::XrcIni, false);
    let before = node.status().expect("status").functions[2].objects.clone();

    let mut other = start(&scratch, &path);
    let card = other.expect("target", SOON).expect("its numbers");
    let mut words = card.split(' ').map(|w| w.parse::<u128>().expect("a number"));
    let mut number = || words.next().expect("three numbers");
    let (gid, qpn, theirs) = (number().to_be_bytes(), number() as u32, number() as u32);
    connect(&initiator, &Card { gid, qpn, addr: 0, rkey: 0 }, Patience::default()).expect("connected");
    other.tell(&a.card_of(&initiator).to_string()).expect("a living program");
    other.expect("connected", SOON).expect("connected");

    // Their target, our SRQ in the same domain.
    let domain = XrcDomain::open(&device, named(file)).expect("the same domain");
    let ours = Side::of(&device, Some(&domain));
    let target = Qp::open_target(&domain, qpn, 3).expect("opened");
    for slot in 0..4 {
        ours.receive(slot).expect("room");
    }
    for round in 1..=3 {
        assert_eq!(send_to(&a, &initiator, theirs, 100 * round / 2), WcStatus::Success);
        assert_eq!(other.expect("received", SOON), Ok((100 * round / 2).to_string()));
        assert_eq!(send_to(&a, &initiator, ours.srq.srqn(), 8 * round), WcStatus::Success);
        let wc = ours.wait();
        let found = (wc.status, wc.wr_id as usize, wc.byte_len as usize, wc.qpn);
        assert_eq!(found, (WcStatus::Success, round - 1, 8 * round, qpn));
    }

    // The program that created the target is killed, but we keep the target open.
    other.kill();
    node.status().expect("cleaned up");
    assert_eq!(send_to(&a, &initiator, ours.srq.srqn(), 64), WcStatus::Success);
    assert_eq!(ours.wait().wr_id, 3);
    assert_eq!(target.query().expect("there").qp_state, QpState::Rts);
    // The SRQ of the dead program no longer exists.
    assert_eq!(send_to(&a, &initiator, theirs, 64), WcStatus::RemInvReqErr);
    target.destroy().expect("destroyed by the last");
    drop(ours);
    domain.close().expect("closed by the last");
    assert_eq!(node.status().expect("status").functions[2].objects, before);
}

/// The same for an SRQ, an initiator, and device memory with its key, which also belong to the function.
#[test]
fn a_killed_program_leaves_no_domain_and_no_target_behind() {
    nothing_left_behind("none");
}

#[test]
fn it_does_not_on_an_adapter_that_is_as_strict_as_a_card() {
    nothing_left_behind("all");
}

fn nothing_left_behind(switches: &str) {
    let scratch = Scratch::new();
    let strict = Some(switches.parse().expect("known switches"));
    let node = scratch.node_with(&NodeOptions { vfs: Some(2), strict, ..NodeOptions::default() });
    let device = open_device_of(&node, 2).expect("a device");
    let most = device.attr().max_dm_size;
    let (path, file) = file(&scratch);
    let warm = XrcDomain::open(&device, XrcOpen::default()).expect("XRC is there");
    warm.close().expect("closed");
    assert_eq!(device.events().next(), None);
    let before = node.status().expect("status").functions[2].objects.clone();
    for asked in [true, false, true] {
        let mut other = start(&scratch, &path);
        other.expect("target", SOON).expect("its numbers");
        assert_ne!(node.status().expect("status").functions[2].objects, before);
        other.kill();
        node.status().expect("cleaned up");
        if asked {
            let how = XrcOpen { create: false, ..named(file) };
            assert_eq!(errno(XrcDomain::open(&device, how)), libc::EAGAIN, "the domain went with its holder");
        } else {
            // A program that only waits for events is woken and cleans up.
            assert!(device.events().wait(Some(SOON)).expect("the interrupt's descriptor"));
            assert_eq!(device.events().next(), None);
        }
        assert_eq!(node.status().expect("status").functions[2].objects, before);
        Dm::alloc(&device, most, 0).expect("all of it").free().expect("given back");
    }
}

#[test]
fn reads_writes_and_atomics_over_xrc() {
    let (_scratch, node) = Scratch::with_node(2);
    let a = Side::new(&node, 1);
    let device = open_device_of(&node, 2).expect("a device");
    let domain = XrcDomain::open(&device, XrcOpen::default()).expect("a domain");
    let b = Side::of(&device, Some(&domain));
    let (initiator, target) =
        (a.qp(Service::XrcIni, false), Qp::create_target(&domain, 0).expect("a target"));
    connect(&initiator, &b.card_of(&target), Patience::default()).expect("connected");
    connect(&target, &a.card_of(&initiator), Patience::default()).expect("connected");
    let (raddr, rkey, srqn) = (b.words.addr(), b.mr.rkey(), b.srq.srqn());
    a.words.put(0, b"0123456789abcdef");
    b.receive(9).expect("room");
    let write = SendOp::WriteImm { raddr: raddr + 1024, rkey, imm: 77 };
    let read = b.to_read(1024);
    let add = b.to_add(2048, 5);
    for (op, slot, len) in [(write, 0, 16), (read, 1, 16), (add, 2, 8)] {
        a.post_to(&initiator, op, slot, len, Target::Srq(srqn));
        assert_eq!(a.wait().status, WcStatus::Success, "{op:?}");
    }
    let wc = b.wait();
    assert_eq!(
        (wc.opcode, wc.wr_id, wc.imm_or_inv, wc.qpn),
        (WcOpcode::RecvRdmaWithImm, 9, 77, target.qpn())
    );
    assert_eq!(b.words.bytes(1024, 16), b"0123456789abcdef");
    assert_eq!(a.words.bytes(ROOM, 16), b"0123456789abcdef");
    assert_eq!(b.words.word(2048), 5);
    // Without an SRQ number there is no request.
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
    assert_eq!(initiator.post_send([wr]).expect_err("to nobody").errno, libc::EINVAL);
    assert_eq!(target.post_send([wr]).expect_err("by a target").errno, libc::EINVAL);
    let access = AccessFlags::empty();
    let attr = QpAttr { qp_state: QpState::Rts, qp_access_flags: access, ..QpAttr::default() };
    target.modify(&attr, QpAttrMask::ACCESS_FLAGS).expect("rights taken");
    a.post_to(&initiator, write, 0, 8, Target::Srq(srqn));
    assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
}
