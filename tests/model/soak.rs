//! Many random operations on a bad network, against a reference model of memory.

use ironverbs_tests::bed::*;
use proptest::prelude::*;

/// Bytes of the regions: sources, write targets, read sources and atomics, at these offsets.
const AREA: usize = 16 << 10;
const SOURCE: usize = 0;
const TARGET: usize = AREA;
const READABLE: usize = 2 * AREA;
const WORDS: usize = 3 * AREA;
/// Offset of the results of READs and atomics: a slot for each operation of a batch.
const RESULTS: usize = 4 * AREA;
const SLOT: usize = 4096;
/// Offset of received messages.
const INBOX: usize = RESULTS + BATCH * SLOT;
/// Operations in one batch.
const BATCH: usize = 12;
const LEN: usize = INBOX + BATCH * SLOT;

/// One side: its QP, its region, and the expected contents of the region.
struct Side {
    qp: Qp,
    mr: Mr,
    model: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    WriteImm,
    Send,
    Read,
    FetchAdd,
    CompareSwap,
}

/// Results to compare at the end of the batch: offset and contents.
type Expected = Vec<(usize, Vec<u8>)>;

fn pick(rng: &mut Chaos, n: usize) -> usize {
    (rng.draw() >> 20) as usize % n
}

/// Posts one random operation from `from` to `to`, and applies it to the reference model.
fn step(
    bed: &mut Bed,
    rng: &mut Chaos,
    from: &mut Side,
    to: &mut Side,
    slot: usize,
    expected: &mut Expected,
) {
    use Kind::*;
    let kind = [Write, Write, WriteImm, Send, Read, FetchAdd, CompareSwap][pick(rng, 7)];
    let len = [1, 7, 64, 255, 256, 257, 1000, SLOT][pick(rng, 8)];
    let source = SOURCE + pick(rng, AREA - len);
    let data = from.model[source..source + len].to_vec();
    let local = from.mr.part(source as u64, len as u32);
    let result = RESULTS + slot * SLOT;
    match kind {
        Write | WriteImm => {
            let at = TARGET + pick(rng, AREA - len);
            let (va, rkey) = (to.mr.va + at as u64, to.mr.key);
            let op = match kind {
                Write => Op::Write { va, rkey },
                _ => {
                    bed.post_recv(to.qp, &[]);
                    Op::WriteImm { va, rkey, imm: slot as u32 }
                }
            };
            // Sometimes two pieces.
            let half = len / 2;
            let sges = [
                from.mr.part(source as u64, half as u32),
                from.mr.part((source + half) as u64, (len - half) as u32),
            ];
            let wr = if half > 0 && slot % 2 == 0 { Wr::new(op, &sges) } else { Wr::new(op, &[local]) };
            bed.queue(from.qp, &wr);
            to.model[at..at + len].copy_from_slice(&data);
        }
        Send => {
            let at = INBOX + slot * SLOT;
            bed.post_recv(to.qp, &[to.mr.part(at as u64, SLOT as u32)]);
            bed.queue(from.qp, &Wr::send(local));
            to.model[at..at + len].copy_from_slice(&data);
        }
        Read => {
            let at = READABLE + pick(rng, AREA - len);
            let op = Op::Read { va: to.mr.va + at as u64, rkey: to.mr.key };
            bed.queue(from.qp, &Wr::new(op, &[from.mr.part(result as u64, len as u32)]));
            expected.push((result, to.model[at..at + len].to_vec()));
        }
        FetchAdd | CompareSwap => {
            let at = WORDS + 8 * pick(rng, 4);
            let old = u64::from_ne_bytes(to.model[at..at + 8].try_into().expect("8 bytes"));
            let (va, rkey) = (to.mr.va + at as u64, to.mr.key);
            let operand = rng.draw();
            let (op, new) = match kind {
                FetchAdd => (Op::FetchAdd { va, rkey, add: operand }, old.wrapping_add(operand)),
                // Half of the comparisons succeed.
                _ if operand % 2 == 0 => (Op::CompareSwap { va, rkey, compare: old, swap: operand }, operand),
                _ => (Op::CompareSwap { va, rkey, compare: !old, swap: operand }, old),
            };
            bed.queue(from.qp, &Wr::new(op, &[from.mr.part(result as u64, 8)]));
            expected.push((result, old.to_ne_bytes().to_vec()));
            to.model[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        }
    }
}

/// Runs `batches` batches in both directions and compares all memory with the reference model after each.
fn soak(seed: u64, chaos: Chaos, mtu: u32, batches: usize) -> Result<(), TestCaseError> {
    let mut bed = Bed::cx5();
    let path =
        Path { mtu, timeout: 8, sq_psn: 0xff_ffc0, rq_psn: 0xff_ff00, min_rnr_nak: 1, ..Path::default() };
    let (a, b) = bed.pair(path);
    let mut rng = Chaos { seed: seed | 1, ..Chaos::default() };
    let mut sides = [a, b].map(|qp| {
        let mr = bed.mr(qp.fid, LEN, Access::ALL);
        let model = bed.pattern(mr, qp.fid);
        Side { qp, mr, model }
    });
    {
        let mut wire = bed.wire();
        wire.chaos = Some(chaos);
        wire.forgetful = true;
    }
    for batch in 0..batches {
        let mut expected = [Expected::new(), Expected::new()];
        let counts = [1 + pick(&mut rng, BATCH), 1 + pick(&mut rng, BATCH)];
        let [x, y] = &mut sides;
        for slot in 0..counts[0] {
            step(&mut bed, &mut rng, x, y, slot, &mut expected[0]);
        }
        for slot in 0..counts[1] {
            step(&mut bed, &mut rng, y, x, slot, &mut expected[1]);
        }
        for qp in [a, b] {
            bed.publish(qp);
            bed.doorbell(qp);
        }
        let mut done = [0, 0];
        let finished = bed.advance_until(100 * S, |bed| {
            for (i, qp) in [a, b].into_iter().enumerate() {
                for wc in bed.completions(qp.send_cq) {
                    assert!(wc.is_ok(), "seed {seed}, batch {batch}: {wc:?}");
                    done[i] += usize::from(wc.is_send());
                }
            }
            done == counts
        });
        prop_assert!(finished, "batch {batch}: {done:?} of {counts:?} completed");
        bed.advance(10 * MS);
        for qp in [a, b] {
            bed.completions(qp.recv_cq);
        }
        for (i, side) in sides.iter_mut().enumerate() {
            for (at, bytes) in &expected[i] {
                side.model[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let memory = bed.bytes(side.mr);
            if let Some(at) = (0..LEN).find(|i| memory[*i] != side.model[*i]) {
                return Err(TestCaseError::fail(format!(
                    "batch {batch}, side {i}, offset {at:#x}: expected {:#x}, found {:#x}",
                    side.model[at], memory[at]
                )));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_right_whatever_the_network_does(
        seed in 1u64..,
        drop in 0u32..800,
        duplicate in 0u32..600,
        reorder in 0u32..600,
        corrupt in 0u32..300,
        delay in 0u32..600,
        mtu in prop::sample::select(vec![256u32, 1024, 4096]),
    ) {
        let chaos = Chaos { seed: seed.rotate_left(17) | 1, drop, duplicate, reorder, corrupt, delay };
        soak(seed, chaos, mtu, 12)?;
    }
}

#[test]
fn memory_is_right_on_a_good_network() {
    soak(1, Chaos { seed: 1, ..Chaos::default() }, 1024, 100).expect("no difference");
}

/// The cost of loss: frames on the wire for the same data, and virtual time, which consists only of timeouts.
#[test]
fn goodput_falls_with_loss_and_data_stay_right() {
    const TOTAL: usize = 1 << 20;
    const PIECE: usize = 64 << 10;
    println!("loss      frames  efficiency  virtual time");
    let mut last = 1.01;
    for loss in [0, 10, 100, 300, 1000] {
        let mut bed = Bed::cx5();
        let (a, _) = bed.pair(Path { mtu: 1024, timeout: 6, ..Path::default() });
        let (from, to) = (bed.mr(1, PIECE, Access::LOCAL), bed.mr(2, PIECE, Access::ALL));
        {
            let mut wire = bed.wire();
            wire.chaos = Some(Chaos { seed: 99, drop: loss, ..Chaos::default() });
            wire.forgetful = true;
        }
        let (start, before) = (bed.now(), bed.wire().frames);
        for i in 0..TOTAL / PIECE {
            let data = bed.pattern(from, i as u8);
            bed.post(a, &Wr::write(from.sge(), to));
            assert!(bed.advance_until(100 * S, |b| b.has_completion(a.send_cq)), "loss {loss}");
            assert!(bed.one(a.send_cq).is_ok());
            assert_eq!(bed.bytes(to), data);
        }
        let frames = bed.wire().frames - before;
        let efficiency = (TOTAL / 1024) as f64 / frames as f64;
        println!(
            "{:5.2} %  {frames:6}  {efficiency:10.3}  {:9.3} ms",
            f64::from(loss) / 100.0,
            (bed.now() - start) as f64 / MS as f64
        );
        assert!(efficiency <= last + 0.05, "more loss does not help");
        last = efficiency;
    }
}
