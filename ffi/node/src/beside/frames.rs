//! The way of frames to the adapter beside one.

use super::Open;
use crate::{core::Core, drive::Rest, host::NodeHost, memory::Memory, scratch::bits};
use devmodel::region::{FunctionSet, WireRing};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::*,
};

impl Core {
    /// Free slots in the receive ring of the function with `mac` of the adapter beside this one.
    pub fn room_beside(&self, mac: [u8; 6]) -> Option<usize> {
        let open = self.beside()?;
        let adapter = &open.core()?.adapter;
        if adapter.is_watched() {
            return None;
        }
        adapter.owner(&mac).map(|fid| WireRing::of(adapter.region(), fid).free())
    }

    /// Delivers a frame to its receiver on the adapter beside this one. Returns the functions to [run](Self::run_beside); `None` if the
    /// frame must leave by the uplink.
    pub fn deliver_beside(&self, headers: &[u8], payload: &[u8]) -> Option<FunctionSet> {
        let open = self.beside()?;
        let other = open.core()?;
        let deliver = || {
            other.engines.with(|engine| {
                let mut host = NodeHost(Memory { core: other, scratch: &mut engine.scratch });
                let now = other.now();
                let taken = engine.runner.accept(&other.adapter, &mut host, now, (headers, payload));
                engine.scratch.entrusted.drain(|fid| other.polling.entrust(fid));
                if engine.scratch.suspect != 0 {
                    other.suspect(std::mem::take(&mut engine.scratch.suspect));
                }
                taken.then(|| engine.runner.take_due())
            })
        };
        // A damaged file of the other adapter must not affect this one.
        let due = catch_unwind(AssertUnwindSafe(deliver)).ok()??;
        self.map.header().beside.passed.fetch_add(1, Relaxed);
        Some(due)
    }

    /// Runs functions of the adapter beside this one. Returns the functions of this adapter that got frames from them.
    #[cold]
    pub fn run_beside(&self, due: FunctionSet) -> FunctionSet {
        let Some(open) = self.known_beside() else { return 0 };
        let Some(other) = open.core() else { return 0 };
        let run = || {
            let now = other.now();
            other.engines.with(|engine| {
                let mut host = NodeHost(Memory { core: other, scratch: &mut engine.scratch });
                // The next poll runs the functions that this program polls.
                bits(due)
                    .filter(|fid| !other.is_poller(*fid))
                    .for_each(|fid| engine.runner.run(&other.adapter, &mut host, now, fid));
                other.afterwards(&mut engine.runner, &mut host, now, Rest::ToCaller)
            })
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or(0)
    }

    /// Leaves functions of the adapter beside this one to the parked thread there.
    #[cold]
    pub fn leave_beside(&self, due: FunctionSet) {
        if let Some(other) = self.known_beside().as_ref().and_then(Open::core) {
            other.leave_to_parked(due);
        }
    }

    /// Runs the functions of the adapter beside this one whose programs have not taken the frames left to them.
    pub fn take_back_beside(&self) {
        if let Some(other) = self.known_beside().as_ref().and_then(Open::core) {
            other.take_back_entrusted(other.now());
        }
    }

    /// The same for the parked thread. Returns true if it should check again soon.
    pub fn take_back_stalled_beside(&self) -> bool {
        let open = self.known_beside();
        open.as_ref().and_then(Open::core).is_some_and(|other| other.take_back_stalled(other.now()))
    }
}
