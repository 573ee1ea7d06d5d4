//! `ironverbs bringup` on functions that `ironverbs serve` makes misbehave: it ends in time, and names the fault.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use testkit::Held;
use tests::program::Scratch;

/// Time limit of a bring-up with a timeout of one second: it waits for a few things one after the other.
const LIMIT: Duration = Duration::from_secs(30);
/// Concurrent bring-ups.
const AT_ONCE: usize = 3;

/// A function that misbehaves, behind a socket.
struct Served {
    _process: Held,
    socket: PathBuf,
    scratch: Scratch,
}

impl Served {
    fn new(how: &str) -> Self {
        let scratch = Scratch::made();
        let socket = scratch.dir().join("f1");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironverbs"));
        command.arg("serve").arg("--adapter").arg(scratch.dir().join("node"));
        command.arg("--plug").arg(format!("1={}", socket.display())).arg("--misbehave").arg(how);
        let mut process = Held(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("iron1 at "), "{line}");
        Self { _process: process, socket, scratch }
    }

    /// Brings the function up. Returns the line that names the failure; empty if there is none.
    fn bringup(&self, how: &str) -> String {
        let file = self.scratch.dir().join("stderr");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironverbs"));
        command.args(["bringup", "--write", "--timeout", "1", "--vfio-user"]).arg(&self.socket);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&file).unwrap());
        let mut running = command.spawn().unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = running.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > LIMIT {
                running.kill().unwrap();
                running.wait().unwrap();
                panic!("{how}: it hangs");
            }
            sleep(Duration::from_millis(5));
        };
        let said = fs::read_to_string(file).unwrap();
        let lines: Vec<_> = said.lines().filter(|line| line.contains("failed at")).collect();
        let expected = if lines.is_empty() { (Some(0), 0) } else { (Some(1), 1) };
        assert_eq!((status.code(), lines.len()), expected, "{how}: {said}");
        lines.first().map(ToString::to_string).unwrap_or_default()
    }
}

/// The verdict of `ironverbs bringup` on each, in the same order.
fn verdicts(all: &[String]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, String)> = scope(|threads| {
        let work = || {
            let mut mine = Vec::new();
            while let Some((at, how)) =
                Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, all.get(at)?)))
            {
                mine.push((at, Served::new(how).bringup(how)));
            }
            mine
        };
        let running: Vec<_> = (0..AT_ONCE).map(|_| threads.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    found.sort();
    found.into_iter().map(|(_, verdict)| verdict).collect()
}

/// Single misbehaviours, and words that the verdict must contain; none for a function that works nevertheless.
const ALONE: [(&str, &[&str]); 13] = [
    ("wrong-health", &["\"health\""]),
    ("wrong-health=fatal", &["\"health\""]),
    ("stuck-command", &["EnableHca did not finish"]),
    ("stuck-command=0x108", &["ManagePages did not finish"]),
    ("stuck-command=0x400", &["CreateCq did not finish"]),
    ("stuck-command=0x103", &["TeardownHca did not finish"]),
    ("lost-interrupt", &["\"interrupt\"", "the interrupt itself was lost"]),
    ("power-loss=9", &["the function is gone"]),
    ("power-loss=150", &["the function is gone"]),
    ("ask-pages=10000@20", &[]),
    ("ask-pages=-10000@20", &[]),
    ("ask-pages=100@teardown", &[]),
    ("ask-pages=-100@teardown", &[]),
];

#[test]
fn two_misbehaviours_at_once_end_in_time_and_one_of_them_is_named() {
    let mut pairs = Vec::new();
    for (at, a) in ALONE.iter().enumerate() {
        pairs.push((a.0.to_string(), vec![a.1]));
        pairs.extend(ALONE[at + 1..].iter().map(|b| (format!("{},{}", a.0, b.0), vec![a.1, b.1])));
    }
    let all: Vec<String> = pairs.iter().map(|(how, _)| how.clone()).collect();
    for ((how, words), verdict) in pairs.iter().zip(verdicts(&all)) {
        let works = words.iter().all(|words| words.is_empty());
        let named = words.iter().any(|all| !all.is_empty() && all.iter().all(|word| verdict.contains(word)));
        assert!(if works { verdict.is_empty() } else { named }, "{how}: {verdict:?}");
    }
}

#[test]
fn power_that_goes_at_any_command_is_named_at_the_step_it_went_in() {
    // Densely where the steps are short, and covering all of them.
    let after: Vec<u32> = (0..40).chain((40..400).step_by(3)).collect();
    let all: Vec<String> = after.iter().map(|commands| format!("power-loss={commands}")).collect();
    let mut steps = BTreeSet::new();
    for (how, verdict) in all.iter().zip(verdicts(&all)) {
        if !verdict.is_empty() {
            assert!(verdict.contains("the function is gone"), "{how}: {verdict}");
            steps.extend(verdict.split('"').nth(1).map(String::from));
        }
    }
    for step in
        ["command queue", "boot pages", "capabilities", "event queue", "commands", "objects", "teardown"]
    {
        assert!(steps.contains(step), "{step:?} is not among {steps:?}");
    }
}
