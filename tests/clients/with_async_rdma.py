"""async-rdma, RDMA for Rust's async functions: its tests on one device, and its examples between two VFs."""

import re

VERSION = "0.5.0"
TESTS = "async_rdma atomic device imm loop mr_slice rmr_access rmr_timeout".split()
EDITS = [
    # Newer compilers have more warnings, which are errors of this crate.
    ("src/lib.rs", "#![deny(", "#![warn("),
    # Its tests expect the flags of Soft-RoCE, where each receive has a GRH.
    ("src/completion_queue.rs", "IBV_WC_WITH_IMM: u32 = 3", "IBV_WC_WITH_IMM: u32 = 2"),
    # Its examples take the first device.
    *[
        (f"examples/{name}.rs", "RdmaBuilder::default()", "RdmaBuilder::default().set_dev(&std::env::args().nth(1).unwrap())")
        for name in ("client", "server")
    ],
]
# The examples connect this often, and then move eight bytes by each of two SENDs, a READ, two WRITEs and a CAS.
CONNECTIONS = 4


def install():
    from install import bindgen, crate

    return crate("async-rdma", VERSION, EDITS, **bindgen())


def check(bed, target):
    from bed import expect

    programs = [p for p in target.glob("debug/deps/*-*") if re.fullmatch(rf"({'|'.join(TESTS)})-[0-9a-f]{{16}}", p.name)]
    expect(len(programs) == len(TESTS), f"expected {len(TESTS)} programs of tests in {target}, found {len(programs)}")
    passed = sum(bed.run_tests(program) for program in programs)
    examples = target / "debug" / "examples"
    before = bed.sent()
    bed.run_pair([examples / "server", "iron1"], [examples / "client", "iron2"])
    sent = bed.must_have_sent(before, CONNECTIONS * 6 * 8, "iron1", "iron2")
    return f"{VERSION}: {passed} tests; SEND, READ, WRITE and CAS over {CONNECTIONS} connections, devices sent {sent}"
