//! Steps that take time on a card (`slow`): recovery from a reset, firmware start, enabling.

use crate::{
    config::Config,
    region::{Func, TimerKind},
    state::HcaState,
};
use hwspec::cmd::Opcode;

/// Picoseconds.
const SECOND: u64 = 1_000_000_000_000;
/// Time after a reset without any response (PCI Express Base 5.0, 6.6.2: 100 ms).
const SILENCE: u64 = SECOND / 10;
/// Time that the firmware takes to start after a reset (Linux waits for 120 s).
const START: u64 = 60 * SECOND;
/// Time that `ENABLE_HCA` takes (Linux waits for 60 s).
const ENABLE: u64 = 30 * SECOND;

/// Scales a card's `time` to this adapter.
fn scaled(config: &Config, time: u64) -> u64 {
    time / 1_000_000 * u64::from(config.strict.slow)
}

/// Records the first access since the reset. True if the function does not respond yet.
#[cold]
pub(super) fn is_silent(func: &mut Func<'_>, config: &Config, now: u64) -> bool {
    if func.function().woken == 0 {
        *func.function_mut(|f| &mut f.woken) = now.max(1);
    }
    now < func.function().woken + scaled(config, SILENCE)
}

/// True if the firmware is still starting.
#[cold]
pub(crate) fn initializes(func: &Func<'_>, config: &Config, now: u64) -> bool {
    let woken = func.function().woken;
    woken == 0 || now < woken + scaled(config, START)
}

/// True if the command in `slot` completes later; a timer is then armed for it.
pub(crate) fn delays(func: &mut Func<'_>, config: &Config, now: u64, (slot, opcode): (u32, Opcode)) -> bool {
    if opcode != Opcode::EnableHca || func.function().hca_state != HcaState::Reset.raw() {
        return false;
    }
    let at = now + scaled(config, ENABLE);
    if !func.arm_timer(0, TimerKind::Command, at) {
        return false;
    }
    *func.function_mut(|f| &mut f.cmd_delayed) |= 1 << slot;
    true
}
