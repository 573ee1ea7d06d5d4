//! QP states and the commands that change them.

use super::common::*;
use hwspec::{
    cmd::{CmdOut, Opcode, Status, qp::*},
    context::qp::QpContext,
};

fn refused(result: Result<(), CommandError>) -> Option<Status> {
    match result {
        Err(CommandError::Refused(status, _)) => Some(status),
        _ => None,
    }
}

/// Row 49: invalid transitions are refused, and the state stays.
#[test]
fn row_49_illegal_transition_changes_nothing() {
    let mut bed = Bed::cx5();
    let (qp, other) = (bed.qp(1), bed.qp(2));
    let p = bed.path_to(other, path());
    let is_state =
        |s: Option<Status>| matches!(s, Some(Status::BadQpState | Status::BadResState | Status::BadParam));
    let state = |bed: &mut Bed| bed.qp_state(qp);

    assert!(is_state(refused(bed.to_rtr(qp, &p))), "RESET to RTR");
    assert!(is_state(refused(bed.to_rts(qp, &p))), "RESET to RTS");
    assert_eq!(state(&mut bed), QpState::Reset);
    bed.to_init(qp, &p).expect("RST2INIT_QP");
    assert!(is_state(refused(bed.to_rts(qp, &p))), "INIT to RTS");
    assert!(is_state(refused(bed.to_init(qp, &p))), "INIT to INIT by RST2INIT");
    assert_eq!(state(&mut bed), QpState::Init);
    bed.to_rtr(qp, &p).expect("INIT2RTR_QP");
    assert!(is_state(refused(bed.to_rtr(qp, &p))), "RTR to RTR");
    assert!(is_state(refused(bed.rts_to_rts(qp, &p, 0))), "RTR by RTS2RTS");
    assert_eq!(state(&mut bed), QpState::Rtr);
    bed.to_rts(qp, &p).expect("RTR2RTS_QP");
    assert!(is_state(refused(bed.to_init(qp, &p))), "RTS to INIT");
    assert_eq!(state(&mut bed), QpState::Rts);
    bed.to_err(qp).expect("2ERR_QP");
    assert!(is_state(refused(bed.to_rts(qp, &p))), "ERR to RTS");
    assert_eq!(state(&mut bed), QpState::Err);
    bed.to_reset(qp).expect("2RST_QP");
    assert_eq!(state(&mut bed), QpState::Reset);
}

/// Row 49: an optional-field mask that the transition does not support is refused, and nothing changes.
#[test]
fn row_49_illegal_mask_changes_nothing() {
    let mut bed = Bed::cx5();
    let (qp, other) = (bed.qp(1), bed.qp(2));
    let p = bed.path_to(other, path());
    bed.to_init(qp, &p).expect("RST2INIT_QP");
    // An undefined field, and one that this transition does not support.
    for mask in [1 << 31, opt::RNR_TIMEOUT] {
        assert!(refused(bed.to_rtr_with(qp, &p, mask)).is_some(), "mask {mask:#x}");
    }
    assert_eq!(bed.qp_state(qp), QpState::Init);
    assert_eq!(bed.query(qp).remote_qpn(), 0, "no field was taken");
}

/// Row 49: values out of range are refused, and nothing changes.
#[test]
fn row_49_bad_values_change_nothing() {
    type Spoil = fn(&mut QpContext);
    let cases: [(&str, Spoil); 3] = [
        ("path MTU 0", |c| {
            c.set().mtu(0);
        }),
        ("path MTU 7", |c| {
            c.set().mtu(7);
        }),
        ("GID index out of the table", |c| {
            let mut av = c.primary_address_path();
            av.set().src_addr_index(255);
            c.set().primary_address_path(av);
        }),
    ];
    for (what, spoil) in cases {
        let mut bed = Bed::cx5();
        let (qp, other) = (bed.qp(1), bed.qp(2));
        let p = bed.path_to(other, path());
        bed.to_init(qp, &p).expect("RST2INIT_QP");
        let mut context = bed.context(qp, &p);
        spoil(&mut context);
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(context));
        let result = bed.command::<_, ModifyQpOut>(1, Opcode::Init2rtrQp, &input);
        assert!(matches!(result, Err(CommandError::Refused(..))), "{what}: {result:?}");
        assert_eq!(bed.qp_state(qp), QpState::Init, "{what}");
    }
}

/// Row 49: a QP of another function does not exist here.
#[test]
fn row_49_qp_of_another_function_is_out_of_reach() {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    let result = bed.command::<_, CmdOut>(a.fid, Opcode::Qp2Err, &Qp2errIn::with(|s| s.qpn(b.qpn)));
    assert!(matches!(result, Err(CommandError::Refused(..))), "{result:?}");
    assert_eq!(bed.qp_state(b), QpState::Rts);
}

/// Row 49: a legal RTS to RTS transition changes the selected fields and no others.
#[test]
fn row_49_legal_change_in_rts_is_made() {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    let p = bed.path_to(b, Path { min_rnr_nak: 3, remote_write: false, remote_read: false, ..path() });
    bed.rts_to_rts(a, &p, opt::RNR_TIMEOUT | opt::RWE).expect("RTS2RTS_QP");
    let context = bed.query(a);
    assert_eq!(context.state(), QpState::Rts);
    assert_eq!((context.min_rnr_nak(), context.rwe(), context.rre()), (3, false, true));
}

/// Row 46: receives may be posted in INIT; they are used once the QP receives.
#[test]
fn row_46_receives_posted_in_init_are_kept() {
    let mut bed = Bed::cx5();
    let (a, b) = (bed.qp(1), bed.qp(2));
    let (from, to) = (bed.mr(1, 8, Access::LOCAL), bed.mr(2, 8, Access::LOCAL));
    let base = path();
    let to_a = bed.path_to(a, base.back());
    bed.to_init(b, &to_a).expect("RST2INIT_QP");
    bed.post_recv(b, &[to.sge()]);
    bed.to_rtr(b, &to_a).expect("INIT2RTR_QP");
    let to_b = bed.path_to(b, base);
    bed.ready(a, &to_b);
    bed.done(a, &Wr::send(from.sge()));
    assert_eq!(bed.one(b.recv_cq).byte_len, 8, "a QP in RTR receives");
}

/// Row 48: in SQD outstanding requests finish and complete once; new posts wait for RTS.
#[test]
fn row_48_sqd_drains_tells_and_accepts_posts() {
    let (mut bed, peer, _) = foreign(64, Access::LOCAL);
    let qp = peer.qp;
    let from = bed.mr(1, 64, Access::ALL);
    bed.post_all(qp, &[write_to_peer(from.sge()), write_to_peer(from.sge())]);
    assert_eq!(bed.answers().len(), 2);
    bed.events(1);
    let drained = |bed: &mut Bed| Bed::qp_events(&bed.events(1), qp, EventType::SqDrained);
    bed.to_sqd(qp).expect("RTS2SQD_QP");
    assert_eq!(bed.qp_state(qp), QpState::SqDraining);
    let p = bed.path_to(qp, path());
    assert!(refused(bed.sqd_to_sqd(qp, &p, opt::RNR_TIMEOUT)).is_some(), "not while it drains");
    bed.post(qp, &write_to_peer(from.sge()));
    bed.from_peer(peer, &ack(SENDS, 1));
    assert_eq!(drained(&mut bed), 0, "one of two");
    bed.from_peer(peer, &ack(SENDS + 1, 2));
    assert_eq!(drained(&mut bed), 1);
    assert_eq!(bed.completions(qp.send_cq).len(), 2);
    assert_eq!(bed.qp_state(qp), QpState::SqDrained);
    let p = bed.path_to(qp, Path { min_rnr_nak: 3, ..path() });
    bed.sqd_to_sqd(qp, &p, opt::RNR_TIMEOUT).expect("SQD2SQD_QP");
    assert_eq!(bed.query(qp).min_rnr_nak(), 3);
    bed.advance(S);
    assert_eq!((brief(&bed.answers()), drained(&mut bed)), (vec![], 0), "nothing more goes out");
    bed.sqd_to_rts(qp).expect("SQD2RTS_QP");
    bed.run();
    assert_eq!(brief(&bed.answers()), [(BthOpcode::RcWriteOnly, SENDS + 2)]);
    bed.from_peer(peer, &ack(SENDS + 2, 3));
    assert!(bed.one(qp.send_cq).is_ok());
}

/// Row 48: in SQD lost packets are retransmitted and the QP still receives; an idle QP is drained at once.
#[test]
fn row_48_sqd_finishes_what_is_lost_and_receives() {
    let (mut bed, [a, b], [from, to]) = ends(4 * MTU);
    bed.events(1);
    bed.wire().plan(Filter::from(1), 1, 1, Fault::Drop);
    bed.wire().plan(Filter::from(2), 0, 1, Fault::Drop);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.to_sqd(a).expect("RTS2SQD_QP");
    bed.advance(10 * S);
    assert!(bed.one(a.send_cq).is_ok());
    assert_eq!(Bed::qp_events(&bed.events(1), a, EventType::SqDrained), 1);
    bed.post_recv(a, &[from.sge()]);
    bed.post(b, &Wr::send(to.part(0, 8)));
    assert_eq!(bed.one(a.recv_cq).byte_len, 8);
    assert!(bed.one(b.send_cq).is_ok());
    bed.sqd_to_rts(a).expect("SQD2RTS_QP");
    bed.to_sqd(a).expect("RTS2SQD_QP");
    assert_eq!(Bed::qp_events(&bed.events(1), a, EventType::SqDrained), 1, "idle");
    bed.to_err(a).expect("2ERR_QP");
    assert_eq!(bed.qp_state(a), QpState::Err);
    assert!(is_refused(bed.sqd_to_rts(a)), "from ERR");
}

fn is_refused(result: Result<(), CommandError>) -> bool {
    refused(result).is_some()
}
