"""InfiniStore: a server with its memory pool on one device, and a client on another that stores blocks and reads them back."""

import sys

BLOCK = 64 << 10
BLOCKS = 64


def install():
    from install import wheels

    return wheels("infinistore")


def check(bed, python):
    from bed import free_port

    before = bed.sent()
    port = free_port()
    served = ["--host", "127.0.0.1", "--service-port", port, "--manage-port", free_port(), "--prealloc-size", 1]
    device = ["--dev-name", "iron1", "--link-type", "Ethernet"]
    bed.start(python, __file__, "server", *served, *device).until("server started", 60)
    said = bed.run(python, __file__, "client", port, seconds=60)
    sent = bed.must_have_sent(before, 2 * BLOCK * BLOCKS)
    version = said.split("version ")[-1].split()[0]
    return f"{version} put and got {BLOCKS} blocks of {BLOCK} bytes, devices sent {sent}"


def server(*words):
    from infinistore import server as store

    # It would protect itself from the kernel's OOM killer, which many containers forbid, and exit if that fails.
    store.prevent_oom = lambda: None
    sys.argv[1:] = words
    store.main()


def client(port):
    import asyncio
    import importlib.metadata

    import infinistore
    import numpy

    from peers import compare, random_bytes

    wanted = infinistore.ClientConfig(
        host_addr="127.0.0.1",
        service_port=int(port),
        connection_type=infinistore.TYPE_RDMA,
        link_type=infinistore.LINK_ETHERNET,
        dev_name="iron2",
    )
    store = infinistore.InfinityConnection(wanted)
    store.connect()
    put = random_bytes(1, BLOCK * BLOCKS)
    got = numpy.zeros_like(put)
    for memory in put, got:
        store.register_mr(memory.ctypes.data, memory.nbytes)
    blocks = [(f"block {n}", n * BLOCK) for n in range(BLOCKS)]

    async def both():
        await asyncio.wait_for(store.rdma_write_cache_async(blocks, BLOCK, put.ctypes.data), 20)
        await asyncio.wait_for(store.rdma_read_cache_async(blocks, BLOCK, got.ctypes.data), 20)

    asyncio.run(both())
    compare(got, put, "what was got")
    if store.check_exist("no such block"):
        raise SystemExit("expected a block that nobody put not to exist, found it")
    store.close()
    print("version", importlib.metadata.version("infinistore"))


if __name__ == "__main__":
    {"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
