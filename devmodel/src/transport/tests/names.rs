//! The transport must not depend on the adapter that runs it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Words of the mlx5 interface that must not occur in names.
const PARTS: [&str; 4] = ["wqe", "cqe", "eqe", "mkey"];
/// Names of the mlx5 interface and of the code that keeps the adapter's state.
const NAMES: [&str; 5] = ["Func", "Region", "Journal", "Effect", "Work"];
/// Modules of this crate and of the chip's description that are above the transport or beside it.
const MODULES: [&str; 14] = [
    "cmd",
    "context",
    "cqe",
    "doorbell",
    "engine",
    "eqe",
    "host",
    "mlx5",
    "pcie",
    "region",
    "serve",
    "state",
    "translate",
    "wqe",
];

fn sources(below: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).expect("sources") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => sources(&path, into),
            // This file has to contain the names that it searches for.
            false if path.file_name().is_some_and(|name| name != "names.rs") => into.push(path),
            false => {}
        }
    }
}

/// The names in a line of source, each with the text after it.
fn names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c| !is_name(c));
        let (name, behind) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        rest = behind;
        (!name.is_empty()).then_some((name, behind))
    })
}

#[test]
fn the_transport_names_nothing_of_the_adapter() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/transport"), &mut files);
    assert!(files.len() > 4, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        for (number, line) in text.lines().enumerate() {
            for (name, behind) in names(line) {
                let lower = name.to_lowercase();
                let foreign = PARTS.iter().any(|part| lower.contains(part))
                    || NAMES.contains(&name)
                    || behind.starts_with("::") && MODULES.contains(&name)
                    || name == "crate" && behind.starts_with("::") && !behind.starts_with("::transport");
                assert!(!foreign, "{}:{}: {name}", file.display(), number + 1);
            }
        }
    }
}
