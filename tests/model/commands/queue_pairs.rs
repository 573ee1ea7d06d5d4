//! Queue pairs: creation, state transitions and their parameters (IBTA 10.3.1; conformance row 49),
//! destruction.

use super::*;
use devmodel::identity;
use hwspec::{
    cmd::srq::*,
    context::{QpState, ServiceType, qp::AddressPath, srq::SrqContext},
};
use ironverbs_tests::bed::{Path, Qp, opt};

fn modify(bed: &mut Bed, qp: Qp, op: Opcode, mask: u32, context: QpContext) -> Option<Syndrome> {
    let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).opt_param_mask(mask).qpc(context));
    let reply = bed.reply_to(qp.fid, op, 0, input.as_bytes(), 16);
    assert_eq!(reply.status() == Status::Ok, reply.syndrome() == 0);
    reply.refused()
}

#[test]
fn a_queue_pair_is_checked_at_creation() {
    let mut bed = with_vfs();
    let base = bed.base(0);
    let other = bed.base(1);
    let cqn = bed.cq_by(0, 0, &base);
    let other_cqn = bed.cq_by(1, 0, &other);
    let rows: Refusals<'_, QpContext> = &[
        (&|c| c, None),
        (&|c| c.st(ServiceType::Dci), Some(Syndrome::ServiceType)),
        (&|c| c.pd(other.pd), Some(Syndrome::NoSuchPd)),
        (&|c| c.cqn_snd(other_cqn), Some(Syndrome::NoSuchCq)),
        (&|c| c.cqn_rcv(cqn + 1), Some(Syndrome::NoSuchCq)),
        (&|c| c.uar_page(1), Some(Syndrome::NoSuchUar)),
        (&|c| c.log_sq_size(7), Some(Syndrome::PageList)),
        (&|c| c.log_rq_stride(6), Some(Syndrome::Stride)),
        (&|c| c.rq_type(2), Some(Syndrome::RqType)),
        (&|c| c.rq_type(1).srqn_rmpn_xrqn(3), Some(Syndrome::NoSuchSrq)),
        (&|c| c.dbr_addr(4), Some(Syndrome::DoorbellRecord)),
        (&|c| c.wq_signature(true), Some(Syndrome::Signature)),
        // A QP without queues needs no pages.
        (&|c| c.rq_type(3).no_sq(true), None),
    ];
    for &(change, by) in rows {
        let reply = bed.qp_reply(0, 0, &base, cqn, change);
        assert_eq!(reply.refused(), by, "{:?}", QpContext::with(change));
    }
}

#[test]
fn the_way_to_rts_keeps_what_each_step_takes() {
    let mut bed = Bed::cx5();
    let (a, b) = (bed.qp(1), bed.qp(2));
    assert_eq!(bed.qp_state(a), QpState::Reset);
    let path = Path { sq_psn: 100, rq_psn: 200, log_rd_atomic: 4, log_dest_rd_atomic: 2, ..Path::default() };
    let mut context = bed.context(a, &bed.path_to(b, path));
    // The adapter chooses a UDP source port.
    let mut address = context.primary_address_path();
    address.set().udp_sport(0);
    context.set().primary_address_path(address);
    for op in [Opcode::Rst2initQp, Opcode::Init2rtrQp, Opcode::Rtr2rtsQp] {
        assert_eq!(modify(&mut bed, a, op, 0, context), None, "{op:?}");
    }
    let queried = bed.query(a);
    assert_eq!(queried.state(), QpState::Rts);
    assert_eq!(
        (queried.remote_qpn(), queried.mtu(), queried.next_rcv_psn(), queried.next_send_psn()),
        (b.qpn, 3, 200, 100)
    );
    assert_eq!((queried.retry_count(), queried.rnr_retry(), queried.min_rnr_nak()), (7, 7, 12));
    assert_eq!((queried.log_sra_max(), queried.log_rra_max()), (4, 2));
    assert_eq!((queried.rre(), queried.rwe(), queried.rae()), (true, true, true));
    let state = bed.state(1);
    assert_eq!((queried.pd(), queried.cqn_snd(), queried.uar_page()), (state.pd, a.send_cq.cqn, state.uar));
    assert_eq!(queried.primary_address_path().ack_timeout(), 14);
    assert_eq!(queried.primary_address_path().rgid_rip()[12..], [127, 0, 0, 3]);
    assert!(queried.primary_address_path().udp_sport() >= 0xc000);
    // RTS to RTS: changes one access right only.
    assert_eq!(modify(&mut bed, a, Opcode::Rts2rtsQp, opt::RWE, QpContext::zeroed()), None);
    let queried = bed.query(a);
    assert_eq!((queried.state(), queried.rwe(), queried.rre()), (QpState::Rts, false, true));
}

#[test]
fn row_49_an_illegal_transition_or_mask_is_refused_and_changes_nothing() {
    let mut bed = Bed::cx5();
    let (a, b) = (bed.qp(1), bed.qp(2));
    let all = [
        Opcode::Rst2initQp,
        Opcode::Init2initQp,
        Opcode::Init2rtrQp,
        Opcode::Rtr2rtsQp,
        Opcode::Rts2rtsQp,
        Opcode::Sqerr2rtsQp,
        Opcode::SqdRtsQp,
    ];
    let fill = bed.context(a, &bed.path_to(b, Path::default()));
    let steps: [(QpState, &[Opcode], Opcode); 3] = [
        (QpState::Reset, &[Opcode::Rst2initQp], Opcode::Rst2initQp),
        (QpState::Init, &[Opcode::Init2initQp, Opcode::Init2rtrQp], Opcode::Init2rtrQp),
        (QpState::Rtr, &[Opcode::Rtr2rtsQp], Opcode::Rtr2rtsQp),
    ];
    for (state, legal, next) in steps {
        let before = bed.query(a);
        assert_eq!(before.state(), state);
        for op in all.into_iter().filter(|op| !legal.contains(op)) {
            let found = modify(&mut bed, a, op, 0, fill);
            assert_eq!(found, Some(Syndrome::QpState), "{state:?} {op:?}");
        }
        // An alternate path, a DC key: never accepted.
        for mask in [1 << 0, 1 << 21, 1 << 31] {
            let found = modify(&mut bed, a, next, mask, fill);
            assert_eq!(found, Some(Syndrome::OptParam), "{state:?} {mask:#x}");
        }
        assert_eq!(bed.query(a), before, "unchanged");
        assert_eq!(modify(&mut bed, a, next, 0, fill), None);
    }
    assert_eq!(Syndrome::QpState.status(), Status::BadQpState);
}

#[test]
fn attributes_out_of_range_are_refused_and_change_nothing() {
    const SGID_INDEX: u8 = 5;
    let mut bed = Bed::cx5();
    let (a, b) = (bed.qp(1), bed.qp(2));
    let (index, port) = (AddressPath::with(|s| s.pkey_index(1)), AddressPath::with(|s| s.vhca_port_num(2)));
    let rows: Refusals<'_, QpContext> = &[
        (&|c| c.primary_address_path(index), Some(Syndrome::PkeyIndex)),
        (&|c| c.primary_address_path(port), Some(Syndrome::Port)),
        (&|c| c, None),
    ];
    for &(change, by) in rows {
        let context = QpContext::with(change);
        assert_eq!(modify(&mut bed, a, Opcode::Rst2initQp, 0, context), by, "{context:?}");
    }
    let before = bed.query(a);
    let rtr = |bed: &mut Bed, change: Change<'_, QpContext>| {
        let path = Path { sgid_index: SGID_INDEX, ..Path::default() };
        let mut context = bed.context(a, &bed.path_to(b, path));
        change(&mut context.set());
        modify(bed, a, Opcode::Init2rtrQp, 0, context)
    };
    assert_eq!(rtr(&mut bed, &|c| c), Some(Syndrome::SourceAddress), "no RoCE address yet");
    let rows: Refusals<'_, QpContext> = &[
        (&|c| c.mtu(0), Some(Syndrome::PathMtu)),
        (&|c| c.mtu(6), Some(Syndrome::PathMtu)),
        (&|c| c.log_msg_max(31), Some(Syndrome::MessageSize)),
    ];
    for &(change, by) in rows {
        assert_eq!(rtr(&mut bed, change), by, "{:?}", QpContext::with(change));
    }
    bed.set_gid(1, SGID_INDEX, identity::link_local_gid(0, 1)).unwrap();
    assert_eq!(rtr(&mut bed, &|c| c.log_rra_max(5)), Some(Syndrome::ReadDepth));
    assert_eq!(bed.query(a), before);
}

#[test]
fn error_and_reset_are_reached_from_everywhere() {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(Path::default());
    assert_eq!(bed.name(1, Opcode::Qp2Err, 0, a.qpn).status(), Status::Ok);
    assert_eq!(bed.qp_state(a), QpState::Err);
    assert_eq!(bed.name(1, Opcode::Qp2Err, 0, a.qpn).status(), Status::Ok);
    assert_eq!(bed.name(1, Opcode::Qp2Rst, 0, a.qpn).status(), Status::Ok);
    let queried = bed.query(a);
    assert_eq!(
        (queried.state(), queried.remote_qpn(), queried.cqn_snd()),
        (QpState::Reset, 0, a.send_cq.cqn)
    );
    assert_eq!(bed.name(1, Opcode::Qp2Rst, 0, a.qpn).status(), Status::Ok);
    assert_eq!(bed.name(2, Opcode::Qp2Err, 0, a.qpn).status(), Status::BadResource, "another's QP");
    bed.ready(a, &bed.path_to(b, Path::default()));
}

#[test]
fn what_a_queue_pair_refers_to_stays_until_it_is_destroyed() {
    let mut bed = with_vfs();
    let base = bed.base(1);
    let cqn = bed.cq_by(1, 0, &base);
    let at = bed.memory.alloc(1, 2 * PAGE);
    let srq = SrqContext::with(|s| s.log_srq_size(6).log_rq_stride(2).pd(base.pd).dbr_addr(at + 4096));
    let input = CreateSrqIn::with(|s| s.srq_context_entry(srq));
    let reply = bed.reply_to(1, Opcode::CreateSrq, 0, &with_list(&input, &[at]), 16);
    let srqn = CreateSrqOut::read(&reply.output).srqn();
    let qpn = bed.qp_reply(1, 0, &base, cqn, &|c| c.rq_type(1).srqn_rmpn_xrqn(srqn)).made();
    let queried = bed.object::<QueryQpOut>(1, Opcode::QueryQp, qpn).qpc();
    assert_eq!((queried.rq_type(), queried.srqn_rmpn_xrqn()), (1, srqn));
    let held = [
        (Opcode::DestroyCq, cqn),
        (Opcode::DestroySrq, srqn),
        (Opcode::DeallocPd, base.pd),
        (Opcode::DeallocUar, base.uar),
    ];
    for (op, number) in held {
        assert_eq!(bed.name(1, op, 0, number).syndrome(), Syndrome::InUse.code(), "{op:?}");
    }
    assert_eq!(bed.name(1, Opcode::DestroyQp, 0, qpn).status(), Status::Ok);
    for (op, number) in [held[0], held[1], held[2]] {
        assert_eq!(bed.name(1, op, 0, number).status(), Status::Ok, "{op:?}");
    }
}

#[test]
fn user_contexts_with_the_right_share_queue_pair_1() {
    let mut bed = with_vfs();
    let of = |bed: &mut Bed, cap: u32| {
        let mut input = CreateUctxIn::zeroed();
        input.set().uctx(UserContext::with(|s| s.cap(cap)));
        let uid = CreateUctxOut::read(&bed.ok(1, Opcode::CreateUctx, &input, 16)).uid();
        let base = Base { pd: bed.pd_by(1, uid), ..bed.base(1) };
        (uid, base, bed.cq_by(1, uid, &base))
    };
    let general = |bed: &mut Bed, (uid, base, cqn): (u16, Base, u32), service: ServiceType| {
        let reply = bed.qp_reply(1, uid, &base, cqn, &|c| c.st(service));
        reply.refused().map_or(Ok(CreateQpOut::read(&reply.output).qpn()), Err)
    };
    let may =
        [of(&mut bed, INTERNAL_DEV_RES), of(&mut bed, INTERNAL_DEV_RES), of(&mut bed, INTERNAL_DEV_RES)];
    let may_not = of(&mut bed, 1);
    assert_eq!(general(&mut bed, may_not, ServiceType::Qp1), Err(Syndrome::Privileged));
    assert_eq!(
        general(&mut bed, may[0], ServiceType::Qp0),
        Err(Syndrome::Privileged),
        "that is the driver's alone"
    );
    let qps = may.map(|who| general(&mut bed, who, ServiceType::Qp1).expect("a QP1"));
    assert_eq!(general(&mut bed, may[1], ServiceType::Qp1), Err(Syndrome::InUse), "one for each");
    // From the middle and from the ends of the list.
    for i in [1, 0, 2] {
        assert_eq!(bed.name(1, Opcode::DestroyQp, may[i].0, qps[i]).status(), Status::Ok);
        general(&mut bed, may[i], ServiceType::Qp1).expect("its place is free again");
    }
    for (uid, ..) in may {
        assert_eq!(bed.name(1, Opcode::DestroyUctx, 0, uid.into()).status(), Status::Ok);
    }
    let last = of(&mut bed, INTERNAL_DEV_RES);
    general(&mut bed, last, ServiceType::Qp1).expect("nothing of the others is left");
}
