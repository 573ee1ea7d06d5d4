//! Completion queues, states and events of the driver's verbs, over a node: real time, real threads.

mod completions;
mod moves;

use driver::{Completion, Cq, CqInit, Device, Event, Pd, Qp, QpInit, SendFlags, SendOp, SendWr, Service};
use ironverbs_tests::{
    end::{self, Card, Patience, Words, all_rights, connect, register},
    program::Scratch,
};
use node::open_device_of;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// An upper bound for every wait in these tests.
const SOON: Duration = Duration::from_secs(10);

/// One end of a connection of any service, with a send CQ and a receive CQ. Referrers are declared before the objects they refer to.
struct Side {
    qp: Arc<Qp>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    mr: driver::Mr,
    pd: Arc<Pd>,
    device: Arc<Device>,
    words: Words,
}

const COOKIE: u64 = 77;

impl Side {
    fn of(device: Arc<Device>, service: Service, init: &CqInit) -> Self {
        let pd = Pd::alloc(&device).expect("a PD");
        Self::within(device, &pd, service, init)
    }

    /// Like `of`, with the queues' memory from `domain`.
    fn within(device: Arc<Device>, domain: &Arc<Pd>, service: Service, init: &CqInit) -> Self {
        let sends = Cq::create_with(&device, init, domain.buffers()).expect("a CQ");
        let receives = Cq::create_with(&device, init, domain.buffers()).expect("a CQ");
        let words = Words::new(4096);
        let mr = register(domain, &words, all_rights()).expect("an MR");
        let init = QpInit {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            cookie: COOKIE,
            ..QpInit::new(service, &sends, &receives)
        };
        let qp = Qp::create(domain, &init).expect("a QP");
        Self { qp, sends, receives, mr, pd: domain.clone(), device, words }
    }

    fn card(&self) -> Card {
        let gid = self.device.gid(1).expect("a GID");
        Card { gid, qpn: self.qp.qpn(), addr: self.words.addr(), rkey: self.mr.rkey() }
    }

    fn sge(&self, len: u32) -> driver::Sge {
        driver::Sge { addr: self.words.addr(), length: len, lkey: self.mr.lkey() }
    }

    /// Posts a WRITE of 8 bytes to `peer`.
    fn write(&self, wr_id: u64, peer: &Card) {
        let op = SendOp::Write { raddr: peer.addr, rkey: peer.rkey };
        let wr = SendWr { wr_id, op, sge: &[self.sge(8)], flags: SendFlags::SIGNALED };
        self.qp.post_send([wr]).expect("post");
    }

    /// Returns the next event, if one arrives within `limit`.
    fn event(&self, limit: Duration) -> Option<Event> {
        end::event(&self.device, limit)
    }
}

/// Returns two connected sides on functions 1 and 2.
fn pair(scratch: &Scratch, init: &CqInit) -> (Side, Side) {
    let node = scratch.node(2).expect("a node");
    let open = |fid| open_device_of(&node, fid).expect("a device");
    let (a, b) = (Side::of(open(1), Service::Rc, init), Side::of(open(2), Service::Rc, init));
    join(&a, &b);
    (a, b)
}

fn join(a: &Side, b: &Side) {
    connect(&a.qp, &b.card(), Patience::default()).expect("RTS");
    connect(&b.qp, &a.card(), Patience::default()).expect("RTS");
}

#[track_caller]
fn wait(cq: &Cq) -> Completion {
    end::completion(cq, SOON).expect("a completion")
}

fn entries(entries: u32) -> CqInit {
    CqInit { entries, cookie: COOKIE, ..CqInit::default() }
}
