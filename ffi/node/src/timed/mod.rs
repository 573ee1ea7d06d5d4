//! A node in virtual time: its programs wait where they would poll, and a conductor lets the next thing happen. docs/time-inside.md.

mod conductor;
mod effort;
mod late;
mod limits;

pub use ::clock::{CYCLE, Call, stay_apart};
pub use conductor::{Conductor, Rules, board_of, is_conducted};

use super::core::Core;
use clock::{Board, Written};
use devmodel::{engine::Ps, pcie::doorbell_half};
use hwspec::{
    doorbell::{BF_OFFSET, UAR_SHIFT, UAR_SIZE},
    pcie::FIRST_UAR,
};

/// The time that a card takes at least to come to a command, ps. Chosen: its firmware reads it from host memory first.
const COMMAND: Ps = 10_000_000;

impl Core {
    /// The board of the adapter's conductor, if it has one.
    #[inline]
    pub fn board(&self) -> Option<&Board> {
        self.board.get()
    }

    /// Writes `value` to a doorbell register of `fid`, which the conductor acts on in its time. Returns false if it is another register.
    #[cold]
    pub fn ring_in_time(&self, board: &Board, fid: u8, offset: u32, value: u64) -> bool {
        let at = offset as usize;
        if at >> UAR_SHIFT < FIRST_UAR as usize {
            return false;
        }
        let is_send = at % UAR_SIZE >= BF_OFFSET;
        tell(board, fid, offset, value, if is_send { Written::Request } else { Written::Whole })
    }

    /// The same of a `value` of 4 bytes.
    #[cold]
    pub fn ring_half_in_time(&self, board: &Board, fid: u8, offset: u32, value: u32) -> bool {
        doorbell_half(offset.into(), value).is_some() && tell(board, fid, offset, value.into(), Written::Half)
    }

    /// The calling thread writes to a register that is carried out at once: what it has posted before is at the device by then, as it is when a
    /// card comes to a command.
    #[cold]
    pub fn let_doorbells_arrive(&self, board: &Board) {
        if let Some(player) = board.player().filter(|player| player.has_posted() && !player.is_apart()) {
            player.sleep(player.now() + COMMAND);
        }
    }

    /// The calling thread found no completion of `fid`: it goes on when something may be different.
    #[cold]
    pub fn rest(&self, board: &Board, fid: u8) {
        match board.player() {
            Some(player) => player.wait(fid),
            None => super::sys::yield_now(),
        }
    }

    /// The calling thread found a completion for which it had waited.
    #[cold]
    pub fn notice(&self, board: &Board) {
        let _ = board.player().map(|player| player.now());
    }
}

/// Always true: where there is no place for the thread, the write is lost.
fn tell(board: &Board, fid: u8, offset: u32, value: u64, written: Written) -> bool {
    if let Some(player) = board.player() {
        player.ring(fid, offset, value, written);
    }
    true
}
