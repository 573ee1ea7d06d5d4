//! Applies fault plans to a node's wire, in real time.

use super::{
    Node, NodeError,
    crowd::{Crowd, TOGETHER},
    outlets::{Held, WireThread},
    timed,
};
use devmodel::{
    engine::faults::{FaultPlan, FaultReport, FaultWire, Leaving},
    region::Outlet,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
};

/// Routes all frames on a node's wire through a thread of this process, which applies a fault plan to them, until [`finish`](Self::finish).
/// It takes the place of a capture. Programs run slower meanwhile.
pub struct FaultThread(WireThread<FaultReport>);

impl FaultThread {
    /// Starts to apply `plan`.
    ///
    /// # Errors
    /// The node is in virtual time, where the conductor applies plans; the plan contains faults that are not faults of a wire; another
    /// process holds the capture.
    pub fn start(node: &Arc<Node>, plan: FaultPlan) -> Result<Self, NodeError> {
        let failed = || NodeError::system("apply the plan of faults");
        if timed::is_conducted(node.dir()) {
            let why = "the adapter is in virtual time, expected `run --clock timed --fault` there";
            return Err(failed()(io::Error::other(why)));
        }
        let wire = FaultWire::new(plan, node.core().now()).map_err(io::Error::other).map_err(failed())?;
        let held = Held::diverting(node)?;
        let thread = WireThread::start(held, "ironverbs-faults", |held, stop| carry(held, wire, stop));
        thread.map(Self).map_err(failed())
    }

    /// Stops diverting frames, and delivers those in flight. Returns the results of the plan, and the number of frames lost because the
    /// ring was full.
    pub fn finish(self) -> io::Result<(FaultReport, u32)> {
        let (found, lost) = self.0.finish();
        let found = found.ok_or_else(|| io::Error::other("the thread that tries the plan ended early"))?;
        Ok((found, lost))
    }
}

fn carry(held: &Held, mut wire: FaultWire, stop: &AtomicBool) -> FaultReport {
    let core = held.core();
    let (ring, bell) = (core.outlet_ring(Outlet::Capture), &core.outlet(Outlet::Capture).bell);
    let crowd = Crowd::default();
    let bring_on = |frames: &[Leaving]| {
        for some in frames.chunks(TOGETHER) {
            let now = core.now();
            core.drive(now, |runner, host| {
                let frames = some.iter().map(|(from, frame)| (*from, frame.as_slice()));
                runner.bring_on(&core.adapter, host, now, frames);
            });
            crowd.wait(core, || {});
        }
    };
    loop {
        let seen = bell.rung();
        let stopping = stop.load(Acquire);
        if stopping {
            ring.stop();
        }
        let mut frame = Vec::new();
        let mut came = 0;
        // In batches, because other work falls due.
        while came < TOGETHER || stopping {
            let Some(left) = ring.pop(&mut frame) else { break };
            wire.enter(&core.adapter, left, std::mem::take(&mut frame));
            came += 1;
        }
        if stopping {
            let (found, rest) = wire.end();
            bring_on(&rest);
            return found;
        }
        bring_on(&wire.leave(core.now()));
        if came == 0 {
            core.sleep_on_outlet(Outlet::Capture, seen, wire.next());
        }
    }
}
