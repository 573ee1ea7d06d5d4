//! The initialization segment: the registers at the start of BAR0 (PRM: initialization segment).

use super::slow;
use crate::strict::Card;
use crate::{config::Config, region::Func};
use hwspec::{
    init_segment::{HealthBuffer, InitSegment},
    layout,
};

/// Reported firmware version, minor and sub-minor: one digit longer than any real version of this family.
const FIRMWARE: (u16, u16) = (99, 1000);
/// Revision of the command interface.
const COMMAND_INTERFACE: u16 = 5;
/// log2 of the command queue's entries.
pub(crate) const LOG_CMDQ_SIZE: u8 = 5;
/// log2 of a command queue entry in bytes.
pub(crate) const LOG_CMDQ_STRIDE: u8 = 6;
/// Picoseconds per count of the health counter.
const HEALTH_PERIOD: u64 = 10_000_000_000;
/// Internal timer, high and low half.
const TIMER_HIGH: usize = 0x1000;
const TIMER_LOW: usize = 0x1004;

const CMDQ_HIGH: usize = 0x10;
const CMDQ_LOW: usize = 0x14;
pub(super) const COMMAND_DOORBELL: usize = 0x18;

/// The register at `offset`.
pub(super) fn read(func: &Func<'_>, config: &Config, now: u64, offset: usize) -> u32 {
    match offset {
        TIMER_HIGH => return ((now / 1000) >> 32) as u32,
        TIMER_LOW => return (now / 1000) as u32,
        at if at + 4 > InitSegment::SIZE => return 0,
        _ => {}
    }
    let f = func.function();
    let card = config.strict.card;
    let mut health = HealthBuffer::zeroed();
    health.set().assert_existptr(u32::MAX).assert_callra(u32::MAX).hw_id(card.hardware()).irisc_index(0xff);
    health.set().fw_version(firmware_version(card));
    let segment = InitSegment::with(|s| {
        s.fw_rev_major(card.firmware())
            .fw_rev_minor(FIRMWARE.0)
            .fw_rev_subminor(FIRMWARE.1)
            .cmd_interface_rev(COMMAND_INTERFACE)
            .cmdq_phy_addr_63_32((f.cmdq >> 32) as u32)
            .cmdq_phy_addr_31_12((f.cmdq as u32) >> 12)
            .log_cmdq_size(LOG_CMDQ_SIZE)
            .log_cmdq_stride(LOG_CMDQ_STRIDE)
            .initializing(config.strict.slow != 0 && slow::initializes(func, config, now))
            .health_buffer(health)
            .health_syndrome(f.health_syndrome as u8)
            .health_counter((now / HEALTH_PERIOD + 1) as u32 & 0xff_ffff)
    });
    layout::load(segment.as_bytes(), offset, 31, 0) as u32
}

/// The firmware version: major and minor in one byte each, then the sub-minor.
pub(crate) fn firmware_version(card: Card) -> u32 {
    u32::from(card.firmware()) << 24 | u32::from(FIRMWARE.0) << 16 | u32::from(FIRMWARE.1)
}

/// Writes the register at `offset`; the caller handles registers with side effects.
pub(super) fn write(func: &mut Func<'_>, offset: usize, value: u32) {
    match offset {
        CMDQ_HIGH => {
            let cmdq = func.function_mut(|f| &mut f.cmdq);
            *cmdq = *cmdq & 0xffff_ffff | u64::from(value) << 32;
        }
        CMDQ_LOW => {
            let cmdq = func.function_mut(|f| &mut f.cmdq);
            *cmdq = *cmdq & !0xffff_ffff | u64::from(value & !0xfff);
        }
        _ => {}
    }
}
