"""Runs the clients named in the arguments, or all, each on its own node, and prints a line for each."""

import importlib
import sys
import time

from bed import Bed, Skip, Wrong

# The clients with their time limits in seconds, without installation.
CLIENTS = {
    "nixl": 120,
    "mooncake": 240,
    "infinistore": 120,
    "fio": 180,
    "qperf": 420,
    "sideway": 180,
    "rdma_sys": 120,
    "async_rdma": 180,
    "mpi4py": 120,
    "mpich": 120,
    "rpma": 120,
    "nccl": 120,
    "lstopo": 60,
    "qemu": 180,
}


def judge(name):
    """Runs one client and returns the result: `ok`, `skipped` or `FAILED`, and the reason."""
    client = importlib.import_module(f"with_{name}")
    try:
        installed = client.install()
        with Bed(CLIENTS[name]) as bed:
            return "ok", client.check(bed, installed)
    except Skip as why:
        return "skipped", str(why)
    except Wrong as why:
        return "FAILED", str(why)
    except Exception as error:
        return "FAILED", f"expected a client to be judged, found {type(error).__name__}: {error}"


def main(names):
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        sys.exit(f"clients: expected names of {', '.join(CLIENTS)}, found {', '.join(unknown)}")
    counted = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name in names or CLIENTS:
        start = time.monotonic()
        verdict, why = judge(name)
        counted[verdict] += 1
        print(f"{name:12} {verdict}: {why} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"clients: {counted['ok']} passed, {counted['FAILED']} failed, {counted['skipped']} skipped")
    return 1 if counted["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
