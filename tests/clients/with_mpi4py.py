"""mpi4py on Debian's Open MPI: two ranks over UCX, restricted to verbs transports."""

import re
import sys

# Sizes in bytes of the messages that each rank sends the other.
SIZES = [1, 4096, 1 << 20, 8 << 20]


def install():
    import subprocess

    from bed import need, skip

    words = [sys.executable, "-c", "from mpi4py import rc; rc.initialize = False; import mpi4py.MPI, numpy"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if found.returncode != 0:
        skip(f"{sys.executable} has no mpi4py: {found.stderr.strip().splitlines()[-1]}")
    return need("mpirun")


def check(bed, mpirun):
    before = bed.sent()
    over = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib"]
    on = ["-x", "UCX_TLS=rc,ud,self", "-x", "UCX_NET_DEVICES=iron1:1"]
    ranks = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", 2, *over, *on, sys.executable, __file__]
    said = bed.run(*ranks, seconds=60)
    return result(bed, before, said, "iron1")


def result(bed, before, said, *devices):
    """Returns the result of two ranks that have printed `said`, if their messages and Puts went over these devices."""
    sent = bed.must_have_sent(before, 2 * (sum(SIZES) + SIZES[-1]) // len(devices), *devices)
    return f"{said.strip().splitlines()[-1]}: messages of {sum(SIZES)} bytes and a Put each way, a sum of both, devices sent {sent}"


def rank():
    import mpi4py
    import numpy
    from mpi4py import MPI

    from peers import compare, random_bytes

    world = MPI.COMM_WORLD
    mine, other = world.Get_rank(), 1 - world.Get_rank()
    if world.Get_size() != 2:
        raise SystemExit(f"expected two ranks, found {world.Get_size()}")
    for size in SIZES:
        got = numpy.zeros(size, numpy.uint8)
        world.Sendrecv(random_bytes(mine, size), other, recvbuf=got, source=other)
        compare(got, random_bytes(other, size), f"a message of {size} bytes")
    # The last message once more, by a Put, which reads its memory until the fence.
    message = random_bytes(mine, size)
    got[:] = 0
    window = MPI.Win.Create(got, comm=world)
    window.Fence()
    window.Put(message, other)
    window.Fence()
    compare(got, random_bytes(other, size), "what was put")
    window.Free()
    count = numpy.arange(1 << 18, dtype=numpy.int64)
    total = numpy.zeros_like(count)
    world.Allreduce(count * (mine + 1), total)
    compare(total, count * 3, "a sum")
    world.Barrier()
    if mine == 0:
        library = " ".join(re.split(r"[,\n]", MPI.Get_library_version())[0].split())
        print(f"{mpi4py.__version__} on {library}", flush=True)


if __name__ == "__main__":
    rank()
