//! The rows of the conformance table (`docs/conformance.md`) that hold for any adapter, tested on two ends without one.
//! Tests are named after their rows, and expected values are those of the table.

mod requester;
mod responder;

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../../../docs/conformance.md");
const SOURCES: [&str; 2] = [include_str!("requester.rs"), include_str!("responder.rs")];

/// Rows about features of an adapter, and the reason; `tests/model/conformance/` tests them.
const OF_ADAPTERS: &[(u32, &str)] = &[
    (34, "keys of work requests"),
    (35, "keys of work requests"),
    (39, "P_Keys are a table of the adapter's"),
    (40, "datagrams have no connection: see `datagram.rs`"),
    (41, "what is dropped before a connection is found"),
    (45, "flush completions"),
    (46, "flush completions"),
    (47, "doorbell records"),
    (48, "states of a queue pair"),
    (49, "commands that modify a queue pair"),
    (50, "shared receive queues"),
    (54, "datagrams in memory"),
    (55, "completion queues"),
    (56, "events of completion queues"),
    (58, "a bit of the BTH that the adapter fills in"),
    (60, "counters of a port"),
    (62, "resets of a function"),
    (63, "addresses of a packet"),
];

#[test]
fn no_row_is_left_out() {
    let (_, behaviours) = TABLE.split_once("## Behaviours").expect("a table of behaviours");
    let number = |line: &str| -> Option<u32> {
        line.strip_prefix("| ")?.split(" |").next()?.trim_end_matches('*').parse().ok()
    };
    let wanted: BTreeSet<u32> = behaviours.lines().filter_map(number).collect();
    let named = SOURCES.iter().flat_map(|text| text.split("#[test]\nfn row_").skip(1));
    let mut shown: BTreeSet<u32> =
        named.filter_map(|name| name.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect();
    for (row, why) in OF_ADAPTERS {
        assert!(shown.insert(*row), "row {row} is shown, and left to adapters: {why}");
    }
    assert_eq!(shown, wanted);
}
