//! Other users that may have pinned pages of this process. The kernel does not tell which pages are pinned, so the open
//! files are searched for those that can pin.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
};

/// Major number of the kernel's verbs devices (`Documentation/admin-guide/devices.txt`), which ours do not have.
const VERBS_MAJOR: u32 = 231;
/// Bytes of a file's name that are read: enough for those searched for.
const NAME: usize = 64;

/// True if something else in this process may have the kernel or a device write to memory by its pages rather than its
/// addresses: buffers of io_uring, devices of VFIO, a card with its kernel driver. Those would go on writing to pages
/// that have migrated away.
pub fn others_pin_memory() -> io::Result<bool> {
    const FILES: &str = "/proc/self/fd";
    let directory = File::open(FILES)?;
    for entry in std::fs::read_dir(FILES)? {
        let number = CString::new(entry?.file_name().into_vec())?;
        let mut name = [0u8; NAME];
        // SAFETY: a name that ends in 0, and a buffer of the length given.
        let len = unsafe {
            libc::readlinkat(directory.as_raw_fd(), number.as_ptr(), name.as_mut_ptr().cast(), NAME)
        };
        // A file closed in the meantime has no name.
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
            // This host forbids io_uring.
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
