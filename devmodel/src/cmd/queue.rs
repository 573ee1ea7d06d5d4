//! The command queue: entries and mailboxes are read and written by DMA (PRM: command interface).

use super::{
    call::Call,
    dispatch, page_requests,
    refusal::{Refused, Syndrome},
};
use crate::{
    host::{Host, Iova, Rid},
    mlx5::{CommandCompletion, Step, event},
    pcie::slow,
    region::{Effect, Func},
    state::Counters,
};
use hwspec::{
    cmd::{CmdIn, DeliveryStatus, queue::*},
    eqe::EventType,
    layout::{Layout, prefix},
};

/// Start of the part of an entry that the device writes: output, unchanged lengths and pointers, status and
/// ownership.
const WRITTEN: usize = 0x20;

/// Processes the command queue slots with their doorbell bits set.
pub(crate) fn doorbell(func: &mut Func<'_>, step: &mut Step<'_>, slots: u32) {
    if !func.function().may_dma() || func.function().cmdq == 0 {
        return;
    }
    if step.config.strict.slow != 0 && slow::initializes(func, step.config, step.now) {
        return;
    }
    carry_out(func, step, slots, Wait::IfNeeded);
    while let Some((slots, granted)) = page_requests::answered(func) {
        carry_out(func, step, slots, if granted { Wait::Over } else { Wait::InVain });
    }
}

/// Executes commands with an elapsed delay.
pub(crate) fn delayed(func: &mut Func<'_>, step: &mut Step<'_>) {
    let slots = std::mem::take(func.function_mut(|f| &mut f.cmd_delayed));
    if func.function().may_dma() && func.function().cmdq != 0 {
        carry_out(func, step, slots, Wait::Over);
    }
}

/// Delay of commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Commands may be delayed.
    IfNeeded,
    /// The commands were delayed and can be executed now.
    Over,
    /// The commands were delayed, and the pages they waited for were denied.
    InVain,
}

/// True if the command `input` in `slot` is executed later, on a strict adapter.
#[cold]
fn is_put_off(func: &mut Func<'_>, step: &Step<'_>, slot: u32, input: &[u8]) -> bool {
    let (strict, opcode) = (step.config.strict, CmdIn::read(input).opcode());
    strict.pages && page_requests::puts_off(func, step.config, opcode, slot)
        || strict.slow != 0 && slow::delays(func, step.config, step.now, (slot, opcode))
}

fn carry_out(func: &mut Func<'_>, step: &mut Step<'_>, slots: u32, wait: Wait) {
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let may_wait = wait == Wait::IfNeeded && (step.config.strict.pages || step.config.strict.slow != 0);
    for slot in (0..32).filter(|s| slots & 1 << s != 0) {
        // A command may have cleared the queue's address by resetting the function.
        let at = func.function().cmdq + u64::from(slot) * CmdQueueEntry::SIZE as u64;
        let mut raw = [0; CmdQueueEntry::SIZE];
        if step.host.read(func.rid(), at, &mut raw).is_err() {
            continue;
        }
        let mut entry = CmdQueueEntry::from_bytes(raw);
        if !entry.ownership() {
            continue;
        }
        let event = event::listener(func, EventType::Cmd).is_some();
        let mut quiesce = false;
        let status = match bring_in(func.rid(), step.host, &entry, &mut input) {
            Ok(boxes) => {
                output.clear();
                output.resize(entry.output_length() as usize, 0);
                if may_wait && is_put_off(func, step, slot, &input) {
                    func.commit(step.host);
                    continue;
                }
                match wait {
                    Wait::InVain => refuse(func, &mut output, Syndrome::PagesDenied),
                    _ => quiesce = execute(func, step, &input, &mut output),
                }
                bring_out(func.rid(), step.host, &mut entry, &output, &boxes)
            }
            Err(status) => status,
        };
        if status != DeliveryStatus::Ok {
            func.rollback();
            entry.set().command_output_inline_data([0; INLINE]);
        }
        entry.set().status(status.raw()).ownership(false);
        func.function_mut(|f| &mut f.counters)[Counters::CommandsDone as usize] += 1;
        let completion = CommandCompletion { slot, at, entry, event, resets: func.function().resets };
        if quiesce {
            func.commit(step.host);
            step.hold(completion);
        } else {
            complete(func, &completion);
            func.commit(step.host);
        }
    }
}

/// Returns an entry to the driver when the job commits.
pub(crate) fn complete(func: &mut Func<'_>, completion: &CommandCompletion) {
    // The last byte contains the ownership bit, and is written last.
    let data = &completion.entry.as_bytes()[WRITTEN..];
    func.effect(Effect::Write { at: completion.at + WRITTEN as u64, data });
    if completion.event {
        dispatch::command_event(func, completion.slot);
    }
}

/// Like [`complete`], but writes nothing if the function was reset meanwhile or may no longer access memory.
pub(crate) fn complete_held(func: &mut Func<'_>, completion: &CommandCompletion) {
    if func.function().resets == completion.resets && func.function().may_dma() {
        complete(func, completion);
    }
}

/// Executes a command and fills `output`. True if its completion must wait until transfers in flight have ended.
fn execute(func: &mut Func<'_>, step: &mut Step<'_>, input: &[u8], output: &mut Vec<u8>) -> bool {
    let header = CmdIn::read(input);
    let (opcode, uid, op_mod) = (header.opcode(), header.uid(), header.op_mod());
    let mut call = Call { func, step, input, output, uid, for_all: false, opcode, op_mod, quiesce: false };
    match dispatch::run(&mut call) {
        Ok(()) => call.quiesce,
        Err(Refused(syndrome)) => {
            tracing::debug!(
                fid = call.func.fid(),
                op = ?opcode,
                expected = Syndrome::text(syndrome),
                "command refused"
            );
            refuse(call.func, call.output, syndrome);
            false
        }
    }
}

/// Rolls back the changes of a command and writes the reason to `output`.
fn refuse(func: &mut Func<'_>, output: &mut [u8], syndrome: Syndrome) {
    func.rollback();
    output.fill(0);
    output[0] = syndrome.status().raw();
    output[4..8].copy_from_slice(&syndrome.code().to_be_bytes());
}

fn join(high: u32, low: u32, shift: u32) -> Iova {
    u64::from(high) << 32 | u64::from(low) << shift
}

/// Reads the input and locates the output's mailboxes; no command is executed before both were found valid.
fn bring_in(
    rid: Rid,
    host: &mut dyn Host,
    entry: &CmdQueueEntry,
    input: &mut Vec<u8>,
) -> Result<Vec<Iova>, DeliveryStatus> {
    if entry.kind() != KIND_PCIE {
        return Err(DeliveryStatus::BadCommandType);
    }
    // The lengths must include the header of the input, and status and syndrome of the output.
    if !(8..=MAX_LEN).contains(&(entry.input_length() as usize)) {
        return Err(DeliveryStatus::InputLenErr);
    }
    if !(8..=MAX_LEN).contains(&(entry.output_length() as usize)) {
        return Err(DeliveryStatus::OutputLenErr);
    }
    let len = entry.input_length() as usize;
    input.clear();
    input.extend_from_slice(&entry.command_input_inline_data()[..len.min(INLINE)]);
    let first = join(entry.input_mailbox_pointer_63_32(), entry.input_mailbox_pointer_31_9(), 9);
    walk(rid, host, first, len, entry.token(), DeliveryStatus::BadInputPointer, |_, data| {
        input.extend_from_slice(data);
    })?;
    input.truncate(len);
    let mut boxes = Vec::new();
    let first = join(entry.output_mailbox_pointer_63_32(), entry.output_mailbox_pointer_31_9(), 9);
    let len = entry.output_length() as usize;
    walk(rid, host, first, len, entry.token(), DeliveryStatus::BadOutputPointer, |at, _| boxes.push(at))?;
    Ok(boxes)
}

/// Follows the mailbox chain with the part of `len` bytes that is not in the entry.
fn walk(
    rid: Rid,
    host: &mut dyn Host,
    first: Iova,
    len: usize,
    token: u8,
    bad_pointer: DeliveryStatus,
    mut each: impl FnMut(Iova, &[u8]),
) -> Result<(), DeliveryStatus> {
    let mut at = first;
    for number in 0..len.saturating_sub(INLINE).div_ceil(BOX_DATA) {
        let mut raw = [0; CmdMailbox::SIZE];
        if at == 0 || host.read(rid, at, &mut raw).is_err() {
            return Err(bad_pointer);
        }
        let mailbox = CmdMailbox::from_bytes(raw);
        if mailbox.token() != token {
            return Err(DeliveryStatus::TokenErr);
        }
        if mailbox.block_number() as usize != number {
            return Err(DeliveryStatus::BadBlockNumber);
        }
        each(at, &raw[..BOX_DATA]);
        at = join(mailbox.next_pointer_63_32(), mailbox.next_pointer_31_10(), 10);
    }
    Ok(())
}

/// Writes the output to the mailboxes and to the copy of the entry.
fn bring_out(
    rid: Rid,
    host: &mut dyn Host,
    entry: &mut CmdQueueEntry,
    output: &[u8],
    boxes: &[Iova],
) -> DeliveryStatus {
    let (head, rest) = output.split_at(output.len().min(INLINE));
    entry.set().command_output_inline_data(prefix(head));
    for (at, part) in boxes.iter().zip(rest.chunks(BOX_DATA)) {
        if host.write(rid, *at, part).is_err() {
            return DeliveryStatus::BadOutputPointer;
        }
    }
    DeliveryStatus::Ok
}
