//! Checks that every row of the table has a test.

use std::{collections::BTreeSet, fs, io};

/// The table.
const TABLE: &str = include_str!("../../../docs/conformance.md");

/// Returns the rows of the table that this binary has to cover: their numbers are in the first column, profile-dependent ones with a star.
fn required() -> BTreeSet<u32> {
    let (_, behaviours) = TABLE.split_once("## Behaviours").expect("a table of behaviours");
    let first = |line: &str| line.strip_prefix("| ")?.split(" |").next()?.trim_end_matches('*').parse().ok();
    behaviours.lines().filter_map(first).collect()
}

/// Returns the rows named by test functions of this directory.
fn covered() -> BTreeSet<u32> {
    let here = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/model/conformance")).expect("sources");
    let read = |file: io::Result<fs::DirEntry>| fs::read_to_string(file?.path());
    let text: String = here.map(read).collect::<io::Result<_>>().expect("sources");
    text.split("#[test]")
        .skip(1)
        .filter_map(|after| {
            let name = after.split_once("fn row_")?.1;
            // The name must follow the attribute closely.
            (after.find("fn row_")? < 40).then_some(())?;
            name.get(..2)?.parse().ok()
        })
        .collect()
}

#[test]
fn rows_are_numbered_without_gaps() {
    let rows = required();
    assert!(rows.len() >= 63, "{} rows found", rows.len());
    assert_eq!(rows, (1..=rows.len() as u32).collect());
}

#[test]
fn every_required_row_has_a_test() {
    let missing: Vec<u32> = required().difference(&covered()).copied().collect();
    assert!(missing.is_empty(), "rows without a test: {missing:?}");
}
