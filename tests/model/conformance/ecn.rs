//! Congestion notification.

use super::common::*;
use hwspec::context::ServiceType;

fn marked(peer: Peer, psn: u32, to: Mr) -> Vec<u8> {
    let pkt = Pkt::new(BthOpcode::RcWriteOnly, psn).reth(to.va, to.key, 8).payload(&[1; 8]).ack_req();
    let mut frame = peer.frame(&pkt);
    hwspec::wire::ip::mark_congested(&mut frame);
    frame
}

/// Row 57: a CE-marked packet is executed and answered with a CNP to the QP it came from, BECN set.
#[test]
fn row_57_ce_mark_is_answered_with_a_cnp() {
    let mut bed = Bed::cx5();
    let peer = bed.foreign(1, path());
    let to = bed.mr(1, 64, Access::ALL);
    bed.inject(&marked(peer, expects(), to));
    let answers = bed.answers();
    let cnps: Vec<_> = answers.iter().filter(|f| f.opcode() == BthOpcode::Cnp).collect();
    assert_eq!(cnps.len(), 1, "{:?}", brief(&answers));
    let bth = cnps[0].headers().bth();
    assert!(bth.becn());
    assert_eq!(bth.dest_qp().0, peer.path.remote_qpn);
    let rest: Vec<_> = answers.iter().filter(|f| f.opcode() != BthOpcode::Cnp).cloned().collect();
    assert_eq!(acknowledgement(&rest), (ACK, expects(), 1));
    assert_eq!(bed.bytes(to)[..8], [1; 8]);
}

/// Row 57: CNPs are paced: not one for every packet, and one again after a while.
#[test]
fn row_57_cnps_are_paced() {
    let mut bed = Bed::cx5();
    let peer = bed.foreign(1, path());
    let to = bed.mr(1, 64, Access::ALL);
    let p = expects();
    for i in 0..20 {
        bed.inject(&marked(peer, p + i, to));
    }
    let cnps = bed.answers().iter().filter(|f| f.opcode() == BthOpcode::Cnp).count();
    assert_eq!(cnps, 1, "twenty marked packets at one instant");
    bed.advance(10 * MS);
    bed.inject(&marked(peer, p + 20, to));
    assert_eq!(bed.answers().iter().filter(|f| f.opcode() == BthOpcode::Cnp).count(), 1, "later");
}

/// Row 57: packets that are not marked get no CNP, and a CNP that arrives changes nothing of the transport.
#[test]
fn row_57_cnp_that_arrives_is_taken_in_silence() {
    let mut bed = Bed::cx5();
    let peer = bed.foreign(1, path());
    let from = bed.mr(1, 64, Access::ALL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    let cnp = Pkt::new(BthOpcode::Cnp, 0).bth(|b| {
        b.set().becn(true);
    });
    assert_eq!(brief(&bed.from_peer(peer, &cnp)), []);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    bed.from_peer(peer, &ack(sends_from(), 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}

/// Row 57: so does one that arrives at a UC QP in the middle of a message.
#[test]
fn row_57_cnp_inside_an_unreliable_message_does_not_break_it() {
    let mut bed = Bed::cx5();
    let spec = QpSpec { service: ServiceType::Uc, ..QpSpec::default() };
    let peer = bed.foreign_with(1, spec, path());
    let to = bed.mr(1, 8192, Access::ALL);
    bed.post_recv(peer.qp, &[to.sge()]);
    bed.from_peer(peer, &Pkt::new(BthOpcode::UcSendFirst, expects()).payload(&[3; MTU]));
    bed.from_peer(peer, &Pkt::new(BthOpcode::Cnp, 0));
    bed.from_peer(peer, &Pkt::new(BthOpcode::UcSendLast, expects() + 1).payload(&[3; 8]));
    assert_eq!(bed.one(peer.qp.recv_cq).byte_len as usize, MTU + 8);
}

/// Row 57: a sender that was notified keeps to a rate, and what it may not send now it sends later.
#[test]
fn row_57_a_sender_that_was_notified_keeps_to_a_rate() {
    let mut bed = Bed::cx5();
    let peer = bed.foreign(1, path());
    let from = bed.mr(1, 64 * MTU, Access::ALL);
    let cnp = Pkt::new(BthOpcode::Cnp, 0).bth(|b| {
        b.set().becn(true);
    });
    // Each halves the rate: 100 Mb/s or so are left.
    for _ in 0..10 {
        bed.from_peer(peer, &cnp);
        bed.advance(MS / 20);
    }
    bed.post(peer.qp, &write_to_peer(from.sge()));
    let at_once = bed.answers().len();
    assert!((1..=8).contains(&at_once), "{at_once} of 64 packets");
    let (mut all, mut most) = (at_once, 0);
    for _ in 0..100 {
        bed.advance(MS / 10);
        let now = bed.answers().len();
        (all, most) = (all + now, most.max(now));
    }
    assert_eq!(all, 64);
    assert!(most < 32, "{most} packets in a tenth of a millisecond");
    bed.from_peer(peer, &ack(sends_from() + 63, 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}
