"""Talks RDMA netlink as programs do that have no library for it (Go's among them), and checks what comes back.

Each check is a function; its name is the program's argument. A check that fails ends with a word about it.
"""
import errno, os, select, signal, socket, struct, sys, threading, time

NLDEV, GET, PORT_GET, SYS_GET, SYS_SET, RES_GET, RES_QP_GET = 5, 1, 5, 6, 7, 9, 10
GET_CHARDEV, STAT_GET, QP_RAW, NEWLINK, DELLINK, SET = 15, 17, 19, 3, 4, 2
REQUEST, MULTI, ACK, DUMP = 1, 2, 4, 0x300
ERROR, DONE = 2, 3
INDEX, NAME, PORT, CHARDEV_TYPE, CHARDEV_NAME, NETNS, COF, STAT_RES = 1, 2, 3, 69, 70, 66, 93, 75


def attr(kind, payload):
    if isinstance(payload, int):
        payload = struct.pack("=I", payload)
    elif isinstance(payload, str):
        payload = payload.encode() + b"\0"
    out = struct.pack("=HH", len(payload) + 4, kind) + payload
    return out + b"\0" * (-len(out) % 4)


def message(command, flags=0, *attrs, seq=7, client=NLDEV):
    body = b"".join(attrs)
    return struct.pack("=IHHII", 16 + len(body), client << 10 | command, REQUEST | flags, seq, 0) + body


def open_socket(kind=socket.SOCK_RAW | socket.SOCK_CLOEXEC):
    s = socket.socket(socket.AF_NETLINK, kind, 20)
    s.settimeout(None)
    return s


def split(data):
    while len(data) >= 16:
        length, kind, flags, seq, port = struct.unpack_from("=IHHII", data)
        assert 16 <= length <= len(data), (length, len(data))
        yield kind, flags, seq, port, data[16:length]
        data = data[(length + 3) // 4 * 4:]


def attrs(body):
    out = {}
    while len(body) >= 4:
        length, kind = struct.unpack_from("=HH", body)
        assert length >= 4
        out.setdefault(kind & 0x3fff, []).append(body[4:length])
        body = body[(length + 3) // 4 * 4:]
    return out


def text(payload):
    assert payload.endswith(b"\0"), payload
    return payload[:-1].decode()


def ask(s, request, seq=7):
    """The messages of the answer, checked as vishvananda/netlink does: the kernel's port, our sequence, our own port."""
    sent = s.sendto(request, (0, 0))
    assert sent == len(request)
    out, port = [], s.getsockname()[0]
    dump = struct.unpack_from("=H", request, 6)[0] & DUMP
    while True:
        data, (source, groups) = s.recvfrom(65536)
        assert (source, groups) == (0, 0), (source, groups)
        for kind, flags, got, to, body in split(data):
            assert (got, to) == (seq, port), (got, to, port)
            if kind == DONE:
                return out, struct.unpack_from("=i", body)[0]
            if kind == ERROR:
                return out, struct.unpack_from("=i", body)[0]
            assert bool(flags & MULTI) == bool(dump)
            out.append(attrs(body))
        if not dump:
            return out, 0


def names(s):
    found, status = ask(s, message(GET, DUMP))
    assert status == 0
    return {text(a[NAME][0]): struct.unpack("=I", a[INDEX][0])[0] for a in found}


def link_list():
    """RdmaLinkList of vishvananda/netlink."""
    s = open_socket()
    s.bind((0, 0))
    print(" ".join(sorted(names(s))))


def bound_numbers():
    a, b = open_socket(), open_socket()
    a.bind((0, 0))
    assert a.getsockname()[0] == os.getpid()
    b.bind((0, 0))
    assert b.getsockname()[0] not in (0, a.getsockname()[0])
    assert names(a) == names(b)
    c = open_socket()
    c.bind((0x1234567, 0))
    assert c.getsockname()[0] == 0x1234567 and names(c)
    assert os.get_inheritable(a.fileno()) is False


def unbound_and_connected():
    s = open_socket()
    s.connect((0, 0))
    assert s.send(message(SYS_GET)) > 0
    data = s.recv(4096)
    ((kind, flags, seq, port, body),) = split(data)
    assert port == s.getsockname()[0] != 0
    assert attrs(body)[NETNS][0] == b"\1" and attrs(body)[COF][0] == b"\1"
        # A port of another owner is refused.
    try:
        s.sendto(message(SYS_GET), (4242, 0))
        raise SystemExit("sent to a neighbour")
    except OSError as e:
        assert e.errno in (errno.EPERM, errno.ECONNREFUSED), e


def waiting():
    s = open_socket(socket.SOCK_RAW | socket.SOCK_NONBLOCK)
    s.setblocking(False)
    s.bind((0, 0))
    poll, epoll = select.poll(), select.epoll()
    poll.register(s, select.POLLIN)
    epoll.register(s, select.EPOLLIN)
    assert not poll.poll(0) and not epoll.poll(0)
    try:
        s.recv(100)
        raise SystemExit("something to read")
    except BlockingIOError:
        pass
    s.sendto(message(GET, DUMP), (0, 0))
    assert poll.poll(1000) and epoll.poll(1)
    while True:
        kinds = [m[0] for m in split(s.recv(65536))]
        if DONE in kinds:
            break
        assert poll.poll(1000)
    assert not poll.poll(0) and not epoll.poll(0)


def blocking():
    """A thread that reads sleeps until another one's request is answered."""
    s = open_socket()
    s.bind((0, 0))
    got = []
    reader = threading.Thread(target=lambda: got.append(s.recv(4096)))
    reader.start()
    time.sleep(0.2)
    assert not got
    s.sendto(message(SYS_GET), (0, 0))
    reader.join(5)
    assert len(got) == 1
    # A limit of time is kept, and so is a signal.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200000))
    start = time.monotonic()
    try:
        s.recv(100)
        raise SystemExit("something to read")
    except BlockingIOError:
        assert 0.15 < time.monotonic() - start < 2
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 0))

    class Rung(Exception):
        pass

    def ring(*_):
        raise Rung

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        s.recv(100)
        raise SystemExit("something to read")
    except Rung:
        pass
    assert ask(s, message(SYS_GET))[1] == 0


def backlog():
    """More answers than the socket holds wait their turn, and none is lost."""
    s = open_socket()
    s.bind((0, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    for i in range(500):
        s.sendto(message(GET, DUMP, seq=i + 1), (0, 0))
    ends, poll = [], select.poll()
    poll.register(s, select.POLLIN)
    while len(ends) < 500:
        assert poll.poll(5000), len(ends)
        ends += [seq for kind, _, seq, _, _ in split(s.recv(65536)) if kind == DONE]
    assert ends == list(range(1, 501)) and not poll.poll(0)


def peeked():
    s = open_socket()
    s.bind((0, 0))
    s.sendto(message(SYS_GET), (0, 0))
    length = s.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
    assert length > 16
    assert len(s.recv(length, socket.MSG_PEEK)) == length
    data, _, flags, source = s.recvmsg(16)
    assert len(data) == 16 and flags & socket.MSG_TRUNC and source == (0, 0)
    s.setblocking(False)
    try:
        s.recv(1)
        raise SystemExit("read twice")
    except BlockingIOError:
        pass


def errors():
    s = open_socket()
    s.bind((0, 0))
    s.setsockopt(270, 11, 1)  # NETLINK_EXT_ACK
    admin = os.geteuid() == 0
    one = names(s)["iron1"]
    perm = -errno.EPERM
    for status, request in [
        (-errno.EINVAL, message(GET)),
        (-errno.EINVAL, message(GET, 0, attr(INDEX, 4711))),
        (-errno.EINVAL, message(GET, 0, attr(INDEX, b"\1"))),
        (-errno.EINVAL, message(PORT_GET, 0, attr(INDEX, one), attr(PORT, 2))),
        (-errno.EINVAL, message(GET_CHARDEV, 0, attr(INDEX, one))),
        (-errno.EOPNOTSUPP, message(GET_CHARDEV, 0, attr(INDEX, one), attr(CHARDEV_TYPE, "nothing"))),
        (-errno.EINVAL, message(RES_GET, 0)),
        (-errno.ENOENT, message(RES_QP_GET, 0, attr(INDEX, one), attr(PORT, 1), attr(21, 4711))),
        (-errno.EINVAL, message(RES_QP_GET, DUMP)),
        (-errno.EINVAL, message(STAT_GET, DUMP, attr(INDEX, one), attr(STAT_RES, 99))),
        (-errno.EINVAL, message(SYS_GET, DUMP)),
        (-errno.EINVAL, message(99)),
        (-errno.EINVAL, message(1, client=4)),
        (-errno.EINVAL if admin else perm, message(QP_RAW, 0, attr(INDEX, one), attr(PORT, 1), attr(21, 1))),
        (-errno.EOPNOTSUPP if admin else perm, message(SYS_SET, 0, attr(NETNS, b"\0"))),
        (-errno.EOPNOTSUPP if admin else perm, message(SET, 0, attr(INDEX, one), attr(NAME, "x"))),
        (-errno.EINVAL if admin else perm, message(DELLINK, 0, attr(INDEX, one))),
        (-errno.EINVAL if admin else perm, message(NEWLINK, 0, attr(NAME, "x"), attr(65, "rxe"), attr(51, "lo"))),
    ]:
        got = ask(s, request)[1]
        assert got == status, (request, got, status)
    # An acknowledgement follows what was asked for, and a message without REQUEST gets that alone.
    s.sendto(message(SYS_GET, ACK), (0, 0))
    first, second = list(split(s.recv(4096))), list(split(s.recv(4096)))
    assert first[0][0] == NLDEV << 10 | SYS_GET and second[0][0] == ERROR and second[0][4][:4] == b"\0" * 4
    s.sendto(b"", (0, 0))
    s.sendto(b"\1\2\3", (0, 0))
    s.sendto(os.urandom(600), (0, 0))
    s.setblocking(False)
    while True:
        try:
            s.recv(65536)
        except BlockingIOError:
            break
    s.setblocking(True)
    assert "iron1" in names(s)


def forked():
    """A child uses the socket it was born with, and sockets of the dead are let go."""
    s = open_socket()
    s.bind((0, 0))
    child = os.fork()
    if child == 0:
        os._exit(0 if "iron1" in names(s) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert "iron1" in names(s)
    for _ in range(300):
        fresh = open_socket()
        fresh.bind((0, 0))
        fresh.close()
    many = [open_socket() for _ in range(100)]
    assert len({m.fileno() for m in many}) == 100
    assert "iron1" in names(many[-1])


def supervisor():
    """The number of our own supervisor."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = open(f"/proc/{pid}/comm").read().strip()
            command = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if name == "ironverbs-super" and os.environ["IRONVERBS_NODE"] in command:
            return int(pid)
    raise SystemExit("no supervisor")


def own_sockets():
    """A program's own sockets work whatever becomes of the supervisor, and a question to one that dies is an error."""
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    s = open_socket()
    s.bind((0, 0))
    pairs = [socket.socketpair() for _ in range(700)]
    assert any(900 <= a.fileno() < 1024 for a, _ in pairs)

    def exchange():
        # A call that waits for the supervisor ends the program.
        signal.alarm(10)
        for i, (a, b) in enumerate(pairs):
            a.sendall(b"%d" % i)
            assert b.recv(100) == b"%d" % i
            b.sendmsg([b"back"])
            assert a.recvmsg(100)[0] == b"back"
        signal.alarm(0)

    exchange()
    pid = supervisor()
    os.kill(pid, signal.SIGSTOP)
    exchange()
    said = []

    def wait_for_answer():
        try:
            said.append(names(s))
        except OSError as e:
            said.append(e.errno)

    thread = threading.Thread(target=wait_for_answer)
    thread.start()
    time.sleep(0.3)
    assert not said
    os.kill(pid, signal.SIGKILL)
    thread.join(5)
    assert said == [errno.ENOSYS], said
    exchange()
    try:
        open_socket()
        raise SystemExit("a socket of nobody's")
    except OSError as e:
        assert e.errno == errno.ENOSYS, e


def own_numbers():
    """No descriptor of a program's own gets a number of ours, and ours do not change the program's limit."""
    import resource
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = open_socket()
    others = [open_socket() for _ in range(129)]
    ours = {s.fileno() for s in [first] + others}
    assert len(ours) == 130
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft <= min(ours), (soft, min(ours))
    files = []
    try:
        while len(files) < 5000:
            files.append(os.dup(0))
    except OSError as e:
        assert e.errno == errno.EMFILE, e
    assert max(files) < min(ours)
    try:
        os.dup2(0, min(ours))
        raise SystemExit("a descriptor of ours was replaced")
    except OSError as e:
        assert e.errno == errno.EBADF, e
    # With not one descriptor left to the program: the limit of ours is another.
    os.close(files.pop())
    assert "iron1" in names(others[-1])
    at = first.fileno()
    first.close()
    again = open_socket()
    assert again.fileno() == at
    while True:
        try:
            others.append(open_socket())
        except OSError as e:
            assert e.errno == errno.EMFILE, e
            break


def few_descriptors():
    """A program that lowers its limit has its sockets all the same, if its hard limit lets us raise it again."""
    import resource
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    many = [open_socket() for _ in range(130)]
    assert "iron1" in names(many[-1]) and resource.getrlimit(resource.RLIMIT_NOFILE) == (64, hard)
    for s in many:
        s.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 65))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        assert "iron1" in names(open_socket())
    except ValueError:
        try:
            open_socket()
            raise SystemExit("a socket")
        except OSError as e:
            assert e.errno == errno.EPROTONOSUPPORT, e


def bad_addresses():
    """Addresses that are not there, lengths that cannot be, threads that are gone while they wait."""
    import ctypes, random
    libc = ctypes.CDLL(None, use_errno=True)
    s = open_socket()
    s.bind((0, 0))
    fd, wrong = s.fileno(), ctypes.c_void_p(8)

    def fails(code, call, *arguments):
        ctypes.set_errno(0)
        got = call(fd, *arguments)
        assert got == -1 and ctypes.get_errno() == code, (call, got, errno.errorcode.get(ctypes.get_errno()))

    fails(errno.EFAULT, libc.sendto, wrong, 100, 0, None, 0)
    fails(errno.EMSGSIZE, libc.sendto, wrong, ctypes.c_size_t(1 << 40), 0, None, 0)
    fails(errno.EFAULT, libc.sendto, b"x" * 16, 16, 0, wrong, 12)
    fails(errno.EINVAL, libc.sendto, b"x" * 16, 16, 0, b"y" * 12, 4)
    fails(errno.EINVAL, libc.sendto, b"x" * 16, 16, 0, b"\2\0" + b"y" * 10, 12)
    fails(errno.EFAULT, libc.sendmsg, wrong, 0)
    fails(errno.EFAULT, libc.recvmsg, wrong, 0)
    fails(errno.EINVAL, libc.connect, wrong, 1)
    fails(errno.EFAULT, libc.connect, wrong, 12)
    s.sendto(message(SYS_GET), (0, 0))
    fails(errno.EFAULT, libc.recvfrom, wrong, 100, 0, None, None)
    s.setblocking(False)
    dice = random.Random(7)
    for _ in range(2000):
        header = (ctypes.c_uint64 * 7)(*(dice.choice([0, 8, 1 << 20, 1 << 63, ctypes.addressof(ctypes.create_string_buffer(64))])
                                         for _ in range(7)))
        dice.choice([libc.sendmsg, libc.recvmsg])(fd, header, dice.choice([0, 0x40, 0x20, 2]))
        libc.sendto(fd, bytes(dice.randrange(256) for _ in range(64)), dice.randrange(64), 0, None, 0)
        libc.recvfrom(fd, ctypes.create_string_buffer(64), dice.randrange(64), 0x40, None, None)
    while True:
        try:
            s.recv(65536)
        except BlockingIOError:
            break
    s.setblocking(True)
    # Children that are killed while they wait leave the socket to the others.
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            s.recv(100)
            os._exit(0)
        children.append(child)
    time.sleep(0.3)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert "iron1" in names(s)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        globals()[check]()
