//! Programs in C and C++, compiled against the installed libibverbs and librdmacm.

use super::node::target;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiles `tests/programs/NAME.c`.
pub fn compiled(name: &str) -> PathBuf {
    built("cc", &format!("{name}.c"), &["-libverbs", "-pthread"])
}

/// Compiles `tests/programs/NAME.c`, which connects by librdmacm.
pub fn compiled_cm(name: &str) -> PathBuf {
    built("cc", &format!("{name}.c"), &["-lrdmacm", "-libverbs"])
}

/// Compiles `tests/programs/NAME.c`, a program of Open MPI's.
pub fn compiled_mpi(name: &str) -> PathBuf {
    built("mpicc", &format!("{name}.c"), &[])
}

/// Compiles `tests/programs/NAME.c` to a library that is loaded before others.
pub fn compiled_library(name: &str) -> PathBuf {
    built("cc", &format!("{name}.c"), &["-shared", "-fPIC", "-ldl"])
}

/// Compiles `tests/programs/NAME.c`, which finds its libraries itself.
pub fn compiled_alone(name: &str) -> PathBuf {
    built("cc", &format!("{name}.c"), &["-ldl"])
}

/// Where compiled programs and changed libraries go: `CARGO_TARGET_TMPDIR` of the test that asks, which cargo does not give to libraries.
pub(super) fn scratch() -> PathBuf {
    target().join("tmp")
}

fn built(compiler: &str, source: &str, libraries: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let program = scratch().join(source.file_stem().expect("a name"));
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(&source).args(libraries);
    let said = command.output().expect("a compiler (apt-get install gcc g++ libopenmpi-dev)");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    program
}

/// Compiles `tests/programs/NAME.cpp`, which connects by librdmacm.
pub fn compiled_cpp(name: &str) -> PathBuf {
    built("c++", &format!("{name}.cpp"), &["-lrdmacm", "-libverbs", "-pthread"])
}
