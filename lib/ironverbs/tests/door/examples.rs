//! Runs each example on an adapter, its sides as processes of their own, and checks what they print.

use super::places::node;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};
use testkit::{Held, Scratch};

/// Cargo builds a package's examples along with its tests, into a directory beside theirs.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("the path of this test");
    let built: PathBuf =
        test.ancestors().nth(2).expect("the directory of the profile").join("examples").join(name);
    assert!(
        built.exists(),
        "{} is missing: cargo build --profile quick -p ironverbs --examples",
        built.display()
    );
    Command::new(built)
}

fn device(scratch: &Scratch, fid: u8) -> String {
    format!("node={} fid={fid}", scratch.0.display())
}

/// The output of an example, which must exit successfully.
fn said(command: &mut Command) -> String {
    let out = command.output().expect("it starts");
    let (said, complaint) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}: {said}{complaint}", out.status);
    said.into_owned()
}

/// A server.
struct Server {
    _process: Held,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { _process: Held(child), output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().into()
    }

    /// The address in `listening at ADDRESS`.
    fn address(&mut self) -> String {
        let line = self.line();
        line.strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}")).into()
    }
}

#[test]
fn echo_answers_what_it_is_asked() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let mut server = Server::start(example("echo").args(["serve", &device(&scratch, 1), "7471"]));
    let address = server.address();
    for text in ["hello", "and again"] {
        let ask = said(example("echo").args(["ask", &device(&scratch, 2), &address, text]));
        assert_eq!(ask, format!("{text}\n"));
    }
}

#[test]
fn kv_keeps_what_it_is_given() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let mut server = Server::start(example("kv").args(["serve", &device(&scratch, 1), "7471"]));
    let address = server.address();
    let client = device(&scratch, 2);
    for (key, value) in [("colour", "green"), ("shape", "round"), ("colour", "blue")] {
        said(example("kv").args(["put", &client, &address, key, value]));
        assert_eq!(said(example("kv").args(["get", &client, &address, key])), format!("{value}\n"));
    }
    let missing = example("kv").args(["get", &client, &address, "size"]).output().expect("it starts");
    assert!(!missing.status.success() && missing.stdout.is_empty());
}

#[test]
fn file_arrives_as_it_was() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let files = Scratch::made();
    let [original, copy] = ["original", "copy"].map(|name| files.0.join(name));
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i ^ i >> 8) as u8).collect();
    fs::write(&original, &bytes).expect("a file");
    let receive = &mut example("file");
    let mut receiver = Server::start(receive.args(["receive", &device(&scratch, 1), "7471"]).arg(&copy));
    let address = receiver.address();
    let send = example("file")
        .args(["send", &device(&scratch, 2), &address])
        .arg(&original)
        .output()
        .expect("it starts");
    let progress = String::from_utf8_lossy(&send.stderr).into_owned();
    assert!(send.status.success() && progress.ends_with("100 % of 3000001 bytes"), "{progress}");
    assert_eq!(receiver.line(), "received 3000001 bytes");
    assert!(fs::read(&copy).expect("the copy") == bytes);
}

#[test]
fn discovery_finds_a_name() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let mut printer = Server::start(example("discovery").args(["answer", &device(&scratch, 1), "printer"]));
    assert_eq!(printer.line(), "answering for printer");
    let found = said(example("discovery").args(["ask", &device(&scratch, 2), "printer"]));
    assert_eq!(found, "printer at 127.0.0.2\n");
}

#[test]
fn all_reduce_adds_up_on_four_ranks() {
    let expected: String = (0..4).map(|rank| format!("rank {rank} of 4: the sums are right\n")).collect();
    assert_eq!(said(&mut example("all_reduce")), expected, "on a simulated machine");
    let scratch = Scratch::new();
    let options = node::NodeOptions { vfs: Some(4), ..node::NodeOptions::default() };
    let _node = node::Node::open_or_create(&scratch.0, &options).expect("a node");
    assert_eq!(
        said(example("all_reduce").args((1..5).map(|fid| device(&scratch, fid)))),
        expected,
        "on an adapter"
    );
}

#[test]
fn latency_compares_two_ways() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let said = said(example("latency").arg(device(&scratch, 1)));
    println!("{said}");
    assert!(said.starts_with("verbs ") && said.contains("\nratio "), "{said}");
}
