//! Detection of other users that may have pinned pages of this process. The kernel does not tell which pages are
//! pinned, so this looks for open files with that ability.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
};

/// Major number of the kernel's verbs devices (`Documentation/admin-guide/devices.txt`); ours do not have it.
const VERBS_MAJOR: u32 = 231;
/// Number of bytes read of a file's name: enough for the names in question.
const NAME: usize = 64;

/// True if this process has other means to make the kernel or a device write to memory by page rather than by address:
/// io_uring buffers, VFIO devices, a card with its kernel driver. These would keep writing to the old pages after a
/// migration.
pub fn others_pin_memory() -> io::Result<bool> {
    const FILES: &str = "/proc/self/fd";
    let directory = File::open(FILES)?;
    for entry in std::fs::read_dir(FILES)? {
        let number = CString::new(entry?.file_name().into_vec())?;
        let mut name = [0u8; NAME];
        // SAFETY: a NUL-terminated name, and a buffer of the given length.
        let len = unsafe {
            libc::readlinkat(directory.as_raw_fd(), number.as_ptr(), name.as_mut_ptr().cast(), NAME)
        };
        // A file that was closed in the meantime has no name.
        let name = name.get(..usize::try_from(len).unwrap_or(0)).unwrap_or(&[]);
        if pins(name, || is_verbs(number.to_bytes())) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn pins(name: &[u8], is_verbs: impl FnOnce() -> bool) -> bool {
    name == b"anon_inode:[io_uring]"
        || name.starts_with(b"/dev/vfio/")
        || name.starts_with(b"/dev/infiniband/") && is_verbs()
}

fn is_verbs(number: &[u8]) -> bool {
    let path = format!("/proc/self/fd/{}", String::from_utf8_lossy(number));
    std::fs::metadata(path).is_ok_and(|meta| libc::major(meta.rdev()) == VERBS_MAJOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    #[test]
    fn a_program_with_an_io_uring_pins_memory() {
        assert!(!others_pin_memory().unwrap());
        let mut parameters = [0u32; 30];
        // SAFETY: `struct io_uring_params` has 120 bytes.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
        if ring < 0 {
            // io_uring is disabled on this host.
            return;
        }
        // SAFETY: a new descriptor.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
        assert!(others_pin_memory().unwrap());
        drop(ring);
        assert!(!others_pin_memory().unwrap());
    }

    #[test]
    fn devices_are_recognised_by_name_and_major_number() {
        assert!(pins(b"/dev/vfio/12", || false) && pins(b"/dev/infiniband/uverbs0", || true));
        assert!(!pins(b"/dev/infiniband/uverbs0", || false) && !pins(b"/dev/null", || true));
    }
}
