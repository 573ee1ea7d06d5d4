//! Congestion notification.

use super::common::*;
use devmodel::transport::Dcqcn;
use hwspec::{
    cmd::{
        CmdOut, Opcode,
        congestion::{notification_field as np, reaction_field as rp, *},
    },
    context::{
        ServiceType,
        congestion::{CongProtocol, RoceNotificationPoint, RoceReactionPoint},
    },
    layout::Layout,
};
use ironverbs_tests::bed::CommandError;

fn marked(peer: Peer, psn: u32, to: Mr) -> Vec<u8> {
    let mut frame = peer.frame(&write_of(to, psn, 1));
    hwspec::wire::ip::mark_congested(&mut frame);
    frame
}

/// Row 57: a CE-marked packet is executed and answered with a CNP to the QP that sent it, with BECN set.
#[test]
fn row_57_ce_mark_is_answered_with_a_cnp() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    bed.inject(&marked(peer, EXPECTS, to));
    let answers = bed.answers();
    let cnps: Vec<_> = answers.iter().filter(|f| f.opcode() == BthOpcode::Cnp).collect();
    assert_eq!(cnps.len(), 1, "{:?}", brief(&answers));
    let bth = cnps[0].headers().bth();
    assert!(bth.becn());
    assert_eq!(bth.dest_qp().0, peer.path.remote_qpn);
    let rest: Vec<_> = answers.iter().filter(|f| f.opcode() != BthOpcode::Cnp).cloned().collect();
    assert_eq!(acknowledgement(&rest), (ACK, EXPECTS, 1));
    assert_eq!(bed.bytes(to)[..8], [1; 8]);
}

/// Row 57: CNPs are paced: not one per packet, and another after a while.
#[test]
fn row_57_cnps_are_paced() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    for i in 0..20 {
        bed.inject(&marked(peer, EXPECTS + i, to));
    }
    let cnps = bed.answers().iter().filter(|f| f.opcode() == BthOpcode::Cnp).count();
    assert_eq!(cnps, 1, "twenty marked packets at one instant");
    bed.advance(10 * MS);
    bed.inject(&marked(peer, EXPECTS + 20, to));
    assert_eq!(bed.answers().iter().filter(|f| f.opcode() == BthOpcode::Cnp).count(), 1, "later");
}

/// Row 57: unmarked packets cause no CNP, and a received CNP does not change the transport state.
#[test]
fn row_57_cnp_that_arrives_is_taken_in_silence() {
    let (mut bed, peer, from) = foreign(64, Access::ALL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    let cnp = Pkt::new(BthOpcode::Cnp, 0).bth(|b| b.becn(true));
    assert_eq!(brief(&bed.from_peer(peer, &cnp)), []);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    bed.from_peer(peer, &ack(SENDS, 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}

/// Row 57: the same for a CNP that arrives at a UC QP in the middle of a message.
#[test]
fn row_57_cnp_inside_an_unreliable_message_does_not_break_it() {
    let mut bed = Bed::cx5();
    let spec = QpSpec { service: ServiceType::Uc, ..QpSpec::default() };
    let peer = bed.foreign_with(1, spec, path());
    let to = bed.mr(1, 8192, Access::ALL);
    bed.post_recv(peer.qp, &[to.sge()]);
    bed.from_peer(peer, &Pkt::new(BthOpcode::UcSendFirst, EXPECTS).payload(&[3; MTU]));
    bed.from_peer(peer, &Pkt::new(BthOpcode::Cnp, 0));
    bed.from_peer(peer, &Pkt::new(BthOpcode::UcSendLast, EXPECTS + 1).payload(&[3; 8]));
    assert_eq!(bed.one(peer.qp.recv_cq).byte_len as usize, MTU + 8);
}

/// Row 57: a notified sender limits its rate, and sends the excess later.
#[test]
fn row_57_a_sender_that_was_notified_keeps_to_a_rate() {
    let (mut bed, peer, from) = foreign(64 * MTU, Access::ALL);
    let cnp = Pkt::new(BthOpcode::Cnp, 0).bth(|b| b.becn(true));
    // Each halves the rate: about 100 Mb/s are left.
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
    bed.from_peer(peer, &ack(SENDS + 63, 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}

/// Returns the CNPs among the frames that the adapter sent.
fn notifications(bed: &mut Bed) -> Vec<Captured> {
    bed.answers().into_iter().filter(|f| f.opcode() == BthOpcode::Cnp).collect()
}

fn reaction(bed: &mut Bed, fid: u8) -> RoceReactionPoint {
    let input = QueryCongParamsIn::with(|s| s.cong_protocol(CongProtocol::RoceRp));
    let out: QueryCongParamsOut = bed.command(fid, Opcode::QueryCongParams, &input).unwrap();
    RoceReactionPoint::read(&out.congestion_parameters())
}

fn notification(bed: &mut Bed, fid: u8) -> RoceNotificationPoint {
    let input = QueryCongParamsIn::with(|s| s.cong_protocol(CongProtocol::RoceNp));
    let out: QueryCongParamsOut = bed.command(fid, Opcode::QueryCongParams, &input).unwrap();
    RoceNotificationPoint::read(&out.congestion_parameters())
}

fn modify(
    bed: &mut Bed,
    fid: u8,
    protocol: CongProtocol,
    select: u32,
    parameters: &[u8],
) -> Result<CmdOut, CommandError> {
    let mut input = ModifyCongParamsIn::zeroed();
    let parameters = parameters.try_into().unwrap();
    input.set().cong_protocol(protocol).field_select(select.to_be_bytes()).congestion_parameters(parameters);
    bed.command(fid, Opcode::ModifyCongParams, &input)
}

fn switch(bed: &mut Bed, protocol: CongProtocol, priority: u8, on: bool) {
    let input = ModifyCongStatusIn::with(|s| s.cong_protocol(protocol).priority(priority).enable(on));
    bed.command::<_, CmdOut>(0, Opcode::ModifyCongStatus, &input).unwrap();
    let input = QueryCongStatusIn::with(|s| s.cong_protocol(protocol).priority(priority));
    let out: QueryCongStatusOut = bed.command(0, Opcode::QueryCongStatus, &input).unwrap();
    assert_eq!(out.enable(), on);
}

fn statistics(bed: &mut Bed, fid: u8, clear: bool) -> [u32; 5] {
    let input = QueryCongStatisticsIn::with(|s| s.clear(clear));
    let out: QueryCongStatisticsOut = bed.command(fid, Opcode::QueryCongStatistics, &input).unwrap();
    [
        out.np_ecn_marked_roce_packets_low(),
        out.np_cnp_sent_low(),
        out.rp_cnp_handled_low(),
        out.rp_cnp_ignored_low(),
        out.rp_cur_flows(),
    ]
}

/// `QUERY_CONG_PARAMS` returns the adapter's initial parameters, then those that were set; parameters that were not selected stay.
#[test]
fn parameters_are_those_of_the_port() {
    let mut bed = Bed::cx5();
    (0..2).for_each(|fid| _ = bed.function(fid));
    let (p, before) = (Dcqcn::default(), reaction(&mut bed, 1));
    assert_eq!(
        (before.rpg_time_reset(), before.rpg_ai_rate(), before.dce_tcp_g(), before.rpg_gd()),
        (p.rpg_time_reset, p.rpg_ai_rate, p.dce_tcp_g.into(), 11)
    );
    assert_eq!(notification(&mut bed, 0).cnp_dscp(), 48);
    let mut given = RoceReactionPoint::zeroed();
    given.set().rpg_ai_rate(7).rpg_time_reset(8);
    modify(&mut bed, 0, CongProtocol::RoceRp, 1 << rp::RPG_AI_RATE, given.bytes()).unwrap();
    let after = reaction(&mut bed, 1);
    assert_eq!((after.rpg_ai_rate(), after.rpg_time_reset()), (7, p.rpg_time_reset));
    // A command with one invalid parameter is refused as a whole.
    given.set().rpg_hai_rate(9).rpg_min_dec_fac(101);
    let select = 1 << rp::RPG_HAI_RATE | 1 << rp::RPG_MIN_DEC_FAC;
    assert!(modify(&mut bed, 0, CongProtocol::RoceRp, select, given.bytes()).is_err());
    assert!(modify(&mut bed, 0, CongProtocol::RoceRp, 1 << 17, given.bytes()).is_err());
    assert!(modify(&mut bed, 0, CongProtocol::Ieee8021Qau, 1 << rp::RPG_AI_RATE, given.bytes()).is_err());
    assert!(modify(&mut bed, 1, CongProtocol::RoceRp, 1 << rp::RPG_AI_RATE, given.bytes()).is_err(), "a VF");
    assert_eq!(reaction(&mut bed, 0).rpg_hai_rate(), p.rpg_hai_rate);
}

/// A CNP has the DSCP, and in a VLAN the priority, that were set for the port, and is sent at the configured rate.
#[test]
fn row_57_notifications_are_as_they_were_set() {
    let mut bed = Bed::cx5().with_function(0);
    let peer = bed.foreign(1, Path { sl: 3, ..path() });
    bed.set_gid_in(1, GID_IPV4, gid_v4(1), Some(5)).unwrap();
    let to = bed.mr(1, 64, Access::ALL);
    let mut psn = EXPECTS;
    let mut told = |bed: &mut Bed| {
        let pkt = Pkt::new(BthOpcode::RcWriteOnly, psn).reth(to.va, to.key, 8).payload(&[1; 8]);
        let tag = hwspec::wire::Vlan::with(|s| s.vid(5));
        let envelope = hwspec::wire::Envelope { vlan: Some(tag), ..peer.envelope() };
        let mut frame = peer.frame_in(&pkt, &envelope);
        hwspec::wire::ip::mark_congested(&mut frame);
        bed.inject(&frame);
        psn += 1;
        notifications(bed)
    };
    let class = |frames: &[Captured]| {
        assert_eq!(frames.len(), 1);
        let headers = frames[0].headers();
        (headers.traffic_class() >> 2, headers.vlan().map(|tag| tag.pcp()))
    };
    assert_eq!(class(&told(&mut bed)), (48, Some(6)));
    let mut given = RoceNotificationPoint::zeroed();
    given.set().min_time_between_cnps(1000).cnp_dscp(20).cnp_prio_mode(true);
    let select = 1 << np::MIN_TIME_BETWEEN_CNPS | 1 << np::CNP_DSCP | 1 << np::CNP_PRIO_MODE;
    modify(&mut bed, 0, CongProtocol::RoceNp, select, given.bytes()).unwrap();
    bed.advance(MS);
    assert_eq!(class(&told(&mut bed)), (20, Some(3)));
    bed.advance(MS / 2);
    assert_eq!(told(&mut bed).len(), 0);
    bed.advance(MS / 2);
    assert_eq!(told(&mut bed).len(), 1);
    // CNPs are disabled for its priority: the packet is counted and no CNP is sent.
    switch(&mut bed, CongProtocol::RoceNp, 3, false);
    bed.advance(MS);
    assert_eq!(told(&mut bed).len(), 0);
    assert_eq!(statistics(&mut bed, 1, true), [5, 3, 0, 0, 0]);
    assert_eq!(statistics(&mut bed, 1, false), [0; 5]);
    switch(&mut bed, CongProtocol::RoceNp, 3, true);
    assert_eq!(told(&mut bed).len(), 1);
    // Other packets keep the queue pair's own priority.
    bed.post(peer.qp, &write_to_peer(to.sge()));
    let answers = bed.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].headers().vlan().map(|tag| (tag.vid(), tag.pcp())), Some((5, 3)));
}

/// A sender's rate follows the parameters, and CNPs are ignored where reaction is disabled.
#[test]
fn row_57_a_sender_slows_down_as_it_was_told() {
    let mut bed = Bed::cx5().with_function(0);
    let peer = bed.foreign(1, path());
    let from = bed.mr(1, 64 * MTU, Access::ALL);
    let cnp = Pkt::new(BthOpcode::Cnp, 0);
    switch(&mut bed, CongProtocol::RoceRp, 0, false);
    bed.from_peer(peer, &cnp);
    assert_eq!(statistics(&mut bed, 1, true), [0, 0, 0, 1, 0]);
    switch(&mut bed, CongProtocol::RoceRp, 0, true);
    // The first sets the rate to 250 Mb/s without a further decrease.
    let given = RoceReactionPoint::with(|s| s.rate_to_set_on_first_cnp(250).rpg_min_dec_fac(100));
    let select = 1 << rp::RATE_TO_SET_ON_FIRST_CNP | 1 << rp::RPG_MIN_DEC_FAC;
    modify(&mut bed, 0, CongProtocol::RoceRp, select, given.bytes()).unwrap();
    bed.from_peer(peer, &cnp);
    assert_eq!(statistics(&mut bed, 1, false), [0, 0, 1, 0, 1]);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    // Before the first rate increase, after 55 us: a packet takes 10 us.
    let mut sent = 0;
    for _ in 0..50 {
        bed.advance(1_000_000);
        sent += bed.answers().len();
    }
    assert!((4..=5).contains(&sent), "{sent} packets in 50 us");
}
