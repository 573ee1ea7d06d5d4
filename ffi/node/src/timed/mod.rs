//! An adapter in virtual time: programs wait where they would poll, and a conductor lets the next event happen. docs/time-inside.md
//! describes it.

mod conductor;
mod effort;
mod late;
mod limits;

pub use ::clock::{CYCLE, Call};
pub use conductor::{Conductor, Rules, board_of, is_conducted};

use super::core::Core;
use clock::{Board, Written, stay_apart};
use devmodel::{engine::Ps, pcie::doorbell_half};
use driver::transport::Quiet;
use hwspec::{
    doorbell::{BF_OFFSET, UAR_SHIFT, UAR_SIZE},
    pcie::FIRST_UAR,
};
use std::{io, thread::JoinHandle};

/// Minimum time that a card takes to start a command, ps. An assumption: its firmware first reads the command from host memory.
const COMMAND: Ps = 10_000_000;

impl Core {
    /// The board of the adapter's conductor, if it has one.
    #[inline]
    pub fn board(&self) -> Option<&Board> {
        self.board.get()
    }

    /// Writes `value` to a doorbell register of `fid`, for the conductor to act on in its time. Returns false for other registers.
    #[cold]
    pub fn ring_in_time(&self, board: &Board, fid: u8, offset: u32, value: u64) -> bool {
        let at = offset as usize;
        if at >> UAR_SHIFT < FIRST_UAR as usize {
            return false;
        }
        let is_send = at % UAR_SIZE >= BF_OFFSET;
        tell(board, fid, offset, value, if is_send { Written::Request } else { Written::Whole })
    }

    /// The same for a `value` of 4 bytes.
    #[cold]
    pub fn ring_half_in_time(&self, board: &Board, fid: u8, offset: u32, value: u32) -> bool {
        doorbell_half(offset.into(), value).is_some() && tell(board, fid, offset, value.into(), Written::Half)
    }

    /// The calling thread writes to a register with an immediate effect. Its earlier requests have reached the device by then, as they
    /// have when a card starts a command.
    #[cold]
    pub fn let_doorbells_arrive(&self, board: &Board) {
        if let Some(player) = board.player().filter(|player| player.has_posted() && !player.is_apart()) {
            player.sleep(player.now() + COMMAND);
        }
    }

    /// The calling thread found no completion of `fid`: it continues when something may have changed.
    #[cold]
    pub fn rest(&self, board: &Board, fid: u8) {
        match board.player() {
            Some(player) => player.wait(fid),
            None => super::sys::yield_now(),
        }
    }

    /// The calling thread found a completion that it had waited for.
    #[cold]
    pub fn notice(&self, board: &Board) {
        let _ = board.player().map(|player| player.now());
    }
}

/// Starts a thread of a library, as [`Quiet::spawn`] does. A program in virtual time does not wait for it.
///
/// # Errors
/// Those of starting a thread.
pub fn spawn_apart(
    name: &str,
    stack: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Quiet::spawn(name, stack, || {
        stay_apart();
        body();
    })
}

/// Always true: if the thread has no place, the write is lost.
fn tell(board: &Board, fid: u8, offset: u32, value: u64, written: Written) -> bool {
    if let Some(player) = board.player() {
        player.ring(fid, offset, value, written);
    }
    true
}
