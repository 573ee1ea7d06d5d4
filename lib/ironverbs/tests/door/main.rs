//! The crate on simulated machines, and on nodes as programs share them.

mod addresses;
mod crowd;
mod errors;
mod examples;
mod places;
mod pool;
mod requests;
mod virtual_time;

use ironverbs::{Pool, Qp, Region, Result, sim::Sim, verbs::AccessFlags};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

/// All rights of peers.
const ALL: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// A connection with a pool on either side.
struct Ends {
    a: Qp,
    b: Qp,
    ours: Pool,
    theirs: Pool,
}

impl Ends {
    fn of((a, b): (Qp, Qp)) -> Self {
        let pool = |qp: &Qp| Pool::new(qp.device(), 64, 4096).expect("a pool");
        let (ours, theirs) = (pool(&a), pool(&b));
        Self { a, b, ours, theirs }
    }

    fn new() -> Self {
        Self::of(Sim::new().pair().expect("a pair"))
    }

    fn region(&self, len: usize) -> Region {
        Region::new(self.b.device(), len, ALL).expect("a region")
    }
}

/// Connects two queue pairs.
fn connected(a: Qp, b: Qp) -> (Qp, Qp) {
    a.connect(&b.local().expect("an address")).expect("connected");
    b.connect(&a.local().expect("an address")).expect("connected");
    (a, b)
}

/// Polls a future once.
async fn once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Polls a future once, and drops it.
async fn cancelled<T>(future: impl Future<Output = Result<T>>) {
    assert!(once(pin!(future)).await.is_none(), "it should still wait");
}
