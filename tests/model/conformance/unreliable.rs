//! Unreliable connection.

use super::common::*;
use devmodel::state::Counters;
use hwspec::context::ServiceType;

/// Returns a connected pair on functions 1 and 2, with memory of these lengths.
fn ends(from: usize, to: usize) -> (Bed, [Qp; 2], [Mr; 2]) {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair_of([QpSpec { service: ServiceType::Uc, ..QpSpec::default() }; 2], path());
    let mrs = [bed.mr(1, from, Access::LOCAL), bed.mr(2, to, Access::ALL)];
    (bed, [a, b], mrs)
}

/// Row 53: multi-packet SENDs and WRITEs arrive complete and in order; there are no responses, and no packet requests one.
#[test]
fn row_53_messages_arrive_without_answers() {
    let (mut bed, [a, b], [from, to]) = ends(20_000, 20_000);
    let data = bed.pattern(from, 3);
    for (len, inline) in [(0u32, false), (1, true), (300, false), (20_000, false)] {
        bed.fill(to, &[0; 20_000]);
        bed.post_recv(b, &[to.sge()]);
        let mut wr = Wr::send(from.part(0, len));
        if len == 0 {
            wr.sges.clear();
        }
        if inline {
            wr = Wr::new(Op::Send, &[]).inline(&data[..len as usize]);
        }
        bed.post(a, &wr);
        assert!(bed.one(a.send_cq).is_ok(), "{len}");
        assert_eq!(bed.one(b.recv_cq).byte_len, len);
        assert_eq!(bed.bytes(to)[..len as usize], data[..len as usize]);
    }
    bed.fill(to, &[0; 20_000]);
    bed.post_recv(b, &[]);
    let wrs = [
        Wr::write(from.part(0, 5000), to),
        Wr::new(Op::WriteImm { va: to.va + 5000, rkey: to.key, imm: 9 }, &[from.part(5000, 700)]),
    ];
    bed.post_all(a, &wrs);
    assert_eq!(bed.completions(a.send_cq).iter().filter(|wc| wc.is_ok()).count(), 2);
    let wc = bed.one(b.recv_cq);
    assert_eq!((wc.opcode, wc.imm, wc.byte_len), (CqeOpcode::RespWrImm, 9, 700));
    assert_eq!(bed.bytes(to)[..5700], data[..5700]);
    let frames = bed.take_frames();
    assert!(frames.iter().all(|f| f.from == 1 && f.opcode().raw() >> 5 == 1 && !f.headers().bth().ack_req()));
    assert_eq!(bed.next_timer(), None, "nothing is waited for");
}

/// Row 53: a lost packet costs only its message; the receive serves the next one.
#[test]
fn row_53_a_lost_packet_costs_its_message() {
    for lost in 0..3 {
        let (mut bed, [a, b], [from, to]) = ends(700, 4096);
        let data = bed.pattern(from, 9);
        bed.post_recv(b, &[to.part(0, 1024)]);
        bed.post_recv(b, &[to.part(1024, 1024)]);
        bed.wire().plan(Filter::from(1), lost, 1, Fault::Drop);
        bed.post_all(a, &[Wr::send(from.sge()), Wr::send(from.part(0, 10)), Wr::send(from.sge())]);
        assert_eq!(bed.completions(a.send_cq).iter().filter(|wc| wc.is_ok()).count(), 3);
        let lens: Vec<u32> = bed.completions(b.recv_cq).iter().map(|wc| wc.byte_len).collect();
        assert_eq!(lens, [10, 700], "packet {lost} lost");
        assert_eq!(bed.bytes(to)[1024..1724], data);
        assert!(bed.counter(2, Counters::OutOfSequence) > 0);
        assert_eq!(bed.qp_state(b), QpState::Rts);
    }
}

/// Row 53: a responder silently drops invalid messages: without a receive, with a bad key, out of bounds.
#[test]
fn row_53_what_is_wrong_is_dropped() {
    let (mut bed, [a, b], [from, to]) = ends(700, 1024);
    let read_only = bed.mr(2, 1024, Access { remote_write: false, ..Access::ALL });
    let bad = [
        Wr::send(from.sge()),
        Wr::write(from.sge(), read_only),
        Wr::new(Op::Write { va: to.va + 500, rkey: to.key }, &[from.sge()]),
        Wr::new(Op::Write { va: to.va, rkey: to.key ^ 1 }, &[from.sge()]),
    ];
    bed.post_all(a, &bad);
    assert_eq!(bed.completions(a.send_cq).iter().filter(|wc| wc.is_ok()).count(), 4);
    assert_eq!((bed.qp_state(a), bed.qp_state(b)), (QpState::Rts, QpState::Rts));
    assert_eq!(bed.completions(b.recv_cq), []);
    assert_eq!(bed.bytes(read_only), [0; 1024]);
    assert_eq!(bed.bytes(to)[..500], [0; 500]);
    bed.post_recv(b, &[to.sge()]);
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(bed.one(b.recv_cq).byte_len, 700);
}

/// Row 48: a request that UC does not support, or one with a bad key, stops only the send queue.
#[test]
fn row_48_a_refused_request_stops_sending_only() {
    let (mut bed, [a, b], [from, to]) = ends(700, 1024);
    bed.post_all(a, &[Wr::read(from.sge(), to), Wr::send(from.sge())]);
    let errors: Vec<_> = bed.completions(a.send_cq).iter().map(|wc| wc.error).collect();
    assert_eq!(errors, [Some(CqeSyndrome::LocalQpOpErr), Some(CqeSyndrome::WrFlushErr)]);
    assert_eq!(bed.qp_state(a), QpState::SqErr);
    bed.post_recv(a, &[from.sge()]);
    bed.post(b, &Wr::send(to.part(0, 8)));
    assert!(bed.one(a.recv_cq).is_ok());
    bed.sqerr_to_rts(a).expect("SQERR2RTS_QP");
    assert_eq!(
        bed.execute(a, &Wr::new(Op::Send, &[Sge { lkey: from.key ^ 1, ..from.sge() }])).error,
        Some(CqeSyndrome::LocalProtErr)
    );
    assert_eq!(bed.qp_state(a), QpState::SqErr);
    bed.sqerr_to_rts(a).expect("SQERR2RTS_QP");
    bed.completions(b.send_cq);
    bed.post_recv(b, &[to.sge()]);
    bed.post(a, &Wr::send(from.part(0, 9)));
    assert_eq!(bed.one(b.recv_cq).byte_len, 9);
}
