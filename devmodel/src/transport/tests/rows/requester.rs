//! Transmission, acceptance of responses, and retransmission by a requester.

use crate::transport::{
    Dcqcn, Event, Notifier, Status, congestion_notified,
    tests::pair::{FIRST, LEN, MS, MTU, Pair, Pkt, Post},
};
use hwspec::wire::BthOpcode;

const ACK: u8 = 0x1f;
/// An RNR NAK with timer code 12: 0.64 ms.
const RNR: u8 = 0x20 | 12;
const RNR_WAIT: u64 = 640 * MS / 1000;
/// 4.096 us x 2^14.
const TIMEOUT: u64 = 4_096_000 << 14;

fn psns(packets: &[Pkt]) -> Vec<u32> {
    packets.iter().map(|packet| packet.psn).collect()
}

#[test]
fn row_2_psns_wrap_in_every_stage() {
    for first in 0xff_fff4..=0xff_ffff {
        let mut pair = Pair::from(first).receives(2, 1024);
        pair.lose(1, |packet| packet.opcode == BthOpcode::RcSendMiddle);
        pair.lose(1, |packet| packet.opcode == BthOpcode::RcReadRespMiddle);
        pair.run([
            Post::send(3 * MTU),
            Post::write(0, 3 * MTU),
            Post::read(0, 3 * MTU),
            Post::add(0, 1),
            Post::send(1),
        ]);
        while pair.ours.succeeded() < 5 {
            pair.wait();
        }
        assert_eq!(pair.theirs.received, [3 * MTU, 1]);
        assert_eq!(pair.ours.requester.psn, (first + 11) & 0xff_ffff);
    }
}

#[test]
fn row_13_an_acknowledgement_past_a_read_asks_for_it_again() {
    let mut pair = Pair::new();
    pair.post([Post::send(1), Post::read(0, MTU), Post::send(1)]);
    pair.ours.transmit();
    let again = pair.tell_ack(FIRST + 2, ACK);
    assert_eq!(pair.ours.completed, [(0, None)]);
    assert_eq!(psns(&again), [FIRST + 1, FIRST + 2]);
    assert_eq!(again[0].opcode, BthOpcode::RcReadRequest);
    assert_eq!(pair.ours.events, [Event::ImpliedNak]);
    assert!(pair.tell_ack(FIRST + 2, ACK).is_empty(), "once, until there is progress");
}

#[test]
fn row_15_a_lost_acknowledgement_costs_a_timeout() {
    let mut pair = Pair::new().receives(1, 1024);
    pair.lose(3, Pkt::is_ack);
    pair.run([Post::send(2 * MTU)]);
    let first = pair.sent[0].clone();
    let took = pair.wait();
    assert!((TIMEOUT..=4 * TIMEOUT).contains(&took), "{took}");
    assert_eq!(pair.sent[0][2..], first, "the same packets again");
    pair.wait();
    assert_eq!((pair.ours.succeeded(), pair.theirs.received.len()), (1, 1));
    // Progress restarts the timer.
    let mut pair = Pair::new();
    pair.post([Post::send(1), Post::send(1)]);
    pair.ours.transmit();
    let before = pair.ours.deadline().expect("a timer");
    pair.ours.now += TIMEOUT / 2;
    pair.tell_ack(FIRST, ACK);
    assert_eq!(pair.ours.deadline(), Some(before + TIMEOUT / 2));
}

#[test]
fn row_20_an_rnr_nak_is_waited_out() {
    let mut pair = Pair::new();
    pair.run([Post::send(2 * MTU)]);
    assert_eq!(pair.sent[1][0].ack(), (FIRST, RNR));
    let before = pair.sent[0].clone();
    pair.theirs.receives.push(1024);
    pair.settle();
    assert_eq!(pair.sent[0].len(), before.len(), "not before its time");
    let took = pair.wait();
    assert!(took >= RNR_WAIT, "{took}");
    assert_eq!(pair.sent[0][before.len()..], before);
    assert_eq!(pair.ours.succeeded(), 1);
}

/// The other halves of rows 23 to 37: the effect of a refusal on the requester.
#[test]
fn refusals_end_the_connection_of_whoever_asked() {
    let cases = [
        (0x61, Status::RemoteInvalidRequest),
        (0x62, Status::RemoteAccess),
        (0x63, Status::RemoteOperation),
        (0x7f, Status::RemoteOperation),
    ];
    for (nak, status) in cases {
        let mut pair = Pair::new();
        pair.post([Post::send(1), Post::write(0, 8), Post::send(1)]);
        pair.ours.transmit();
        assert!(pair.tell_ack(FIRST + 1, nak).is_empty());
        assert_eq!(pair.ours.completed, [(0, None), (1, Some(status))]);
    }
    let mut pair = Pair::new();
    pair.run([Post::read(LEN as u64, 8)]);
    assert_eq!(pair.ours.failure(), Some(Status::RemoteAccess));
    assert!(pair.theirs.has_ended());
}

#[test]
fn reads_and_atomics_under_way_are_bounded() {
    // Row 38, for the requester.
    let mut pair = Pair::new();
    pair.post((0..10).map(|i| Post::read(8 * i, 8)));
    assert_eq!(pair.ours.transmit().len(), 4);
    pair.ours.requester.stop();
    let mut pair = Pair::new();
    pair.run((0..10).map(|i| if i % 2 == 0 { Post::add(0, 1) } else { Post::swap(8, i / 2, i / 2 + 1) }));
    assert_eq!((pair.ours.succeeded(), pair.theirs.word(0), pair.theirs.word(8)), (10, 5, 5));
}

#[test]
fn row_44_messages_are_cut_at_the_path_mtu() {
    for (len, packets) in [(0, 1), (1, 1), (MTU, 1), (MTU + 1, 2), (7 * MTU, 7), (7 * MTU + 1, 8)] {
        let mut pair = Pair::new().receives(1, 4096);
        pair.run([Post::send(len), Post::write(0, len), Post::read(0, len)]);
        assert_eq!(pair.ours.succeeded(), 3, "{len}");
        assert_eq!(pair.sent[0].len(), 2 * packets + 1);
        assert_eq!(pair.ours.requester.psn, FIRST + 3 * packets as u32, "a READ takes as many PSNs");
        let answers = pair.sent[1].iter().filter(|packet| !packet.is_ack());
        assert!(answers.clone().all(|p| p.aeth.is_some() != (p.opcode == BthOpcode::RcReadRespMiddle)));
        assert_eq!(answers.count(), packets);
    }
}

#[test]
fn row_57_marked_packets_are_told_of_and_not_each() {
    let (mut notifier, p) = (Notifier::default(), Dcqcn::default());
    let notified = (0..1000).filter(|us| notifier.on_mark(us * MS / 1000, &p)).count();
    assert_eq!(notified, 20, "in a millisecond");
    let mut pair = Pair::new();
    congestion_notified(&mut pair.ours);
    assert_eq!(pair.ours.events, [Event::Notified]);
    assert!(pair.ours.requester.is_limited() && pair.ours.congestion.rate > 0);
}
