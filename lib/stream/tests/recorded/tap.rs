//! A tap on a driver that runs on several processors at once.

use crate::files::Scratch;
use devmodel::serve::GuestMemory;
use hwspec::cmd::{Opcode, queue::CmdQueueEntry};
use ironverbs_stream::{event::Event, file::Recorder, tap::Tap};
use std::sync::Arc;

/// Address in guest memory of the command queue.
const QUEUE: u64 = 0x1000;
const COMMAND_DOORBELL: u64 = 0x18;

/// A command queue entry of the driver: 16 bytes of input and room for 16 bytes of output.
fn sent(opcode: Opcode) -> CmdQueueEntry {
    let mut input = [0; 16];
    input[..2].copy_from_slice(&opcode.raw().to_be_bytes());
    let mut entry = CmdQueueEntry::default();
    entry.set().input_length(16).output_length(16).command_input_inline_data(input).ownership(true);
    entry
}

#[test]
fn an_answer_is_recorded_though_the_next_command_is_in_its_place_already() {
    let scratch = Scratch::new(&[]);
    let tap = Arc::new(Tap::new(Recorder::create(scratch.path()).expect("a file"), 0));
    let memory = GuestMemory::default();
    memory.map(0, 2 * QUEUE, 3, Some((testkit::memfd(2 * QUEUE).into(), 0))).expect("a window");
    let told = tap.clone();
    memory.watch(move |memory, at, data| told.gives(memory, at, data));
    tap.write(&memory, 0x14, 4, QUEUE);

    for opcode in [Opcode::CreateQp, Opcode::AllocPd] {
        memory.write(QUEUE, sent(opcode).as_bytes()).expect("memory");
        tap.write(&memory, COMMAND_DOORBELL, 4, 1);
        // The function writes its changes to the entry. Before the doorbell write returns, another of the driver's
        // processors has seen them and sends the next command.
        let mut answered = sent(opcode);
        answered.set().command_output_inline_data([opcode.raw() as u8; 16]).ownership(false);
        memory.write(QUEUE + 0x20, &answered.as_bytes()[0x20..]).expect("memory");
    }
    let commands = scratch.read().expect("a stream").0.into_iter().filter_map(|record| match record.event {
        Event::Command { input, output, delivery } => Some((input[..2].to_vec(), output, delivery)),
        _ => None,
    });
    let expected = [Opcode::CreateQp, Opcode::AllocPd]
        .map(|opcode| (opcode.raw().to_be_bytes().to_vec(), vec![opcode.raw() as u8; 16], Some(0)));
    assert_eq!(commands.collect::<Vec<_>>(), expected);
}
