//! A responder's handling of requests, in sequence and out of sequence.

use crate::transport::{
    Event, ReadResource, Rights,
    tests::pair::{FIRST, KEY, MTU, Pair, Pkt, Post, VA},
};
use hwspec::wire::BthOpcode;

const ACK: u8 = 0x1f;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;

fn send_only(psn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcSendOnly, psn).with(8)
}

fn read(psn: u32, at: u64, len: u32) -> Pkt {
    Pkt::new(BthOpcode::RcReadRequest, psn).to(VA + at, KEY, len)
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
fn row_11_who_asks_is_acknowledged_and_acknowledgements_coalesce() {
    let mut pair = Pair::new().receives(3, 64);
    assert!(pair.ask(&Pkt { ask: false, ..send_only(FIRST) }).is_empty());
    pair.theirs.take(&send_only(FIRST + 1));
    assert_eq!(pair.ask_ack(&send_only(FIRST + 2)), (FIRST + 2, ACK));
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
fn row_61_a_key_that_dies_before_an_accepted_read_is_answered_ends_it() {
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
