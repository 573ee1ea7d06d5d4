#!/usr/bin/python3
"""Sends Ethernet frames from one net device and looks for them at another.

    frames.py arrives|lost FROM TO [dst=MAC] [src=MAC] [tag=VLAN] [beside]
    frames.py rate FROM TO LEAST

An end is a net device, written NAMESPACE:DEVICE if it is in another namespace, or `wire`, the other end of eth0's uplink, where a process
unwraps frames from eth0 and wraps all others. The default addresses are those of the ends; `wire` has one of its own.

`arrives` resends until the frame arrives unchanged, with the tag `tag` or untagged. `lost` sends several frames and waits for a while, or
with `beside` until another frame with the addresses of the ends has come the same way; it tries again while one of them arrives. On
failure both print a line and exit with 1. `rate` prints the rate in Mb/s of frames of 9000 bytes, and tries again for a while if it is
below LEAST, because the machine may be busy.
"""

import ctypes
import os
import select
import socket
import sys
import time

# IEEE 802, local experiments: frames under test, and frames that carry others to or from the wire.
TEST, WRAPPED = b"\x88\xb5", b"\x88\xb6"
# A station on the wire that is not known to the adapter.
STATION = bytes.fromhex("020000000099")
ETH_P_ALL, PACKET_OUTGOING = 3, 4
SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID = 263, 8, 1 << 4
CLONE_NEWNET = 0x40000000
PATIENCE = 10
# Longer than most frames take on a busy machine.
QUIET = 0.3


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


class End:
    """A net device, with a socket that sees its frames."""

    def __init__(self, name):
        self.is_wire = name == "wire"
        namespace, _, device = ("eth0" if self.is_wire else name).rpartition(":")
        here = os.open("/proc/self/ns/net", os.O_RDONLY)
        if namespace:
            enter(os.open("/run/netns/" + namespace, os.O_RDONLY))
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind((device, ETH_P_ALL))
        self.socket.setblocking(False)
        self.own = self.socket.getsockname()[4]
        self.mac = STATION if self.is_wire else self.own
        enter(here)

    def send(self, frame):
        """Sends a frame. It is lost if the device has no carrier or no room."""
        if self.is_wire:
            frame = STATION + self.own + WRAPPED + frame
        try:
            self.socket.send(frame)
        except OSError:
            pass

    def received(self, until):
        """Yields the test frames that arrive until then, each with its tag."""
        while True:
            left = max(0, until - time.monotonic())
            if not select.select([self.socket], [], [], left)[0]:
                return
            try:
                frame, info, _, (_, _, kind, _, _) = self.socket.recvmsg(65536, 256)
            except OSError:
                # The device went down meanwhile, which the socket reports once.
                continue
            if kind == PACKET_OUTGOING:
                continue
            tag = None
            for level, which, data in info:
                # struct tpacket_auxdata: the status comes first, the tag after the lengths.
                if (level, which) == (SOL_PACKET, PACKET_AUXDATA):
                    if int.from_bytes(data[:4], sys.byteorder) & TP_STATUS_VLAN_VALID:
                        tag = int.from_bytes(data[16:18], sys.byteorder)
            if self.is_wire:
                if frame[12:14] != WRAPPED:
                    continue
                frame = frame[14:]
            if frame[12:14] == b"\x81\x00":
                tag = int.from_bytes(frame[14:16], "big")
                frame = frame[:12] + frame[16:]
            if frame[12:14] == TEST:
                yield frame, tag


def enter(namespace):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


class Unexpected(Exception):
    pass


def deliver(start, end, head):
    """Sends frames until one arrives. Returns its tag, and the frames that came before it."""
    before = []
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        frame = head + os.urandom(46)
        start.send(frame)
        for came, tag in end.received(time.monotonic() + QUIET):
            if came == frame:
                return tag, before
            before.append(came)
    raise Unexpected("did not arrive")


def arrives(start, end, head, tag):
    found, _ = deliver(start, end, head)
    if found != tag:
        raise Unexpected(f"arrived with tag {found}, expected {tag}")


def lost(start, end, head, beside):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        frames = [head + os.urandom(46) for _ in range(3)]
        for frame in frames:
            start.send(frame)
        if beside:
            _, came = deliver(start, end, end.mac + start.mac + TEST)
        else:
            came = [frame for frame, _ in end.received(time.monotonic() + QUIET)]
        if not any(frame in came for frame in frames):
            return
    raise Unexpected("arrived")


def rate(start, end, head, least):
    """Measures the rate over half a second, after the burst that an idle port may send."""
    until = time.monotonic() + PATIENCE
    frame, found = head + bytes(8986), 0
    while found < least and time.monotonic() < until:
        count, begin = 0, time.monotonic() + 0.2
        while (now := time.monotonic()) < begin + 0.5:
            start.send(frame)
            came = sum(1 for _ in end.received(now))
            count += came if now > begin else 0
        found = count * len(frame) * 8 / (time.monotonic() - begin) / 1e6
    print(f"rate {found:.1f}")


def main(what, start, end, *more):
    words = dict(word.split("=") for word in more if "=" in word)
    start, end = End(start), End(end)
    dst, src = [mac(words[key]) if key in words else one.mac for key, one in (("dst", end), ("src", start))]
    head = dst + src + TEST
    if what == "rate":
        rate(start, end, head, float(more[0]))
    elif what == "lost":
        lost(start, end, head, "beside" in more)
    else:
        arrives(start, end, head, int(words["tag"]) if "tag" in words else None)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Unexpected as why:
        sys.exit(f"{' '.join(sys.argv[1:])}: {why}")
