//! Completion queues, states and events of the driver's verbs, over a node: real time, real threads.

mod completions;
mod moves;

use driver::{Completion, Cq, CqInit, Event, Pd, SendFlags, SendOp, SendWr, Service};
use ironverbs_tests::{
    end::{self, End, Make, SOON, pair_with},
    program::Scratch,
};
use node::open_device_of;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const COOKIE: u64 = 77;

/// Ends with a completion queue each for sends and receives.
fn make(service: Service, cq: CqInit) -> Make<'static> {
    Make { len: 4096, service, cq, two_cqs: true, qp: &|init| init.cookie = COOKIE }
}

/// Returns two connected ends on functions 1 and 2 of a node.
fn pair(cq: CqInit) -> (Scratch, End, End) {
    let (scratch, node) = Scratch::with_node(2);
    let (a, b) = pair_with(&node, 1, 2, &make(Service::Rc, cq));
    (scratch, a, b)
}

/// Posts a WRITE of 8 bytes from `from` to `to`.
fn write(from: &End, wr_id: u64, to: &End) {
    from.post(wr_id, to.to_write(0), &[from.sge(0, 8)]);
}

#[track_caller]
fn wait(cq: &Cq) -> Completion {
    end::completion(cq, SOON).expect("a completion")
}

fn entries(entries: u32) -> CqInit {
    CqInit { entries, cookie: COOKIE, ..CqInit::default() }
}
