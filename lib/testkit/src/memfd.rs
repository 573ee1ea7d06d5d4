//! Files without a directory.

use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

/// Makes a file of `len` zero bytes in memory (memfd_create(2)). Unlike a file of the temporary directory, which may lie on overlayfs, it
/// can be a device's memory everywhere.
pub fn memfd(len: u64) -> File {
    let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("memfd_create"));
    file.set_len(len).expect("a length");
    file
}
