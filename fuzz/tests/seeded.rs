//! Runs the fuzz targets on the inputs kept in `fuzz/corpus` and on seeded random ones, under `cargo test` and without libFuzzer.

use std::{
    fs, panic,
    path::Path,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tests::bed::Chaos;

/// Random inputs per target.
const INPUTS: u64 = 400;

/// Panics in any thread. Some are caught before they get here, and are findings all the same.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn try_one(target: fn(&[u8]), input: &[u8], name: &str) {
    static COUNT: Once = Once::new();
    COUNT.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Relaxed);
            tell(info);
        }));
    });
    let before = PANICS.load(Relaxed);
    let result = panic::catch_unwind(|| target(input));
    assert!(result.is_ok() && PANICS.load(Relaxed) == before, "input {name}");
}

/// Runs `target` on its corpus, kept under `name`, and on random inputs.
fn run(name: &str, target: fn(&[u8]), inputs: u64) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&kept)
        .expect("inputs that were kept")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no inputs in {}", kept.display());
    for file in files {
        try_one(target, &fs::read(&file).expect("an input"), &file.display().to_string());
    }
    for seed in 1..=inputs {
        let mut random = Chaos { seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..Chaos::default() };
        let len = random.draw() as usize % 800;
        let input: Vec<u8> = (0..len).map(|_| (random.draw() >> 32) as u8).collect();
        try_one(target, &input, &format!("of seed {seed}"));
    }
}

tests::each! {
    commands_of_any_bytes_leave_others_alone: run("command_mailbox", ironverbs_fuzz::command_mailbox, INPUTS);
    work_requests_of_any_bytes_leave_others_alone: run("wqe", ironverbs_fuzz::wqe, INPUTS);
    net_devices_of_any_bytes_leave_others_alone: run("ethernet", ironverbs_fuzz::ethernet, INPUTS);
    packets_of_any_bytes_leave_others_alone: run("packet", ironverbs_fuzz::packet, INPUTS);
    routed_packets_of_any_bytes_leave_others_alone: run("routed", ironverbs_fuzz::routed, INPUTS);
    messages_of_any_bytes_leave_others_alone: run("vfio_user", ironverbs_fuzz::vfio_user, INPUTS);
    node_files_of_any_bytes_are_refused_or_work: run("node_file", ironverbs_fuzz::node_file, INPUTS);
    launched_programs_of_any_calls_are_answered_and_gone:
        run("launched", ironverbs_fuzz::launched, INPUTS / 4);
    a_device_that_lies_gets_errors_and_nothing_else: run("lies", ironverbs_fuzz::lies, INPUTS);
}
