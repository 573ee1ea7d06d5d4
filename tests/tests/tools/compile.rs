//! Programs in C, compiled against the installed libibverbs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiles `tests/programs/NAME.c`.
pub fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(&source).arg("-libverbs");
    let said = cc.output().expect("a C compiler (apt-get install gcc)");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    program
}
