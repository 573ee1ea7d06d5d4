"""NIXL's wheel, which bundles its own libibverbs: agent to agent over its UCX backend, with the transports it selects itself."""

import os
import sys

SIZE = 4 << 20


def install():
    from install import wheels

    return wheels("nixl")


def check(bed, python):
    before = bed.sent()
    target = bed.start(python, __file__, "target")
    said = bed.run(python, __file__, "initiator", seconds=60)
    target.wait(30)
    sent = bed.must_have_sent(before, 2 * SIZE)
    return f"{said.split('version ')[-1].split()[0]} wrote and read {SIZE} bytes each, devices sent {sent}; its own libibverbs, no preload"


def agent(name):
    from nixl_cu12 import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def descriptor(memory):
    return [(memory.ctypes.data, memory.nbytes, 0)]


def target():
    mine = agent("target")
    memory = random_bytes(1, SIZE)
    mine.register_memory([(*descriptor(memory)[0], "")], "DRAM")
    tell("metadata", mine.get_agent_metadata().hex())
    tell("address", str(memory.ctypes.data))
    hear("written")
    compare(memory, random_bytes(2, SIZE), "what was written")
    tell("compared")
    hear("done")


def initiator():
    import importlib.metadata
    import time

    mine = agent("initiator")
    other = mine.add_remote_agent(bytes.fromhex(hear("metadata")))
    memory = numpy.zeros(SIZE, numpy.uint8)
    mine.register_memory([(*descriptor(memory)[0], "")], "DRAM")
    far = mine.get_xfer_descs([(int(hear("address")), SIZE, 0)], "DRAM")
    near = mine.get_xfer_descs(descriptor(memory), "DRAM")

    def transfer(operation):
        request = mine.initialize_xfer(operation, near, far, other)
        state, end = mine.transfer(request), time.monotonic() + 30
        while state == "PROC" and time.monotonic() < end:
            state = mine.check_xfer_state(request)
        if state != "DONE":
            raise SystemExit(f"expected {operation} to be done, found {state}")
        mine.release_xfer_handle(request)

    transfer("READ")
    compare(memory, random_bytes(1, SIZE), "what was read")
    memory[:] = random_bytes(2, SIZE)
    transfer("WRITE")
    tell("written")
    hear("compared")
    tell("done")
    own = [line for line in open("/proc/self/maps") if "nixl_cu12.libs/libibverbs-" in line]
    if not own:
        raise SystemExit("expected the wheel's own libibverbs to be loaded, found none")
    print("version", importlib.metadata.version("nixl-cu12"))


if __name__ == "__main__":
    import numpy

    from peers import compare, hear, random_bytes, tell

    {"target": target, "initiator": initiator}[sys.argv[1]]()
    # The wheel's libnl-route crashes in its destructor at exit(), with or without devices, and also without ironverbs.
    sys.stdout.flush()
    os._exit(0)
