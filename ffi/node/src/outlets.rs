//! The outlets of the adapter: the party that consumes each, and how it is woken.

use super::{NodeError, core::Core, file::OutletSlot, locks::NodeLock, node::Node, party, sys};
use devmodel::region::{Outlet, OutletRing};
use driver::transport::Quiet;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    thread::JoinHandle,
};

impl Core {
    /// The node's state of an outlet.
    pub fn outlet(&self, which: Outlet) -> &OutletSlot {
        &self.map.header().outlets[which as usize]
    }

    /// The ring of an outlet.
    pub fn outlet_ring(&self, which: Outlet) -> OutletRing<'_> {
        OutletRing::of(self.adapter.region(), which)
    }

    /// The party that consumes an outlet, if there is one.
    pub fn holder(&self, which: Outlet) -> Option<u16> {
        let opener = self.outlet(which).holder.load(Acquire);
        let lives =
            opener == self.me.opener() || opener != 0 && party::is_there(&self.map, self.locks, opener);
        lives.then(|| party::party_of(opener))
    }

    /// Signals that an outlet has frames, and wakes its consumer's thread.
    #[inline]
    pub fn outlet_filled(&self, which: Outlet) {
        self.outlet(which).bell.ring(sys::futex_wake);
    }

    /// Sleeps until an outlet has frames, [`outlet_filled`](Self::outlet_filled) is called, or the time `until` (ps). `seen` is the bell's
    /// count before the caller last checked for work.
    pub fn sleep_on_outlet(&self, which: Outlet, seen: u32, until: Option<u64>) {
        if self.outlet_ring(which).waits() {
            return;
        }
        self.outlet(which).bell.sleep(seen, |word, seen| {
            let nanos = until.map(|until| until.saturating_sub(self.now()) / 1000 + 1);
            sys::futex_wait(word, seen, nanos);
        });
    }

    /// Closes the outlets that the dead party `slot` consumed.
    pub fn reap_outlets(&self, slot: u16, lock: &NodeLock) {
        for which in [Outlet::Uplink, Outlet::Capture] {
            let held = self.outlet(which).holder.load(Acquire);
            if held != 0 && party::party_of(held) == slot {
                self.close_outlet(which, lock);
            }
        }
    }

    fn close_outlet(&self, which: Outlet, lock: &NodeLock) {
        self.outlet_ring(which).open(false);
        if which == Outlet::Uplink {
            self.forget_neighbours(lock);
            self.forget_beside();
        }
        self.outlet(which).holder.store(0, Release);
    }
}

/// The right to consume an outlet, which is open as long as this value lives.
pub struct Held {
    node: Arc<Node>,
    which: Outlet,
}

impl Held {
    /// Opens the outlet `which` of `node`, unless another party holds it.
    pub fn new(node: &Arc<Node>, which: Outlet) -> Result<Self, NodeError> {
        Self::take(node, which, |ring| ring.open(true))
    }

    /// Opens the capture of `node`, unless another party holds it, for a thread that forwards the frames on the wire.
    pub fn diverting(node: &Arc<Node>) -> Result<Self, NodeError> {
        Self::take(node, Outlet::Capture, |ring| ring.divert())
    }

    fn take(node: &Arc<Node>, which: Outlet, open: fn(&OutletRing<'_>)) -> Result<Self, NodeError> {
        // Its holder runs functions that others have open, and notices when one of those processes dies.
        node.park()?;
        let core = node.core();
        let lock = core.locks.lock()?;
        core.reap_locked(&lock);
        if let Some(slot) = core.holder(which) {
            return Err(NodeError::OutletHeld {
                what: name(which),
                dir: core.dir.clone(),
                pid: core.pid(slot),
            });
        }
        core.make_room_for_outlet(which)?;
        core.outlet(which).holder.store(core.me.opener(), Release);
        open(&core.outlet_ring(which));
        Ok(Self { node: node.clone(), which })
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Its core.
    pub fn core(&self) -> &Core {
        self.node.core()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let core = self.node.core();
        if !core.is_ours() {
            return;
        }
        match core.locks.lock() {
            Ok(lock) => core.close_outlet(self.which, &lock),
            Err(error) => tracing::warn!(%error, "an outlet stays open until this process ends"),
        }
    }
}

/// A thread of this process that consumes a node's capture until it is told to stop, which is at the latest when this value is dropped.
pub struct WireThread<T> {
    stop: Arc<AtomicBool>,
    held: Arc<Held>,
    lost_before: u32,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> WireThread<T> {
    /// Starts the thread. `run` returns once the flag is set.
    pub fn start(
        held: Held,
        name: &str,
        run: impl FnOnce(&Held, &AtomicBool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let (held, stop) = (Arc::new(held), Arc::new(AtomicBool::new(false)));
        let lost_before = held.core().outlet_ring(Outlet::Capture).lost();
        let (theirs, their_stop) = (held.clone(), stop.clone());
        let thread = Quiet::spawn(name, 512 << 10, move || run(&theirs, &their_stop))?;
        Ok(Self { stop, held, lost_before, thread: Some(thread) })
    }

    /// True if the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread. Returns its result, `None` if it panicked, and the number of frames lost because the ring was full.
    pub fn finish(mut self) -> (Option<T>, u32) {
        let lost = self.held.core().outlet_ring(Outlet::Capture).lost().wrapping_sub(self.lost_before);
        (self.join(), lost)
    }
}

impl<T> WireThread<T> {
    fn join(&mut self) -> Option<T> {
        self.stop.store(true, Release);
        self.held.core().outlet_filled(Outlet::Capture);
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for WireThread<T> {
    fn drop(&mut self) {
        self.join();
    }
}

fn name(which: Outlet) -> &'static str {
    match which {
        Outlet::Uplink => "uplink",
        Outlet::Capture => "capture",
    }
}
