"""Installs what clients need besides Debian's packages: wheels and crates, fetched once in fixed versions."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from bed import Skip, expect, need, skip, tail

HERE = pathlib.Path(__file__).resolve().parent
ROOM = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ironverbs" / "clients"


@contextlib.contextmanager
def made(name, *parts):
    """Yields the folder of `name`, and true if it must still be filled; it is complete once the block ends without an error.

    The folder is named by a hash of its inputs, so that other versions make a new one, which replaces the old.
    """
    folder = ROOM / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
    ROOM.mkdir(parents=True, exist_ok=True)
    with open(ROOM / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = folder / ".made"
        missing = not whole.exists()
        if missing:
            for old in ROOM.glob(f"{name}-*"):
                shutil.rmtree(old)
            folder.mkdir()
        yield folder, missing
        whole.touch()


def fetch(what, words, limit, **more):
    """Runs a package client; if it fails, the client is skipped."""
    print(f"clients: {what} is made ready", file=sys.stderr)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit, **more)
    except subprocess.TimeoutExpired:
        raise Skip(f"{what} was not made ready within {limit} s") from None
    if done.returncode != 0:
        raise Skip(f"{what} cannot be had here: {tail(done.stderr, 3)}")
    return done.stdout


def wheels(name):
    """Returns the interpreter of an environment with only the wheels of `wheels/NAME.txt`."""
    wanted = HERE / "wheels" / f"{name}.txt"
    with made(name, wanted.read_text(), sys.version) as (folder, missing):
        python = folder / "bin" / "python"
        if missing:
            fetch("an environment for wheels", [sys.executable, "-m", "venv", folder], 120)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
            fetch(f"the wheel of {name}", [*pip, "-r", wanted], 900)
    return python


def crate(name, version, edits=(), **environment):
    """Builds a crate's tests and examples; they are in `debug/deps` and `debug/examples` of the returned directory.

    An edit is a file of the crate, a text in it, and the text to put there.
    """
    cargo, rustc = need("cargo"), need("rustc")
    release = subprocess.run([rustc, "--version"], capture_output=True, text=True, timeout=60).stdout
    with made(name, version, release, *edits) as (folder, missing):
        target = folder / "target"
        if missing:
            # This fetches a crate without a choice of versions for its dependencies, of which some may have been withdrawn.
            fetch(f"crate {name}", [cargo, "info", "--quiet", f"{name}@{version}"], 300, cwd=folder)
            home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
            shutil.copytree(next(home.glob(f"registry/src/*/{name}-{version}")), folder / "crate")
            for file, old, new in edits:
                place = folder / "crate" / file
                expect(old in place.read_text(), f"expected {old!r} in {file} of {name}, found none")
                place.write_text(place.read_text().replace(old, new))
            # The crate's own lock file selects the versions it was tested with. Debug information would take most of the build time, and
            # what a second build would reuse a fifth of the space.
            build = [cargo, "test", "--locked", "--no-run", "--quiet", "--target-dir", target]
            light = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_TEST_DEBUG": "0", "CARGO_INCREMENTAL": "0"}
            environment = {**os.environ, **light, **environment}
            environment.pop("CARGO_BUILD_TARGET", None)
            fetch(f"a build of {name}'s tests", build, 1500, cwd=folder / "crate", env=environment)
    return target


def bindgen():
    """Returns the environment in which the bindgen of rdma-sys finds libclang and headers, or skips the client.

    It needs libclang 15 or older: PyPI's wheel has one, and gcc provides the compiler's own headers.
    """
    for path, debian in ("infiniband/verbs.h", "libibverbs-dev"), ("rdma/rdma_verbs.h", "librdmacm-dev"):
        if not pathlib.Path("/usr/include", path).exists():
            skip(f"no {path} here ({debian})")
    need("pkg-config")
    libclang = wheels("rdma_sys").parent.parent.glob("lib/python*/site-packages/clang/native")
    builtin = subprocess.run([need("gcc"), "-print-file-name=include"], capture_output=True, text=True, timeout=60).stdout.strip()
    return {"LIBCLANG_PATH": next(libclang), "BINDGEN_EXTRA_CLANG_ARGS": f"-I{builtin}"}


def package(name, crate, **environment):
    """Builds a package of ours beside this file against the installed libibverbs, and returns the directory.

    If `crate`, which it depends on, cannot be built, the client is skipped; if our package cannot be built, it fails.
    """
    cargo, rustc = need("cargo"), need("rustc")
    versions = [
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout
        for words in ([rustc, "--version"], ["pkg-config", "--modversion", "libibverbs", "librdmacm"])
    ]
    sources = sorted([*(HERE / name).glob("Cargo.*"), *(HERE / name / "src").iterdir()])
    with made(f"built-{name}", versions, [(path.name, path.read_text()) for path in sources]) as (folder, missing):
        target = folder / "target"
        if missing:
            environment = {**os.environ, **environment}
            environment.pop("CARGO_BUILD_TARGET", None)
            build = [cargo, "build", "--locked", "--quiet", "--target-dir", target]
            fetch(f"a build of {crate}", [*build, "--package", crate], 900, cwd=HERE / name, env=environment)
            ours = subprocess.run(build, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, cwd=HERE / name, env=environment)
            expect(ours.returncode == 0, f"expected {name} to be built, found {tail(ours.stderr)}")
    return target
