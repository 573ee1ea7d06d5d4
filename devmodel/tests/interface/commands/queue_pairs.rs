//! Queue pairs: creation, state transitions and their parameters (IBTA 10.3.1; conformance row 49),
//! destruction.

use super::{
    bed::{Bed, Change, Refusals, Reply, with_list},
    objects::{Base, name},
};
use devmodel::cmd::Syndrome;
use hwspec::{
    cmd::{Opcode, Status, mkey::CreateMkeyOut, qp::*, srq::*, uctx::*, vport::*},
    context::{
        QpState, ServiceType,
        qp::{AddressPath, QpContext},
        srq::SrqContext,
        vport::RoceAddr,
    },
    layout::{Layout, Set, prefix},
};

/// A queue pair, its rings and a key to all of them.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    pub fid: u8,
    pub qpn: u32,
    pub cqn: u32,
    pub base: Base,
    pub sq: u64,
    pub dbr: u64,
    pub cq: u64,
    /// A page of data, and its key; virtual addresses are bus addresses.
    pub data: u64,
    pub key: u32,
}

/// Offsets in the pages of a test QP: an RQ of 4 KiB, followed by an SQ of 16 blocks and the doorbell
/// records.
const RQ: u64 = 4096;

impl Bed {
    pub fn qp_reply(
        &mut self,
        fid: u8,
        uid: u16,
        base: &Base,
        cqn: u32,
        change: Change<'_, QpContext>,
    ) -> (Reply, u64) {
        let at = self.pages(fid, 3);
        let context = QpContext::with(|c| {
            c.pd(base.pd).uar_page(base.uar).cqn_snd(cqn).cqn_rcv(cqn).dbr_addr(at + 0x2000);
            change(c.log_rq_size(6).log_rq_stride(2).log_sq_size(4))
        });
        let input = CreateQpIn::with(|s| s.qpc(context));
        (self.run(fid, Opcode::CreateQp, uid, &with_list(&input, &[at, at + 4096]), 16), at)
    }

    /// Creates a QP in RESET, with its own CQ and key.
    pub fn qp(&mut self, fid: u8) -> Qp {
        let base = self.base(fid);
        let cq = self.next.get(&fid).copied().unwrap_or(super::bed::QUEUES);
        let cqn = self.cq(fid, 0, &base);
        // Software initially gives all entries to the device: an odd owner bit and no opcode.
        self.memory(fid, cq, 4096).chunks_mut(64).for_each(|cqe| cqe[63] = 0xf1);
        let (reply, at) = self.qp_reply(fid, 0, &base, cqn, &|c| c);
        let qpn = reply.made();
        let data = self.pages(fid, 1);
        let reply =
            self.mkey_reply(fid, 0, &[data], &|c| c.pd(base.pd).start_addr(data).rr(true).rw(true).a(true));
        let key = CreateMkeyOut::read(&reply.output).mkey_index() << 8 | 0x5a;
        Qp { fid, qpn, cqn, base, sq: at + RQ, dbr: at + 0x2000, cq, data, key }
    }

    /// Sets a RoCE v2 address at index 0.
    pub fn address(&mut self, fid: u8) {
        let mut address = RoceAddr::zeroed();
        let mac = devmodel::identity::mac(0, fid);
        address
            .set()
            .source_l3_address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, fid + 1])
            .roce_version(2)
            .source_mac_47_32(u16::from_be_bytes(prefix(&mac)))
            .source_mac_31_0(u32::from_be_bytes(prefix(&mac[2..])));
        self.ok(fid, Opcode::SetRoceAddress, &SetRoceAddressIn::with(|s| s.roce_address(address)), 16);
    }

    pub fn modify(
        &mut self,
        fid: u8,
        op: Opcode,
        qpn: u32,
        mask: u32,
        change: Change<'_, QpContext>,
    ) -> Option<Syndrome> {
        let context = QpContext::with(change);
        let input = ModifyQpIn::with(|s| s.qpn(qpn).opt_param_mask(mask).qpc(context));
        let reply = self.run(fid, op, 0, input.as_bytes(), 16);
        assert_eq!(reply.status() == Status::Ok, reply.syndrome() == 0);
        reply.refused()
    }

    pub fn show(&mut self, fid: u8, qpn: u32) -> QpContext {
        self.query::<QueryQpOut>(fid, Opcode::QueryQp, qpn).qpc()
    }

    /// Moves `qp` from RESET to RTS, connected to `peer`.
    pub fn connect(&mut self, qp: &Qp, peer: &Qp) {
        self.address(qp.fid);
        let (fid, qpn) = (qp.fid, qp.qpn);
        let steps: [(Opcode, Change<'_, QpContext>); 3] = [
            (Opcode::Rst2initQp, &|c| c.rre(true).rwe(true).rae(true)),
            (Opcode::Init2rtrQp, &|c| to_rtr(c, peer.fid, peer.qpn)),
            (Opcode::Rtr2rtsQp, &|c| to_rts(c)),
        ];
        for (op, change) in steps {
            assert_eq!(self.modify(fid, op, qpn, 0, change), None, "{op:?}");
        }
    }
}

pub fn to_rtr<'s, 'x>(c: &'s mut Set<'x, QpContext>, peer: u8, qpn: u32) -> &'s mut Set<'x, QpContext> {
    let mac = devmodel::identity::mac(0, peer);
    let mut path = AddressPath::zeroed();
    path.set()
        .rgid_rip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, peer + 1])
        .hop_limit(64)
        .rmac_47_32(u16::from_be_bytes(prefix(&mac)))
        .rmac_31_0(u32::from_be_bytes(prefix(&mac[2..])));
    c.mtu(3).log_msg_max(30).remote_qpn(qpn).next_rcv_psn(100).log_rra_max(4).min_rnr_nak(12);
    c.primary_address_path(path)
}

pub fn to_rts<'s, 'x>(c: &'s mut Set<'x, QpContext>) -> &'s mut Set<'x, QpContext> {
    let path = AddressPath::with(|s| s.ack_timeout(14));
    c.next_send_psn(100).log_sra_max(4).retry_count(7).rnr_retry(7).primary_address_path(path)
}

#[test]
fn a_queue_pair_is_checked_at_creation() {
    let mut bed = Bed::ready();
    let base = bed.base(0);
    let other = bed.base(1);
    let cqn = bed.cq(0, 0, &base);
    let other_cqn = bed.cq(1, 0, &other);
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
        let (reply, _) = bed.qp_reply(0, 0, &base, cqn, change);
        assert_eq!(reply.refused(), by, "{:?}", QpContext::with(change));
    }
}

#[test]
fn the_way_to_rts_keeps_what_each_step_takes() {
    let mut bed = Bed::ready();
    let (a, b) = (bed.qp(1), bed.qp(2));
    assert_eq!(bed.show(1, a.qpn).state(), QpState::Reset);
    bed.connect(&a, &b);
    let queried = bed.show(1, a.qpn);
    assert_eq!(queried.state(), QpState::Rts);
    assert_eq!(
        (queried.remote_qpn(), queried.mtu(), queried.next_rcv_psn(), queried.next_send_psn()),
        (b.qpn, 3, 100, 100)
    );
    assert_eq!((queried.retry_count(), queried.rnr_retry(), queried.min_rnr_nak()), (7, 7, 12));
    assert_eq!((queried.log_sra_max(), queried.log_rra_max()), (4, 4));
    assert_eq!((queried.rre(), queried.rwe(), queried.rae()), (true, true, true));
    assert_eq!((queried.pd(), queried.cqn_snd(), queried.uar_page()), (a.base.pd, a.cqn, a.base.uar));
    assert_eq!(queried.primary_address_path().ack_timeout(), 14);
    assert_eq!(queried.primary_address_path().rgid_rip()[12..], [127, 0, 0, 3]);
    assert!(queried.primary_address_path().udp_sport() >= 0xc000);
    // RTS to RTS: changes one access right only.
    assert_eq!(bed.modify(1, Opcode::Rts2rtsQp, a.qpn, 1 << 3, &|c| c), None);
    let queried = bed.show(1, a.qpn);
    assert_eq!((queried.state(), queried.rwe(), queried.rre()), (QpState::Rts, false, true));
}

#[test]
fn row_49_an_illegal_transition_or_mask_is_refused_and_changes_nothing() {
    let mut bed = Bed::ready();
    let (a, b) = (bed.qp(1), bed.qp(2));
    bed.address(1);
    let all = [
        Opcode::Rst2initQp,
        Opcode::Init2initQp,
        Opcode::Init2rtrQp,
        Opcode::Rtr2rtsQp,
        Opcode::Rts2rtsQp,
        Opcode::Sqerr2rtsQp,
        Opcode::SqdRtsQp,
    ];
    let fill: Change<'_, QpContext> = &|c| to_rtr(c, 2, b.qpn).next_send_psn(100).retry_count(7).rnr_retry(7);
    let steps: [(QpState, &[Opcode], Opcode); 3] = [
        (QpState::Reset, &[Opcode::Rst2initQp], Opcode::Rst2initQp),
        (QpState::Init, &[Opcode::Init2initQp, Opcode::Init2rtrQp], Opcode::Init2rtrQp),
        (QpState::Rtr, &[Opcode::Rtr2rtsQp], Opcode::Rtr2rtsQp),
    ];
    for (state, legal, next) in steps {
        let before = bed.show(1, a.qpn);
        assert_eq!(before.state(), state);
        for op in all.into_iter().filter(|op| !legal.contains(op)) {
            assert_eq!(bed.modify(1, op, a.qpn, 0, fill), Some(Syndrome::QpState), "{state:?} {op:?}");
        }
        // An alternate path, a DC key: never accepted.
        for mask in [1 << 0, 1 << 21, 1 << 31] {
            assert_eq!(
                bed.modify(1, next, a.qpn, mask, fill),
                Some(Syndrome::OptParam),
                "{state:?} {mask:#x}"
            );
        }
        assert_eq!(bed.show(1, a.qpn), before, "unchanged");
        assert_eq!(bed.modify(1, next, a.qpn, 0, fill), None);
    }
    assert_eq!(Syndrome::QpState.status(), Status::BadQpState);
}

#[test]
fn attributes_out_of_range_are_refused_and_change_nothing() {
    let mut bed = Bed::ready();
    let (a, b) = (bed.qp(1), bed.qp(2));
    let (index, port) = (AddressPath::with(|s| s.pkey_index(1)), AddressPath::with(|s| s.vhca_port_num(2)));
    let rows: Refusals<'_, QpContext> = &[
        (&|c| c.primary_address_path(index), Some(Syndrome::PkeyIndex)),
        (&|c| c.primary_address_path(port), Some(Syndrome::Port)),
        (&|c| c, None),
    ];
    for &(change, by) in rows {
        let found = bed.modify(1, Opcode::Rst2initQp, a.qpn, 0, change);
        assert_eq!(found, by, "{:?}", QpContext::with(change));
    }
    let before = bed.show(1, a.qpn);
    let rtr = |bed: &mut Bed, change: Change<'_, QpContext>| {
        bed.modify(1, Opcode::Init2rtrQp, a.qpn, 0, &|c| change(to_rtr(c, 2, b.qpn)))
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
    bed.address(1);
    assert_eq!(rtr(&mut bed, &|c| c.log_rra_max(5)), Some(Syndrome::ReadDepth));
    assert_eq!(bed.show(1, a.qpn), before);
}

#[test]
fn error_and_reset_are_reached_from_everywhere() {
    let mut bed = Bed::ready();
    let (a, b) = (bed.qp(1), bed.qp(2));
    bed.connect(&a, &b);
    assert_eq!(name(&mut bed, 1, Opcode::Qp2Err, 0, a.qpn).status(), Status::Ok);
    assert_eq!(bed.show(1, a.qpn).state(), QpState::Err);
    assert_eq!(name(&mut bed, 1, Opcode::Qp2Err, 0, a.qpn).status(), Status::Ok);
    assert_eq!(name(&mut bed, 1, Opcode::Qp2Rst, 0, a.qpn).status(), Status::Ok);
    let queried = bed.show(1, a.qpn);
    assert_eq!((queried.state(), queried.remote_qpn(), queried.cqn_snd()), (QpState::Reset, 0, a.cqn));
    assert_eq!(name(&mut bed, 1, Opcode::Qp2Rst, 0, a.qpn).status(), Status::Ok);
    assert_eq!(name(&mut bed, 2, Opcode::Qp2Err, 0, a.qpn).status(), Status::BadResource, "another's QP");
    bed.connect(&a, &b);
}

#[test]
fn what_a_queue_pair_refers_to_stays_until_it_is_destroyed() {
    let mut bed = Bed::ready();
    let base = bed.base(1);
    let cqn = bed.cq(1, 0, &base);
    let at = bed.pages(1, 2);
    let srq = SrqContext::with(|s| s.log_srq_size(6).log_rq_stride(2).pd(base.pd).dbr_addr(at + 4096));
    let input = CreateSrqIn::with(|s| s.srq_context_entry(srq));
    let reply = bed.run(1, Opcode::CreateSrq, 0, &with_list(&input, &[at]), 16);
    let srqn = CreateSrqOut::read(&reply.output).srqn();
    let (reply, _) = bed.qp_reply(1, 0, &base, cqn, &|c| c.rq_type(1).srqn_rmpn_xrqn(srqn));
    let qpn = reply.made();
    assert_eq!((bed.show(1, qpn).rq_type(), bed.show(1, qpn).srqn_rmpn_xrqn()), (1, srqn));
    let held = [
        (Opcode::DestroyCq, cqn),
        (Opcode::DestroySrq, srqn),
        (Opcode::DeallocPd, base.pd),
        (Opcode::DeallocUar, base.uar),
    ];
    for (op, number) in held {
        assert_eq!(name(&mut bed, 1, op, 0, number).syndrome(), Syndrome::InUse.code(), "{op:?}");
    }
    assert_eq!(name(&mut bed, 1, Opcode::DestroyQp, 0, qpn).status(), Status::Ok);
    for (op, number) in [held[0], held[1], held[2]] {
        assert_eq!(name(&mut bed, 1, op, 0, number).status(), Status::Ok, "{op:?}");
    }
}

#[test]
fn user_contexts_with_the_right_share_queue_pair_1() {
    let mut bed = Bed::ready();
    let of = |bed: &mut Bed, cap: u32| {
        let mut input = CreateUctxIn::zeroed();
        input.set().uctx(UserContext::with(|s| s.cap(cap)));
        let uid = CreateUctxOut::read(&bed.ok(1, Opcode::CreateUctx, &input, 16)).uid();
        let base = Base { pd: bed.pd(1, uid), ..bed.base(1) };
        (uid, base, bed.cq(1, uid, &base))
    };
    let general = |bed: &mut Bed, (uid, base, cqn): (u16, Base, u32), service: ServiceType| {
        let (reply, _) = bed.qp_reply(1, uid, &base, cqn, &|c| c.st(service));
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
        assert_eq!(name(&mut bed, 1, Opcode::DestroyQp, may[i].0, qps[i]).status(), Status::Ok);
        general(&mut bed, may[i], ServiceType::Qp1).expect("its place is free again");
    }
    for (uid, ..) in may {
        assert_eq!(name(&mut bed, 1, Opcode::DestroyUctx, 0, uid.into()).status(), Status::Ok);
    }
    let last = of(&mut bed, INTERNAL_DEV_RES);
    general(&mut bed, last, ServiceType::Qp1).expect("nothing of the others is left");
}
