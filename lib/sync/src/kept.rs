//! Descriptors of ours in a program that may close them behind our back.
//!
//! Daemons and shells close all descriptors that they don't know, and what is opened next gets their numbers. Code that goes on writing to such
//! a number writes into a file of the program's. So our descriptors lie where programs seldom get any, and are looked at before they are used.
#![allow(unsafe_code)]

use std::{
    io,
    mem::{ManuallyDrop, MaybeUninit},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Numbers from here on are ours, if the limit of descriptors allows it: lower ones go to the program first.
const HIGH: libc::rlim_t = 512;

/// A descriptor that is used, and closed, as long as it is what it was. Another thread that closes it just between the look and the use
/// is not noticed.
#[derive(Debug)]
pub struct Kept<F: AsFd = OwnedFd> {
    file: ManuallyDrop<F>,
    is: Identity,
}

/// Which file a descriptor is of: device, inode, and its kind. Events of the kernel's (eventfd, epoll) look all alike: of these it is
/// known only that they are such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64, u32);

impl<F: AsFd> Kept<F> {
    /// Keeps `file` under its number: closing any of a file's numbers takes the locks that this process has on it.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn in_place(file: F) -> io::Result<Self> {
        let is = Identity::of(file.as_fd())?;
        Ok(Self { file: ManuallyDrop::new(file), is })
    }
}

impl<F: AsFd + From<OwnedFd>> Kept<F> {
    /// Keeps `file`, under a higher number if there is one.
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
    /// The file.
    ///
    /// # Errors
    /// EBADF: the program has closed it, whatever has its number now.
    pub fn get(&self) -> io::Result<&F> {
        match self.is.is(self.file.as_fd()) {
            true => Ok(&self.file),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// The descriptor that has its number, to wait on alone.
    pub fn unchecked(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<F: AsFd> Drop for Kept<F> {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: once, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) }
        }
    }
}

impl Identity {
    /// That of a descriptor.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: a structure of ours to fill, which zeros are one of.
        let stat = unsafe {
            match libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) {
                0 => stat.assume_init(),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        Ok(Self(stat.st_dev, stat.st_ino, stat.st_mode & libc::S_IFMT))
    }

    /// True if a descriptor is of that file.
    pub fn is(self, fd: BorrowedFd<'_>) -> bool {
        Self::of(fd).is_ok_and(|other| other == self)
    }
}

/// The same file under a number that programs seldom get. `None`: there is none.
fn higher(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours to fill; a new descriptor is ours.
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
        // SAFETY: what a program does that closes all and opens its own: the number is not ours any more.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        assert_eq!(kept.get().unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(kept);
        // SAFETY: asks for flags alone.
        assert_ne!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1, "the program's file is still open");
        // SAFETY: the test's own.
        unsafe { libc::close(number) };
    }
}
