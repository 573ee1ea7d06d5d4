"""MPICH, Debian's: the ranks of mpi4py's client over MPICH's own UCX transport, each on a VF of its own."""

import os
import pathlib


def install():
    from bed import need, skip
    from install import wheels

    mpiexec = need("mpiexec.mpich")
    library = next(pathlib.Path("/usr/lib").glob("*/libmpich.so.12"), None) or skip("no libmpich.so.12 here")
    return mpiexec, library, wheels("mpich")


def check(bed, installed):
    import with_mpi4py

    mpiexec, library, python = installed
    # The wheel asks for the name that MPICH's own builds give this library.
    os.symlink(library, os.path.join(bed.directory, "libmpi.so.12"))
    # Some builds of MPICH use shared memory between ranks of one machine, and so does UCX unless told otherwise.
    how = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "rc,ud,self", "MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": bed.directory}
    before = bed.sent()
    one, other = (["-n", 1, "-env", "UCX_NET_DEVICES", f"iron{n}:1", python, with_mpi4py.__file__] for n in (1, 2))
    said = bed.run(mpiexec, *one, ":", *other, seconds=60, **how)
    return with_mpi4py.result(bed, before, said, "iron1", "iron2")
