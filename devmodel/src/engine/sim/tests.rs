use super::{
    super::{
        spans::Part,
        timing::{Card, TimingProfile},
    },
    *,
};
use proptest::{prelude::*, sample::select};
use std::sync::{Arc, Mutex};

fn plan(operation: Operation, measure: Measure) -> Plan {
    Plan::new(operation, measure, TimingProfile::load("direct-x16").unwrap())
}

fn typical(plan: &Plan) -> f64 {
    match run(plan).unwrap().figures {
        Figures::Latency(latency) => latency.typical,
        Figures::Bandwidth(_) => panic!("a latency"),
    }
}

fn gbps(plan: &Plan) -> f64 {
    match run(plan).unwrap().figures {
        Figures::Bandwidth(bandwidth) => bandwidth.gbps(),
        Figures::Latency(_) => panic!("a bandwidth"),
    }
}

const ALL: [Operation; 5] =
    [Operation::Read, Operation::Write, Operation::Send, Operation::FetchAdd, Operation::CompareSwap];

#[test]
fn every_run_with_a_seed_gives_the_same_figures_and_the_same_trace() {
    let traced = |operation, measure, seed| {
        let mut plan = plan(operation, measure);
        (plan.iters, plan.seed) = (300, seed);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut bench = bench::Bench::new(&plan);
        let into = lines.clone();
        bench.trace(Box::new(move |e| into.lock().unwrap().push(format!("{e:?}"))));
        let report = bench.run().unwrap();
        let lines = lines.lock().unwrap().clone();
        assert!(lines.len() > 600);
        (report, lines)
    };
    for operation in ALL {
        for measure in [Measure::Latency, Measure::Bandwidth] {
            assert!(
                traced(operation, measure, 1) == traced(operation, measure, 1),
                "{operation:?} {measure:?}"
            );
        }
        let samples = |seed| traced(operation, Measure::Latency, seed).0.samples;
        assert_ne!(samples(1), samples(2), "{operation:?}: another seed");
    }
}

#[test]
fn each_retry_behind_the_first_takes_two_timeouts_of_at_least_2_to_the_16() {
    let plan = plan(Operation::Write, Measure::Latency);
    let dead = |retries| bench::Bench::with_retries(&plan, retries).until_the_peer_is_dead() as f64 / 1e12;
    let (one, named) = (dead(1), 4.096e-6 * 65536.0);
    for retries in 2..=7 {
        let expected = one + f64::from(retries - 1) * 2.0 * named;
        assert!(
            (dead(retries) - expected).abs() < 0.001,
            "{retries}: {} s, expected {expected}",
            dead(retries)
        );
    }
    assert!(dead(0) < one);
}

#[test]
fn latency_of_a_page_hardly_depends_on_the_mtu() {
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        let latencies = [256, 512, 1024, 2048, 4096].map(|mtu| {
            let mut plan = plan(operation, Measure::Latency);
            (plan.bytes, plan.mtu) = (4096, Some(mtu));
            typical(&plan)
        });
        let least = latencies.into_iter().fold(f64::MAX, f64::min);
        assert!(latencies.iter().all(|latency| latency / least < 1.03), "{operation:?}: {latencies:?}");
    }
}

#[test]
fn functions_of_a_card_share_its_port() {
    let mut plan = plan(Operation::Write, Measure::Bandwidth);
    (plan.functions, plan.iters) = (2, 1000);
    let report = run(&plan).unwrap();
    let Figures::Bandwidth(both) = report.figures else { panic!("a bandwidth") };
    assert!((96.0..98.2).contains(&both.gbps()), "{} Gb/s", both.gbps());
    assert!(report.programs.iter().all(|one| (48.0..50.0).contains(&one.gbps())), "{:?}", report.programs);
}

#[test]
fn queue_pairs_share_it_as_well() {
    for operation in [Operation::Write, Operation::Send, Operation::Read] {
        let mut plan = plan(operation, Measure::Bandwidth);
        (plan.qps, plan.iters) = (16, 100);
        let gbps = gbps(&plan);
        assert!((93.0..98.2).contains(&gbps), "{operation:?}: {gbps} Gb/s");
    }
}

#[test]
fn a_bandwidth_never_falls_while_messages_get_longer() {
    for profile in ["direct-x16", "direct-x8", "pods-switch"] {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            let mut plan = Plan::new(operation, Measure::Bandwidth, TimingProfile::load(profile).unwrap());
            let times: Vec<(f64, f64)> = (1..=20)
                .map(|log| {
                    plan.bytes = 1 << log;
                    plan.iters = if log > 14 { 400 } else { 2000 };
                    let bytes = f64::from(plan.bytes);
                    (bytes, bytes * 8.0 / gbps(&plan))
                })
                .collect();
            for pair in times.windows(2) {
                let [(bytes, ns), (more, longer)] = [pair[0], pair[1]];
                let what = format!("{profile} {operation:?}, {more} B: {ns} ns, then {longer}");
                assert!(longer / ns < 1.03 * more / bytes, "{what}");
                assert!(longer > 0.98 * ns, "{what}");
            }
        }
    }
}

/// The time of a message in nanoseconds, from depth and throughput (Little's law). The number of messages is a multiple of the depth; a
/// last, smaller batch would count as slow.
fn under_way(plan: &Plan, depth: u32) -> f64 {
    let plan = Plan { depth, moderation: 1, iters: 120 * depth, ..plan.clone() };
    f64::from(depth) * f64::from(plan.bytes) * 8.0 / gbps(&plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_message_is_no_faster_while_more_is_under_way(
        operation in select(&[Operation::Send, Operation::Write, Operation::Read][..]),
        profile in select(&["direct-x16", "direct-x8", "pods-switch"][..]),
        mtu in select(&[1024, 4096][..]),
        log in 5..17u32,
        more in 0..32u32,
        depth in 1..12u32,
        deeper in 1..6u32,
    ) {
        let mut plan = Plan::new(operation, Measure::Bandwidth, TimingProfile::load(profile).unwrap());
        (plan.bytes, plan.mtu) = ((1 << log) + (more << log) / 32, Some(mtu));
        let (few, many) = (under_way(&plan, depth), under_way(&plan, depth + deeper));
        prop_assert!(many > 0.995 * few, "{} B: {few} ns, then {many}", plan.bytes);
    }
}

#[test]
fn latency_rises_by_less_and_less_a_byte() {
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        let mut plan = plan(operation, Measure::Latency);
        // Larger sizes than those sent inline.
        let latencies: Vec<(f64, f64)> = (8..=20)
            .map(|log| {
                (plan.bytes, plan.iters) = (1 << log, 100);
                (f64::from(plan.bytes), 1e3 * typical(&plan))
            })
            .collect();
        let slopes: Vec<f64> = latencies.windows(2).map(|w| (w[1].1 - w[0].1) / (w[1].0 - w[0].0)).collect();
        assert!(slopes.windows(2).all(|w| w[1] < 1.05 * w[0]), "{operation:?}: {slopes:?} ns a byte");
        let port = 8.0 / plan.profile.wire.gbps.0;
        assert!(
            (port..1.05 * port).contains(&slopes[slopes.len() - 1]),
            "{operation:?}: {slopes:?} ns a byte"
        );
    }
}

#[test]
fn no_stretch_is_faster_than_the_port() {
    for (qps, functions, bytes) in [(1, 1, 2048), (16, 1, 65536), (16, 2, 65536)] {
        for operation in [Operation::Write, Operation::Send] {
            let mut plan = plan(operation, Measure::Bandwidth);
            (plan.qps, plan.functions, plan.bytes) = (qps, functions, bytes);
            plan.iters = if qps == 1 { 5000 } else { 1500 };
            let Figures::Bandwidth(found) = run(&plan).unwrap().figures else { panic!("a bandwidth") };
            let port = found.average / found.gbps() * plan.profile.wire.gbps.0;
            assert!(
                (found.average..port).contains(&found.peak),
                "{operation:?}, {qps} QPs of {functions}: {found:?}, the port {port}"
            );
        }
    }
}

#[test]
fn the_slow_are_slower_than_the_usual() {
    for name in super::super::timing::BUILT_IN {
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            let mut plan = Plan::new(operation, Measure::Latency, TimingProfile::load(name).unwrap());
            plan.iters = 20_000;
            let Figures::Latency(l) = run(&plan).unwrap().figures else { panic!("a latency") };
            assert!(l.min < l.typical && l.typical < l.p99 && l.p99 < l.p99_9, "{name} {operation:?}: {l:?}");
        }
    }
}

#[test]
fn half_the_lanes_halve_what_they_bound_and_nothing_else() {
    let mut whole = plan(Operation::Write, Measure::Bandwidth);
    (whole.profile.slot.lanes, whole.iters) = (8, 1000);
    let mut half = whole.clone();
    half.profile.slot.lanes = 4;
    let ratio = gbps(&whole) / gbps(&half);
    assert!((1.98..2.02).contains(&ratio), "{ratio}");
    for (operation, bytes) in [(Operation::Send, 2), (Operation::Write, 8), (Operation::Read, 2)] {
        let of = |lanes| {
            let mut plan = plan(operation, Measure::Latency);
            (plan.bytes, plan.profile.slot.lanes) = (bytes, lanes);
            typical(&plan)
        };
        assert!(of(4) / of(8) < 1.025, "{operation:?}: {} {}", of(4), of(8));
    }
}

#[test]
fn frames_have_the_sizes_that_are_seen_on_wires() {
    let mut plan = plan(Operation::Write, Measure::Bandwidth);
    (plan.bytes, plan.iters) = (3 * 4096, 10);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let mut bench = bench::Bench::new(&plan);
    let into = sizes.clone();
    bench.trace(Box::new(move |event| {
        if let super::super::runner::Traced::Frame(headers, data) = event.what {
            into.lock().unwrap().push(headers.len() + data + hwspec::wire::ICRC_SIZE);
        }
    }));
    bench.run().unwrap();
    let sizes = sizes.lock().unwrap();
    // Row 19 of docs/time.md: a WRITE's headers, a packet of 4 KiB, an acknowledgement.
    for size in [74 + 4096, 4154, 62] {
        assert!(sizes.contains(&size), "{size}: {sizes:?}");
    }
}

#[test]
fn numbers_out_of_their_range_are_refused() {
    let refused = |change: fn(&mut Plan)| {
        let mut plan = plan(Operation::Write, Measure::Bandwidth);
        change(&mut plan);
        run(&plan).unwrap_err().to_string()
    };
    assert_eq!(refused(|plan| plan.bytes = 0), "message size: expected 1 to 8388608, found 0");
    assert_eq!(refused(|plan| plan.iters = 1), "iterations: expected 2 to 10000000, found 1");
    assert_eq!(refused(|plan| plan.depth = 1000), "depth: expected 1 to 256, found 1000");
    // Requests of 14 blocks.
    assert_eq!(refused(|plan| (plan.bytes, plan.inline) = (800, 828)), "depth: expected 1 to 73, found 128");
    assert_eq!(
        refused(|plan| plan.mtu = Some(1500)),
        "MTU: expected 256, 512, 1024, 2048 or 4096, found 1500"
    );
    assert_eq!(
        refused(|plan| (plan.measure, plan.qps) = (Measure::Latency, 2)),
        "latency is measured of one queue pair of one function"
    );
    let mut plan = plan(Operation::FetchAdd, Measure::Latency);
    plan.bytes = 16;
    assert_eq!(run(&plan).unwrap_err().to_string(), "message size: expected 8 to 8, found 16");
}

#[test]
fn what_a_latency_is_made_of_adds_up_to_it() {
    for operation in ALL {
        for (bytes, mtu) in [(8, None), (4096, Some(1024)), (1 << 20, None)] {
            let mut plan = plan(operation, Measure::Latency);
            (plan.iters, plan.mtu) = (20, mtu);
            plan.bytes = if operation.is_atomic() { 8 } else { bytes };
            let report = watch(&plan, Watch { timeline: true, ..Watch::default() }).unwrap();
            assert_eq!(
                report,
                Report { timeline: report.timeline.clone(), ..run(&plan).unwrap() },
                "looking changes nothing"
            );
            for (message, latency) in report.samples.iter().enumerate() {
                let spans = report.timeline.of(message);
                assert!(spans.windows(2).all(|two| two[0].until == two[1].from), "{spans:?}");
                let whole: Ps = spans.iter().map(|span| span.until - span.from).sum();
                let both = matches!(operation, Operation::Send | Operation::Write);
                assert_eq!(
                    if both { whole / 2 } else { whole },
                    *latency,
                    "{operation:?} {bytes} B: {spans:?}"
                );
                // It begins with a post, and ends when the program notices it.
                assert_eq!(spans.first().map(|span| span.part), Some(Part::Post));
                assert!(spans.last().is_some_and(|span| matches!(span.part, Part::Notice | Part::Spread)));
            }
        }
    }
}

#[test]
fn a_unit_is_busy_for_no_longer_than_the_run_and_one_that_bounds_it_nearly_as_long() {
    let busy = |operation, bytes, station: Station, end: usize| {
        let mut plan = plan(operation, Measure::Bandwidth);
        plan.bytes = bytes;
        let report = run(&plan).unwrap();
        for load in report.loads.iter().flatten() {
            assert!(load.busy <= report.duration, "{load:?} of {}", report.duration);
        }
        report.loads[end][station as usize].busy as f64 / report.duration as f64
    };
    assert!(busy(Operation::Write, 65536, Station::Port, 0) > 0.98);
    assert!(busy(Operation::Read, 65536, Station::Port, 1) > 0.9);
    assert!(busy(Operation::FetchAdd, 8, Station::Atomics, 1) > 0.9);
    assert!(busy(Operation::Write, 65536, Station::Port, 1) < 0.05);
}

#[test]
fn copies_of_frames_are_whole_and_in_the_order_in_which_they_left() {
    let mut plan = plan(Operation::Write, Measure::Bandwidth);
    (plan.bytes, plan.iters, plan.inline) = (10_000, 40, 0);
    let mut frames: Vec<(Ps, usize)> = Vec::new();
    let mut take = |at: Ps, whole: &[u8]| {
        let headers = hwspec::wire::Headers::parse(whole).expect("a frame that can be read");
        assert!(headers.icrc_ok());
        frames.push((at, whole.len()));
    };
    let report =
        watch(&plan, Watch { timeline: false, frames: Some(&mut take), ..Watch::default() }).unwrap();
    assert_eq!(frames.len() as u64, report.frames[0]);
    assert!(frames.windows(2).all(|two| two[0].0 <= two[1].0));
    assert!(frames.iter().filter(|(_, len)| *len == 4154).count() >= 40);
}

#[test]
fn what_is_not_at_hand_costs_a_read_of_host_memory() {
    let all = |_: &mut Card| {};
    type Of = (Part, Station, fn(&mut Card));
    let kinds: [Of; 3] = [
        (Part::Context, Station::Contexts, |card| card.contexts = 4),
        (Part::Key, Station::Keys, |card| card.keys = 1),
        (Part::Translation, Station::Translations, |card| card.translations = 4),
    ];
    for (part, station, few) in kinds {
        let run = |change: fn(&mut Card)| {
            let mut plan = plan(Operation::Write, Measure::Bandwidth);
            (plan.bytes, plan.qps, plan.iters, plan.depth, plan.moderation) = (8, 32, 50, 1, 1);
            plan.functions = 2;
            change(&mut plan.profile.card);
            let trip = plan.profile.read_trip();
            let report = watch(&plan, Watch { timeline: true, ..Watch::default() }).unwrap();
            let reads = report.timeline.spans().iter().filter(|span| span.part == part);
            let whole = reads.filter(|span| span.until - span.from == trip).count() as u64;
            let misses = report.loads.iter().map(|loads| loads[station as usize].count).sum::<u64>();
            assert!(misses == 0 || whole > 0, "{part}: {whole} reads, {misses} misses");
            (report.duration, misses)
        };
        let ((fast, none), (slow, many)) = (run(all), run(few));
        assert!(none == 0 && many > 1000, "{part}: {none} {many}");
        assert!(slow > fast, "{part}: {slow} ps, {fast} with all cached");
    }
}
