"""NCCL's InfiniBand transport without a GPU: its function table, called as NCCL's proxies do. Messages both ways between two VFs."""

import ctypes
import importlib.metadata
import re
import subprocess
import sys

SIZES = [1, 4096, 65_537, 4 << 20]
# The beginning of ncclNet_v10_t; its first member is a name.
FUNCTIONS = """name init devices getProperties listen connect accept regMr regMrDmaBuf deregMr isend irecv iflush test
closeSend closeRecv closeListen""".split()
HANDLE = 128
POINTER_TO_HOST = 1


def install():
    from bed import need, skip
    from install import wheels

    nm, python = need("nm"), wheels("nccl")
    library = next(python.parent.parent.glob("lib/python*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    listed = subprocess.run([nm, library], capture_output=True, text=True, timeout=60).stdout
    # The table is a local symbol, which the dynamic linker does not know.
    at = {name: int(address, 16) for address, name in re.findall(r"^(\w+) \w (ncclNetIb|ncclGetVersion)$", listed, re.M)}
    if len(at) != 2:
        skip("the wheel's library names no ncclNetIb")
    return python, library, at["ncclNetIb"] - at["ncclGetVersion"]


def check(bed, installed):
    python, library, distance = installed
    before = bed.sent()
    devices = ["iron1", "iron2"]
    common = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    words = [[python, __file__, library, distance, n, 1 - n] for n in range(2)]
    other = bed.start(*words[1], NCCL_IB_HCA=f"={devices[1]}", **common)
    version = bed.run(*words[0], NCCL_IB_HCA=f"={devices[0]}", seconds=60, **common).split()[-1]
    other.wait(20)
    sent = bed.must_have_sent(before, sum(SIZES), *devices)
    return f"{version}: messages of {sum(SIZES)} bytes each way, devices sent {sent}"


def peer(library, distance, mine, other):
    nccl = ctypes.CDLL(library)
    table = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value + int(distance)
    pointers = dict(zip(FUNCTIONS, (ctypes.c_void_p * len(FUNCTIONS)).from_address(table)))

    def call(function, *words):
        status = ctypes.CFUNCTYPE(ctypes.c_int)(pointers[function])(*words)
        if status != 0:
            raise SystemExit(f"expected {function} to succeed, found {status}")

    def new(function, *words):
        """Calls a function that returns an object by its last argument, or a null pointer where it would have to wait."""
        made = ctypes.c_void_p()
        call(function, *words, ctypes.byref(made))
        return made

    def wait(request):
        done, sizes = ctypes.c_int(), ctypes.c_int()
        while not done.value:
            call("test", request, ctypes.byref(done), ctypes.byref(sizes))
        return sizes.value

    call("init", None, None)
    handle, listens = ctypes.create_string_buffer(HANDLE), ctypes.c_void_p()
    call("listen", 0, handle, ctypes.byref(listens))
    tell(f"handle{mine}", handle.raw.hex())
    there = ctypes.create_string_buffer(bytes.fromhex(hear(f"handle{other}")), HANDLE)
    sends, receives, config, unused = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(-1), ctypes.c_void_p()
    while not (sends and receives):
        if not sends:
            call("connect", 0, *map(ctypes.byref, (config, there, sends, unused)))
        if not receives:
            call("accept", listens, *map(ctypes.byref, (receives, unused)))
    for size in SIZES:
        message, got = random_bytes(int(mine), size), numpy.zeros(size, numpy.uint8)
        source, target = (ctypes.c_void_p(memory.ctypes.data) for memory in (message, got))
        length, tag = ctypes.c_size_t(size), ctypes.c_int(7)
        source_key, target_key = (new("regMr", *where, length, POINTER_TO_HOST) for where in ((sends, source), (receives, target)))
        sending, receiving = ctypes.c_void_p(), ctypes.c_void_p()
        # A message can be sent once the receiver's address for it has arrived.
        while not (sending and receiving):
            if not receiving:
                receiving = new("irecv", receives, 1, *map(ctypes.byref, (target, length, tag, target_key)), None)
            if not sending:
                sending = new("isend", sends, source, length, tag, source_key, None)
        wait(sending)
        if wait(receiving) != size:
            raise SystemExit(f"expected a message of {size} bytes, found one of another length")
        compare(got, random_bytes(int(other), size), f"a message of {size} bytes")
        call("deregMr", sends, source_key)
        call("deregMr", receives, target_key)
    tell(f"done{mine}")
    hear(f"done{other}")
    call("closeSend", sends)
    call("closeRecv", receives)
    call("closeListen", listens)
    print(importlib.metadata.version("nvidia-nccl-cu12"))


if __name__ == "__main__":
    import numpy

    from peers import compare, hear, random_bytes, tell

    peer(*sys.argv[1:])
