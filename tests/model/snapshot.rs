//! A copy of the region, with the memory around it, the wire and the clock, captures the complete adapter.

use ironverbs_tests::bed::*;

/// Returns two pairs in the middle of traffic on a bad network.
fn in_full_flow(seed: u64) -> (Bed, Vec<Qp>, Vec<Mr>) {
    let mut bed = Bed::cx5();
    let path = Path { mtu: 256, timeout: 8, ..Path::default() };
    let (a, b) = bed.pair(path);
    let (c, d) = (bed.qp(3), bed.qp(1));
    bed.connect(c, d, path);
    let mrs: Vec<Mr> = [1, 2, 3].map(|fid| bed.mr(fid, 16384, Access::ALL)).to_vec();
    for (i, mr) in mrs.iter().enumerate() {
        bed.pattern(*mr, i as u8);
    }
    bed.wire().chaos =
        Some(Chaos { seed, drop: 400, duplicate: 300, reorder: 300, corrupt: 100, delay: 300 });
    work(&mut bed, &[a, b, c, d], &mrs, 1);
    bed.advance(3 * MS);
    (bed, vec![a, b, c, d], mrs)
}

fn work(bed: &mut Bed, qps: &[Qp], mrs: &[Mr], round: u64) {
    for (i, qp) in qps.iter().enumerate() {
        let remote = [mrs[1], mrs[0], mrs[0], mrs[2]][i];
        let local = [mrs[0], mrs[1], mrs[2], mrs[0]][i];
        for _ in 0..4 {
            bed.post_recv(*qp, &[local.part(12_000, 1000)]);
        }
        bed.queue(*qp, &Wr::write(local.part(0, 3000), remote));
        bed.queue(*qp, &Wr::read(local.part(4096, 2000), remote));
        bed.queue(*qp, &Wr::fetch_add(local.part(8192, 8), remote, round));
        bed.queue(*qp, &Wr::send(local.part(0, 900)));
        bed.publish(*qp);
        bed.doorbell(*qp);
    }
}

/// The observable trace of a bed that continues to run: frames, completions, memory, and the final state.
type Trace = (Vec<Captured>, Vec<Vec<Wc>>, Vec<Vec<u8>>, Saved);

fn run_on(mut bed: Bed, qps: &[Qp], mrs: &[Mr]) -> Trace {
    bed.advance(5 * MS);
    work(&mut bed, qps, mrs, 2);
    bed.advance(2 * S);
    let completions = qps.iter().map(|qp| bed.completions(qp.send_cq)).collect();
    let memory = mrs.iter().map(|mr| bed.bytes(*mr)).collect();
    (bed.take_frames(), completions, memory, bed.save())
}

#[test]
fn snapshot_restore_and_run_on_gives_the_same_trace() {
    for seed in 1..6 {
        let (mut bed, qps, mrs) = in_full_flow(seed);
        bed.take_frames();
        let saved = bed.save();
        let first = run_on(bed, &qps, &mrs);
        assert!(first.0.len() > 50, "{} frames after the snapshot", first.0.len());
        assert!(first.1.iter().all(|c| !c.is_empty()), "every QP has completions");
        for _ in 0..2 {
            let again = run_on(Bed::restore(&saved), &qps, &mrs);
            assert!(first.0 == again.0, "frames, seed {seed}");
            assert_eq!(first.1, again.1, "completions, seed {seed}");
            assert!(first.2 == again.2, "memory, seed {seed}");
            assert!(first.3.region() == again.3.region(), "state of the chip, seed {seed}");
        }
    }
}

#[test]
fn another_seed_gives_another_trace() {
    let trace = |seed| {
        let (bed, qps, mrs) = in_full_flow(seed);
        run_on(bed, &qps, &mrs).0
    };
    assert!(trace(1) == trace(1));
    assert!(trace(1) != trace(2));
}

#[test]
fn snapshot_holds_no_more_than_what_was_touched() {
    let (bed, ..) = in_full_flow(7);
    let bytes = bed.save().region().bytes();
    assert!(bytes < 8 << 20, "{bytes} bytes");
}
