//! Many connections at once on a bad network, with few receives.

use super::common::*;
use devmodel::state::Counters;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    /// Number of posted receives, for all connections together.
    receives: usize,
    /// The receives are in a shared queue.
    shared: bool,
    /// RNR timer code.
    min_rnr_nak: u8,
}

const PAIRS: usize = 37;
/// Requests of each connection, and the number outstanding at a time.
const REQUESTS: usize = 60;
const AT_ONCE: usize = 4;
const LARGEST: usize = 40_000;

/// Runs all requests of all connections. Returns the number of RNR NAKs and timeouts.
#[track_caller]
fn survives(run: Run) -> (u64, u64) {
    let mut bed = Bed::cx5().with_function(2);
    let path =
        Path { timeout: 10, retry_count: 7, rnr_retry: 7, min_rnr_nak: run.min_rnr_nak, ..Path::default() };
    let srq = run.shared.then(|| bed.srq(2, 7));
    let specs = [QpSpec::default(), QpSpec { srq, log_rq: 7, ..QpSpec::default() }];
    let pairs: Vec<(Qp, Qp)> = (0..PAIRS).map(|_| bed.pair_of(specs, path)).collect();
    let (from, to) = (bed.mr(1, LARGEST, Access::ALL), bed.mr(2, LARGEST, Access::ALL));
    let receive = |bed: &mut Bed, qp| match srq {
        Some(srq) => drop(bed.post_srq(srq, &[to.sge()])),
        None => drop(bed.post_recv(qp, &[to.sge()])),
    };
    for i in 0..run.receives {
        receive(&mut bed, pairs[i % PAIRS].1);
    }
    {
        let mut wire = bed.wire();
        let chance = 100;
        wire.chaos = Some(Chaos {
            seed: run.seed,
            drop: chance,
            duplicate: chance,
            reorder: chance,
            corrupt: chance,
            delay: chance,
        });
        wire.forgetful = true;
    }
    let mut random = Chaos { seed: run.seed, ..Chaos::default() };
    let (mut left, mut under_way) = ([REQUESTS; PAIRS], [0; PAIRS]);
    let end = bed.now() + 600 * S;
    while left != [0; PAIRS] {
        assert!(bed.now() < end, "{run:?}: {left:?} requests left");
        for (i, (a, b)) in pairs.iter().enumerate() {
            for wc in bed.completions(a.send_cq) {
                assert!(wc.is_ok(), "{run:?}: connection {i}, {} requests left: {wc:?}", left[i]);
                (left[i], under_way[i]) = (left[i] - 1, under_way[i] - 1);
            }
            for wc in bed.completions(b.recv_cq) {
                assert!(wc.is_ok(), "{run:?}: connection {i}: {wc:?}");
                receive(&mut bed, *b);
            }
            let before = under_way[i];
            while under_way[i] < left[i].min(AT_ONCE) {
                let mut pick = |n: usize| (random.draw() >> 20) as usize % n;
                let sge = from.part(0, [1, 500, 5000, LARGEST as u32][pick(4)]);
                let wr = match pick(6) {
                    0 => Wr::write(sge, to),
                    1 => Wr::read(sge, to),
                    _ => Wr::send(sge),
                };
                bed.queue(*a, &wr);
                under_way[i] += 1;
            }
            if under_way[i] != before {
                bed.publish(*a);
                bed.ring(*a);
            }
        }
        bed.advance_to_timer();
    }
    (bed.counter(1, Counters::RnrNakRetryErr), bed.counter(1, Counters::LocalAckTimeoutErr))
}

/// Row 18: as long as there is progress no connection runs out of retries, although 1 % each of packets and acknowledgements are lost,
/// duplicated, reordered, delayed and corrupted.
#[test]
fn row_18_a_bad_network_ends_no_connection() {
    for seed in 1..4 {
        let (_, timeouts) = survives(Run { seed, receives: 64 * PAIRS, shared: false, min_rnr_nak: 12 });
        assert!(timeouts > 0);
    }
}

/// Row 65: the same with RNR NAKs because of few receives, with RNR waits shorter and longer than the acknowledgement timeout.
#[test]
fn row_65_few_receives_on_a_bad_network_end_no_connection() {
    for (receives, shared, min_rnr_nak) in [
        (64, true, 1),
        (64, true, 12),
        (64, true, 25),
        (8, true, 12),
        (8, true, 25),
        (PAIRS, false, 20),
        (PAIRS, false, 25),
    ] {
        for seed in 1..4 {
            let (naks, _) = survives(Run { seed, receives, shared, min_rnr_nak });
            assert!(naks > 0);
        }
    }
}
