//! The command queue, driven through the device's interface: entry, mailboxes, doorbell, answer.

use super::Bed;
use devmodel::cmd::Syndrome;
use hwspec::{
    cmd::{CmdIn, CmdOut, DeliveryStatus, Opcode, Status, queue::*},
    layout::{Layout, prefix},
};

/// A CQE in its memory layout.
pub use hwspec::cqe::Cqe64 as Cqe;

/// Distance between mailboxes in memory: their addresses must be multiples of 1024.
pub const MAILBOX_STRIDE: u64 = 1024;
/// Mailboxes in each direction, enough for 32 KiB.
pub(super) const MAILBOXES: u64 = 64;
/// Registers of the initialization segment.
const CMD_DOORBELL: u64 = 0x18;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The firmware never received it.
    Delivery(DeliveryStatus),
    /// The firmware refused it, with a syndrome.
    Refused(Status, u32),
    /// The entry still belongs to the device.
    Unanswered,
}

/// The reply to a command.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Delivery status of the command queue entry.
    pub delivery: DeliveryStatus,
    /// The output without its mailbox structure.
    pub output: Vec<u8>,
}

impl Reply {
    /// The status of a command that was delivered.
    #[track_caller]
    pub fn status(&self) -> Status {
        assert_eq!(self.delivery, DeliveryStatus::Ok);
        CmdOut::read(&self.output).status()
    }
    /// The syndrome.
    pub fn syndrome(&self) -> u32 {
        CmdOut::read(&self.output).syndrome()
    }
    /// The reason for the refusal; `None` if the command was accepted.
    pub fn refused(&self) -> Option<Syndrome> {
        Syndrome::from_code(self.syndrome())
    }
    /// The number of the object that the command created.
    #[track_caller]
    pub fn made(&self) -> u32 {
        assert_eq!(self.status(), Status::Ok, "{:#x}", self.syndrome());
        u32::from_be_bytes(prefix(&self.output[8..])) & 0xff_ffff
    }
    /// The output of a command that succeeded.
    pub fn result(self) -> Result<Vec<u8>, CommandError> {
        if self.delivery != DeliveryStatus::Ok {
            return Err(CommandError::Delivery(self.delivery));
        }
        match self.status() {
            Status::Ok => Ok(self.output),
            status => Err(CommandError::Refused(status, self.syndrome())),
        }
    }
}

/// Addresses of a function's command queue and mailboxes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandMemory {
    /// Command queue.
    pub queue: u64,
    /// log2 of the entry size in bytes.
    pub log_stride: u8,
    /// Input mailboxes.
    pub input: u64,
    /// Output mailboxes.
    pub output: u64,
}

impl Bed {
    /// Executes a command with input and output layouts of fixed size.
    pub fn command<I: Layout, O: Layout>(
        &mut self,
        fid: u8,
        opcode: Opcode,
        input: &I,
    ) -> Result<O, CommandError> {
        self.command_with(fid, opcode, 0, input, &[], O::SIZE).map(|out| O::read(&out))
    }

    /// Executes a command with `tail` bytes after its fixed input (page lists), an `op_mod`, and room for `out_len` bytes of output.
    pub fn command_with<I: Layout>(
        &mut self,
        fid: u8,
        opcode: Opcode,
        op_mod: u16,
        input: &I,
        tail: &[u8],
        out_len: usize,
    ) -> Result<Vec<u8>, CommandError> {
        let mut bytes = input.bytes().to_vec();
        let mut head = CmdIn::read(&bytes);
        head.set().opcode(opcode);
        if op_mod != 0 {
            head.set().op_mod(op_mod);
        }
        bytes[..CmdIn::SIZE].copy_from_slice(head.as_bytes());
        bytes.extend_from_slice(tail);
        self.raw_command(fid, &bytes, out_len)
    }

    /// Executes a command given as bytes. Returns the answer without its mailbox structure.
    pub fn raw_command(&mut self, fid: u8, input: &[u8], out_len: usize) -> Result<Vec<u8>, CommandError> {
        self.write_command(fid, 0, input, out_len);
        self.ring_command(fid, 1);
        self.reply(fid, 0, out_len).ok_or(CommandError::Unanswered)?.result()
    }

    /// Executes a command given as bytes, with this opcode and, unless it is 0, this uid. Returns the reply, which must have come.
    #[track_caller]
    pub fn reply_to(&mut self, fid: u8, opcode: Opcode, uid: u16, input: &[u8], out_len: usize) -> Reply {
        let mut bytes = input.to_vec();
        bytes[..2].copy_from_slice(&opcode.raw().to_be_bytes());
        if uid != 0 {
            bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        }
        self.write_command(fid, 0, &bytes, out_len);
        self.ring_command(fid, 1);
        self.reply(fid, 0, out_len).expect("a reply")
    }

    /// Returns the reply in `slot`, unless the device still owns the entry.
    pub fn reply(&self, fid: u8, slot: u64, out_len: usize) -> Option<Reply> {
        let (_, _, outbox) = self.command_memory(fid, slot);
        let entry = self.command_entry(fid, slot);
        let mut output = entry.command_output_inline_data().to_vec();
        for block in 0..out_len.saturating_sub(output.len()).div_ceil(BOX_DATA) as u64 {
            output.extend_from_slice(self.memory.get(outbox + block * MAILBOX_STRIDE, BOX_DATA));
        }
        output.truncate(out_len);
        let delivery = DeliveryStatus::from_raw(entry.status());
        (!entry.ownership()).then_some(Reply { delivery, output })
    }

    /// Writes a command into `slot` without ringing the doorbell.
    pub fn write_command(&mut self, fid: u8, slot: u64, input: &[u8], out_len: usize) {
        const TOKEN: u8 = 0x5a;
        let (at, inbox, outbox) = self.command_memory(fid, slot);
        let mut entry = CmdQueueEntry::zeroed();
        entry.set().kind(KIND_PCIE).input_length(input.len() as u32).output_length(out_len as u32);
        entry.set().command_input_inline_data(prefix(input)).token(TOKEN).ownership(true);
        if input.len() > 16 {
            entry.set().input_mailbox_pointer_63_32((inbox >> 32) as u32);
            entry.set().input_mailbox_pointer_31_9((inbox as u32) >> 9);
            self.chain(inbox, TOKEN, &input[16..], input.len() - 16);
        }
        if out_len > 16 {
            entry.set().output_mailbox_pointer_63_32((outbox >> 32) as u32);
            entry.set().output_mailbox_pointer_31_9((outbox as u32) >> 9);
            self.chain(outbox, TOKEN, &[], out_len - 16);
        }
        self.memory.put(at, entry.as_bytes());
    }

    /// Returns the command queue entry of `slot`.
    pub fn command_entry(&self, fid: u8, slot: u64) -> CmdQueueEntry {
        CmdQueueEntry::read(self.memory.get(self.command_memory(fid, slot).0, CmdQueueEntry::SIZE))
    }

    /// Rings the command doorbell.
    pub fn ring_command(&mut self, fid: u8, slots: u32) {
        self.write32(fid, CMD_DOORBELL, slots);
    }

    /// Returns the addresses of the entry of `slot`, its input mailboxes and its output mailboxes. Odd slots have mailboxes of their
    /// own, so that two commands can be outstanding.
    pub fn command_memory(&self, fid: u8, slot: u64) -> (u64, u64, u64) {
        let at = self.state(fid).command;
        let skip = slot % 2 * MAILBOXES * MAILBOX_STRIDE;
        (at.queue + (slot << at.log_stride), at.input + skip, at.output + skip)
    }

    fn chain(&mut self, base: u64, token: u8, data: &[u8], len: usize) {
        let blocks = len.div_ceil(BOX_DATA) as u64;
        assert!(blocks <= MAILBOXES, "a command of {len} bytes, the bed has {MAILBOXES} mailboxes");
        for block in 0..blocks {
            let next = if block + 1 < blocks { base + (block + 1) * MAILBOX_STRIDE } else { 0 };
            let start = (block as usize * BOX_DATA).min(data.len());
            let mut mailbox = CmdMailbox::zeroed();
            mailbox.set().mailbox_data(prefix(&data[start..])).token(token);
            mailbox.set().next_pointer_63_32((next >> 32) as u32).next_pointer_31_10((next as u32) >> 10);
            mailbox.set().block_number(block as u32);
            self.memory.put(base + block * MAILBOX_STRIDE, mailbox.as_bytes());
        }
    }
}
