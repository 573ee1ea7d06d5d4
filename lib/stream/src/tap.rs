//! A tap, which is notified of every register write and reads everything else from memory.

use crate::{
    event::{Event, Record},
    file::Recorder,
    rings::{self, Rings},
};
use hwspec::{
    cmd::{CmdOut, Status, queue::*},
    doorbell::{UAR_SHIFT, UarRegister},
    init_segment::InitSegment,
    layout::{Layout, prefix},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Registers of the initialization segment.
const CMDQ_HIGH: u64 = 0x10;
const CMDQ_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
/// Offset in an entry of the byte with the ownership bit.
const OWNER: u64 = 0x3f;

/// Memory accessible to a function by DMA.
pub trait Memory {
    /// Reads `into.len()` bytes at bus address `at`. Returns false if they are not all available.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;
}

/// Records one function.
pub struct Tap {
    recorder: Arc<Recorder>,
    function: u8,
    state: Mutex<State>,
}

/// A command that was sent and not yet answered.
struct Pending {
    place: (u64, u64),
    /// Address of its entry.
    at: u64,
    input: Vec<u8>,
    output_len: usize,
    /// Addresses of the output mailboxes.
    boxes: Vec<u64>,
}

struct State {
    /// Address of the command queue.
    queue: u64,
    log_stride: u8,
    pending: BTreeMap<u8, Pending>,
    rings: Rings,
}

impl Default for State {
    fn default() -> Self {
        // Entries are 64 bytes apart unless a driver reads another value.
        Self { queue: 0, log_stride: 6, pending: BTreeMap::new(), rings: Rings::default() }
    }
}

impl Tap {
    /// Creates a tap that records `function` to `recorder`.
    pub fn new(recorder: Arc<Recorder>, function: u8) -> Self {
        Self { recorder, function, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, (place, nanoseconds): (u64, u64), event: Event) {
        self.recorder.put(&Record { place, nanoseconds, function: self.function, event });
    }

    fn now(&self, event: Event) {
        self.put(self.recorder.place(), event);
    }

    /// Called before a register is written.
    pub fn write(&self, memory: &dyn Memory, offset: u64, width: u8, value: u64) {
        let state = &mut *self.state();
        self.settle(state, memory);
        self.requests(rings::posted(&mut state.rings, memory));
        if width == 8 && offset < InitSegment::SIZE as u64 {
            self.low(state, memory, offset, (value >> 32) as u32);
            self.low(state, memory, offset + 4, value as u32);
        } else if width == 4 && offset < InitSegment::SIZE as u64 {
            self.low(state, memory, offset, value as u32);
        } else if offset >> UAR_SHIFT > 0 {
            let rung = match (UarRegister::at(offset as usize), width) {
                (UarRegister::BlueFlame(0), 8) | (UarRegister::BlueFlame(4), 4) => Some(value as u32 >> 8),
                _ => None,
            };
            if let Some(number) = rung {
                self.requests(rings::sent(&mut state.rings, memory, number));
            }
        }
        self.now(Event::Write { offset, width, value });
    }

    fn requests(&self, found: Vec<Event>) {
        found.into_iter().for_each(|event| self.now(event));
    }

    /// Handles a write to the initialization segment.
    fn low(&self, state: &mut State, memory: &dyn Memory, offset: u64, value: u32) {
        match offset {
            CMDQ_HIGH => state.queue = u64::from(value) << 32 | state.queue & 0xffff_ffff,
            CMDQ_LOW => state.queue = state.queue & !0xffff_ffff | u64::from(value & !0xfff),
            COMMAND_DOORBELL => (0..32).filter(|slot| value >> slot & 1 != 0).for_each(|slot| {
                let at = state.queue.wrapping_add(u64::from(slot) << state.log_stride.min(12));
                if let Some(sent) = bring_in(memory, at, self.recorder.place()) {
                    if let Some(lost) = state.pending.insert(slot, sent) {
                        self.unanswered(lost);
                    }
                }
            }),
            _ => {}
        }
    }

    fn unanswered(&self, lost: Pending) {
        let event = Event::Command { input: lost.input, output: Vec::new(), delivery: None };
        self.put(lost.place, event);
    }

    /// Called after a register access, when its effects may have happened.
    pub fn after(&self, memory: &dyn Memory) {
        let state = &mut *self.state();
        self.settle(state, memory);
    }

    /// Called after a register is read.
    pub fn read(&self, memory: &dyn Memory, offset: u64, value: u32) {
        if offset == CMDQ_LOW {
            let log_stride = (value & 0xf) as u8;
            if log_stride >= 6 {
                self.state().log_stride = log_stride;
            }
        }
        self.after(memory);
    }

    /// Records answered commands.
    fn settle(&self, state: &mut State, memory: &dyn Memory) {
        let answered = |sent: &Pending| {
            let mut owner = [1];
            memory.read(sent.at.wrapping_add(OWNER), &mut owner) && owner[0] & 1 == 0
        };
        let slots: Vec<u8> =
            state.pending.iter().filter(|(_, sent)| answered(sent)).map(|(slot, _)| *slot).collect();
        for slot in slots {
            let Some(sent) = state.pending.remove(&slot) else { continue };
            let mut raw = [0; CmdQueueEntry::SIZE];
            memory.read(sent.at, &mut raw);
            self.answer(state, memory, sent, CmdQueueEntry::from_bytes(raw));
        }
    }

    /// Called before the function writes `data` at `at`. Records a command now if this write returns its entry: once
    /// the driver can see the answer, another of its processors may reuse the entry before it is read here.
    pub fn gives(&self, memory: &dyn Memory, at: u64, data: &[u8]) {
        let state = &mut *self.state();
        let within = |byte: u64| byte.checked_sub(at).and_then(|n| data.get(usize::try_from(n).ok()?));
        let given = |sent: &Pending| within(sent.at.wrapping_add(OWNER)).is_some_and(|byte| byte & 1 == 0);
        let Some(slot) = state.pending.iter().find(|(_, sent)| given(sent)).map(|(slot, _)| *slot) else {
            return;
        };
        let Some(sent) = state.pending.remove(&slot) else { return };
        let mut raw = [0; CmdQueueEntry::SIZE];
        memory.read(sent.at, &mut raw);
        for (address, byte) in (sent.at..).zip(&mut raw) {
            *byte = within(address).copied().unwrap_or(*byte);
        }
        self.answer(state, memory, sent, CmdQueueEntry::from_bytes(raw));
    }

    /// Records a command and its answer from `entry` and its mailboxes.
    fn answer(&self, state: &mut State, memory: &dyn Memory, sent: Pending, entry: CmdQueueEntry) {
        let mut output = entry.command_output_inline_data().to_vec();
        for at in &sent.boxes {
            let mut data = [0; BOX_DATA];
            memory.read(*at, &mut data);
            output.extend_from_slice(&data);
        }
        output.truncate(sent.output_len);
        if entry.status() == 0 && CmdOut::read(&output).status() == Status::Ok {
            state.rings.command(&sent.input, &output);
        }
        let event = Event::Command { input: sent.input, output, delivery: Some(entry.status()) };
        self.put(sent.place, event);
    }

    /// Called on a reset of the function: unanswered commands will never be answered.
    pub fn reset(&self) {
        let lost = std::mem::take(&mut *self.state());
        lost.pending.into_values().for_each(|lost| self.unanswered(lost));
        self.now(Event::Reset);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let lost = std::mem::take(&mut self.state().pending);
        lost.into_values().for_each(|lost| self.unanswered(lost));
    }
}

/// Reads the command at `at`, if there is one.
fn bring_in(memory: &dyn Memory, at: u64, place: (u64, u64)) -> Option<Pending> {
    let mut raw = [0; CmdQueueEntry::SIZE];
    if !memory.read(at, &mut raw) {
        return None;
    }
    let entry = CmdQueueEntry::from_bytes(raw);
    if !entry.ownership() {
        return None;
    }
    let (input_len, output_len) = (entry.input_length() as usize, entry.output_length() as usize);
    if input_len.max(output_len) > MAX_LEN {
        return None;
    }
    let mut input = entry.command_input_inline_data().to_vec();
    let first = join(entry.input_mailbox_pointer_63_32(), entry.input_mailbox_pointer_31_9(), 9);
    chain(memory, first, input_len, |_, data| input.extend_from_slice(data));
    input.truncate(input_len);
    let mut boxes = Vec::new();
    let first = join(entry.output_mailbox_pointer_63_32(), entry.output_mailbox_pointer_31_9(), 9);
    chain(memory, first, output_len, |at, _| boxes.push(at));
    Some(Pending { place, at, input, output_len, boxes })
}

fn join(high: u32, low: u32, shift: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low) << shift
}

/// Follows the mailboxes of `len` bytes as far as they exist.
fn chain(memory: &dyn Memory, first: u64, len: usize, mut each: impl FnMut(u64, &[u8])) {
    let mut at = first;
    for _ in 0..len.saturating_sub(INLINE).div_ceil(BOX_DATA) {
        let mut raw = [0; CmdMailbox::SIZE];
        if at == 0 || !memory.read(at, &mut raw) {
            return;
        }
        let mailbox = CmdMailbox::from_bytes(raw);
        each(at, &prefix::<BOX_DATA>(&raw));
        at = join(mailbox.next_pointer_63_32(), mailbox.next_pointer_31_10(), 10);
    }
}
