"""QEMU's migration over RDMA: migrates a machine from one QEMU to another and compares all its memory."""

import json
import os
import socket
import time

MEMORY = 64 << 20
FILLED = 16 << 20
ADDRESS = "rdma:127.0.0.2:4444"


def install():
    from bed import need

    return need("qemu-system-x86_64")


def check(bed, qemu):
    from bed import expect, skip

    version = bed.run(qemu, "--version").split("version ")[1].split()[0]
    filled = os.path.join(bed.directory, "filled")
    with open(filled, "wb") as image:
        image.write(os.urandom(FILLED))
    before = bed.sent()
    for number, pinned in enumerate((False, True)):
        # Only the first machine has these bytes, so the second can have them only by migration.
        first = machine(bed, qemu, f"from{number}", "-device", f"loader,file={filled},addr=0x1000000,force-raw=on")
        second = machine(bed, qemu, f"to{number}", "-incoming", "defer")
        for end in first, second:
            end("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": pinned}])
        try:
            second("migrate-incoming", uri=ADDRESS)
        except Refused as why:
            if "protocol" in str(why):
                skip(f"QEMU {version} is built without RDMA migration")
            raise
        first("migrate", uri=ADDRESS)
        done = finished(bed, first)
        expect(done == "completed", f"expected the migration to be completed, found {done}: {bed.programs[-2].output()[-300:]}")
        images = [end.memory(bed, f"{number}{n}") for n, end in enumerate((first, second))]
        expect(images[0] == images[1], "expected the same memory in both machines, found other bytes")
        expect(open(filled, "rb").read() in images[1], "expected what was loaded into the first machine in the second")
        for end in first, second:
            end("quit")
    sent = bed.must_have_sent(before, 2 * FILLED)
    return f"{version}: {MEMORY >> 20} MiB compared, registered in chunks and all at once, devices sent {sent}"


def finished(bed, end):
    """Waits for the end of a migration and returns its state."""
    until = time.monotonic() + bed.left(60)
    while time.monotonic() < until:
        state = end("query-migrate").get("status")
        if state in ("completed", "failed", "cancelled"):
            return state
        time.sleep(0.1)
    return f"{state} after a minute"


def machine(bed, qemu, name, *more):
    path = os.path.join(bed.directory, name)
    # An emulated machine with firmware and memory only, stopped so that its memory does not change.
    kind = ["-nodefaults", "-machine", "q35,accel=tcg", "-m", MEMORY >> 20, "-display", "none", "-S"]
    bed.start(qemu, *kind, "-qmp", f"unix:{path},server=on,wait=off", *more)
    return Monitor(bed, path)


class Refused(Exception):
    pass


class Monitor:
    """QEMU's command socket."""

    def __init__(self, bed, path):
        from bed import Wrong, tail

        until = time.monotonic() + bed.left(20)
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(20)
            try:
                self.socket.connect(path)
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > until:
                    raise Wrong(f"expected QEMU to listen, found {tail(bed.programs[-1].output())!r}") from None
                time.sleep(0.1)
        self.lines = self.socket.makefile("rw")
        self.lines.readline()
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.lines.flush()
        while True:
            answer = json.loads(self.lines.readline())
            if "error" in answer:
                raise Refused(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def memory(self, bed, name):
        """Returns all memory of the machine below the PCI hole."""
        path = os.path.join(bed.directory, f"memory-{name}")
        self("pmemsave", val=0, size=MEMORY, filename=path)
        with open(path, "rb") as image:
            return image.read()
