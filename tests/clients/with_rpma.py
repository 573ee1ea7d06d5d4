"""librpma, Debian's, called from Python: one peer writes, flushes and reads the memory of the other, between two VFs."""

import ctypes
import sys

SIZE = 4 << 20
# Values of librpma.h: the usage of memory, a request that always completes, and an event of a connection.
EVERY_USAGE = (1 << 8) - 1
ALWAYS = 3
ESTABLISHED, CLOSED = 0, 1
FLUSHES = {"persistent": 0, "visibility": 1}


def install():
    from bed import skip

    try:
        ctypes.CDLL("librpma.so.0")
    except OSError as error:
        skip(f"no librpma0 here: {error}")


def check(bed, _):
    from bed import free_port

    before, port = bed.sent(), free_port()
    target = bed.start(sys.executable, __file__, "target", port).until("listens", 20)
    bed.run(sys.executable, __file__, "initiator", port, seconds=60)
    target.wait(20)
    sent = bed.must_have_sent(before, len(FLUSHES) * SIZE, "iron1", "iron2")
    return f"wrote, flushed and read {SIZE} bytes by each kind of flush, an atomic write, devices sent {sent}"


class Completion(ctypes.Structure):
    """The first members of `struct ibv_wc`, and room for the others."""

    _fields_ = [("wr_id", ctypes.c_uint64), ("status", ctypes.c_int), ("opcode", ctypes.c_int), ("others", ctypes.c_uint32 * 8)]


class PrivateData(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_void_p), ("len", ctypes.c_uint8)]


def rpma(function, *words):
    """Calls a function of librpma, which must succeed. Integers are passed as `size_t`, which also serves `int`."""
    words = [ctypes.c_size_t(word) if isinstance(word, int) else word for word in words]
    status = getattr(librpma, f"rpma_{function}")(*words)
    if status != 0:
        raise SystemExit(f"expected rpma_{function} to succeed, found {status}")


def new(function, *words):
    """Calls a function of librpma that returns an object by its last argument."""
    made = ctypes.c_void_p()
    rpma(function, *words, ctypes.byref(made))
    return made


def open_device(name):
    """Opens a device for the whole process. rdma_cm then connects from it; librpma itself cannot choose where it connects from."""
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    devices = map(ctypes.c_void_p, verbs.ibv_get_device_list(None))
    verbs.ibv_open_device(next(device for device in devices if verbs.ibv_get_device_name(device) == name))


def peer(address):
    """Returns a peer on the device of `address`, its memory, and that memory's registration."""
    mine = new("peer_new", new("utils_get_ibv_context", address, 0))
    memory = numpy.zeros(SIZE, numpy.uint8)
    return mine, memory, new("mr_reg", mine, memory.ctypes.data, SIZE, EVERY_USAGE)


def wait_for(connection, event):
    found = ctypes.c_int()
    rpma("conn_next_event", connection, ctypes.byref(found))
    if found.value != event:
        raise SystemExit(f"expected event {event} of the connection, found {found.value}")


def target(port):
    mine, memory, registration = peer(b"127.0.0.2")
    size = ctypes.c_size_t()
    rpma("mr_get_descriptor_size", registration, ctypes.byref(size))
    descriptor = ctypes.create_string_buffer(size.value)
    rpma("mr_get_descriptor", registration, descriptor)
    endpoint = new("ep_listen", mine, b"127.0.0.2", port.encode())
    print("listens", flush=True)
    request = new("ep_next_conn_req", endpoint, None)
    shown = PrivateData(ctypes.addressof(descriptor), size.value)
    connection = new("conn_req_connect", ctypes.byref(request), ctypes.byref(shown))
    wait_for(connection, ESTABLISHED)
    for turn, kind in enumerate(FLUSHES):
        hear(kind)
        compare(memory, random_bytes(turn, SIZE), f"what was flushed ({kind})")
        tell(f"{kind}-compared")
    wait_for(connection, CLOSED)
    rpma("conn_disconnect", connection)
    rpma("conn_delete", ctypes.byref(connection))
    compare(memory[:8], numpy.frombuffer(b"atomic 8", numpy.uint8), "what was written atomically")


def initiator(port):
    open_device(b"iron2")
    mine, memory, registration = peer(b"127.0.0.3")
    request = new("conn_req_new", mine, b"127.0.0.2", port.encode(), None)
    connection = new("conn_req_connect", ctypes.byref(request), None)
    wait_for(connection, ESTABLISHED)
    shown = PrivateData()
    rpma("conn_get_private_data", connection, ctypes.byref(shown))
    far = new("mr_remote_from_descriptor", ctypes.c_void_p(shown.bytes), shown.len)
    config = new("peer_cfg_new")
    rpma("peer_cfg_set_direct_write_to_pmem", config, 1)
    rpma("conn_apply_remote_peer_cfg", connection, config)
    completions = new("conn_get_cq", connection)

    def done(number):
        found, got = Completion(), ctypes.c_int()
        rpma("cq_wait", completions)
        rpma("cq_get_wc", completions, 1, ctypes.byref(found), ctypes.byref(got))
        if (found.wr_id, found.status) != (number, 0):
            raise SystemExit(f"expected request {number} to succeed, found {found.wr_id} with status {found.status}")

    for turn, (kind, flush) in enumerate(FLUSHES.items()):
        memory[:] = random_bytes(turn, SIZE)
        rpma("write", connection, far, 0, registration, 0, SIZE, ALWAYS, 1)
        rpma("flush", connection, far, 0, SIZE, flush, ALWAYS, 2)
        done(1)
        done(2)
        tell(kind)
        hear(f"{kind}-compared")
        memory[:] = 0
        rpma("read", connection, registration, 0, far, 0, SIZE, ALWAYS, 3)
        done(3)
        compare(memory, random_bytes(turn, SIZE), "what was read")
    rpma("atomic_write", connection, far, 0, b"atomic 8", ALWAYS, 4)
    done(4)
    rpma("conn_disconnect", connection)
    wait_for(connection, CLOSED)
    rpma("conn_delete", ctypes.byref(connection))


if __name__ == "__main__":
    import numpy

    from peers import compare, hear, random_bytes, tell

    librpma = ctypes.CDLL("librpma.so.0")
    {"target": target, "initiator": initiator}[sys.argv[1]](sys.argv[2])
