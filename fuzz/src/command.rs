//! Commands: arbitrary contents of mailboxes and command queue entries.

use crate::{bytes::Bytes, stage::Stage};
use hwspec::cmd::Opcode;
use tests::bed::CommandError;

/// Maximum number of commands per input.
const COMMANDS: usize = 6;
/// The function under test: registers that inputs must not release.
const FID: u8 = 1;

/// Issues commands built from `data`: known opcodes with arbitrary fields, arbitrary opcodes, and arbitrary entries.
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
    // A valid command must still be answered, with any status: the command queue still works.
    let nop = [0x08, 0x0d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let answer = stage.bed.raw_command(FID, &nop, 16);
    assert_ne!(answer, Err(CommandError::Unanswered), "the command queue is stuck");
    stage.judge();
}

/// Issues a command in a valid entry.
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
    // The device checks lengths first, so most inputs should be long enough.
    bytes.resize(8 + len, 0);
    // Inserts numbers of existing objects where the input asks for it.
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
    // Fills the page list, if there is one, with the address of a mapped page.
    if number & 0x80 != 0 {
        for entry in bytes.get_mut(0x110..).unwrap_or_default().chunks_exact_mut(8) {
            entry.copy_from_slice(&stage.mr.at.to_be_bytes());
        }
    }
    let answer = stage.bed.raw_command(FID, &bytes, out_len);
    assert_ne!(answer, Err(CommandError::Unanswered), "{opcode:?} is not answered");
}

/// Writes an entry and mailboxes with arbitrary contents to any slot.
fn entry(stage: &mut Stage, input: &mut Bytes<'_>) {
    let slot = u64::from(input.u8() % 32);
    let (entry, inbox, outbox) = stage.bed.command_memory(FID, slot);
    let bed = &mut stage.bed;
    // Starts from a valid command and overwrites some of its bytes.
    bed.write_command(FID, slot, &[0; 64], 64);
    for _ in 0..input.u8() % 16 {
        let (place, at, value) = (input.u8() % 4, u64::from(input.u16()), input.u8());
        let base = match place {
            0 | 1 => entry + at % 64,
            2 => inbox + at % 2048,
            _ => outbox + at % 2048,
        };
        bed.memory.put(base, &[value]);
    }
    bed.ring_command(FID, 1 << slot | u32::from(input.u8()));
}
