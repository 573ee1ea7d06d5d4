//! Copies of the system's libraries and programs under other names, like the bundled libraries of Python wheels.

use super::compile::scratch;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// The sonames to change, and their replacements of the same length, so that the files otherwise stay as they are.
const SONAMES: [(&[u8], &[u8]); 2] =
    [(b"libibverbs.so.1\0", b"libibverbs-0.so\0"), (b"librdmacm.so.1\0", b"librdmacm-0.so\0")];

/// Makes a directory with `libibverbs-0.so` and `librdmacm-0.so`, which refer to each other by these names.
pub fn renamed_libraries(name: &str) -> PathBuf {
    let dir = scratch().join(name);
    fs::create_dir_all(&dir).expect("a directory");
    for (soname, ours) in SONAMES {
        let system = &soname[..soname.len() - 3];
        let system = String::from_utf8_lossy(system);
        let asked =
            Command::new("cc").arg(format!("-print-file-name={system}")).output().expect("a compiler");
        let system = String::from_utf8(asked.stdout).expect("a path in UTF-8");
        rename(
            Path::new(system.trim()),
            &dir.join(String::from_utf8_lossy(&ours[..ours.len() - 1]).as_ref()),
        );
    }
    dir
}

/// Makes a copy of `from` that refers to the libraries by the other names.
pub fn rename(from: &Path, to: &Path) {
    let mut bytes = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    let mut renamed = 0;
    for (soname, ours) in SONAMES {
        let at: Vec<usize> =
            (0..bytes.len() - soname.len()).filter(|at| bytes[*at..].starts_with(soname)).collect();
        at.iter().for_each(|at| bytes[*at..][..ours.len()].copy_from_slice(ours));
        renamed += at.len();
    }
    assert!(renamed > 0, "expected one of the sonames in {}", from.display());
    fs::write(to, bytes).expect("a copy");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("an executable copy");
}
