//! Commands that only show something: help, version, `doctor` and `node status`, as text and as JSON.

use serde_json::Value;
use std::process::{Command, Output};

fn ironverbs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ironverbs")).args(args).env_remove("IRONVERBS_NODE").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_bare_command_prints_help() {
    for (args, word) in [(&[][..], "doctor"), (&["node"], "reset"), (&["vf"], "unbind")] {
        let out = ironverbs(args);
        assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", text(&out.stderr));
        let help = text(&out.stdout);
        assert!(help.contains("Usage:") && help.contains(word), "{args:?}: {help}");
    }
    let wrong = ironverbs(&["nod"]);
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
    let (words, json) = (ironverbs(&["doctor"]), ironverbs(&["doctor", "--json"]));
    assert_eq!(words.status.code(), json.status.code());
    let words = text(&words.stdout);
    assert!(words.contains("its programs see no node: `ironverbs run -- "), "{words}");
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
        "node",
        "create",
        "--node",
        &dir,
        "--vfs",
        "3",
        "--node-id",
        "7",
        "--strict",
        "events=strict,ids=cx7",
    ]);
    assert!(create.status.success(), "{}", text(&create.stderr));
    assert!(ironverbs(&["node", "address", "--node", &dir, "iron2", "10.0.0.5/24"]).status.success());
    let out = ironverbs(&["node", "status", "--node", &dir, "--json"]);
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
