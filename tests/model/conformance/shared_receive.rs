//! Shared receive queues.

use super::common::*;

fn shared(n: usize, log: u8) -> (Bed, Srq, Vec<(Qp, Qp)>) {
    let mut bed = Bed::cx5().with_function(2);
    let srq = bed.srq(2, log);
    let specs = [QpSpec::default(), QpSpec { srq: Some(srq), ..QpSpec::default() }];
    let pairs = (0..n).map(|_| bed.pair_of(specs, Path { min_rnr_nak: 1, ..path() })).collect();
    bed.events(2);
    (bed, srq, pairs)
}

/// Row 50: QPs take receives from the SRQ in the order of the messages; an empty SRQ is "not ready".
#[test]
fn row_50_qps_share_receives_and_an_empty_srq_is_not_ready() {
    let (mut bed, srq, pairs) = shared(2, 4);
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::LOCAL));
    for round in 0..40u8 {
        bed.fill(from, &[round; 64]);
        bed.post_srq(srq, &[to.sge()]);
        let (a, b) = pairs[usize::from(round) % 2];
        bed.post(a, &Wr::send(from.part(0, 8)));
        assert!(bed.one(a.send_cq).is_ok(), "round {round}");
        assert_eq!(bed.one(b.recv_cq).byte_len, 8);
        assert_eq!(bed.bytes(to)[..8], [round; 8]);
    }
    let (a, b) = pairs[0];
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(bed.completions(a.send_cq), []);
    bed.post_srq(srq, &[to.sge()]);
    bed.advance(MS);
    assert!(bed.one(a.send_cq).is_ok());
    assert!(bed.one(b.recv_cq).is_ok());
}

/// Row 50: a cyclic memory pool is used in the order of its ring. Its WQEs have next segments, too, but they mean nothing.
#[test]
fn row_50_a_cyclic_pool_is_used_in_the_order_of_its_ring() {
    let mut bed = Bed::cx5().with_function(2);
    let pool = bed.cyclic_pool(2, 2);
    let (a, b) = bed.pair_of([QpSpec::default(), QpSpec { srq: Some(pool), ..QpSpec::default() }], path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::LOCAL));
    let posted: Vec<u16> = (0..3).map(|i| bed.post_srq(pool, &[to.part(8 * i, 8)])).collect();
    assert_eq!(posted, [0, 1, 2]);
    for round in 0..9u16 {
        bed.fill(from, &[round as u8; 64]);
        bed.post(a, &Wr::send(from.part(0, 8)));
        assert!(bed.one(a.send_cq).is_ok(), "round {round}");
        assert_eq!(bed.poll_raw(b.recv_cq).expect("a completion").wqe_counter() % 4, round % 4);
        let third = 8 * usize::from(round % 3);
        assert_eq!(bed.bytes(to)[third..third + 8], [round as u8; 8]);
        bed.post_srq(pool, &[to.part(third as u64, 8)]);
    }
}

/// Row 50: when a QP on an SRQ fails, an event says that it takes no more receives from it.
#[test]
fn row_50_last_wqe_reached_when_a_qp_fails() {
    let (mut bed, _, pairs) = shared(1, 4);
    let (_, b) = pairs[0];
    bed.to_err(b).expect("2ERR_QP");
    bed.run();
    let events = bed.events(2);
    assert_eq!(Bed::qp_events(&events, b, EventType::SrqLastWqe), 1, "{events:?}");
}

/// Row 50: the limit event is raised once per arming.
#[test]
fn row_50_limit_event_comes_once_per_arming() {
    let (mut bed, srq, pairs) = shared(1, 4);
    let (a, b) = pairs[0];
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::LOCAL));
    let limits = |bed: &mut Bed| {
        let events = bed.events(2);
        events.iter().filter(|e| e.event_type() == EventType::SrqRqLimit).count()
    };
    for arming in 0..2 {
        for _ in 0..6 {
            bed.post_srq(srq, &[to.sge()]);
        }
        bed.arm_srq(srq, 4).expect("ARM_RQ");
        assert_eq!(limits(&mut bed), 0, "arming {arming}");
        for used in 1..=6 {
            bed.post(a, &Wr::send(from.sge()));
            bed.completions(b.recv_cq);
            // Six receives; from the third message on fewer than four are left.
            assert_eq!(limits(&mut bed), usize::from(used == 3), "arming {arming}, {used} used");
        }
    }
}

/// Row 50: a receive taken from the SRQ but not finished is flushed, and its completion comes before the event.
#[test]
fn row_50_a_receive_half_filled_is_flushed_before_the_event() {
    let (mut bed, srq, pairs) = shared(1, 4);
    let (a, b) = pairs[0];
    let (from, to) = (bed.mr(1, 8192, Access::LOCAL), bed.mr(2, 8192, Access::LOCAL));
    bed.post_srq(srq, &[to.sge()]);
    bed.wire().plan(Filter::opcode(BthOpcode::RcSendLast), 0, 9, Fault::Drop);
    bed.post(a, &Wr::send(from.sge()));
    bed.to_err(b).expect("2ERR_QP");
    bed.run();
    let wc = bed.one(b.recv_cq);
    assert_eq!(wc.error, Some(CqeSyndrome::WrFlushErr));
    let events = bed.events(2);
    assert_eq!(Bed::qp_events(&events, b, EventType::SrqLastWqe), 1, "{events:?}");
}
