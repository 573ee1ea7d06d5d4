//! A device that is broken in one known way, to see whether drivers and harnesses notice.

use super::{Function, Guest, irqs::VECTORS};
use hwspec::{
    cmd::{CmdIn, Opcode, queue::CmdQueueEntry},
    layout::Layout,
};
use std::{
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*},
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
    /// After so many commands nobody answers any more.
    PowerLoss(u32),
    /// So many pages are asked for, or back if negative.
    AskPages(i32, When),
}

/// When pages are asked for: when there is an event queue for it, and
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// so many commands were given.
    Commands(u32),
    /// the function is being taken down.
    Teardown,
}

impl FromStr for Misbehaviour {
    type Err = String;

    /// `wrong-health[=fatal]`, `stuck-command[=OPCODE]`, `lost-interrupt[=VECTOR]`, `power-loss=COMMANDS`,
    /// `ask-pages=PAGES@COMMANDS`, `ask-pages=PAGES@teardown`; numbers decimal, the first two also 0x hexadecimal.
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
            ("power-loss", Some(commands)) => commands
                .parse()
                .map(Self::PowerLoss)
                .map_err(|_| format!("{text}: expected a number of commands")),
            ("ask-pages", Some(detail)) => {
                let asked = detail.split_once('@').and_then(|(pages, when)| {
                    let when = match when {
                        "teardown" => When::Teardown,
                        commands => When::Commands(commands.parse().ok()?),
                    };
                    Some(Self::AskPages(pages.parse().ok().filter(|pages| *pages != 0)?, when))
                });
                asked.ok_or_else(|| format!("{text}: expected PAGES@COMMANDS or PAGES@teardown"))
            }
            _ => Err(format!(
                "'{text}': expected wrong-health[=fatal], stuck-command[=OPCODE], lost-interrupt[=VECTOR], power-loss=COMMANDS \
                 or ask-pages=PAGES@COMMANDS"
            )),
        }
    }
}

/// A function that misbehaves.
pub struct Misbehaving<F> {
    function: F,
    how: Vec<Misbehaviour>,
    /// Where the command queue is.
    queue: AtomicU64,
    /// Commands given so far.
    commands: AtomicU32,
    /// By their places in `how`: requests for pages that were made.
    asked: AtomicU64,
    /// Nobody answers.
    dead: AtomicBool,
}

impl<F: Function> Misbehaving<F> {
    /// Makes `function` misbehave in all the ways of `how`.
    pub fn new(function: F, how: Vec<Misbehaviour>) -> Self {
        let lost = how.iter().fold(0, |bits, how| match how {
            Misbehaviour::LostInterrupt(vector) => bits | vector.map_or(u64::MAX, |v| 1 << (v % 64)),
            _ => bits,
        });
        if lost != 0 {
            function.guest().irqs.lose(lost);
        }
        let (queue, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { function, how, queue, commands: AtomicU32::new(0), asked, dead: AtomicBool::new(false) }
    }

    /// The opcode of the command in `slot`, if it can be read.
    fn opcode(&self, slot: u32) -> Option<u16> {
        let at = self.queue.load(Relaxed).checked_add(u64::from(slot) * CmdQueueEntry::SIZE as u64)?;
        let mut raw = [0; CmdQueueEntry::SIZE];
        self.function.guest().memory.read(at, &mut raw).ok()?;
        let entry = CmdQueueEntry::from_bytes(raw);
        Some(CmdIn::read(&entry.command_input_inline_data()).opcode().raw())
    }

    /// The slots of `slots` whose command is carried out.
    fn admitted(&self, slots: u32) -> u32 {
        let stuck = |slot: u32| {
            self.how.iter().any(|how| match how {
                Misbehaviour::StuckCommand(None) => true,
                Misbehaviour::StuckCommand(opcode) => *opcode == self.opcode(slot),
                _ => false,
            })
        };
        (0..32).filter(|slot| slots >> slot & 1 != 0 && !stuck(*slot)).fold(0, |bits, slot| bits | 1 << slot)
    }

    /// Counts the commands of `slots`, which the driver has given and the device has not seen. What is due then happens.
    fn count(&self, slots: u32) {
        let given = self.commands.fetch_add(slots.count_ones(), Relaxed) + slots.count_ones();
        let ends = |slot: u32| {
            let ends = [Opcode::DestroyEq, Opcode::TeardownHca].map(Opcode::raw);
            self.opcode(slot).is_some_and(|opcode| ends.contains(&opcode))
        };
        for (i, how) in self.how.iter().enumerate() {
            match *how {
                Misbehaviour::PowerLoss(commands) if given > commands => {
                    self.function.guest().irqs.lose(u64::MAX);
                    self.dead.store(true, Relaxed);
                }
                Misbehaviour::AskPages(pages, when) if self.asked.load(Relaxed) >> (i % 64) & 1 == 0 => {
                    let due = match when {
                        When::Commands(commands) => given > commands,
                        When::Teardown => (0..32).any(|slot| slots >> slot & 1 != 0 && ends(slot)),
                    };
                    if due && self.function.ask_pages(pages) {
                        self.asked.fetch_or(1 << (i % 64), Relaxed);
                    }
                }
                _ => {}
            }
        }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }
}

impl<F: Function> Function for Misbehaving<F> {
    fn guest(&self) -> &Guest {
        self.function.guest()
    }
    fn config_read(&self, offset: usize, width: usize) -> u32 {
        if self.is_dead() {
            return u32::MAX >> (8 * (4 - width.clamp(1, 4)));
        }
        self.function.config_read(offset, width)
    }
    fn config_write(&self, offset: usize, width: usize, value: u32) {
        if !self.is_dead() {
            self.function.config_write(offset, width, value);
        }
    }
    fn bar_read32(&self, offset: u64) -> u32 {
        let value = if self.is_dead() { u32::MAX } else { self.function.bar_read32(offset) };
        // All ones is a device that does not answer at all.
        if value == u32::MAX {
            return value;
        }
        self.how.iter().fold(value, |value, how| match how {
            Misbehaviour::StoppedHealth if offset == HEALTH => value & 0xff00_0000 | 1,
            Misbehaviour::FatalHealth if offset == HEALTH => value & 0x00ff_ffff | FATAL << 24,
            Misbehaviour::FatalHealth if offset == SYNDROME => value & 0xff00_ffff | FATAL << 16,
            _ => value,
        })
    }
    fn bar_write32(&self, offset: u64, value: u32) {
        if offset == COMMAND_DOORBELL {
            self.count(value);
        }
        if self.is_dead() {
            return;
        }
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
        if !self.is_dead() {
            self.function.bar_write64(offset, value);
        }
    }
    fn vector(&self, vector: u16, sends: bool) {
        self.function.vector(vector, sends);
    }
    fn reset(&self) {
        self.queue.store(0, Relaxed);
        self.function.reset();
    }
    fn ask_pages(&self, pages: i32) -> bool {
        !self.is_dead() && self.function.ask_pages(pages)
    }
}
