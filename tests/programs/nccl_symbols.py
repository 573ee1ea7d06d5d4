"""Loads verbs as NCCL does: every symbol by name and version out of libibverbs, none by header; and calls them.

Also asks libmlx5 about the device, as NCCL and UCX do for every device: none of what it offers may be promised.
"""
import ctypes as c, errno, os, sys

libc = c.CDLL(None, use_errno=True)
dlvsym = libc.dlvsym
dlvsym.restype, dlvsym.argtypes = c.c_void_p, [c.c_void_p, c.c_char_p, c.c_char_p]


def symbol(library, name, version, result, *arguments):
    at = dlvsym(library._handle, name.encode(), version.encode())
    if not at:
        raise SystemExit(f"{name}@{version} is missing")
    return c.CFUNCTYPE(result, *arguments, use_errno=True)(at)


ibv = c.CDLL("libibverbs.so.1", mode=c.RTLD_GLOBAL)
P, I = c.c_void_p, c.c_int
known = {}
for name, version, result, *arguments in [
    ("ibv_get_device_list", "IBVERBS_1.1", c.POINTER(P), c.POINTER(I)),
    ("ibv_free_device_list", "IBVERBS_1.1", None, c.POINTER(P)),
    ("ibv_get_device_name", "IBVERBS_1.1", c.c_char_p, P),
    ("ibv_open_device", "IBVERBS_1.1", P, P),
    ("ibv_close_device", "IBVERBS_1.1", I, P),
    ("ibv_get_async_event", "IBVERBS_1.1", I, P, P),
    ("ibv_ack_async_event", "IBVERBS_1.1", None, P),
    ("ibv_query_device", "IBVERBS_1.1", I, P, P),
    ("ibv_query_port", "IBVERBS_1.1", I, P, c.c_uint8, P),
    ("ibv_query_gid", "IBVERBS_1.1", I, P, c.c_uint8, I, P),
    ("ibv_query_qp", "IBVERBS_1.1", I, P, P, I, P),
    ("ibv_alloc_pd", "IBVERBS_1.1", P, P),
    ("ibv_dealloc_pd", "IBVERBS_1.1", I, P),
    ("ibv_reg_mr", "IBVERBS_1.1", P, P, P, c.c_size_t, I),
    ("ibv_reg_mr_iova2", "IBVERBS_1.8", P, P, P, c.c_size_t, c.c_uint64, c.c_uint),
    ("ibv_reg_dmabuf_mr", "IBVERBS_1.12", P, P, c.c_uint64, c.c_size_t, c.c_uint64, I, I),
    ("ibv_dereg_mr", "IBVERBS_1.1", I, P),
    ("ibv_create_cq", "IBVERBS_1.1", P, P, I, P, P, I),
    ("ibv_destroy_cq", "IBVERBS_1.1", I, P),
    ("ibv_create_qp", "IBVERBS_1.1", P, P, P),
    ("ibv_modify_qp", "IBVERBS_1.1", I, P, P, I),
    ("ibv_destroy_qp", "IBVERBS_1.1", I, P),
    ("ibv_fork_init", "IBVERBS_1.1", I),
    ("ibv_event_type_str", "IBVERBS_1.1", c.c_char_p, I),
]:
    globals()[name] = known[name] = symbol(ibv, name, version, result, *arguments)


class QpInitAttr(c.Structure):
    _fields_ = [("context", P), ("send_cq", P), ("recv_cq", P), ("srq", P), ("cap", c.c_uint32 * 5),
                ("qp_type", I), ("sq_sig_all", I)]


def made(what, pointer):
    if not pointer:
        raise SystemExit(f"{what}: {errno.errorcode.get(c.get_errno())}")
    return pointer


def fine(what, result):
    if result:
        raise SystemExit(f"{what}: {result}")


def verbs(device):
    context = made("open", ibv_open_device(device))
    big = c.create_string_buffer(4096)
    fine("query_device", ibv_query_device(context, big))
    assert int.from_bytes(big[96:100], "little") in (0x02c9, 0x15b3), "the vendor"
    fine("query_port", ibv_query_port(context, 1, big))
    assert int.from_bytes(big[:4], "little") == 4, "the port is not active"
    fine("query_gid", ibv_query_gid(context, 1, 1, big))
    assert bytes(big[10:12]) == b"\xff\xff", "not the GID of an IPv4 address"
    pd = made("alloc_pd", ibv_alloc_pd(context))
    memory = c.create_string_buffer(8192)
    mr = made("reg_mr", ibv_reg_mr(pd, memory, 8192, 7))
    # Relaxed ordering is an optional flag: a device may do without.
    relaxed = made("reg_mr_iova2", ibv_reg_mr_iova2(pd, memory, 8192, c.addressof(memory), 7 | 1 << 20))
    # NCCL tries a dma-buf that cannot be: EOPNOTSUPP says that there is no support, EBADF that there is. A descriptor that
    # can be mapped is refused likewise, and nothing is left behind that would keep the domain.
    for fd in -1, os.memfd_create("memory"):
        c.set_errno(0)
        assert not ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, 1)
        assert c.get_errno() == errno.EOPNOTSUPP, c.get_errno()
    cq = made("create_cq", ibv_create_cq(context, 64, None, None, 0))
    init = QpInitAttr(send_cq=cq, recv_cq=cq, qp_type=2)
    init.cap[:] = [64, 64, 1, 1, 0]
    qp = made("create_qp", ibv_create_qp(pd, c.byref(init)))
    attr = c.create_string_buffer(512)
    attr[0], attr[32], attr[129] = 1, 7, 1
    fine("modify_qp", ibv_modify_qp(qp, attr, 1 | 8 | 16 | 32))
    fine("query_qp", ibv_query_qp(qp, attr, 1, big))
    assert attr[0] == b"\1", "not in INIT"
    fine("destroy_qp", ibv_destroy_qp(qp))
    fine("destroy_cq", ibv_destroy_cq(cq))
    fine("dereg_mr", ibv_dereg_mr(relaxed) or ibv_dereg_mr(mr))
    fine("dealloc_pd", ibv_dealloc_pd(pd))
    direct(device, context)
    fine("close", ibv_close_device(context))


def direct(device, context):
    try:
        mlx5 = c.CDLL("libmlx5.so.1", use_errno=True)
    except OSError:
        return
    supported = symbol(mlx5, "mlx5dv_is_supported", "MLX5_1.8", c.c_bool, P)
    opened = symbol(mlx5, "mlx5dv_open_device", "MLX5_1.7", P, P, P)
    asked = symbol(mlx5, "mlx5dv_query_device", "MLX5_1.0", I, P, P)
    assert not supported(device), "mlx5dv_is_supported"
    assert not opened(device, c.create_string_buffer(64)) and c.get_errno() == errno.EOPNOTSUPP
        # The provider answers perftest's import of it; a lookup gets libmlx5's answer.
    assert asked(context, c.create_string_buffer(512)) == errno.EOPNOTSUPP


fine("fork_init", ibv_fork_init())
assert ibv_event_type_str(10), "no name of an event"
count = I()
devices = ibv_get_device_list(c.byref(count))
for i in range(count.value):
    print(ibv_get_device_name(devices[i]).decode())
    verbs(devices[i])
ibv_free_device_list(devices)
print(len(known), "symbols")
