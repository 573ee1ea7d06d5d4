//! Commands: any bytes in the mailboxes and in the command queue's entries.

use crate::{bytes::Bytes, stage::Stage};
use hwspec::cmd::Opcode;
use tests::bed::CommandError;

/// Commands in one input at most.
const COMMANDS: usize = 6;
/// The device's own function: registers that must not be given up by an input.
const FID: u8 = 1;

/// Commands made of `data`: known opcodes with any fields, any opcode, or entries that are nonsense altogether.
pub fn command_mailbox(data: &[u8]) {
    let mut input = Bytes(data);
    let mut stage = Stage::new();
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        if kind & 3 == 3 {
            entry(&mut stage, &mut input);
        } else {
            command(&mut stage, &mut input, kind & 3 == 2);
        }
    }
    // A command that makes sense is still answered, whatever the status: the queue lives.
    let nop = [0x08, 0x0d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let answer = stage.bed.raw_command(FID, &nop, 16);
    assert_ne!(answer, Err(CommandError::Unanswered), "the command queue is stuck");
    stage.judge();
}

/// A command in a sound entry.
fn command(stage: &mut Stage, input: &mut Bytes<'_>, any_opcode: bool) {
    let opcode = match any_opcode {
        true => Opcode::from_raw(input.u16()),
        false => Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()],
    };
    let (op_mod, out_len) = (input.u8(), usize::from(input.u8()) * 16 + 8);
    let len = usize::from(input.u8()) * 4;
    let mut bytes = opcode.raw().to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 0, 0, op_mod]);
    bytes.extend_from_slice(input.take(len));
    // Lengths are checked before anything else: most inputs should be long enough.
    bytes.resize(8 + len, 0);
    // Objects that exist, where the input wants them.
    let (at, number) = (usize::from(input.u8()) * 4, input.u8());
    let numbers = [
        stage.victim.qpn,
        stage.victim.send_cq.cqn,
        stage.mr.key >> 8,
        stage.foreign.qp.qpn,
        stage.remote.key >> 8,
    ];
    if let Some(word) = bytes.get_mut(8 + at..12 + at) {
        if let Some(number) = numbers.get(usize::from(number & 0x7f)) {
            word.copy_from_slice(&number.to_be_bytes());
        }
    }
    // Pages that can be reached, where a list of them is.
    if number & 0x80 != 0 {
        for entry in bytes.get_mut(0x110..).unwrap_or_default().chunks_exact_mut(8) {
            entry.copy_from_slice(&stage.mr.at.to_be_bytes());
        }
    }
    let answer = stage.bed.raw_command(FID, &bytes, out_len);
    assert_ne!(answer, Err(CommandError::Unanswered), "{opcode:?} is not answered");
}

/// An entry and mailboxes of any content, in any slot.
fn entry(stage: &mut Stage, input: &mut Bytes<'_>) {
    let (queue, inbox, outbox) = stage.bed.command_memory(FID);
    let slot = u64::from(input.u8() % 32);
    let bed = &mut stage.bed;
    // A sound command first, then bytes of it changed.
    bed.write_command(FID, slot, &[0; 64], 64);
    for _ in 0..input.u8() % 16 {
        let (place, at, value) = (input.u8() % 4, u64::from(input.u16()), input.u8());
        let base = match place {
            0 | 1 => queue + slot * 64 + at % 64,
            2 => inbox + at % 2048,
            _ => outbox + at % 2048,
        };
        bed.memory.put(base, &[value]);
    }
    bed.ring_command(FID, 1 << slot | u32::from(input.u8()));
}
