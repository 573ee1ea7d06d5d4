//! Commands that only show something: help, version, `doctor` and `adapter status`, as text and as JSON.

use nix::unistd::{Whence, lseek};
use serde_json::Value;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    process::{Command, Output},
};

fn ironverbs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ironverbs")).args(args).env_remove("IRONVERBS_NODE").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_bare_command_prints_help() {
    for (args, word) in [(&[][..], "doctor"), (&["adapter"], "delete"), (&["vf"], "unbind")] {
        let out = ironverbs(args);
        assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", text(&out.stderr));
        let help = text(&out.stdout);
        assert!(help.contains("Usage:") && help.contains(word), "{args:?}: {help}");
    }
    let wrong = ironverbs(&["adaptr"]);
    assert_eq!((wrong.status.code(), text(&wrong.stderr).lines().count()), (Some(2), 1));
}

#[test]
fn the_version_names_the_commit_of_a_checkout() {
    let said = text(&ironverbs(&["--version"]).stdout);
    let version = said.trim().strip_prefix("ironverbs ").expect(&said);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let git = Command::new("git").args(["-C", root, "rev-parse", "--short=12", "HEAD"]).output();
    match git.ok().filter(|out| out.status.success() && std::path::Path::new(root).join(".git").exists()) {
        Some(out) => {
            assert_eq!(version, format!("{} ({})", env!("CARGO_PKG_VERSION"), text(&out.stdout).trim()))
        }
        None => assert_eq!(version, env!("CARGO_PKG_VERSION")),
    }
}

#[test]
fn the_doctor_tells_programs_what_it_tells_people() {
    let (words, json) = (ironverbs(&["doctor"]), ironverbs(&["doctor", "-o", "json"]));
    assert_eq!(words.status.code(), json.status.code());
    let words = text(&words.stdout);
    assert!(words.contains("its programs see no adapter: `ironverbs run -- "), "{words}");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), words.lines().count());
    for (finding, line) in findings.iter().zip(words.lines()) {
        let word = |key: &str| finding[key].as_str().unwrap().to_owned();
        assert!(line.starts_with(&word("state")) && line.contains(&word("what")), "{line}: {finding}");
    }
    let missing = findings.iter().filter(|f| f["state"] == "missing").count();
    assert_eq!(json["missing"], missing);
}

#[test]
fn the_state_of_a_node_can_be_had_as_json() {
    let room = testkit::Scratch::new();
    let dir = room.0.display().to_string();
    let create = ironverbs(&[
        "adapter",
        "create",
        &dir,
        "--vfs",
        "3",
        "--id",
        "7",
        "--strict",
        "events=strict,ids=cx7",
    ]);
    assert!(create.status.success(), "{}", text(&create.stderr));
    assert!(ironverbs(&["adapter", "address", "--adapter", &dir, "iron2", "10.0.0.5/24"]).status.success());
    let out = ironverbs(&["adapter", "status", &dir, "--output", "json"]);
    let status: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(status["directory"], dir.as_str());
    assert_eq!((&status["vfs"], &status["node_id"]), (&Value::from(3), &Value::from(7)));
    assert_eq!(status["strict"], "events=strict,ids=cx7");
    assert_eq!((&status["programs"], &status["uplink_pid"]), (&Value::Array(Vec::new()), &Value::Null));
    let functions = status["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 4);
    assert_eq!((&functions[2]["device"], &functions[2]["up"]), (&Value::from("iron2"), &Value::from(false)));
    assert_eq!(functions[2]["address"], "10.0.0.5/24");
    assert_eq!(functions[2]["counters"]["tx_packets"], 0);
    assert!(status["memory"].as_u64().unwrap() > 0);
}

#[test]
fn the_names_of_the_previous_release_still_work() {
    let room = testkit::Scratch::new();
    let dir = room.0.display().to_string();
    let words = ["node", "create", "--node", &dir, "--node-id", "7", "--wire-faults", "drop=1%,seed=2"];
    assert!(ironverbs(&words).status.success());
    let status = ironverbs(&["node", "status", "--node", &dir, "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["node_id"], &status["faults"]), (&Value::from(7), &Value::from("drop=1%,seed=2")));
    assert!(ironverbs(&["node", "reset", "--node", &dir]).status.success());
    for (words, why) in [
        (&["check", "/no/such/file"][..], "/no/such/file"),
        (&["stream", "show", "/no/such/file"], "/no/such/file"),
        (&["bringup", "--bdf", "0000:ff:1f.7"], "0000:ff:1f.7"),
    ] {
        let refused = text(&ironverbs(words).stderr);
        assert!(refused.contains(why) && !refused.contains("unexpected"), "{words:?}: {refused}");
    }
}

#[test]
fn a_plan_of_faults_needs_virtual_time() {
    let room = testkit::Scratch::new();
    let dir = room.0.display().to_string();
    for words in [
        &["adapter", "create", &dir][..],
        &["run", "--adapter", &dir],
        &["serve", "--plug", "1=/x", "--adapter", &dir],
    ] {
        let plan =
            [words, &["--fault", "plan.toml"], if words[0] == "run" { &["true"] } else { &[] }].concat();
        let refused = text(&ironverbs(&plan).stderr);
        assert!(
            refused.contains("plan.toml") && refused.contains("run --clock timed"),
            "{plan:?}: {refused}"
        );
        assert!(!room.0.exists());
    }
}

/// Gives the adapter's region in this file the previous version.
fn age(file: &File) {
    let mut at = 0;
    loop {
        at = lseek(file, at, Whence::SeekData).expect("the region begins with its name");
        let mut begins = [0; 8];
        file.read_exact_at(&mut begins, at as u64).unwrap();
        if begins[1..] == *b"revnori" {
            return file.write_all_at(&[begins[0] - 1], at as u64).unwrap();
        }
        at += 4096;
    }
}

#[test]
fn an_adapter_of_another_version_is_replaced_unless_programs_are_on_it() {
    let room = testkit::Scratch::new();
    let dir = room.0.display().to_string();
    assert!(ironverbs(&["adapter", "create", &dir, "--vfs", "3"]).status.success());
    age(&File::options().read(true).write(true).open(room.0.join("adapter")).unwrap());
    let refused = text(&ironverbs(&["adapter", "status", &dir]).stderr);
    assert!(refused.contains("made by another version"), "{refused}");
    let made = ironverbs(&["adapter", "create", &dir]);
    assert!(text(&made.stdout).contains("iron0 and 8 VFs"), "{}", text(&made.stderr));
}
