"""Writes garbage into a function: configuration space, BAR0, command queue, doorbells, addresses outside memory.

garbage.py BDF SEED SECONDS; exits with 0 if every access returned, and every command was either answered or rejected with a reason.
The device's answers are printed by status.
"""
import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter

BDF, SEED, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
DEVICE = f"/sys/bus/pci/devices/{BDF}"
DICE = random.Random(SEED)
PAGE = 4096
BAR = 32 << 20
# The guest's kernel was told to leave this half of its memory alone. Without an IOMMU the device writes to any address it is given, and a
# kernel with overwritten memory would no longer prove anything about the device.
SPARE, END = 512 << 20, 1 << 30


class Dma:
    """Pages of this program with known bus addresses: there is no IOMMU in the guest."""

    def __init__(self, pages):
        # Python has no name for MAP_LOCKED.
        self.map = mmap.mmap(-1, pages * PAGE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE | 0x2000)
        self.address = []
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        with open("/proc/self/pagemap", "rb") as table:
            for page in range(pages):
                self.map[page * PAGE] = 0
                table.seek((start // PAGE + page) * 8)
                self.address.append((struct.unpack("<Q", table.read(8))[0] & ((1 << 55) - 1)) * PAGE)


class Bar:
    """BAR0, one aligned access at a time."""

    def __init__(self):
        self.fd = os.open(f"{DEVICE}/resource0", os.O_RDWR | os.O_SYNC)
        self.map = mmap.mmap(self.fd, BAR)

    def read(self, offset):
        return int.from_bytes(self.map[offset : offset + 4], "big")

    def write(self, offset, value, size=4):
        kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[size]
        kind.from_buffer(self.map, offset).value = int.from_bytes(value.to_bytes(size, "big"), "little")


def anywhere():
    """Returns a random address: inside memory that the kernel does not use, around its end, far outside, unaligned."""
    return DICE.choice(
        [
            lambda: DICE.randrange(SPARE, END) & ~0xFFF,
            lambda: END + DICE.randrange(-8192, 8192),
            lambda: DICE.randrange(1 << 63, 1 << 64),
            lambda: DICE.getrandbits(64),
            lambda: 0xFEE00000 + DICE.randrange(4096),
            lambda: 0xFFFFFFFFFFFFF000,
            lambda: 0,
        ]
    )()


def check_spare():
    """Exits unless the kernel leaves the spare half alone."""
    with open("/proc/iomem") as table:
        used = [line.split()[0] for line in table if line.endswith("System RAM\n")]
    ends = [int(part.split("-")[1], 16) for part in used]
    if not ends or max(ends) >= SPARE:
        sys.exit(f"expected a kernel that uses memory below {SPARE:#x} alone, found {used}")


def reset():
    with open(f"{DEVICE}/reset", "w") as file:
        file.write("1")


def config():
    subprocess.run(["setpci", "-s", BDF, "COMMAND=0x0006"], check=True)


class Commands:
    """A valid command queue for garbage commands."""

    OPCODES = (
        [0x100, 0x101, 0x102, 0x103, 0x104, 0x105, 0x107, 0x108, 0x109, 0x10A, 0x10B, 0x10D]
        + [0x200, 0x201, 0x202, 0x203, 0x301, 0x302, 0x303, 0x400, 0x401, 0x402, 0x403]
        + list(range(0x500, 0x510)) + list(range(0x700, 0x70D)) + list(range(0x750, 0x778))
        + list(range(0x800, 0x830)) + list(range(0x900, 0x948)) + [0xA00, 0xA01, 0xA04, 0xA06]
    )

    def __init__(self, bar, dma):
        self.bar, self.dma, self.answers, self.silent = bar, dma, Counter(), 0

    def setup(self):
        config()
        self.bar.write(0x10, self.dma.address[0] >> 32)
        self.bar.write(0x14, self.dma.address[0] & 0xFFFFFFFF)
        until = time.monotonic() + 5
        while self.bar.read(0x1FC) >> 31 and time.monotonic() < until:
            time.sleep(0.001)
        self.entries = 1 << (self.bar.read(0x14) >> 4 & 15)
        self.stride = 1 << (self.bar.read(0x14) & 15)

    def send(self, data, out_length, wild=False, slot=0):
        """Sends one command. Returns its status, or None if it was not answered."""
        memory, address = self.dma.map, self.dma.address
        # Mailboxes: pages 1 and 2 for input, page 3 for output.
        rest = data[16:]
        blocks = [(1, 0), (1, 1024), (1, 2048), (1, 3072), (2, 0), (2, 1024)]
        used = blocks[: (len(rest) + 511) // 512]
        for n, (page, offset) in enumerate(used):
            chunk = rest[n * 512 : n * 512 + 512].ljust(512, b"\0")
            more = address[used[n + 1][0]] + used[n + 1][1] if n + 1 < len(used) else 0
            if wild and DICE.random() < 0.3:
                more = anywhere()
            tail = bytes(48) + struct.pack(">QI", more, n) + bytes(4)
            memory[page * PAGE + offset : page * PAGE + offset + 576] = (chunk + tail).ljust(576, b"\0")
        for n in range(4):
            more = address[3] + (n + 1) * 1024 if n < 3 else 0
            base = 3 * PAGE + n * 1024
            memory[base : base + 576] = bytes(512 + 48) + struct.pack(">QI", more, n) + bytes(4)
        into = address[1] if used else 0
        out = address[3] if out_length > 16 else 0
        if wild:
            into, out = DICE.choice([into, anywhere()]), DICE.choice([out, anywhere()])
        length = len(data) if not wild else DICE.choice([len(data), DICE.getrandbits(32)])
        entry = struct.pack(">B3xIQ", 7, length, into) + data[:16].ljust(16, b"\0") + bytes(16)
        entry += struct.pack(">QI", out, out_length) + bytes([DICE.getrandbits(8) if wild else 0, 0, 0, 1])
        at = slot * self.stride
        memory[at : at + 64] = entry
        self.bar.write(0x18, 1 << slot)
        until = time.monotonic() + 3
        while memory[at + 63] & 1:
            if time.monotonic() > until:
                self.silent += 1
                return None
        delivery = memory[at + 63] >> 1
        status = memory[at + 32]
        self.answers[f"delivery {delivery:#x}" if delivery else f"status {status:#x}"] += 1
        return status

    def bring_up(self):
        """Brings the function up like a driver, with few checks."""
        self.send(struct.pack(">HHHH8x", 0x104, 0, 0, 0), 16)
        self.send(struct.pack(">HHHH8x", 0x10B, 0, 0, 0)[:8] + struct.pack(">I4x", 1), 16)
        given = [page for page in self.dma.address[16:]]
        for stage in (1, 2):
            self.send(struct.pack(">HHHH8x", 0x107, 0, 0, stage), 16)
            wanted = min(struct.unpack(">i", self.dma.map[44:48])[0], 400, len(given))
            if wanted > 0:
                pages, given = given[:wanted], given[wanted:]
                self.send(struct.pack(">HHHHI4x", 0x108, 0, 0, 1, 0)[:8] + struct.pack(">II", 0, wanted)[0:8]
                          + b"".join(struct.pack(">Q", page) for page in pages[:300]), 16)
            if stage == 1:
                continue
            self.send(struct.pack(">HHHH8x", 0x102, 0, 0, 0), 16)

    def garbage(self):
        opcode = DICE.choice(self.OPCODES) if DICE.random() < 0.95 else DICE.getrandbits(16)
        size = DICE.choice([16, 16, 32, 64, 128, 256, 272, 512, 1024, 2048])
        body = bytearray(DICE.choice([lambda: bytes(size), lambda: DICE.randbytes(size)])())
        for _ in range(DICE.randrange(6)):
            at = DICE.randrange(0, max(1, size - 8), 8)
            body[at : at + 8] = struct.pack(">Q", DICE.choice([anywhere(), DICE.randrange(64), DICE.choice(self.dma.address)]))
        struct.pack_into(">HHHH", body, 0, opcode, 0, 0, DICE.choice([0, 1, 2, DICE.getrandbits(16)]))
        self.send(bytes(body), DICE.choice([16, 32, 64, 272, 1024]), wild=DICE.random() < 0.3, slot=DICE.randrange(self.entries - 1))


def main():
    check_spare()
    bar, dma = Bar(), Dma(900)
    end = time.monotonic() + SECONDS
    total, silent, rounds = Counter(), 0, 0
    while time.monotonic() < end or rounds < 2:
        rounds += 1
        reset()
        config()
        # The configuration space itself, except for the addresses that the guest's kernel relies on.
        for _ in range(50):
            at = DICE.choice([DICE.randrange(0x40, 0x100), DICE.randrange(0x100, 0x1000)]) & ~3
            subprocess.run(["setpci", "-s", BDF, f"{at:x}.L={DICE.getrandbits(32):08x}"], stderr=subprocess.DEVNULL)
        reset()
        config()
        # A command queue at a random address.
        for _ in range(20):
            where = anywhere()
            bar.write(0x10, where >> 32 & 0xFFFFFFFF)
            bar.write(0x14, where & 0xFFFFFFFF)
            for _ in range(4):
                bar.write(0x18, DICE.getrandbits(32))
            bar.read(0x1FC)
        reset()
        commands = Commands(bar, dma)
        commands.setup()
        commands.bring_up()
        until = min(end, time.monotonic() + 4)
        while time.monotonic() < until and commands.silent < 20:
            commands.garbage()
            for _ in range(10):
                size = DICE.choice([1, 2, 4, 8])
                near = DICE.choice([0x1000, 0x4000, 0x10000, 0x100000, BAR])
                at = DICE.randrange(0, near, size)
                # Leaves the command queue's own address alone, because answers are expected.
                if not 0x10 <= at < 0x18:
                    bar.write(at, DICE.getrandbits(8 * size), size)
            for _ in range(10):
                # Doorbells of the first pages after those reserved by the chip.
                bar.write((16 + DICE.randrange(8)) * PAGE + DICE.choice([0x20, 0x40, 0x48, 0x800, 0x900]),
                          DICE.getrandbits(32) & DICE.choice([0xFFFFFFFF, 0xFF]), 4)
            bar.read(0x1010)
        total += commands.answers
        silent += commands.silent
    reset()
    refused = sum(count for kind, count in total.items() if kind != "status 0x0")
    print(f"{rounds} rounds, {sum(total.values())} answers, {refused} of them refusals, {silent} commands without answer")
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(total.items())))
    sys.exit(0 if refused > 50 else 1)


main()
