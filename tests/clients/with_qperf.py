"""qperf: its RDMA tests on InfiniBand, and those of reliable connections on RoCE.

It does not support GIDs, so on any RoCE device it needs rdma_cm, which it supports only for reliable connections. Its help lists tests
of XRC that Debian's build does not have.
"""

import re

CONNECTED = """rc_bi_bw rc_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat
rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add""".split()
OTHERS = "uc_bi_bw uc_bw uc_lat uc_rdma_write_bw uc_rdma_write_lat uc_rdma_write_poll_lat ud_bi_bw ud_bw ud_lat".split()


def install():
    from bed import need

    return need("qperf")


def check(bed, qperf):
    from bed import Bed

    with Bed(bed.left(300), "infiniband") as infiniband:
        run_tests(infiniband, qperf, CONNECTED + OTHERS, ["-li", "iron2", "-ri", "iron1"])
    run_tests(bed, qperf, CONNECTED, ["-cm1"])
    return f"{len(CONNECTED + OTHERS)} tests on InfiniBand and {len(CONNECTED)} on RoCE measured something"


def run_tests(bed, qperf, tests, how):
    from bed import expect, free_port

    port = free_port()
    bed.start(qperf, "-lp", port)
    for test in tests:
        before = bed.sent()
        said = bed.run(qperf, "-lp", port, "-ws", 10, *how, "-t", 1, "127.0.0.2", test, seconds=20)
        figures = re.findall(r"(?:bw|latency|rate) += +([0-9.]+)", said)
        expect(figures and all(float(figure) > 0 for figure in figures), f"expected figures of {test}, found {said.strip()!r}")
        bed.must_have_sent(before, 1)
