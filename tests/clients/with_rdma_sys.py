"""rdma-sys, Rust bindings of libibverbs: our own program that uses them (`rdma_sys/`), between two devices of either link layer."""

import re


def install():
    from install import bindgen, package

    return package("rdma_sys", "rdma-sys", **bindgen())


def check(bed, target):
    from bed import Bed

    program = target / "debug" / "ironverbs-client-rdma-sys"
    promises, sent = run(bed, program)
    with Bed(bed.left(60), "infiniband") as infiniband:
        run(infiniband, program)
    return f"0.3.0: {promises} promises kept on either link layer, devices sent {sent} on RoCE"


def run(bed, program):
    from bed import expect

    before = bed.sent()
    said = bed.run(program, "iron1", "iron2", seconds=60)
    promises = len(re.findall(r" ok$", said, re.M))
    moved = re.search(r"^(\d+) bytes$", said, re.M)
    expect(promises == 10 and moved, f"expected ten promises to be kept, found {said!r}")
    return promises, bed.must_have_sent(before, int(moved[1]))
