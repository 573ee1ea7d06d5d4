"""Code shared by the two programs of a client: data to compare, and messages exchanged through their working directory."""

import os
import pathlib
import time

import numpy


def random_bytes(seed, size):
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


def tell(name, text=""):
    pathlib.Path(f"{name}.part").write_text(text)
    os.rename(f"{name}.part", name)


def hear(name, seconds=60):
    end = time.monotonic() + seconds
    while not os.path.exists(name):
        if time.monotonic() > end:
            raise SystemExit(f"expected the other side to say {name!r} within {seconds} s, found nothing")
        time.sleep(0.02)
    return pathlib.Path(name).read_text()


def compare(found, expected, what):
    wrong = numpy.flatnonzero(found != expected)
    if wrong.size:
        raise SystemExit(f"expected {what} byte by byte, found {wrong.size} of {expected.size} wrong, the first at {wrong[0]}")
