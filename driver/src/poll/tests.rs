//! Conversion of CQEs as written by a device.
use super::*;
use crate::{
    dma::{BlockRing, DmaMem},
    transport::{Scope, Transport, fake::Chip},
};
use hwspec::{cqe::CqeSyndrome, handle::Qpn, wqe::WqeOpcode};
use std::sync::Arc;

fn convert(table: &QpTable, cqe: &Cqe64) -> Option<Completion> {
    let transport: Arc<dyn Transport> = Chip::new().opener(1);
    let ring = BlockRing::new(Arc::new(DmaMem::alloc(&transport, 64, Scope::Opener).unwrap()), 0, 1);
    ring.put64(0, cqe.as_bytes());
    let mut wc = Completion::default();
    Entry::take(&ring, 0, |_| true).and_then(|entry| super::convert(table, entry, &mut wc).then_some(wc))
}

fn queues(qpn: u32) -> Arc<QpQueues> {
    Arc::new(QpQueues {
        qpn,
        extended: false,
        raw: false,
        sq: SendTracker::new(8),
        rq: RecvTracker::new(4),
        inbox: None,
        srq: None,
    })
}

fn table_with(qpn: u32) -> (QpTable, Arc<QpQueues>) {
    let (mut table, qp) = (QpTable::default(), queues(qpn));
    table.insert(qp.clone());
    (table, qp)
}

fn cqe(opcode: CqeOpcode, qpn: u32, counter: u16) -> Cqe64 {
    let mut cqe = Cqe64::zeroed();
    cqe.set().opcode(opcode).qpn(Qpn(qpn)).wqe_counter(counter).sop(WqeOpcode::RdmaRead.raw()).byte_cnt(9);
    cqe
}

#[test]
fn completion_finds_its_work_request_and_retires_those_before() {
    let (table, qp) = table_with(0x12345);
    qp.sq.put(0, 100, 0, 2);
    qp.sq.put(2, 101, 1, 3);
    qp.sq.publish(2);
    let wc = convert(&table, &cqe(CqeOpcode::Req, 0x12345, 2)).unwrap();
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode, wc.byte_len),
        (101, WcStatus::Success, WcOpcode::RdmaRead, 9)
    );
    assert_eq!(qp.sq.done(), (2, 3));
}

#[test]
fn unknown_qp_is_skipped() {
    let (table, _) = table_with(7);
    for qpn in [0, 8, 0xff_ffff] {
        assert_eq!(convert(&table, &cqe(CqeOpcode::Req, qpn, 0)), None);
    }
}

#[test]
fn counters_nobody_posted_are_errors_and_move_nothing() {
    let (table, qp) = table_with(7);
    for counter in [0, 1, 7, 0xffff] {
        for opcode in [CqeOpcode::Req, CqeOpcode::RespSend, CqeOpcode::RespErr] {
            let wc = convert(&table, &cqe(opcode, 7, counter)).unwrap();
            assert_eq!(wc.status, WcStatus::GeneralErr);
        }
    }
    assert_eq!((qp.sq.done(), qp.rq.done()), ((0, 0), 0));
}

#[test]
fn a_frame_that_a_hash_spread_finds_its_work_queue_by_user_index() {
    let mut table = QpTable::default();
    let (first, second) = (queues(0xc0_0001), queues(0xc0_0002));
    assert_eq!((table.claim_wq(), table.claim_wq()), (0, 1));
    let mut frame = cqe(CqeOpcode::RespSend, 0, 0);
    frame.set().srqn_uidx(1);
    assert_eq!(convert(&table, &frame), None, "claimed, and not there yet");
    table.insert_wq(0, first);
    table.insert_wq(1, second.clone());
    second.rq.put(0, 77);
    second.rq.publish(1);
    let wc = convert(&table, &frame).unwrap();
    assert_eq!((wc.wr_id, wc.qpn, wc.status, wc.byte_len), (77, 0xc0_0002, WcStatus::Success, 9));
    frame.set().srqn_uidx(2);
    assert_eq!(convert(&table, &frame), None, "nobody's");
    table.remove_wq(0);
    assert!(table.get(0xc0_0001).is_none() && table.get(0xc0_0002).is_some());
    assert_eq!(table.claim_wq(), 0, "given again");
    table.remove_wq(1);
    table.remove_wq(0);
    assert!(table.wqs.is_empty() && table.root.iter().all(Option::is_none));
}

#[test]
fn unknown_opcodes_are_skipped() {
    let (table, _) = table_with(7);
    for raw in [5, 6, 7, 9, 12, 15] {
        assert_eq!(convert(&table, &cqe(CqeOpcode::from_raw(raw), 7, 0)), None);
    }
}

#[test]
fn receive_counters_wrap_at_sixteen_bits() {
    let tracker = RecvTracker::new(4);
    for number in 0..70_000u32 {
        tracker.put(number, number.into());
        tracker.publish(number + 1);
        assert_eq!(tracker.complete(number as u16), Some(number.into()));
    }
    assert_eq!(tracker.complete(70_000u32 as u16), None);
}

#[test]
fn error_cqe_says_why() {
    let (table, qp) = table_with(7);
    qp.sq.put(0, 5, 0, 1);
    qp.sq.publish(1);
    let error = hwspec::cqe::CqeError::with(|s| {
        s.opcode(CqeOpcode::ReqErr).qpn(Qpn(7)).syndrome(CqeSyndrome::RemoteAccessErr).vendor_err_synd(0x88)
    });
    let wc = convert(&table, &Cqe64::from_bytes(*error.as_bytes())).unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (5, WcStatus::RemAccessErr, 0x88));
}

#[test]
fn inline_data_for_a_receive_that_cannot_hold_them_is_an_error() {
    let (table, qp) = table_with(7);
    qp.rq.put(0, 42);
    qp.rq.publish(1);
    let mut short = cqe(CqeOpcode::RespSend, 7, 0);
    short.set().cqe_format(CqeFormat::Inline32);
    let wc = convert(&table, &short).unwrap();
    assert_eq!((wc.wr_id, wc.status), (42, WcStatus::LocProtErr));
    assert_eq!(qp.rq.done(), 1);
}

#[test]
fn table_shrinks_when_qps_go() {
    let mut table = QpTable::default();
    table.insert(queues(3));
    table.insert(queues(0xff_0003));
    assert!(table.get(0xff_0003).is_some());
    table.remove(0xff_0003);
    table.remove(0x9_0000);
    assert_eq!(table.root.iter().flatten().count(), 1);
    assert!(table.get(3).is_some() && table.get(0xff_0003).is_none());
}
