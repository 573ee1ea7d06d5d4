//! Queue pair states: every attribute in every transition, draining, and errors that stop only the send queue.

use super::*;
use driver::{AddressHandle, Ah, QpAttr, QpAttrMask as M, QpEvent, QpState, Target, WcStatus};
use ironverbs_tests::end::way;
use node::Node;

/// Attributes for every transition; the QP is connected to itself.
fn attr(side: &End, to: QpState) -> QpAttr {
    QpAttr {
        qp_state: to,
        cur_qp_state: side.qp.state(),
        path_mtu: 1024,
        dest_qp_num: side.qp.qpn(),
        ah: AddressHandle { hop_limit: 9, ..way(&side.device, side.card().gid) },
        port_num: 1,
        qkey: 0x1234,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 5,
        timeout: 14,
        retry_cnt: 3,
        rnr_retry: 6,
        rq_psn: 100,
        sq_psn: 200,
        ..QpAttr::default()
    }
}

const RC: [(QpState, M); 3] = [
    (QpState::Init, M::PKEY_INDEX.union(M::PORT).union(M::ACCESS_FLAGS)),
    (
        QpState::Rtr,
        M::AV
            .union(M::PATH_MTU)
            .union(M::DEST_QPN)
            .union(M::RQ_PSN)
            .union(M::MAX_DEST_RD_ATOMIC)
            .union(M::MIN_RNR_TIMER),
    ),
    (
        QpState::Rts,
        M::TIMEOUT.union(M::RETRY_CNT).union(M::RNR_RETRY).union(M::SQ_PSN).union(M::MAX_QP_RD_ATOMIC),
    ),
];
const UC: [(QpState, M); 3] = [
    (QpState::Init, M::PKEY_INDEX.union(M::PORT).union(M::ACCESS_FLAGS)),
    (QpState::Rtr, M::AV.union(M::PATH_MTU).union(M::DEST_QPN).union(M::RQ_PSN)),
    (QpState::Rts, M::SQ_PSN),
];
const UD: [(QpState, M); 3] = [
    (QpState::Init, M::PKEY_INDEX.union(M::PORT).union(M::QKEY)),
    (QpState::Rtr, M::empty()),
    (QpState::Rts, M::SQ_PSN),
];

fn end(node: &Arc<Node>, fid: u8, service: Service) -> End {
    End::on(&open_device_of(node, fid).expect("a device"), &make(service, entries(16)))
}

fn to_rts(side: &End, moves: &[(QpState, M)]) {
    for (to, mask) in moves {
        side.qp.modify(&attr(side, *to), M::STATE | *mask).expect("a legal move");
    }
}

#[track_caller]
fn refused(side: &End, to: QpState, mask: M) {
    let before = (side.qp.state(), side.qp.query().expect("QUERY_QP"));
    let error = side.qp.modify(&attr(side, to), mask).expect_err("refused");
    assert_eq!(error.errno(), libc::EINVAL, "{to:?} {mask:?}: {error}");
    assert_eq!((side.qp.state(), side.qp.query().expect("QUERY_QP")), before, "{to:?} {mask:?}");
}

#[test]
fn every_move_needs_all_it_must_have_and_takes_nothing_else() {
    for (service, moves) in [(Service::Rc, RC), (Service::Uc, UC), (Service::Ud, UD)] {
        let (_scratch, node) = Scratch::with_node(1);
        let side = end(&node, 1, service);
        for (to, mask) in moves {
            for bit in mask.iter() {
                refused(&side, to, (mask | M::STATE) - bit);
            }
            for bit in [M::CAP, M::RATE_LIMIT, M::EN_SQD_ASYNC_NOTIFY] {
                refused(&side, to, mask | M::STATE | bit);
            }
            for wrong in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe] {
                let stays = wrong == side.qp.state() && wrong != QpState::Rtr;
                if wrong != to && !stays {
                    refused(&side, wrong, M::STATE);
                }
            }
            side.qp.modify(&attr(&side, to), M::STATE | mask).expect("a legal move");
            assert_eq!(side.qp.query().expect("QUERY_QP").qp_state, to);
        }
        let found = side.qp.query().expect("QUERY_QP");
        assert_eq!((found.sq_psn, found.port_num), (200, 1), "{service:?}");
        match service {
            Service::Ud => assert_eq!(found.qkey, 0x1234),
            _ => assert_eq!((found.rq_psn, found.path_mtu, found.ah.hop_limit), (100, 1024, 9)),
        }
        if service == Service::Rc {
            assert_eq!((found.timeout, found.retry_cnt, found.rnr_retry), (14, 3, 6));
            assert_eq!((found.max_rd_atomic, found.max_dest_rd_atomic, found.min_rnr_timer), (2, 2, 5));
        }
        side.qp.modify(&attr(&side, QpState::Err), M::STATE).expect("to ERR");
        refused(&side, QpState::Rts, M::STATE);
        side.qp.modify(&attr(&side, QpState::Reset), M::STATE).expect("to RESET");
        to_rts(&side, &moves);
    }
}

#[test]
fn draining_is_reported_to_its_requester_and_posts_wait() {
    let (_scratch, node) = Scratch::with_node(1);
    let side = end(&node, 1, Service::Rc);
    to_rts(&side, &RC);
    let mut psn = attr(&side, QpState::Rts);
    psn.qp_state = QpState::Sqd;
    side.drain();
    side.qp.modify(&psn, M::STATE).expect("to SQD");
    assert_eq!(side.event(Duration::from_millis(100)), None, "nobody asked");
    side.qp.modify(&attr(&side, QpState::Rts), M::STATE).expect("to RTS");
    psn.en_sqd_async_notify = true;
    side.qp.modify(&psn, M::STATE | M::EN_SQD_ASYNC_NOTIFY).expect("to SQD");
    let drained = Event::Qp { qpn: side.qp.qpn(), cookie: COOKIE, kind: QpEvent::SqDrained };
    assert_eq!(side.event(SOON), Some(drained));
    let found = side.qp.query().expect("QUERY_QP");
    assert_eq!((found.qp_state, found.sq_draining), (QpState::Sqd, false));
    let changed = QpAttr { timeout: 10, retry_cnt: 5, rnr_retry: 2, ..attr(&side, QpState::Sqd) };
    side.qp.modify(&changed, M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::AV).expect("in SQD");
    let found = side.qp.query().expect("QUERY_QP");
    assert_eq!((found.timeout, found.retry_cnt, found.rnr_retry), (10, 5, 2));
    refused(&side, QpState::Sqd, M::STATE | M::SQ_PSN);
    write(&side, 3, &side);
    side.nothing();
    side.qp.modify(&attr(&side, QpState::Rts), M::STATE).expect("to RTS");
    // It is connected to itself but expects other PSNs; the test only needs the request to be sent.
    assert_eq!(wait(&side.cq).wr_id, 3);
}

#[test]
fn a_datagram_that_cannot_be_sent_stops_sending_only() {
    const QKEY: u32 = 0x1234;
    let (_scratch, node) = Scratch::with_node(2);
    let (a, b) = (end(&node, 1, Service::Ud), end(&node, 2, Service::Ud));
    to_rts(&a, &UD);
    to_rts(&b, &UD);
    let (to_b, to_a) = (a.ah(b.card().gid), b.ah(a.card().gid));
    let send = |from: &End, ah: &Arc<Ah>, qpn, wr_id, lkey| {
        let sge = [driver::Sge { lkey, ..from.sge(0, 8) }];
        let wr = SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
        from.qp.post_send_to([(wr, Target::Datagram { ah, qpn, qkey: QKEY })])
    };
    let next = |cq: &Cq| {
        let wc = wait(cq);
        (wc.wr_id, wc.status)
    };
    send(&a, &to_b, b.qp.qpn(), 1, 0xbad).expect("post");
    send(&a, &to_b, b.qp.qpn(), 2, a.mr.lkey()).expect("post");
    assert_eq!(next(&a.cq), (1, WcStatus::LocProtErr));
    assert_eq!(next(&a.cq), (2, WcStatus::WrFlushErr));
    a.receive(9, 0, 100);
    send(&b, &to_a, a.qp.qpn(), 3, b.mr.lkey()).expect("post");
    assert_eq!(next(&a.receives), (9, WcStatus::Success), "it goes on receiving");
    assert_eq!(a.qp.query().expect("QUERY_QP").qp_state, QpState::Sqe);
    a.qp.modify(&attr(&a, QpState::Rts), M::STATE).expect("SQE to RTS");
    b.receive(8, 0, 100);
    send(&a, &to_b, b.qp.qpn(), 4, a.mr.lkey()).expect("post");
    assert_eq!(next(&a.cq), (4, WcStatus::Success));
    assert_eq!(next(&b.receives), (8, WcStatus::Success));
}
