//! Checks that every row of the table has a test.

use std::collections::BTreeSet;

/// The table.
const TABLE: &str = include_str!("../../../docs/conformance.md");

/// Returns the rows of the table that this binary has to cover: their numbers are in the first column, profile-dependent ones with a star.
fn required() -> BTreeSet<u32> {
    let (_, behaviours) = TABLE.split_once("## Behaviours").expect("a table of behaviours");
    let first = |line: &str| line.strip_prefix("| ")?.split(" |").next()?.trim_end_matches('*').parse().ok();
    behaviours.lines().filter_map(first).collect()
}

/// Source text of every module with tests.
const SOURCES: &[&str] = &[
    include_str!("access.rs"),
    include_str!("acks.rs"),
    include_str!("atomics.rs"),
    include_str!("completions.rs"),
    include_str!("counters.rs"),
    include_str!("datagrams.rs"),
    include_str!("drops.rs"),
    include_str!("duplicates.rs"),
    include_str!("ecn.rs"),
    include_str!("errors_and_flush.rs"),
    include_str!("extended.rs"),
    include_str!("fences_and_order.rs"),
    include_str!("immediate_and_invalidate.rs"),
    include_str!("lengths.rs"),
    include_str!("naks.rs"),
    include_str!("psn.rs"),
    include_str!("reads.rs"),
    include_str!("registration.rs"),
    include_str!("reset.rs"),
    include_str!("retries.rs"),
    include_str!("rnr.rs"),
    include_str!("shared_receive.rs"),
    include_str!("source.rs"),
    include_str!("states.rs"),
    include_str!("torture.rs"),
    include_str!("unreliable.rs"),
    include_str!("windows.rs"),
];

/// Returns the rows named by test functions.
fn covered() -> BTreeSet<u32> {
    SOURCES
        .iter()
        .flat_map(|text| text.split("#[test]").skip(1))
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
