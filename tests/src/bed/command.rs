//! The command queue, driven through the device's interface: entry, mailboxes, doorbell, answer.

use super::Bed;
use hwspec::{
    cmd::{
        CmdIn, DeliveryStatus, Opcode, Status,
        queue::{CmdMailbox, CmdQueueEntry},
    },
    layout::Layout,
};

/// A CQE in its memory layout.
pub use hwspec::cqe::Cqe64 as Cqe;

/// Bytes of data per mailbox.
const CHUNK: usize = 512;
/// Distance between mailboxes in memory: their addresses must be multiples of 1024.
const STRIDE: u64 = 1024;
/// Mailboxes in each direction, enough for 32 KiB.
pub(super) const MAILBOXES: u64 = 64;
/// The entry type of a command.
const KIND_PCI: u8 = 7;
/// Registers of the initialization segment.
const CMD_DOORBELL: u32 = 0x18;

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
        let at = self.state(fid).command;
        self.write_command(fid, 0, input, out_len);
        self.ring_command(fid, 1);
        let entry = self.command_entry(fid, 0);
        if entry.ownership() {
            return Err(CommandError::Unanswered);
        }
        let delivery = DeliveryStatus::from_raw(entry.status());
        if delivery != DeliveryStatus::Ok {
            return Err(CommandError::Delivery(delivery));
        }
        let mut out = entry.command_output_inline_data().to_vec();
        let mut left = out_len.saturating_sub(out.len());
        let mut block = 0;
        while left > 0 {
            let take = left.min(CHUNK);
            out.extend_from_slice(self.memory.get(at.output + block * STRIDE, take));
            left -= take;
            block += 1;
        }
        out.truncate(out_len);
        let head = hwspec::cmd::CmdOut::read(&out);
        match head.status() {
            Status::Ok => Ok(out),
            status => Err(CommandError::Refused(status, head.syndrome())),
        }
    }

    /// Writes a command into `slot` without ringing the doorbell.
    pub fn write_command(&mut self, fid: u8, slot: u64, input: &[u8], out_len: usize) {
        const TOKEN: u8 = 0x5a;
        let at = self.state(fid).command;
        let mut entry = CmdQueueEntry::zeroed();
        entry.set().kind(KIND_PCI).input_length(input.len() as u32).output_length(out_len as u32);
        entry.set().command_input_inline_data(hwspec::layout::prefix(input)).token(TOKEN).ownership(true);
        if input.len() > 16 {
            entry.set().input_mailbox_pointer_63_32((at.input >> 32) as u32);
            entry.set().input_mailbox_pointer_31_9((at.input as u32) >> 9);
            self.chain(at.input, TOKEN, &input[16..], input.len() - 16);
        }
        if out_len > 16 {
            entry.set().output_mailbox_pointer_63_32((at.output >> 32) as u32);
            entry.set().output_mailbox_pointer_31_9((at.output as u32) >> 9);
            self.chain(at.output, TOKEN, &[], out_len - 16);
        }
        self.memory.put(at.queue + (slot << at.log_stride), entry.as_bytes());
    }

    /// Returns the command queue entry of `slot`.
    pub fn command_entry(&self, fid: u8, slot: u64) -> CmdQueueEntry {
        let at = self.functions[&fid].command;
        CmdQueueEntry::read(self.memory.get(at.queue + (slot << at.log_stride), CmdQueueEntry::SIZE))
    }

    /// Rings the command doorbell and lets the chip work.
    pub fn ring_command(&mut self, fid: u8, slots: u32) {
        self.write32(fid, CMD_DOORBELL, slots);
        self.run_rounds(1000);
    }

    /// Returns the addresses of `fid`'s command queue, input mailboxes and output mailboxes.
    pub fn command_memory(&self, fid: u8) -> (u64, u64, u64) {
        let at = self.functions[&fid].command;
        (at.queue, at.input, at.output)
    }

    fn chain(&mut self, base: u64, token: u8, data: &[u8], len: usize) {
        let blocks = len.div_ceil(CHUNK) as u64;
        assert!(blocks <= MAILBOXES, "a command of {len} bytes, the bed has {MAILBOXES} mailboxes");
        for block in 0..blocks {
            let next = if block + 1 < blocks { base + (block + 1) * STRIDE } else { 0 };
            let start = (block as usize * CHUNK).min(data.len());
            let mut mailbox = CmdMailbox::zeroed();
            mailbox.set().mailbox_data(hwspec::layout::prefix(&data[start..])).token(token);
            mailbox.set().next_pointer_63_32((next >> 32) as u32).next_pointer_31_10((next as u32) >> 10);
            mailbox.set().block_number(block as u32);
            self.memory.put(base + block * STRIDE, mailbox.as_bytes());
        }
    }
}
