//! The fuzz targets with seeded random input: what `cargo test` can run without libFuzzer.

use tests::bed::Chaos;

/// Inputs per target.
const INPUTS: u64 = 400;

fn run(target: fn(&[u8])) {
    for seed in 1..=INPUTS {
        let mut random = Chaos { seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..Chaos::default() };
        let len = random.draw() as usize % 800;
        let input: Vec<u8> = (0..len).map(|_| (random.draw() >> 32) as u8).collect();
        let result = std::panic::catch_unwind(|| target(&input));
        assert!(result.is_ok(), "input of seed {seed}");
    }
}

#[test]
fn commands_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::command_mailbox);
}

#[test]
fn work_requests_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::wqe);
}

#[test]
fn net_devices_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::ethernet);
}

#[test]
fn packets_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::packet);
}

#[test]
fn routed_packets_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::routed);
}

#[test]
fn messages_of_any_bytes_leave_others_alone() {
    run(ironverbs_fuzz::vfio_user);
}
