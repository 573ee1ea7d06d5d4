//! Applies fault plans to a node's wire, in real time.

use super::{
    Node, NodeError,
    crowd::{Crowd, TOGETHER},
    outlets::Held,
    timed,
};
use devmodel::{
    engine::faults::{FaultPlan, FaultReport, FaultWire, Leaving},
    region::Outlet,
};
use driver::transport::Quiet;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    thread::JoinHandle,
};

/// Routes all frames on a node's wire through a thread of this process, which applies a fault plan to them, until [`finish`](Self::finish).
/// It takes the place of a capture. Programs run slower meanwhile.
pub struct FaultThread {
    stop: Arc<AtomicBool>,
    held: Arc<Held>,
    lost_before: u32,
    thread: Option<JoinHandle<FaultReport>>,
}

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
        let held = Arc::new(Held::diverting(node)?);
        let lost_before = held.core().outlet_ring(Outlet::Capture).lost();
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, their_stop) = (held.clone(), stop.clone());
        let builder = std::thread::Builder::new().name("ironverbs-faults".into()).stack_size(512 << 10);
        let quiet = Quiet::new();
        let thread = builder.spawn(move || carry(&theirs, wire, &their_stop));
        drop(quiet);
        Ok(Self { stop, held, lost_before, thread: Some(thread.map_err(failed())?) })
    }

    /// Stops diverting frames, and delivers those in flight. Returns the results of the plan, and the number of frames lost because the
    /// ring was full.
    pub fn finish(mut self) -> io::Result<(FaultReport, u32)> {
        let lost = self.held.core().outlet_ring(Outlet::Capture).lost().wrapping_sub(self.lost_before);
        match self.stop_thread() {
            Some(Ok(found)) => Ok((found, lost)),
            _ => Err(io::Error::other("the thread that tries the plan ended early")),
        }
    }

    fn stop_thread(&mut self) -> Option<std::thread::Result<FaultReport>> {
        self.stop.store(true, Release);
        self.held.core().outlet_filled(Outlet::Capture);
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for FaultThread {
    fn drop(&mut self) {
        let _ = self.stop_thread();
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
