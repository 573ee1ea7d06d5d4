//! Command delivery: invalid entries and mailboxes, and several commands at once.

use super::*;
use hwspec::cmd::{
    DeliveryStatus,
    adapter::*,
    queue::{CmdMailbox, CmdQueueEntry},
};
use ironverbs_tests::bed::MAILBOX_STRIDE;

/// Delivers a `QUERY_HCA_CAP` with nine output mailboxes, after changing the entry and the third of these.
fn deliver(
    bed: &mut Bed,
    change: Change<'_, CmdQueueEntry>,
    of_box: Change<'_, CmdMailbox>,
) -> DeliveryStatus {
    let input = QueryHcaCapIn::with(|s| s.opcode(Opcode::QueryHcaCap));
    bed.write_command(0, 0, input.as_bytes(), QueryHcaCapOut::SIZE);
    let (at, _, outbox) = bed.command_memory(0, 0);
    let mut entry = bed.command_entry(0, 0);
    change(&mut entry.set());
    bed.memory.put(at, entry.as_bytes());
    let place = bed.memory.get_mut(outbox + 2 * MAILBOX_STRIDE, CmdMailbox::SIZE);
    let mut mailbox = CmdMailbox::read(place);
    of_box(&mut mailbox.set());
    place.copy_from_slice(mailbox.as_bytes());
    bed.ring_command(0, 1);
    bed.reply(0, 0, 16).expect("a reply").delivery
}

#[test]
fn a_wrong_entry_or_chain_is_told_in_the_delivery_status() {
    let mut bed = up();
    let first = bed.command_memory(0, 0).2;
    let b = &mut bed;
    let entries: [(Change<'_, CmdQueueEntry>, DeliveryStatus); 10] = [
        (&|e| e, DeliveryStatus::Ok),
        (&|e| e.kind(0), DeliveryStatus::BadCommandType),
        (&|e| e.input_length(3), DeliveryStatus::InputLenErr),
        (&|e| e.input_length(u32::MAX), DeliveryStatus::InputLenErr),
        (&|e| e.output_length(0), DeliveryStatus::OutputLenErr),
        (&|e| e.output_length(1 << 30), DeliveryStatus::OutputLenErr),
        (&|e| e.token(1), DeliveryStatus::TokenErr),
        (
            &|e| e.output_mailbox_pointer_63_32(0).output_mailbox_pointer_31_9(0),
            DeliveryStatus::BadOutputPointer,
        ),
        (&|e| e.output_mailbox_pointer_63_32(7), DeliveryStatus::BadOutputPointer),
        // An input longer than its chain.
        (&|e| e.input_length(600).input_mailbox_pointer_31_9(0), DeliveryStatus::BadInputPointer),
    ];
    for (change, by) in entries {
        assert_eq!(deliver(b, change, &|m| m), by, "{:?}", CmdQueueEntry::with(change));
    }
    let boxes: [(Change<'_, CmdMailbox>, DeliveryStatus); 5] = [
        (&|m| m.block_number(7), DeliveryStatus::BadBlockNumber),
        (&|m| m.token(7), DeliveryStatus::TokenErr),
        // A chain that ends early, and a circular one.
        (&|m| m.next_pointer_63_32(0).next_pointer_31_10(0), DeliveryStatus::BadOutputPointer),
        (&|m| m.next_pointer_31_10(first as u32 >> 10), DeliveryStatus::BadBlockNumber),
        // The queue still works.
        (&|m| m, DeliveryStatus::Ok),
    ];
    for (change, by) in boxes {
        assert_eq!(deliver(b, &|e| e, change), by, "{:?}", CmdMailbox::with(change));
    }
}

#[test]
fn a_command_that_can_not_be_answered_is_not_carried_out() {
    let mut bed = up();
    bed.write_command(0, 0, SetIssiIn::with(|s| s.opcode(Opcode::SetIssi).current_issi(0)).as_bytes(), 16);
    let mut entry = bed.command_entry(0, 0);
    // An output longer than the reply, in mailboxes that do not exist.
    entry.set().output_length(4096).output_mailbox_pointer_31_9(0);
    bed.memory.put(bed.command_memory(0, 0).0, entry.as_bytes());
    bed.ring_command(0, 1);
    assert_eq!(bed.command_entry(0, 0).status(), DeliveryStatus::BadOutputPointer.raw());
    let out = bed.ok(0, Opcode::QueryIssi, &CmdIn::zeroed(), QueryIssiOut::SIZE);
    assert_eq!(QueryIssiOut::read(&out).current_issi(), 1, "unchanged");
    // No room for the reply: the object is not created either.
    let before = bed.ok(0, Opcode::AllocPd, &CmdIn::zeroed(), 16);
    let reply = bed.reply_to(0, Opcode::AllocPd, 0, CmdIn::zeroed().as_bytes(), 8);
    assert_eq!((reply.status(), reply.syndrome()), (Status::BadOutputLen, Syndrome::OutputLength.code()));
    let after = bed.ok(0, Opcode::AllocPd, &CmdIn::zeroed(), 16);
    assert_eq!(AllocPdOut::read(&after).pd(), AllocPdOut::read(&before).pd() + 1);
}

#[test]
fn opcode_length_and_op_mod_are_checked() {
    let mut bed = up();
    assert_eq!(bed.status(0, Opcode::Other(0xfff), &CmdIn::zeroed(), 16), Status::BadOp);
    assert_eq!(bed.status(0, Opcode::Other(0x0), &CmdIn::zeroed(), 16), Status::BadOp);
    let reply = bed.reply_to(0, Opcode::SetIssi, 0, &[0; 8], 16);
    assert_eq!((reply.status(), reply.syndrome()), (Status::BadInputLen, Syndrome::InputLength.code()));
    assert_eq!(bed.status(0, Opcode::AllocPd, &CmdIn::with(|s| s.op_mod(3)), 16), Status::BadParam);
}

#[test]
fn several_slots_of_one_doorbell_are_done_in_order() {
    let mut bed = up();
    let input = CmdIn::with(|s| s.opcode(Opcode::AllocPd));
    for slot in [9, 2, 5] {
        bed.write_command(0, slot, input.as_bytes(), 16);
    }
    bed.ring_command(0, 1 << 9 | 1 << 2 | 1 << 5);
    let pds = [2, 5, 9].map(|slot| bed.reply(0, slot, 16).expect("a reply").made());
    assert_eq!(pds, [pds[0], pds[0] + 1, pds[0] + 2]);
}

#[test]
fn a_slot_that_software_owns_is_left_alone() {
    let mut bed = up();
    let before = *bed.command_entry(0, 0).as_bytes();
    bed.ring_command(0, u32::MAX);
    assert_eq!(bed.command_entry(0, 0).as_bytes(), &before);
}

#[test]
fn a_long_input_comes_through_its_chain() {
    let mut bed = Bed::cx5();
    bed.enable_pci(0);
    bed.ok(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 12);
    // 1,000 pages take 16 mailboxes.
    let give = ManagePagesIn::with(|s| s.op_mod(1).input_num_entries(1000));
    let list: Vec<u64> = (0..1000u64).map(|i| i * 4096).collect();
    let input = with_list(&give, &list);
    assert_eq!(bed.reply_to(0, Opcode::ManagePages, 0, &input, 16).status(), Status::Ok);
    let take = ManagePagesIn::with(|s| s.op_mod(2).input_num_entries(1000));
    let out = bed.ok(0, Opcode::ManagePages, &take, 16 + 8000);
    let mut pages: Vec<u64> =
        out[16..].chunks(8).map(|b| u64::from_be_bytes(hwspec::layout::prefix(b))).collect();
    pages.sort_unstable();
    assert_eq!(pages, list);
}
