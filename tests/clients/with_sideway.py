"""sideway, verbs and rdma_cm for Rust: its tests on the first device, and its examples between two."""

import re
import sys

VERSION = "0.4.3"


def install():
    from install import crate

    return crate("sideway", VERSION)


def check(bed, target):
    from bed import expect

    before = bed.sent()
    passed = 0
    # The remaining test compares compiler messages.
    programs = [p for p in target.glob("debug/deps/*-*") if re.fullmatch(r"(sideway|test_\w+)-[0-9a-f]{16}", p.name)]
    expect(len(programs) >= 6, f"expected six programs of tests in {target}, found {len(programs)}")
    for program in sorted(programs):
        said = bed.run(program, seconds=60, RUST_BACKTRACE="0")
        counted = re.search(r"test result: ok\. (\d+) passed; 0 failed; 0 ignored", said)
        expect(counted and int(counted[1]) > 0, f"expected the tests of {program.name} to pass, found {said[-200:]!r}")
        passed += int(counted[1])
    examples = target / "debug" / "examples"
    devices = bed.run(examples / "ibv_devinfo", seconds=20)
    expect("iron1" in devices, f"expected iron1 among the devices, found {devices[:200]!r}")
    for example, timestamps in ("rc_pingpong", []), ("rc_pingpong_split", []), ("rc_pingpong_split", ["-t"]):
        pair(bed, examples / example, ["-d", "iron1", "-g", 1, *timestamps], ["-d", "iron2", "-g", 1, *timestamps, "127.0.0.1"])
    pair(bed, examples / "cmtime", ["-b", "127.0.0.2"], ["-b", "127.0.0.3", "-s", "127.0.0.2"])
    sent = bed.must_have_sent(before, 3 * 1000 * 1024)
    return f"{VERSION}: {passed} tests; rc_pingpong, rc_pingpong_split and cmtime, devices sent {sent}"


def pair(bed, example, serves, asks, tries=2):
    import time

    from bed import Wrong

    server = bed.start(example, *serves, RUST_BACKTRACE="0")
    # Servers print nothing when they listen.
    time.sleep(1)
    try:
        bed.run(example, *asks, seconds=30, RUST_BACKTRACE="0")
        server.wait(20)
    except Wrong as why:
        # The examples retry for an eighth of a second, during which a busy machine may not schedule the server.
        server.end()
        if tries == 1:
            raise
        print(f"clients: FLAKY {why}", file=sys.stderr)
        pair(bed, example, serves, asks, tries - 1)
