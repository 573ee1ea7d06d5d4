//! Counter sets: which events they count.

use super::common::*;
use devmodel::state::Counters;
use hwspec::{cmd::resource::QueryQCounterOut, context::ServiceType};

const QKEY: u32 = 0x1111_2222;

/// Row 60: a counter set counts only for QPs that refer to it.
#[test]
fn row_60_counter_sets_count_their_qps_only() {
    let mut bed = Bed::cx5().with_function(2);
    let set = bed.counter_set(2);
    let path = Path { qkey: QKEY, mtu: 4096, ..Path::default() };
    let spec = QpSpec { service: ServiceType::Ud, ..QpSpec::default() };
    let a = bed.datagram(1, ServiceType::Ud, QKEY);
    let (counted, other) = (bed.qp_with(2, spec).expect("CREATE_QP"), bed.datagram(2, ServiceType::Ud, QKEY));
    bed.ready(counted, &Path { counter_set: set, ..path });
    let from = bed.mr(1, 64, Access::LOCAL);
    for (to, times) in [(counted, 2), (other, 3)] {
        for _ in 0..times {
            bed.post(a, &Wr::new(Op::Send, &[from.sge()]).to(bed.av(to, QKEY)));
        }
    }
    assert_eq!(bed.counter(2, Counters::OutOfBuffer), 5);
    assert_eq!(bed.query_counters(2, set, false).out_of_buffer(), 2);
    assert_eq!(bed.query_counters(2, set, true).out_of_buffer(), 2);
    assert_eq!(bed.query_counters(2, set, false).out_of_buffer(), 0);
}

/// Returns a pair with QPs that each refer to a counter set of their function.
fn counted(bed: &mut Bed, path: Path) -> ((Qp, u8), (Qp, u8)) {
    let (a, b) = (bed.qp(1), bed.qp(2));
    let sets = [bed.counter_set(1), bed.counter_set(2)];
    let [from_a, from_b] = sets.map(|counter_set| Path { counter_set, ..path });
    bed.connect_each([a, b], [from_a, from_b.back()]);
    ((a, sets[0]), (b, sets[1]))
}

/// Row 60: a NAK is counted once at the requester, by its kind; the responder's error counters stay 0.
#[test]
fn row_60_a_nak_counts_at_the_requester() {
    type Count = fn(&QueryQCounterOut) -> u32;
    let cases: [(Access, bool, Count); 2] = [
        (Access::LOCAL, true, |c| c.req_remote_access_errors()),
        (Access::ALL, false, |c| c.req_remote_invalid_request()),
    ];
    for (access, remote_write, count) in cases {
        let mut bed = Bed::cx5();
        let ((a, ours), (_, theirs)) = counted(&mut bed, Path { remote_write, ..path() });
        let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, access));
        assert!(!bed.execute(a, &Wr::write(from.sge(), to)).is_ok());
        let requester = bed.query_counters(1, ours, false);
        assert_eq!((count(&requester), requester.req_cqe_error()), (1, 1));
        let responder = bed.query_counters(2, theirs, false);
        assert_eq!((responder.resp_remote_access_errors(), responder.resp_local_length_error()), (0, 0));
    }
}

/// Row 60: retries within the limit, and beyond it.
#[test]
fn row_60_retries_and_their_limits() {
    let mut bed = Bed::cx5();
    let limits = Path { min_rnr_nak: 1, rnr_retry: 2, retry_count: 1, timeout: 8, ..path() };
    let ((a, ours), (b, theirs)) = counted(&mut bed, limits);
    let (from, to) = (bed.mr(1, 1024, Access::LOCAL), bed.mr(2, 1024, Access::ALL));
    bed.post_recv(b, &[to.sge()]);
    bed.wire().plan(Filter::from(1), 1, 1, Fault::Drop);
    bed.post(a, &Wr::send(from.sge()));
    bed.advance(S);
    assert!(bed.one(a.send_cq).is_ok());
    let seen = bed.query_counters(1, ours, true);
    assert_eq!((seen.packet_seq_err(), seen.local_ack_timeout_err(), seen.rnr_nak_retry_err()), (1, 0, 0));
    assert!(bed.query_counters(2, theirs, true).out_of_sequence() > 0);
    bed.post(a, &Wr::send(from.part(0, 8)));
    bed.advance(S);
    assert_eq!(bed.one(a.send_cq).error, Some(CqeSyndrome::RnrRetryExcErr));
    let seen = bed.query_counters(1, ours, true);
    assert_eq!((seen.rnr_nak_retry_err(), seen.req_rnr_retries_exceeded()), (2, 1));
    assert_eq!(bed.query_counters(2, theirs, true).out_of_buffer(), 3);

    let mut bed = Bed::cx5();
    let ((a, ours), _) = counted(&mut bed, limits);
    let (from, to) = (bed.mr(1, 8, Access::LOCAL), bed.mr(2, 8, Access::ALL));
    bed.wire().plan(Filter::from(1), 0, u32::MAX, Fault::Drop);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.advance(10 * S);
    assert_eq!(bed.one(a.send_cq).error, Some(CqeSyndrome::TransportRetryExcErr));
    let seen = bed.query_counters(1, ours, false);
    assert_eq!((seen.local_ack_timeout_err(), seen.req_transport_retries_exceeded()), (2, 1));
}
