//! The InfiniBand subnet as seen by infiniband-diags: management packets by LID and by directed route, queries of the subnet administrator.

use crate::{Outcome, failed};

use super::sides::Bench;

/// Queries on the subnet of functions 1 and 2, and the words that each answer must contain. `$D` is the device.
const ASKED: [(&str, &[&str]); 7] = [
    ("ibstat $D", &["State: Active", "Physical state: LinkUp", "Rate: 100", "SM lid: 512"]),
    ("sminfo -C $D", &["sm lid 512", "SMINFO_MASTER"]),
    ("ibnetdiscover -C $D", &["\"ironverbs switch\" base port 0 lid 512", "[2]\t\"H-", "[3]\t\"H-", "4xEDR"]),
    ("smpquery -C $D nodeinfo -D 0,1,3", &["NodeType:........................Channel Adapter"]),
    (
        "smpquery -C $D portinfo 3 1",
        &["Lid:.............................3", "LinkState:.......................Active"],
    ),
    ("saquery -C $D -c", &["Class version............2"]),
    ("perfquery -C $D -x 3 1", &["PortXmitPkts:"]),
];

/// Runs the tools and checks that each finds the expected objects.
pub fn tools(bench: &mut Bench) -> Outcome {
    let device = bench.sides[0].device.clone();
    bench.at(0, 30, "modprobe ib_umad")?;
    for (asked, wanted) in ASKED {
        let said = bench.at(0, 60, &asked.replace("$D", &device))?;
        if let Some(missing) = wanted.iter().find(|w| !said.contains(**w)) {
            return failed(format!("{asked}: expected {missing:?} in\n{said}"));
        }
    }
    Ok(())
}
