//! The command queue (PRM: command interface): entries, mailbox chains, tokens, status.
//!
//! The queue's memory belongs to the function, and all openers use it concurrently. An opener claims a slot in the
//! shared area. It never claims a slot with an entry that the device still owns, so that a command that timed out, or
//! was left by a dead opener, does no harm.

use crate::{
    dma::{
        DmaMem,
        order::{after_device_wrote, before_device_looks},
    },
    error::Error,
    shared_area::{SLOTS, Shared},
    transport::{Bar, Scope, Transport},
};
use hwspec::{
    cmd::{CmdOut, DeliveryStatus, Opcode, queue::*},
    layout::Layout,
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::Ordering::{Acquire, Release},
    },
    time::{Duration, Instant},
};

/// Distance between mailboxes: mailbox addresses are aligned to this.
const BOX_STRIDE: usize = 0x400;
/// Preallocated mailboxes per slot and direction: enough for a capability page or 512 page addresses.
const BOXES: usize = 9;
/// Maximum number of slots in use. Further commands would only queue up in the device.
const MAX_SLOTS: usize = 8;
/// Size of the page of entries.
const QUEUE_LEN: usize = 0x1000;
/// Polls of a command before the wait begins to sleep.
const SPINS: u32 = 64;
/// Doorbell vector register of the initialization segment.
const DOORBELL: u32 = 0x18;
/// Health syndrome and counter in the initialization segment.
pub const HEALTH: u32 = 0x1010;

/// Bytes of command memory for a queue of `1 << log_size` entries.
pub fn memory_len(log_size: u8) -> usize {
    QUEUE_LEN + slots(log_size) * 2 * BOXES * BOX_STRIDE
}

fn slots(log_size: u8) -> usize {
    (1usize << log_size.min(5)).min(MAX_SLOTS).min(SLOTS)
}

/// True if the function no longer responds: reads then return all ones (PCI Express 2.3.2).
pub fn is_gone(bar: &Bar) -> bool {
    bar.read32(HEALTH) == u32::MAX
}

/// The error for a device that acts at once but left `what` undone.
#[cold]
pub fn left_undone(bar: &Bar, what: String) -> Error {
    if is_gone(bar) { Error::Gone } else { Error::Unanswered { what } }
}

/// Serves the device while a command is waited for.
pub trait Attendant: Send + Sync {
    /// Serves the device. May send commands, and is called again while those are waited for.
    fn attend(&self, cmd: &CommandQueue);
}

/// One opener's view of a function's command queue.
pub struct CommandQueue {
    mem: DmaMem,
    bar: Bar,
    transport: Arc<dyn Transport>,
    shared: Shared,
    slots: usize,
    stride: usize,
    timeout: Duration,
    attendant: OnceLock<Box<dyn Attendant>>,
}

/// One direction of a slot's mailboxes.
struct Chain<'a> {
    mem: &'a DmaMem,
    offset: usize,
    count: usize,
}

impl Chain<'_> {
    fn iova(&self, number: usize) -> u64 {
        self.mem.iova() + (self.offset + number * BOX_STRIDE) as u64
    }

    /// Links the mailboxes and fills them with `data`, zero-padded.
    fn write(&self, data: &[u8], token: u8) {
        for number in 0..self.count {
            let from = data.len().min(number * BOX_DATA);
            let part = &data[from..data.len().min(from + BOX_DATA)];
            let next = if number + 1 < self.count { self.iova(number + 1) } else { 0 };
            let mailbox = CmdMailbox::with(|s| {
                s.mailbox_data(hwspec::layout::prefix(part))
                    .next_pointer_63_32((next >> 32) as u32)
                    .next_pointer_31_10(next as u32 >> 10)
                    .block_number(number as u32)
                    .token(token)
            });
            self.mem.copy_in(self.offset + number * BOX_STRIDE, mailbox.as_bytes());
        }
    }

    fn read(&self, data: &mut [u8]) {
        for (number, part) in data.chunks_mut(BOX_DATA).enumerate().take(self.count) {
            self.mem.copy_out(self.offset + number * BOX_STRIDE, part);
        }
    }
}

impl CommandQueue {
    /// Creates the queue in `mem`, of at least [`memory_len`] bytes.
    pub fn new(
        mem: DmaMem,
        bar: Bar,
        transport: Arc<dyn Transport>,
        shared: Shared,
        (log_size, log_stride): (u8, u8),
        timeout: Duration,
    ) -> Result<Self, Error> {
        let stride = 1usize << log_stride;
        let slots = slots(log_size);
        if stride < CmdQueueEntry::SIZE || slots * stride > QUEUE_LEN || mem.len() < memory_len(log_size) {
            return Err(Error::device(
                "a command queue of 64-byte or larger entries within one page",
                format!("log_cmdq_size {log_size}, log_cmdq_stride {log_stride}"),
            ));
        }
        Ok(Self { mem, bar, transport, shared, slots, stride, timeout, attendant: OnceLock::new() })
    }

    /// Timeout of one command.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Installs `attendant`, to be called while commands are waited for.
    pub fn set_attendant(&self, attendant: Box<dyn Attendant>) {
        // Set only once, when the function's event queue is attached.
        let _ = self.attendant.set(attendant);
    }

    /// True if no answer will ever come.
    fn is_gone(&self) -> bool {
        self.shared.is_lost() || is_gone(&self.bar)
    }

    /// Calls the attendant, if any.
    pub fn attend(&self) {
        if let Some(attendant) = self.attendant.get() {
            attendant.attend(self);
        }
    }

    /// Returns the memory. No command may be outstanding.
    pub fn into_memory(self) -> DmaMem {
        self.mem
    }

    /// Executes a command with `input` (opcode and uid are filled in) and reads an output of type `O`.
    pub fn call<I: Layout, O: Layout>(&self, op: Opcode, uid: u16, input: &I) -> Result<O, Error> {
        self.call_with(op, uid, input, &[])
    }

    /// Like [`CommandQueue::call`], with a list of 8-byte entries (page addresses) after the input.
    pub fn call_with<I: Layout, O: Layout>(
        &self,
        op: Opcode,
        uid: u16,
        input: &I,
        list: &[u64],
    ) -> Result<O, Error> {
        let mut output = vec![0; O::SIZE];
        self.call_raw(op, uid, input, list, &mut output)?;
        Ok(O::read(&output))
    }

    /// Like [`CommandQueue::call_with`], with an output of any length.
    pub fn call_raw<I: Layout>(
        &self,
        op: Opcode,
        uid: u16,
        input: &I,
        list: &[u64],
        output: &mut [u8],
    ) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(I::SIZE + 8 * list.len());
        bytes.extend_from_slice(input.bytes());
        bytes[..2].copy_from_slice(&op.raw().to_be_bytes());
        bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        list.iter().for_each(|entry| bytes.extend_from_slice(&entry.to_be_bytes()));
        self.execute(op, &bytes, output)
    }

    /// Executes one command. `input` and `output` include their headers.
    pub fn execute(&self, op: Opcode, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        if input.len() > MAX_LEN || output.len() > MAX_LEN {
            return Err(Error::no_memory(format!(
                "{op:?} of {} bytes is too long",
                input.len().max(output.len())
            )));
        }
        if self.is_gone() {
            return Err(Error::Gone);
        }
        let boxes = |len: usize| len.saturating_sub(INLINE).div_ceil(BOX_DATA);
        let (n_in, n_out) = (boxes(input.len()), boxes(output.len()));
        let extra = match n_in.max(n_out) > BOXES {
            true => Some(DmaMem::alloc(&self.transport, (n_in + n_out) * BOX_STRIDE, Scope::Function)?),
            false => None,
        };
        let slot = self.claim(op)?;
        let base = QUEUE_LEN + slot * 2 * BOXES * BOX_STRIDE;
        let (chain_in, chain_out) = match &extra {
            Some(mem) => (
                Chain { mem, offset: 0, count: n_in },
                Chain { mem, offset: n_in * BOX_STRIDE, count: n_out },
            ),
            None => (
                Chain { mem: &self.mem, offset: base, count: n_in },
                Chain { mem: &self.mem, offset: base + BOXES * BOX_STRIDE, count: n_out },
            ),
        };
        let token = self.submit(slot, input, output.len(), &chain_in, &chain_out);
        let result = self.finish(op, slot, token, output, &chain_out);
        self.shared.release_slot(slot);
        if let (Err(Error::Timeout { .. } | Error::Gone), Some(mem)) = (&result, extra) {
            mem.leak(); // the device may still write its answer there
        }
        result
    }

    fn claim(&self, op: Opcode) -> Result<usize, Error> {
        let begin = Instant::now();
        loop {
            for slot in 0..self.slots {
                if self.shared.claim_slot(slot) {
                    if !self.owned_by_device(slot) || self.can_reuse(slot) {
                        return Ok(slot);
                    }
                    self.shared.release_slot(slot);
                }
            }
            if self.shared.is_lost() {
                return Err(Error::Gone);
            }
            if begin.elapsed() > self.timeout {
                return Err(self.timed_out(format!("a free command slot for {op:?}")));
            }
            self.transport.idle();
            self.attend();
            self.transport.nap(Duration::from_micros(50));
        }
    }

    /// True if the slot's entry, left by a dead opener, can be reused because the device will never come back to it.
    #[cold]
    fn can_reuse(&self, slot: usize) -> bool {
        // A device that acts at once completes or undoes the work of the dead opener's thread before the next read of
        // any register.
        let never = self.transport.acts_at_once() && !is_gone(&self.bar);
        if never {
            self.take_back(slot);
        }
        never
    }

    fn submit(
        &self,
        slot: usize,
        input: &[u8],
        output_len: usize,
        chain_in: &Chain<'_>,
        chain_out: &Chain<'_>,
    ) -> u8 {
        let token = self.shared.token();
        let rest = input.get(INLINE..).unwrap_or_default();
        chain_in.write(rest, token);
        chain_out.write(&[], token);
        let pointer = |chain: &Chain<'_>| if chain.count > 0 { chain.iova(0) } else { 0 };
        let (at_in, at_out) = (pointer(chain_in), pointer(chain_out));
        let entry = CmdQueueEntry::with(|s| {
            s.kind(KIND_PCIE)
                .input_length(input.len() as u32)
                .input_mailbox_pointer_63_32((at_in >> 32) as u32)
                .input_mailbox_pointer_31_9(at_in as u32 >> 9)
                .command_input_inline_data(hwspec::layout::prefix(&input[..input.len().min(INLINE)]))
                .output_mailbox_pointer_63_32((at_out >> 32) as u32)
                .output_mailbox_pointer_31_9(at_out as u32 >> 9)
                .output_length(output_len as u32)
                .token(token)
                .ownership(true)
        });
        let at = slot * self.stride;
        self.mem.copy_in(at, &entry.as_bytes()[..0x38]);
        let last = u64::from_ne_bytes(hwspec::layout::prefix(&entry.as_bytes()[0x38..]));
        before_device_looks();
        self.mem.words()[at / 8 + 7].store(last, Release); // ownership last
        self.bar.write32(DOORBELL, 1 << slot);
        token
    }

    fn owned_by_device(&self, slot: usize) -> bool {
        self.mem.words()[slot * self.stride / 8 + 7].load(Acquire).to_ne_bytes()[7] & 1 != 0
    }

    /// Takes ownership of an entry that the device will not come back to, so that its slot serves the next command.
    #[cold]
    fn take_back(&self, slot: usize) {
        self.mem.words()[slot * self.stride / 8 + 7].store(0, Release);
    }

    fn finish(
        &self,
        op: Opcode,
        slot: usize,
        token: u8,
        output: &mut [u8],
        chain: &Chain<'_>,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        let mut polls = 0u32;
        while self.owned_by_device(slot) {
            if self.transport.acts_at_once() {
                self.take_back(slot);
                return Err(left_undone(&self.bar, format!("{op:?}")));
            }
            if begin.elapsed() > self.timeout {
                return Err(self.timed_out(format!("{op:?}")));
            }
            self.transport.idle();
            polls += 1;
            match polls < SPINS {
                true => std::hint::spin_loop(),
                false if polls % SPINS == 0 && self.is_gone() => return Err(Error::Gone),
                false => {
                    self.attend();
                    self.transport.nap(Duration::from_micros(20));
                }
            }
        }
        after_device_wrote();
        let mut bytes = [0; CmdQueueEntry::SIZE];
        self.mem.copy_out(slot * self.stride, &mut bytes);
        let entry = CmdQueueEntry::from_bytes(bytes);
        if entry.token() != token {
            return Err(Error::device(
                format!("the completion of {op:?} to carry token {token:#04x}"),
                format!("{:#04x}", entry.token()),
            ));
        }
        let status = DeliveryStatus::from_raw(entry.status());
        if status != DeliveryStatus::Ok {
            return Err(Error::Delivery { op, status });
        }
        let head = output.len().min(INLINE);
        output[..head].copy_from_slice(&entry.command_output_inline_data()[..head]);
        chain.read(&mut output[head..]);
        let header = CmdOut::read(output);
        match header.status() {
            hwspec::cmd::Status::Ok => Ok(()),
            status => Err(Error::Command { op, status, syndrome: header.syndrome() }),
        }
    }

    #[cold]
    fn timed_out(&self, what: String) -> Error {
        let health = self.bar.read32(HEALTH);
        let what = match health >> 24 {
            0 => what,
            syndrome => format!("{what} (the device reports health syndrome {syndrome:#x})"),
        };
        Error::Timeout { what, waited: self.timeout }
    }
}
