//! Teardown of a function by its last opener, in the reverse order of `bringup`. Other openers just leave.

use crate::{
    abandoned, async_queue, cmd, config::Config, error::Error, function::Function, pages,
    shared_area::FunctionState,
};
use hwspec::cmd::{Opcode, adapter::*};

/// `TEARDOWN_HCA`, page reclaim, `DISABLE_HCA`, then bus mastering off. The objects of all openers are already
/// destroyed.
fn tear_down(function: &Function) -> Result<(), Error> {
    async_queue::destroy(function)?;
    function.call::<_, TeardownHcaOut>(Opcode::TeardownHca, 0, &TeardownHcaIn::zeroed())?;
    function.pages()?.reclaim_all()?;
    function.call::<_, DisableHcaOut>(Opcode::DisableHca, 0, &DisableHcaIn::zeroed())?;
    Config(&*function.transport).disable_bus_master()?;
    pages::free_all(&function.transport, &function.shared, &function.own_blocks);
    Ok(())
}

impl Drop for Function {
    /// The last opener tears the function down; others just leave.
    fn drop(&mut self) {
        if cmd::is_gone(&self.bar) {
            // In a child of fork the registers read as all ones, and the shared records belong to the parent.
            return self.leave();
        }
        let shared = self.shared.clone();
        let lock = match shared.lock(self.options.lock_timeout) {
            Ok(lock) => lock,
            Err(error) => {
                tracing::warn!(%error, "the function is left as it is");
                return self.leave();
            }
        };
        if lock.remove_opener() {
            abandoned::sweep(self, &lock);
            return self.leave();
        }
        let torn_down = match shared.state() {
            FunctionState::Up => {
                lock.set_state(FunctionState::InChange);
                tear_down(self)
            }
            _ => Err(Error::device("a function that is up", "one that bring-up left half-way")),
        };
        // A reset takes pages and command queue away from the chip just like a teardown.
        let quiet = match &torn_down {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "resetting the function instead of tearing it down");
                self.transport.reset().map_err(Error::io("cannot reset the function"))
            }
        };
        // Set only once, since a function is dropped once.
        let _ = self.outcome.set(torn_down);
        if let Err(error) = quiet {
            tracing::warn!(%error, "the function could not be quieted; the next opener tries again");
            return self.leave();
        }
        pages::free_all(&self.transport, &self.shared, &self.own_blocks);
        if let Some(cmd) = self.cmd.take() {
            cmd.into_memory().free();
        }
        lock.set_command_memory(0, 0);
        lock.clear_event_queues();
        lock.set_state(FunctionState::Down);
    }
}

impl Function {
    fn leave(&mut self) {
        pages::leave(&self.own_blocks);
        if let Some(cmd) = self.cmd.take() {
            cmd.into_memory().leave();
        }
    }
}
