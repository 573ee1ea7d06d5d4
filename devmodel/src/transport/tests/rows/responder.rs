//! A responder's handling of requests, in sequence and out of sequence.

use crate::transport::{
    Event, ReadResource, Rights, Status,
    tests::pair::{FIRST, KEY, LEN, MTU, Pair, Pkt, Post, Receive, VA},
    unreliable_request,
};
use hwspec::wire::{BthOpcode, NakCode};

const ACK: u8 = 0x1f;
const NAK_SEQUENCE: u8 = 0x60;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;
const NAK_OPERATION: u8 = 0x63;
/// RNR NAK with the timer code used by the ends.
const RNR: u8 = 0x20 | 12;

fn send_only(psn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcSendOnly, psn).with(8)
}

fn write_only(psn: u32, at: u64, len: u32) -> Pkt {
    Pkt::new(BthOpcode::RcWriteOnly, psn).with(len as usize).to(VA + at, KEY, len)
}

fn read(psn: u32, at: u64, len: u32) -> Pkt {
    Pkt::new(BthOpcode::RcReadRequest, psn).to(VA + at, KEY, len)
}

fn add(psn: u32, at: u64, n: u64) -> Pkt {
    Pkt { atomic: Some((VA + at, KEY, n, 0)), ..Pkt::new(BthOpcode::RcFetchAdd, psn) }
}

fn swap(psn: u32, at: u64, from: u64, to: u64) -> Pkt {
    Pkt { atomic: Some((VA + at, KEY, to, from)), ..Pkt::new(BthOpcode::RcCompareSwap, psn) }
}

/// Checks that `packet`, at the expected PSN, is refused with `nak` and ends the connection at the peer.
fn is_refused(mut pair: Pair, packet: &Pkt, nak: u8) -> Pair {
    let psn = pair.theirs.responder.psn;
    assert_eq!(pair.ask_ack(packet), (psn, nak), "{packet:?}");
    let (code, _) = pair.theirs.refused.expect("the connection has ended");
    assert_eq!(code, NakCode::from_raw(nak & 0x1f));
    assert!(pair.ask(&send_only(psn)).is_empty(), "nobody answers any more");
    pair
}

#[test]
fn row_1_the_expected_psn_is_executed() {
    let mut pair = Pair::new().receives(1, 64);
    assert_eq!(pair.ask_ack(&send_only(FIRST)), (FIRST, ACK));
    assert_eq!(pair.theirs.received, [8]);
    assert_eq!(pair.theirs.responder.psn, FIRST + 1);
}

#[test]
fn row_3_a_gap_is_told_once_with_the_psn_expected() {
    let mut pair = Pair::new().receives(2, 64);
    assert_eq!(pair.ask_ack(&send_only(FIRST + 2)), (FIRST, NAK_SEQUENCE));
    assert!(pair.theirs.received.is_empty() && !pair.theirs.has_ended());
    assert_eq!(pair.ask_ack(&send_only(FIRST)), (FIRST, ACK));
}

#[test]
fn row_4_behind_a_gap_there_is_silence_but_for_duplicates() {
    let mut pair = Pair::new().receives(3, 64);
    pair.ask(&send_only(FIRST));
    assert_eq!(pair.ask_ack(&send_only(FIRST + 3)), (FIRST + 1, NAK_SEQUENCE));
    assert!(pair.ask(&send_only(FIRST + 2)).is_empty() && pair.ask(&send_only(FIRST + 4)).is_empty());
    assert_eq!(pair.ask_ack(&send_only(FIRST)), (FIRST, ACK));
    assert!(pair.ask(&send_only(FIRST + 2)).is_empty());
    assert_eq!(pair.ask_ack(&send_only(FIRST + 1)), (FIRST + 1, ACK));
    // The next gap is reported again.
    assert_eq!(pair.ask_ack(&send_only(FIRST + 3)), (FIRST + 2, NAK_SEQUENCE));
}

#[test]
fn row_5_a_psn_behind_is_a_duplicate_and_never_a_gap() {
    for behind in [1, 5, 0x7f_fff0] {
        let mut pair = Pair::from(0x10).receives(1, 64);
        pair.ask(&send_only(0x10));
        let psn = (0x11 + 0x100_0000 - behind) & 0xff_ffff;
        assert_eq!(pair.ask_ack(&send_only(psn)), (0x10, ACK));
        assert!(pair.theirs.events.contains(&Event::Duplicate));
    }
}

#[test]
fn row_6_a_duplicate_send_or_write_is_acknowledged_and_not_executed() {
    let mut pair = Pair::new().receives(2, 64);
    pair.ask(&send_only(FIRST));
    pair.ask(&write_only(FIRST + 1, 0, 8));
    pair.theirs.memory[0] = 1;
    let msn = pair.theirs.responder.msn;
    for duplicate in [send_only(FIRST), write_only(FIRST + 1, 0, 8)] {
        assert_eq!(pair.ask_ack(&duplicate), (FIRST + 1, ACK));
    }
    assert_eq!((pair.theirs.received.len(), pair.theirs.memory[0], pair.theirs.responder.msn), (1, 1, msn));
}

#[test]
fn row_7_a_duplicate_read_is_read_again_from_any_of_its_psns() {
    let mut pair = Pair::new();
    pair.ask(&read(FIRST, 0, 3 * MTU));
    pair.theirs.memory[2 * MTU as usize] = 9;
    let again = pair.ask(&read(FIRST + 1, MTU.into(), 2 * MTU));
    let psns: Vec<u32> = again.iter().map(|packet| packet.psn).collect();
    assert_eq!(psns, [FIRST + 1, FIRST + 2]);
    assert_eq!(again[1].payload[0], 9, "memory is read again");
    let part = pair.ask(&read(FIRST + 1, MTU.into(), MTU));
    assert_eq!((part.len(), part[0].opcode), (1, BthOpcode::RcReadRespOnly));
    pair.theirs.granted = Rights::empty();
    let refused = pair.ask_ack(&read(FIRST, 0, 3 * MTU));
    assert_eq!(refused, (FIRST, NAK_ACCESS), "the key is checked again, and the READ itself is refused");
}

#[test]
fn row_7_a_duplicate_read_of_memory_that_has_gone_is_refused_at_its_own_psn() {
    let mut pair = Pair::new();
    pair.ask(&read(FIRST, 0, 3 * MTU));
    pair.theirs.is_there = false;
    assert_eq!(pair.ask_ack(&read(FIRST + 1, MTU.into(), 2 * MTU)), (FIRST + 1, NAK_ACCESS));
    assert!(pair.theirs.has_ended());
}

#[test]
fn row_8_a_duplicate_read_outside_the_original_is_dropped() {
    let mut pair = Pair::new();
    pair.ask(&read(FIRST, 0, 2 * MTU));
    for other in
        [read(FIRST, 0, 3 * MTU), read(FIRST, 8, MTU), read(FIRST + 1, 0, MTU), read(FIRST - 1, 0, MTU)]
    {
        assert!(pair.ask(&other).is_empty(), "{other:?}");
    }
    let other_key = Pkt { reth: Some((VA, KEY + 1, 2 * MTU)), ..read(FIRST, 0, 2 * MTU) };
    assert!(pair.ask(&other_key).is_empty());
    // Its resource is reused.
    for i in 0..4 {
        pair.ask(&read(FIRST + 2 + i, 0, 8));
    }
    assert!(pair.ask(&read(FIRST, 0, 2 * MTU)).is_empty());
    assert!(!pair.theirs.has_ended());
}

#[test]
fn row_9_a_duplicate_atomic_is_answered_and_done_once() {
    let mut pair = Pair::new();
    pair.ask(&add(FIRST, 0, 5));
    pair.ask(&swap(FIRST + 1, 8, 0, 7));
    pair.ask(&add(FIRST + 2, 0, 5));
    for (duplicate, original) in
        [(add(FIRST, 0, 5), 0), (swap(FIRST + 1, 8, 0, 7), 0), (add(FIRST + 2, 0, 5), 5)]
    {
        let said = pair.ask(&duplicate);
        assert_eq!(said[0].opcode, BthOpcode::RcAtomicAck);
        assert_eq!((said[0].psn, said[0].original), (duplicate.psn, original));
    }
    assert_eq!((pair.theirs.word(0), pair.theirs.word(8)), (10, 7));
}

#[test]
fn row_10_a_duplicate_atomic_whose_resource_is_gone_is_dropped() {
    let mut pair = Pair::new();
    for i in 0..5 {
        pair.ask(&add(FIRST + i, 0, 1));
    }
    assert!(pair.ask(&add(FIRST, 0, 1)).is_empty());
    assert_eq!(pair.theirs.word(0), 5);
}

#[test]
fn row_11_who_asks_is_acknowledged_and_acknowledgements_coalesce() {
    let mut pair = Pair::new().receives(3, 64);
    assert!(pair.ask(&Pkt { ask: false, ..send_only(FIRST) }).is_empty());
    pair.theirs.take(&send_only(FIRST + 1));
    assert_eq!(pair.ask_ack(&send_only(FIRST + 2)), (FIRST + 2, ACK));
}

#[test]
fn row_14_the_msn_counts_messages() {
    let mut pair = Pair::new().receives(1, 1024);
    pair.run([Post::send(3 * MTU), Post::write(0, 2 * MTU), Post::read(0, 2 * MTU), Post::add(0, 1)]);
    let of =
        |opcode| pair.sent[1].iter().rfind(|p| p.opcode == opcode).and_then(|p| p.aeth).map(|aeth| aeth.1);
    assert_eq!(of(BthOpcode::RcReadRespLast), Some(3));
    assert_eq!(of(BthOpcode::RcAtomicAck), Some(4));
}

#[test]
fn row_19_a_message_without_a_receive_waits() {
    let mut pair = Pair::new();
    assert_eq!(pair.ask_ack(&send_only(FIRST)), (FIRST, RNR));
    assert!(!pair.theirs.has_ended());
    assert!(pair.ask(&send_only(FIRST + 1)).is_empty(), "what comes behind it is dropped");
    pair = pair.receives(1, 1024);
    assert_eq!(pair.ask_ack(&send_only(FIRST)), (FIRST, ACK));
    // A WRITE with immediate data runs out of receives at its last packet, which is not executed.
    let first = Pkt::new(BthOpcode::RcWriteFirst, FIRST + 1).with(256).to(VA, KEY, MTU + 8);
    assert_eq!(pair.ask_ack(&first), (FIRST + 1, ACK));
    let last = Pkt { imm: true, ..Pkt::new(BthOpcode::RcWriteLastImm, FIRST + 2).with(8) };
    assert_eq!(pair.ask_ack(&last), (FIRST + 2, RNR));
    assert_eq!(pair.theirs.memory[MTU as usize], 0);
    pair = pair.receives(1, 0);
    assert_eq!(pair.ask_ack(&last), (FIRST + 2, ACK));
    assert_eq!(pair.theirs.memory[MTU as usize], 0x5a);
}

#[test]
fn row_23_packets_of_a_message_come_in_their_order() {
    for opcode in
        [BthOpcode::RcSendMiddle, BthOpcode::RcSendLast, BthOpcode::RcWriteMiddle, BthOpcode::RcWriteLast]
    {
        is_refused(Pair::new().receives(1, 1024), &Pkt::new(opcode, FIRST).with(256), NAK_INVALID);
    }
    for inside in
        [send_only(FIRST + 1), write_only(FIRST + 1, 0, 8), read(FIRST + 1, 0, 8), add(FIRST + 1, 0, 1)]
    {
        let mut pair = Pair::new().receives(2, 1024);
        pair.ask(&Pkt::new(BthOpcode::RcSendFirst, FIRST).with(256));
        is_refused(pair, &inside, NAK_INVALID);
    }
}

#[test]
fn row_24_a_reserved_opcode_is_refused() {
    let reserved = (0x18..=0x1f).map(BthOpcode::from_raw).filter(|opcode| opcode.operation().is_none());
    let mut found = 0;
    for opcode in reserved {
        is_refused(Pair::new().receives(1, 64), &Pkt::new(opcode, FIRST), NAK_INVALID);
        found += 1;
    }
    assert!(found > 4, "{found}");
}

#[test]
fn row_25_memory_that_the_peer_may_not_have_is_refused() {
    let end = LEN as u64;
    let elsewhere = |packet: Pkt| Pkt { reth: packet.reth.map(|(va, _, len)| (va, KEY + 1, len)), ..packet };
    for packet in [
        write_only(FIRST, end - 4, 8),
        read(FIRST, end - 4, 8),
        elsewhere(write_only(FIRST, 0, 8)),
        elsewhere(read(FIRST, 0, 8)),
    ] {
        let pair = is_refused(Pair::new(), &packet, NAK_ACCESS);
        assert!(pair.theirs.events.contains(&Event::AccessRefused));
    }
    let mut pair = Pair::new();
    pair.theirs.granted = Rights::READ;
    is_refused(pair, &write_only(FIRST, 0, 8), NAK_ACCESS);
}

#[test]
fn row_26_of_a_write_that_ends_outside_the_first_packets_may_be_written() {
    let at = LEN as u64 - u64::from(MTU);
    let first = Pkt::new(BthOpcode::RcWriteFirst, FIRST).with(256).to(VA + at, KEY, 2 * MTU);
    let pair = is_refused(Pair::new(), &first, NAK_ACCESS);
    assert_eq!(pair.theirs.memory[at as usize], 0, "the whole range is checked ahead");
    let mut pair = Pair::new();
    pair.theirs.checks_ahead = false;
    assert_eq!(pair.ask_ack(&first), (FIRST, ACK));
    let pair = is_refused(pair, &Pkt::new(BthOpcode::RcWriteLast, FIRST + 1).with(256), NAK_ACCESS);
    assert_eq!(pair.theirs.memory[at as usize], 0x5a);
}

#[test]
fn row_27_what_the_connection_does_not_allow_is_invalid() {
    let cases = [
        (write_only(FIRST, 0, 8), Rights::WRITE),
        (read(FIRST, 0, 8), Rights::READ),
        (add(FIRST, 0, 1), Rights::ATOMIC),
        (swap(FIRST, 0, 0, 1), Rights::ATOMIC),
    ];
    for (packet, right) in cases {
        let mut pair = Pair::new();
        pair.theirs.responder.allow(right, false);
        is_refused(pair, &packet, NAK_INVALID);
    }
}

#[test]
fn row_28_no_bytes_need_no_key() {
    let mut pair = Pair::new();
    let nowhere = |packet: Pkt| packet.to(7, 9, 0);
    assert_eq!(pair.ask_ack(&nowhere(Pkt::new(BthOpcode::RcWriteOnly, FIRST))), (FIRST, ACK));
    let said = pair.ask(&nowhere(Pkt::new(BthOpcode::RcReadRequest, FIRST + 1)));
    assert_eq!((said[0].opcode, said[0].payload.len()), (BthOpcode::RcReadRespOnly, 0));
}

#[test]
fn row_29_an_empty_send_takes_a_receive() {
    let mut pair = Pair::new().receives(1, 0);
    assert_eq!(pair.ask_ack(&Pkt::new(BthOpcode::RcSendOnly, FIRST)), (FIRST, ACK));
    assert_eq!(pair.theirs.received, [0]);
}

#[test]
fn row_30_a_send_longer_than_its_receive_ends_the_connection() {
    let pair = is_refused(Pair::new().receives(1, 7), &send_only(FIRST), NAK_INVALID);
    assert_eq!(pair.theirs.refused.and_then(|(_, status)| status), Some(Status::LocalLength));
}

#[test]
fn row_31_packets_have_the_lengths_that_their_places_ask_for() {
    let write = |opcode, len: usize, whole: u32| Pkt::new(opcode, FIRST).with(len).to(VA, KEY, whole);
    for packet in [
        Pkt::new(BthOpcode::RcSendFirst, FIRST).with(255),
        Pkt::new(BthOpcode::RcSendOnly, FIRST).with(257),
        write(BthOpcode::RcWriteFirst, 100, 300),
        write(BthOpcode::RcWriteOnly, 8, 9),
        write(BthOpcode::RcWriteOnly, 8, 7),
        write(BthOpcode::RcWriteFirst, 256, 256),
        write(BthOpcode::RcWriteFirst, 256, (1 << 31) + 1),
        read(FIRST, 0, (1 << 31) + 1),
    ] {
        is_refused(Pair::new().receives(1, 1024), &packet, NAK_INVALID);
    }
    for (opcode, len) in
        [(BthOpcode::RcSendMiddle, 8), (BthOpcode::RcSendLast, 0), (BthOpcode::RcSendLast, 257)]
    {
        let mut pair = Pair::new().receives(1, 1024);
        pair.ask(&Pkt::new(BthOpcode::RcSendFirst, FIRST).with(256));
        is_refused(pair, &Pkt::new(opcode, FIRST + 1).with(len), NAK_INVALID);
    }
}

#[test]
fn row_32_a_wrong_pad_count_is_invalid() {
    is_refused(Pair::new().receives(1, 64), &Pkt { padded: false, ..send_only(FIRST) }, NAK_INVALID);
}

#[test]
fn row_33_a_receive_with_a_bad_key_ends_the_connection() {
    let mut pair = Pair::new();
    pair.theirs.receives.push(Receive { len: 64, broken: true });
    let pair = is_refused(pair, &send_only(FIRST), NAK_OPERATION);
    assert_eq!(pair.theirs.refused.and_then(|(_, status)| status), Some(Status::LocalProtection));
}

#[test]
fn row_36_a_misaligned_atomic_is_invalid() {
    for packet in [add(FIRST, 4, 1), swap(FIRST, 1, 0, 1)] {
        let pair = is_refused(Pair::new(), &packet, NAK_INVALID);
        assert_eq!(pair.theirs.word(0), 0);
    }
}

#[test]
fn row_37_an_atomic_on_memory_that_has_no_right_to_it_is_refused() {
    let mut pair = Pair::new();
    pair.theirs.granted = Rights::READ | Rights::WRITE;
    is_refused(pair, &add(FIRST, 0, 1), NAK_ACCESS);
}

#[test]
fn row_38_more_reads_than_there_are_resources_for_are_invalid() {
    let mut pair = Pair::new();
    for i in 0..4 {
        pair.theirs.take(&read(FIRST + i, 0, 8));
    }
    pair.theirs.take(&read(FIRST + 4, 0, 8));
    let said = pair.theirs.transmit();
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(said[4].ack(), (FIRST + 4, NAK_INVALID));
}

/// A READ that comes while all resources are taken by READs that were answered takes the oldest, also if a duplicate of that waits for its
/// reply: the requester asks for it again.
#[test]
fn row_38_a_read_takes_the_resource_of_the_oldest_that_was_answered() {
    let (mut pair, places) = (Pair::new(), ReadResource::PER_QP as u32);
    pair.theirs.responder.log_resources = places.ilog2() as u8;
    (0..places).for_each(|i| _ = pair.ask(&read(FIRST + i, 0, 8)));
    pair.theirs.take(&read(FIRST, 0, 8));
    let said = pair.ask(&read(FIRST + places, 0, 8));
    assert_eq!(said.iter().map(|packet| packet.psn).collect::<Vec<_>>(), [FIRST + places]);
    assert!(pair.ask(&read(FIRST, 0, 8)).is_empty() && !pair.theirs.has_ended());
}

#[test]
fn row_51_immediate_data_take_a_receive_with_the_length_of_the_reth() {
    let mut pair = Pair::new().receives(1, 0);
    pair.run([Post::write_imm(8, MTU + 9)]);
    assert_eq!(pair.theirs.received, [MTU + 9]);
    assert_eq!(pair.ours.succeeded(), 1);
}

#[test]
fn row_53_what_is_lost_of_an_unreliable_message_loses_all_of_it() {
    let mut pair = Pair::new().receives(3, 1024);
    let end = &mut pair.theirs;
    let packet = |opcode, psn, len| Pkt { ask: false, ..Pkt::new(opcode, psn).with(len) };
    unreliable_request(end, &packet(BthOpcode::RcSendFirst, FIRST, 256));
    // The middle is lost; the last is dropped, and so are all packets up to the next message.
    unreliable_request(end, &packet(BthOpcode::RcSendLast, FIRST + 2, 8));
    unreliable_request(end, &packet(BthOpcode::RcSendLast, FIRST + 3, 8));
    unreliable_request(end, &packet(BthOpcode::RcSendOnly, FIRST + 7, 16));
    assert_eq!(end.received, [16]);
    assert!(end.transmit().is_empty(), "nobody is told");
}

#[test]
fn row_59_a_write_is_in_memory_before_a_later_send_is_received() {
    let mut pair = Pair::new().receives(1, 64);
    pair.post([Post::write(0, 3 * MTU), Post::send(1)]);
    for packet in pair.ours.transmit() {
        pair.theirs.take(&packet);
        let whole = pair.theirs.memory[3 * MTU as usize - 1] == 0xff;
        assert!(pair.theirs.received.is_empty() || whole, "{packet:?}");
    }
    assert_eq!(pair.theirs.received, [1]);
}

#[test]
fn row_61_a_key_that_dies_under_a_message_ends_it() {
    let mut pair = Pair::new();
    pair.theirs.checks_ahead = false;
    pair.ask(&Pkt::new(BthOpcode::RcWriteFirst, FIRST).with(256).to(VA, KEY, 2 * MTU));
    pair.theirs.granted = Rights::empty();
    let pair = is_refused(pair, &Pkt::new(BthOpcode::RcWriteLast, FIRST + 1).with(256), NAK_ACCESS);
    assert_eq!(pair.theirs.memory[MTU as usize], 0);
    // During an accepted READ with data still to be sent.
    let mut pair = Pair::new();
    pair.theirs.take(&read(FIRST, 0, 2 * MTU));
    pair.theirs.granted = Rights::empty();
    let said = pair.theirs.transmit();
    assert_eq!(said[0].ack(), (FIRST, NAK_ACCESS));
    assert!(pair.theirs.has_ended());
}

#[test]
fn a_resource_serves_as_many_reads_as_a_connection_has() {
    let mut pair = Pair::new();
    pair.run((0..3 * ReadResource::PER_QP as u64).map(|i| Post::read(8 * i, 8)));
    assert_eq!(pair.ours.succeeded(), 3 * ReadResource::PER_QP);
}
