//! A device that is broken in one known way, to see whether drivers and harnesses notice.

use super::{Function, Guest, irqs::VECTORS};
use hwspec::{
    cmd::{CmdIn, queue::CmdQueueEntry},
    layout::Layout,
};
use std::{
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering::*},
};

/// Address of the command queue, high and low half, and the doorbell, in the initialization segment.
const CMDQ_HIGH: u64 = 0x10;
const CMDQ_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
/// Health counter, bits 23:0, with a syndrome above it.
const HEALTH: u64 = 0x1010;
/// Last dword of the health buffer: syndrome in bits 23:16.
const SYNDROME: u64 = 0x23c;
/// Syndrome of a device whose firmware gave up (PRM: health syndrome).
const FATAL: u32 = 1;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// The health counter stands still.
    StoppedHealth,
    /// The health buffer has the syndrome of a fatal error.
    FatalHealth,
    /// Commands of this opcode are never completed; none: no command is.
    StuckCommand(Option<u16>),
    /// Interrupts of this vector are lost; none: of all.
    LostInterrupt(Option<u16>),
}

impl FromStr for Misbehaviour {
    type Err = String;

    /// `wrong-health[=fatal]`, `stuck-command[=OPCODE]`, `lost-interrupt[=VECTOR]`; numbers decimal or 0x hexadecimal.
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, detail) = text.split_once('=').map_or((text, None), |(kind, d)| (kind, Some(d)));
        let number = |limit: u32| {
            let Some(text) = detail else { return Ok(None) };
            let value = match text.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => text.parse(),
            };
            match value {
                Ok(n) if n < limit => Ok(Some(n as u16)),
                _ => Err(format!("{kind}={text}: expected a number below {limit:#x}")),
            }
        };
        match (kind, detail) {
            ("wrong-health", None) => Ok(Self::StoppedHealth),
            ("wrong-health", Some("fatal")) => Ok(Self::FatalHealth),
            ("stuck-command", _) => number(0x1_0000).map(Self::StuckCommand),
            ("lost-interrupt", _) => number(VECTORS as u32).map(Self::LostInterrupt),
            _ => Err(format!(
                "'{text}': expected wrong-health[=fatal], stuck-command[=OPCODE] or lost-interrupt[=VECTOR]"
            )),
        }
    }
}

/// A function that misbehaves.
pub struct Misbehaving<F> {
    function: F,
    how: Misbehaviour,
    /// Where the command queue is.
    queue: AtomicU64,
}

impl<F: Function> Misbehaving<F> {
    /// Makes `function` misbehave.
    pub fn new(function: F, how: Misbehaviour) -> Self {
        if let Misbehaviour::LostInterrupt(vector) = how {
            function.guest().irqs.lose(vector.map_or(u64::MAX, |v| 1 << (v % 64)));
        }
        Self { function, how, queue: AtomicU64::new(0) }
    }

    /// The slots of `slots` whose command is carried out.
    fn admitted(&self, slots: u32) -> u32 {
        let Misbehaviour::StuckCommand(opcode) = self.how else { return slots };
        let Some(opcode) = opcode else { return 0 };
        let stuck = |slot: &u32| {
            let at = self.queue.load(Relaxed).checked_add(u64::from(*slot) * CmdQueueEntry::SIZE as u64);
            let mut raw = [0; CmdQueueEntry::SIZE];
            let read = at.is_some_and(|at| self.function.guest().memory.read(at, &mut raw).is_ok());
            let entry = CmdQueueEntry::from_bytes(raw);
            read && CmdIn::read(&entry.command_input_inline_data()).opcode().raw() == opcode
        };
        (0..32).filter(|slot| slots >> slot & 1 != 0 && !stuck(slot)).fold(0, |bits, slot| bits | 1 << slot)
    }
}

impl<F: Function> Function for Misbehaving<F> {
    fn guest(&self) -> &Guest {
        self.function.guest()
    }
    fn config_read(&self, offset: usize, width: usize) -> u32 {
        self.function.config_read(offset, width)
    }
    fn config_write(&self, offset: usize, width: usize, value: u32) {
        self.function.config_write(offset, width, value);
    }
    fn bar_read32(&self, offset: u64) -> u32 {
        let value = self.function.bar_read32(offset);
        match self.how {
            // All ones is a device that does not answer at all.
            _ if value == u32::MAX => value,
            Misbehaviour::StoppedHealth if offset == HEALTH => value & 0xff00_0000 | 1,
            Misbehaviour::FatalHealth if offset == HEALTH => value & 0x00ff_ffff | FATAL << 24,
            Misbehaviour::FatalHealth if offset == SYNDROME => value & 0xff00_ffff | FATAL << 16,
            _ => value,
        }
    }
    fn bar_write32(&self, offset: u64, value: u32) {
        let value = match offset {
            CMDQ_HIGH => {
                let low = self.queue.load(Relaxed) & 0xffff_ffff;
                self.queue.store(u64::from(value) << 32 | low, Relaxed);
                value
            }
            CMDQ_LOW => {
                let high = self.queue.load(Relaxed) & !0xffff_ffff;
                self.queue.store(high | u64::from(value & !0xfff), Relaxed);
                value
            }
            COMMAND_DOORBELL => match self.admitted(value) {
                0 => return,
                some => some,
            },
            _ => value,
        };
        self.function.bar_write32(offset, value);
    }
    fn bar_write64(&self, offset: u64, value: u64) {
        if offset < 0x20 {
            self.bar_write32(offset, (value >> 32) as u32);
            return self.bar_write32(offset + 4, value as u32);
        }
        self.function.bar_write64(offset, value);
    }
    fn vector(&self, vector: u16, sends: bool) {
        self.function.vector(vector, sends);
    }
    fn reset(&self) {
        self.queue.store(0, Relaxed);
        self.function.reset();
    }
}
