//! Programs in C and C++, compiled against the installed libibverbs and librdmacm.

use super::node::target;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiles `tests/programs/NAME.c`. Returns the path, as do the following functions.
pub fn compiled(name: &str) -> String {
    built("cc", name, "c", &["-libverbs", "-pthread"])
}

/// Compiles `tests/programs/NAME.c`, which uses librdmacm.
pub fn compiled_cm(name: &str) -> String {
    built("cc", name, "c", &["-lrdmacm", "-libverbs"])
}

/// Compiles `tests/programs/NAME.cpp`, which uses librdmacm.
pub fn compiled_cpp(name: &str) -> String {
    built("c++", name, "cpp", &["-lrdmacm", "-libverbs", "-pthread"])
}

/// Compiles `tests/programs/NAME.c`, an Open MPI program.
pub fn compiled_mpi(name: &str) -> String {
    built("mpicc", name, "c", &[])
}

/// Compiles `tests/programs/NAME.c` to a library for LD_PRELOAD.
pub fn compiled_library(name: &str) -> String {
    built("cc", name, "c", &["-shared", "-fPIC", "-ldl"])
}

/// Compiles `tests/programs/NAME.c`, which finds its libraries itself.
pub fn compiled_alone(name: &str) -> String {
    built("cc", name, "c", &["-ldl"])
}

/// Compiles `tests/programs/NAME.c` for a sanitizer: `address`, `undefined` or `thread`.
pub fn sanitized(name: &str, kind: &str) -> String {
    let libraries = ["-libverbs", "-pthread", "-g", &format!("-fsanitize={kind}")];
    built_as(&format!("{name}-{kind}"), "cc", &format!("{name}.c"), &libraries)
}

/// Directory for compiled programs and changed libraries: `CARGO_TARGET_TMPDIR` of the calling test, which cargo does not set for
/// libraries.
pub(super) fn scratch() -> PathBuf {
    target().join("tmp")
}

fn built(compiler: &str, name: &str, language: &str, libraries: &[&str]) -> String {
    built_as(name, compiler, &format!("{name}.{language}"), libraries)
}

fn built_as(name: &str, compiler: &str, source: &str, libraries: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let program = scratch().join(name);
    // Concurrent tests may need the same program: under its final name it is always complete.
    let half = program.with_extension(std::process::id().to_string());
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&half).arg(&source).args(libraries);
    let said = command.output().expect("a compiler (apt-get install gcc g++ libopenmpi-dev)");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    std::fs::rename(&half, &program).expect("a place for the program");
    program.into_os_string().into_string().expect("a path in UTF-8")
}
