//! A function of the node that this process serves to a client outside of it: a guest.
//!
//! No other process has the function open or runs it: its bus addresses are the guest's, and only this process resolves them. The client's
//! own thread runs it at each of the client's accesses; the parked thread does pending work in between, as for any program.

use super::{NodeError, core::Core, file::SERVED, locks::NodeLock, node::Node};
use devmodel::{
    pcie::MsixMessage,
    region::Patience,
    serve::{Function, Guest},
};
use std::sync::{Arc, atomic::Ordering::*};

/// Address of the function's MSI-X messages. No bus carries them: the host routes vectors by number.
const MESSAGE_ADDRESS: u64 = 0xfee0_0000;

/// A function of a node that this process serves. Dropping it resets the function.
pub struct ServedFunction {
    node: Arc<Node>,
    guest: Arc<Guest>,
    fid: u8,
}

impl ServedFunction {
    /// Takes function `fid`, which must not be open.
    pub fn claim(node: &Arc<Node>, fid: u8) -> Result<Self, NodeError> {
        let (core, vfs) = (node.core(), node.vfs());
        if fid > vfs {
            return Err(NodeError::NoDevice { fid, vfs });
        }
        node.park()?;
        let lock = core.locks.lock()?;
        core.reap_locked(&lock);
        core.not_served(fid)?;
        core.not_open(fid)?;
        core.make_room_for(fid)?;
        core.begin_serving(fid, &lock)?;
        drop(lock);
        // Introduces the parties to each other before this function is sent anything.
        core.meet();
        core.introduce();
        Ok(Self { node: node.clone(), guest: core.guest_place(fid).clone(), fid })
    }

    /// Its number.
    pub fn fid(&self) -> u8 {
        self.fid
    }

    fn core(&self) -> &Core {
        self.node.core()
    }
}

impl Core {
    /// Refuses a function that is served.
    pub fn not_served(&self, fid: u8) -> Result<(), NodeError> {
        match self.server(fid) {
            0 => Ok(()),
            slot => Err(self.in_use(fid, "served", [slot as u16])),
        }
    }

    /// Refuses a function that is open.
    pub fn not_open(&self, fid: u8) -> Result<(), NodeError> {
        let mut openers = self.openers(fid).peekable();
        match openers.peek() {
            None => Ok(()),
            Some(_) => Err(self.in_use(fid, "open", openers)),
        }
    }

    fn in_use(&self, fid: u8, how: &'static str, slots: impl IntoIterator<Item = u16>) -> NodeError {
        let pid = |slot: u16| match slot == self.me.slot {
            true => std::process::id(),
            false => self.locks.holder(slot).unwrap_or(0),
        };
        NodeError::InUse { fid, how, pids: slots.into_iter().map(pid).collect() }
    }

    fn begin_serving(&self, fid: u8, lock: &NodeLock) -> Result<(), NodeError> {
        // Done before this process takes the function: it has no users, but a stopped program may still hold its lock.
        self.reset_alone(fid, Patience::UntilStopped)
            .map_err(|holder| NodeError::Stopped { what: format!("the reset of iron{fid}"), holder })?;
        let slot = self.me.slot;
        let function = &self.map.functions()[usize::from(fid)];
        self.guest_place(fid).forget();
        self.opens(fid).fetch_add(1, AcqRel);
        self.enlist(fid, lock);
        function.server.store(slot.into(), Release);
        // Other parties cannot read a guest's memory, so payload that the guest sends to others travels by value.
        self.map.header().by_value.fetch_or(SERVED, AcqRel);
        Ok(())
    }
}

impl Drop for ServedFunction {
    fn drop(&mut self) {
        let core = self.core();
        if !core.is_ours() || core.is_lost() {
            return;
        }
        match core.locks.lock() {
            Ok(lock) => {
                core.opens(self.fid).fetch_sub(1, AcqRel);
                // A removal that a stopped program prevents is completed after this process has ended.
                let _ = core.strike(core.me.slot, self.fid, &lock);
                self.guest.forget();
            }
            Err(error) => tracing::warn!(%error, "the function stays served until this process ends"),
        }
    }
}

impl Function for ServedFunction {
    fn guest(&self) -> &Guest {
        &self.guest
    }

    fn config_read(&self, offset: usize, width: usize) -> u32 {
        let core = self.core();
        core.touch(core.now(), self.fid, |_, host| core.adapter.config_read(host, self.fid, offset, width))
    }

    fn config_write(&self, offset: usize, width: usize, value: u32) {
        let core = self.core();
        let now = core.now();
        core.touch(now, self.fid, |runner, host| {
            core.adapter.config_write(runner, host, now, self.fid, offset, width, value);
        });
    }

    fn bar_read32(&self, offset: u64) -> u32 {
        let core = self.core();
        let now = core.now();
        core.touch(now, self.fid, |_, host| core.adapter.bar_read32(host, now, self.fid, offset))
    }

    fn bar_write32(&self, offset: u64, value: u32) {
        let core = self.core();
        let now = core.now();
        core.touch(now, self.fid, |runner, host| {
            core.adapter.bar_write32(runner, host, now, self.fid, offset, value);
        });
    }

    fn bar_write64(&self, offset: u64, value: u64) {
        let core = self.core();
        let now = core.now();
        core.drive(now, |runner, host| {
            core.adapter.bar_write64(runner, host, now, self.fid, offset, value);
        });
    }

    fn vector(&self, vector: u16, sends: bool) {
        let core = self.core();
        let message = MsixMessage { address: MESSAGE_ADDRESS, data: vector.into() };
        core.touch(core.now(), self.fid, |_, host| {
            core.adapter.msix_program(host, self.fid, vector, sends.then_some(message));
        });
    }

    fn reset(&self) {
        let core = self.core();
        // Endless patience does not run out.
        let _ = core.reset_alone(self.fid, Patience::Endless);
    }

    fn ask_pages(&self, pages: i32) -> bool {
        let core = self.core();
        core.touch(core.now(), self.fid, |_, host| core.adapter.ask_pages(host, self.fid, pages))
    }
}
