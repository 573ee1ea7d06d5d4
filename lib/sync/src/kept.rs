//! Descriptors of ours in a program that may close them without our knowledge.
//!
//! Daemons and shells close all descriptors that they do not know, and the next opened files get their numbers. Code
//! that keeps writing to such a number writes to a file of the program. So our descriptors have numbers that programs
//! rarely get, and are checked before use.
#![allow(unsafe_code)]

use std::{
    io,
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Our numbers start here, if the descriptor limit allows: programs get the lowest free numbers first.
const HIGH: libc::rlim_t = 512;

/// A descriptor that is used, and closed, only as long as its identity is unchanged. A concurrent close by another
/// thread between check and use is not detected.
#[derive(Debug)]
pub struct Kept<F: AsFd = OwnedFd> {
    file: ManuallyDrop<F>,
    is: Identity,
}

/// Identity of a descriptor's file: device, inode, and kind. Kernel event files (eventfd, epoll) all share one
/// identity, so for these only the type is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64, u32);

impl<F: AsFd> Kept<F> {
    /// Keeps `file` under its own number: closing any descriptor of a file would drop this process's locks on it.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn in_place(file: F) -> io::Result<Self> {
        let is = Identity::of(file.as_fd())?;
        Ok(Self { file: ManuallyDrop::new(file), is })
    }
}

impl<F: AsFd + From<OwnedFd>> Kept<F> {
    /// Keeps `file`, under a higher number if available.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn new(file: F) -> io::Result<Self> {
        Self::in_place(match higher(file.as_fd()) {
            Some(high) => F::from(high),
            None => file,
        })
    }
}

impl<F: AsFd> Kept<F> {
    /// Returns the file.
    ///
    /// # Errors
    /// EBADF: the program has closed it, even if its number is in use again.
    pub fn get(&self) -> io::Result<&F> {
        match self.is.is(self.file.as_fd()) {
            true => Ok(&self.file),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// The descriptor with its number, unchecked. To be used for waiting only.
    pub fn unchecked(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<F: AsFd> Drop for Kept<F> {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: dropped only once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) }
        }
    }
}

impl Identity {
    /// The identity of a descriptor.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: fills a structure of ours, for which zeros are valid.
        let stat = unsafe {
            match libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) {
                0 => stat.assume_init(),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        Ok(Self(stat.st_dev, stat.st_ino, stat.st_mode & libc::S_IFMT))
    }

    /// True if a descriptor has this identity.
    pub fn is(self, fd: BorrowedFd<'_>) -> bool {
        Self::of(fd).is_ok_and(|other| other == self)
    }
}

/// Duplicates the descriptor to a number that programs rarely get. `None` if there is none.
fn higher(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a structure of ours; the new descriptor is ours.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let from = HIGH.min(limit.rlim_cur / 2) as libc::c_int;
        match libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from) {
            -1 => None,
            high => Some(OwnedFd::from_raw_fd(high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    #[test]
    fn a_descriptor_whose_number_became_another_files_is_neither_used_nor_closed() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let kept = Kept::<OwnedFd>::new(writer.into()).unwrap();
        let number = kept.unchecked().as_raw_fd();
        assert!(number >= 512, "{number} is where programs have theirs");
        File::from(kept.get().unwrap().try_clone().unwrap()).write_all(&[7]).unwrap();
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
        let theirs = File::open("/dev/null").unwrap();
        // SAFETY: simulates a program that closes all descriptors and opens its own: the number is no longer ours.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        assert_eq!(kept.get().unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(kept);
        // SAFETY: only queries flags.
        assert_ne!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1, "the program's file is still open");
        // SAFETY: the descriptor belongs to the test.
        unsafe { libc::close(number) };
    }
}
