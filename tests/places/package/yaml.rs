//! Parses YAML with Debian's own parser.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Prints each value after its path, such as `a.b.0=c`, one per line, including values of JSON in strings.
const FLATTEN: &str = r#"
import json, sys, yaml
def show(path, value):
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict):
        for key in value: show(path + [str(key)], value[key])
    elif isinstance(value, list):
        for number, one in enumerate(value): show(path + [str(number)], one)
    else:
        print(".".join(path) + "=" + str(value).replace("\n", "\\n"))
for document in yaml.safe_load_all(sys.stdin):
    show([document["kind"]] if "kind" in document else [], document)
"#;

/// Paths and values of a text; those of a Kubernetes object are prefixed with its kind.
pub struct Values(Vec<(String, String)>);

impl Values {
    /// Parses a text. Returns `None` with a message if there is no parser.
    pub fn of(text: &str) -> Option<Self> {
        let there = Command::new("python3").args(["-c", "import yaml"]).output();
        if !there.is_ok_and(|there| there.status.success()) {
            println!("skipped: no python3-yaml here");
            return None;
        }
        let mut python = Command::new("python3");
        python.args(["-c", FLATTEN]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.spawn().expect("python3");
        python.stdin.take().expect("its input").write_all(text.as_bytes()).expect("all of it taken");
        let out = python.wait_with_output().expect("its end");
        assert!(out.status.success(), "expected YAML, found {text}");
        let lines = String::from_utf8(out.stdout).expect("text");
        let pair = |line: &str| {
            let (path, value) = line.split_once('=').expect("a path and a value");
            (path.to_owned(), value.replace("\\n", "\n"))
        };
        Some(Self(lines.lines().map(pair).collect()))
    }

    /// Returns the value at a path.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.iter().find(|(at, _)| at == path).map(|(_, value)| value.as_str())
    }

    /// Returns the values of all paths with this prefix and suffix.
    pub fn all(&self, begin: &str, end: &str) -> Vec<&str> {
        let fits = |path: &str| path.starts_with(begin) && path.ends_with(end);
        self.0.iter().filter(|(path, _)| fits(path)).map(|(_, value)| value.as_str()).collect()
    }
}
