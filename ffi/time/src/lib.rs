//! Loaded before a program in virtual time (`LD_PRELOAD`): its clocks, its counter of cycles, its sleeps, and what it says to others by files
//! and sockets. docs/time.md.
//!
//! All of it works on the board that `IRONVERBS_CLOCK` names. Without one every call is the kernel's.
#![allow(unsafe_code)]

mod clocks;
mod counter;
mod programs;
mod sockets;

use clock::{Board, Player};
use std::{path::Path, sync::OnceLock};

/// Names the board.
const VARIABLE: &str = "IRONVERBS_CLOCK";

static BOARD: OnceLock<Option<Board>> = OnceLock::new();

/// The calling thread as a player, if the program is in virtual time.
fn player() -> Option<(Board, Player)> {
    // Only the constructor looks for it: others may be in the middle of something.
    let board = (*BOARD.get()?)?;
    Some((board, board.player()?))
}

extern "C" fn begin() {
    let found = std::env::var_os(VARIABLE).and_then(|path| Board::find(Path::new(&path)).ok().flatten());
    let board = *BOARD.get_or_init(|| found);
    if let Some(board) = board {
        counter::take();
        let _ = board.player();
    }
}

/// Run by the loader before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Sets errno.
fn fail(errno: libc::c_int) -> libc::c_int {
    // SAFETY: it is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}
