"""sideway, verbs and rdma_cm for Rust: its tests on the first device, and its examples between two."""

import re

VERSION = "0.4.3"


def install():
    from install import crate

    return crate("sideway", VERSION)


def check(bed, target):
    from bed import expect

    before = bed.sent()
    # The remaining test compares compiler messages.
    programs = [p for p in target.glob("debug/deps/*-*") if re.fullmatch(r"(sideway|test_\w+)-[0-9a-f]{16}", p.name)]
    expect(len(programs) >= 6, f"expected six programs of tests in {target}, found {len(programs)}")
    passed = sum(bed.run_tests(program) for program in programs)
    examples = target / "debug" / "examples"
    devices = bed.run(examples / "ibv_devinfo", seconds=20)
    expect("iron1" in devices, f"expected iron1 among the devices, found {devices[:200]!r}")
    for example, timestamps in ("rc_pingpong", []), ("rc_pingpong_split", []), ("rc_pingpong_split", ["-t"]):
        program, options = examples / example, ["-g", 1, *timestamps]
        bed.run_pair([program, "-d", "iron1", *options], [program, "-d", "iron2", *options, "127.0.0.1"])
    program = examples / "cmtime"
    bed.run_pair([program, "-b", "127.0.0.2"], [program, "-b", "127.0.0.3", "-s", "127.0.0.2"])
    sent = bed.must_have_sent(before, 3 * 1000 * 1024)
    return f"{VERSION}: {passed} tests; rc_pingpong, rc_pingpong_split and cmtime, devices sent {sent}"
