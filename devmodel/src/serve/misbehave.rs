//! A device that is broken in one known way, to check that drivers and harnesses notice.

use super::{Function, Guest, irqs::VECTORS};
use crate::pcie::{bar::rings, no_answer};
use hwspec::{
    cmd::{CmdIn, Opcode, queue::CmdQueueEntry},
    layout::Layout,
};
use std::{
    str::FromStr,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*},
};

/// Registers in the initialization segment: command queue address (high and low half), and command doorbell.
const CMDQ_HIGH: u64 = 0x10;
const CMDQ_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
/// Health counter in bits 23:0, with a syndrome above it.
const HEALTH: u64 = 0x1010;
/// Last dword of the health buffer: syndrome in bits 23:16.
const SYNDROME: u64 = 0x23c;
/// Syndrome of a device with failed firmware (PRM: health syndrome).
const FATAL: u32 = 1;

/// The broken part or behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// The health counter stops.
    StoppedHealth(When),
    /// The health buffer shows the syndrome of a fatal error.
    FatalHealth(When),
    /// Commands with this opcode are never completed; `None`: no command is.
    StuckCommand(Option<u16>, When),
    /// Interrupts of this vector are lost; `None`: of all vectors.
    LostInterrupt(Option<u16>),
    /// The device stops answering and stops all work.
    PowerLoss(When),
    /// Requests this many pages (or their return, if negative) once there is an event queue for it.
    AskPages(i32, When),
}

/// The time at which it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From the start.
    Always,
    /// After this many commands.
    Commands(u32),
    /// After this many doorbells of send queues.
    Doorbells(u32),
    /// When the function is taken down.
    Teardown,
}

impl FromStr for When {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match (text, text.strip_prefix("doorbell=")) {
            ("teardown", _) => Ok(Self::Teardown),
            (_, Some(doorbells)) => doorbells.parse().map(Self::Doorbells).map_err(drop),
            (commands, None) => commands.parse().map(Self::Commands).map_err(drop),
        }
    }
}

impl FromStr for Misbehaviour {
    type Err = String;

    /// `wrong-health[=fatal][@WHEN]`, `stuck-command[=OPCODE][@WHEN]`, `lost-interrupt[=VECTOR]`, `power-loss=COMMANDS`,
    /// `power-loss@WHEN`, `ask-pages=PAGES@WHEN`, `ask-pages=PAGES@teardown`, where `WHEN` is `COMMANDS` or `doorbell=DOORBELLS`;
    /// numbers decimal, those of opcode and vector also 0x hexadecimal.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}': expected wrong-health[=fatal][@WHEN], stuck-command[=OPCODE][@WHEN], lost-interrupt[=VECTOR], \
                 power-loss=COMMANDS, power-loss@WHEN, ask-pages=PAGES@WHEN or ask-pages=PAGES@teardown, where WHEN is \
                 COMMANDS or doorbell=DOORBELLS"
            )
        };
        let (what, when) = match text.split_once('@') {
            Some((what, when)) => (what, when.parse().map_err(|()| wrong())?),
            None => (text, When::Always),
        };
        let (kind, detail) = what.split_once('=').map_or((what, None), |(kind, d)| (kind, Some(d)));
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
        match (kind, detail, when) {
            ("ask-pages", Some(pages), _) if when != When::Always => match pages.parse() {
                Ok(pages) if pages != 0 => Ok(Self::AskPages(pages, when)),
                _ => Err(wrong()),
            },
            (_, _, When::Teardown) => Err(wrong()),
            ("wrong-health", None, _) => Ok(Self::StoppedHealth(when)),
            ("wrong-health", Some("fatal"), _) => Ok(Self::FatalHealth(when)),
            ("stuck-command", _, _) => number(0x1_0000).map(|opcode| Self::StuckCommand(opcode, when)),
            ("lost-interrupt", _, When::Always) => number(VECTORS as u32).map(Self::LostInterrupt),
            ("power-loss", Some(commands), When::Always) => commands
                .parse()
                .map(|commands| Self::PowerLoss(When::Commands(commands)))
                .map_err(|_| wrong()),
            ("power-loss", None, When::Commands(_) | When::Doorbells(_)) => Ok(Self::PowerLoss(when)),
            _ => Err(wrong()),
        }
    }
}

/// A function that misbehaves.
pub struct Misbehaving<F> {
    function: F,
    how: Vec<Misbehaviour>,
    /// Address of the command queue.
    queue: AtomicU64,
    /// Commands issued so far, and doorbells of send queues.
    commands: AtomicU32,
    doorbells: AtomicU32,
    /// Bitmap, by index in `how`, of page requests already made.
    asked: AtomicU64,
    /// The device no longer answers.
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
        Self {
            function,
            how,
            queue: AtomicU64::new(0),
            commands: AtomicU32::new(0),
            doorbells: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// Opcode of the command in `slot`, if it can be read.
    fn opcode(&self, slot: u32) -> Option<u16> {
        let at = self.queue.load(Relaxed).checked_add(u64::from(slot) * CmdQueueEntry::SIZE as u64)?;
        let mut raw = [0; CmdQueueEntry::SIZE];
        self.function.guest().memory.read(at, &mut raw).ok()?;
        let entry = CmdQueueEntry::from_bytes(raw);
        Some(CmdIn::read(&entry.command_input_inline_data()).opcode().raw())
    }

    /// The subset of `slots` with commands that are executed.
    fn admitted(&self, slots: u32) -> u32 {
        let stuck = |slot: u32| {
            self.how.iter().any(|how| match how {
                Misbehaviour::StuckCommand(opcode, when) if self.is_due(*when) => {
                    opcode.is_none() || *opcode == self.opcode(slot)
                }
                _ => false,
            })
        };
        (0..32).filter(|slot| slots >> slot & 1 != 0 && !stuck(*slot)).fold(0, |bits, slot| bits | 1 << slot)
    }

    /// True if the fault is due; teardown is checked by [`count`](Self::count).
    fn is_due(&self, when: When) -> bool {
        match when {
            When::Always => true,
            When::Commands(commands) => self.commands.load(Relaxed) > commands,
            When::Doorbells(doorbells) => self.doorbells.load(Relaxed) > doorbells,
            When::Teardown => false,
        }
    }

    /// Counts the commands of `slots`, or a doorbell, which the driver has issued but the device has not seen yet. Triggers
    /// faults that become due.
    fn count(&self, slots: u32, doorbells: u32) {
        self.commands.fetch_add(slots.count_ones(), Relaxed);
        self.doorbells.fetch_add(doorbells, Relaxed);
        let ends = |slot: u32| {
            let ends = [Opcode::DestroyEq, Opcode::TeardownHca].map(Opcode::raw);
            self.opcode(slot).is_some_and(|opcode| ends.contains(&opcode))
        };
        for (i, how) in self.how.iter().enumerate() {
            match *how {
                Misbehaviour::PowerLoss(when) if self.is_due(when) && !self.dead.swap(true, Relaxed) => {
                    self.function.guest().irqs.lose(u64::MAX);
                    // A device without power finishes nothing.
                    self.function.reset();
                }
                Misbehaviour::AskPages(pages, when) if self.asked.load(Relaxed) >> (i % 64) & 1 == 0 => {
                    let due = match when {
                        When::Teardown => (0..32).any(|slot| slots >> slot & 1 != 0 && ends(slot)),
                        when => self.is_due(when),
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
            return no_answer(width);
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
        // All ones means that the device does not answer at all.
        if value == u32::MAX {
            return value;
        }
        self.how.iter().fold(value, |value, how| match how {
            Misbehaviour::StoppedHealth(when) if offset == HEALTH && self.is_due(*when) => {
                value & 0xff00_0000 | 1
            }
            Misbehaviour::FatalHealth(when) if offset == HEALTH && self.is_due(*when) => {
                value & 0x00ff_ffff | FATAL << 24
            }
            Misbehaviour::FatalHealth(when) if offset == SYNDROME && self.is_due(*when) => {
                value & 0xff00_ffff | FATAL << 16
            }
            _ => value,
        })
    }
    fn bar_write32(&self, offset: u64, value: u32) {
        if offset == COMMAND_DOORBELL {
            self.count(value, 0);
        } else if rings(offset, false) {
            self.count(0, 1);
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
        if rings(offset, true) {
            self.count(0, 1);
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
