"""A temporary node for one client, programs on it, and the counters of its devices."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = pathlib.Path(os.environ.get("IRONVERBS_BUILT") or pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release")
# The physical function and two VFs: more devices slow down clients that open all of them, and test nothing more.
VFS = 2


class Skip(Exception):
    """The client is not available on this machine."""


class Wrong(Exception):
    """A failure: what was expected, and what was found instead."""


def need(program):
    """Returns the path of a program, or skips the client."""
    return shutil.which(program) or skip(f"no {program} here")


def skip(why):
    raise Skip(why)


def expect(holds, what):
    if not holds:
        raise Wrong(what)


def free_port():
    """Returns a TCP port that is currently free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def tail(text, lines=6):
    """Returns the last lines of an output, joined to one line."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-900:]


class Program:
    """A program on the node, in its own process group, with its output in a file."""

    def __init__(self, bed, words, environment):
        self.bed = bed
        self.name = " ".join(map(str, words))[:80]
        self.log = tempfile.NamedTemporaryFile(dir=bed.directory, suffix=".log", delete=False)
        self.process = subprocess.Popen(
            bed.launch(words),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            cwd=bed.directory,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            start_new_session=True,
        )

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def wait(self, seconds):
        """Waits for a program that must succeed within this time, and returns its output."""
        try:
            status = self.process.wait(self.bed.left(seconds))
        except subprocess.TimeoutExpired:
            self.end()
            raise Wrong(f"expected {self.name} to end within {seconds} s, found it running: {tail(self.output())}") from None
        expect(status == 0, f"expected {self.name} to succeed, found status {status}: {tail(self.output())}")
        return self.output()

    def until(self, word, seconds):
        """Waits until the program has printed this word."""
        end = time.monotonic() + self.bed.left(seconds)
        while word not in self.output():
            status = self.process.poll()
            expect(status is None, f"expected {self.name} to say {word!r}, found its end with {status}: {tail(self.output())}")
            expect(time.monotonic() < end, f"expected {self.name} to say {word!r} in {seconds} s, found {tail(self.output())}")
            time.sleep(0.05)
        return self

    def end(self):
        """Kills the program and its children."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.log.close()


class Bed:
    """A node for one client. Closing it ends all its programs and frees its memory."""

    def __init__(self, limit, link_layer="ethernet"):
        expect((BUILT / "ironverbs").exists(), f"expected the command at {BUILT / 'ironverbs'} (make build), found none")
        self.end_of_time = time.monotonic() + limit
        self.limit = limit
        self.programs = []
        self.directory = tempfile.mkdtemp(prefix="ironverbs-clients-")
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.node = tempfile.mkdtemp(prefix="ironverbs-clients-", dir=memory)
        command = [BUILT / "ironverbs", "node", "create", "--adapter", self.node, "--vfs", str(VFS), "--link-layer", link_layer]
        made = subprocess.run(command, capture_output=True, text=True, timeout=30)
        expect(made.returncode == 0, f"expected a new node, found {tail(made.stderr)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in self.programs:
            program.end()
        shutil.rmtree(self.node, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def left(self, seconds):
        """Returns this many seconds, or the rest of the client's time if that is less."""
        left = self.end_of_time - time.monotonic()
        expect(left > 0, f"expected the client to be done within {self.limit} s, found it busy")
        return min(seconds, left)

    def launch(self, words):
        return [str(BUILT / "ironverbs"), "run", "--adapter", self.node, "--", *map(str, words)]

    def start(self, *words, **environment):
        """Starts a program on the node that runs in the background."""
        self.left(1)
        program = Program(self, words, environment)
        self.programs.append(program)
        return program

    def run(self, *words, seconds=60, **environment):
        """Runs a program on the node and returns its output."""
        return self.start(*words, **environment).wait(seconds)

    def run_tests(self, program):
        """Runs a program of Rust tests and returns their number. None may fail or be ignored, and there must be some."""
        said = self.run(program, seconds=60, RUST_BACKTRACE="0")
        counted = re.search(r"test result: ok\. (\d+) passed; 0 failed; 0 ignored", said)
        expect(counted and int(counted[1]) > 0, f"expected the tests of {program.name} to pass, found {said[-200:]!r}")
        return int(counted[1])

    def run_pair(self, serves, asks, tries=2):
        """Runs a server, which does not say when it listens, and its client."""
        server = self.start(*serves, RUST_BACKTRACE="0")
        time.sleep(1)
        try:
            self.run(*asks, seconds=30, RUST_BACKTRACE="0")
            server.wait(20)
        except Wrong as why:
            # Clients give up within an eighth of a second, during which a busy machine may not schedule the server.
            server.end()
            if tries == 1:
                raise
            print(f"clients: FLAKY {why}", file=sys.stderr)
            self.run_pair(serves, asks, tries - 1)

    def sent(self):
        """Returns the bytes of RDMA packets that each device has sent, as read below `/sys` by a program on the node."""
        # The supervisor of a launched program updates the files within 80 ms. It writes them in place, so a file that grows between two
        # reads is misread at its end; head needs only one read.
        script = "sleep 0.3; for d in /sys/class/infiniband/iron*; do echo ${d##*/} $(head -n 1 $d/ports/1/counters/port_xmit_data); done"
        said = self.run("sh", "-c", script, seconds=20)
        counted = {device: int(count) * 4 for device, count in re.findall(r"^(iron\d+) (\d+)$", said, re.M)}
        expect(len(counted) == VFS + 1, f"expected a counter for each of {VFS + 1} devices, found {said!r}")
        return counted

    def must_have_sent(self, before, least, *each):
        """Checks that the devices have sent at least the bytes that a client reports since `before`, and returns their number.

        If devices are named, each of them must have sent that many.
        """
        # The supervisor updates the counters every 80 ms.
        end = time.monotonic() + self.left(3)
        while True:
            sent = {device: count - before[device] for device, count in self.sent().items()}
            counted = [sent[device] for device in each] or [sum(sent.values())]
            if min(counted) >= least:
                return sum(counted)
            expect(time.monotonic() < end, f"expected the devices to have sent at least {least} bytes, found {counted}")
            time.sleep(0.1)
