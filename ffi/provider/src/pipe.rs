//! Event files for programs: fixed-length records that the provider writes and libibverbs reads.
//!
//! A pipe keeps records whole (they are far smaller than PIPE_BUF and all of the same length), and behaves like the kernel's event files
//! under poll and O_NONBLOCK.

use driver::transport::{Identity, Kept};
use libc::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// The ends of a new pipe: for reading and for writing.
pub fn ends() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: two ints to fill; this function then owns the descriptors.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// An event file with records of `N` bytes. The program owns and closes the read end; the provider owns the write end.
pub struct EventPipe<const N: usize> {
    reader: RawFd,
    reader_is: Identity,
    writer: Kept,
    /// Serializes senders with the withdrawal of records.
    sending: Mutex<()>,
}

impl<const N: usize> EventPipe<N> {
    /// Creates an empty pipe.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = ends()?;
        // SAFETY: a descriptor of this function. A full pipe, with thousands of unread records, loses further records instead of blocking
        // the event thread.
        if unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (reader_is, writer) = (Identity::of(reader.as_fd())?, Kept::new(writer)?);
        Ok(Self { reader: reader.into_raw_fd(), reader_is, writer, sending: Mutex::new(()) })
    }

    /// The read end, for the program.
    pub fn reader(&self) -> RawFd {
        self.reader
    }

    /// Appends a record. Returns false if it was lost because the program has closed its end or left thousands of records unread.
    pub fn send(&self, record: [u8; N]) -> bool {
        let _one = self.sending.lock();
        self.write(&record)
    }

    /// Withdraws the unread records that `unwanted` selects, and returns their number. The others keep their order. Returns `None` if the
    /// program has closed its end, since the number of records it has read is then unknown.
    pub fn withdraw(&self, unwanted: impl Fn(&[u8; N]) -> bool) -> Option<usize> {
        let _one = self.sending.lock();
        if !self.has_reader() {
            return None;
        }
        let (mut kept, mut taken) = (Vec::new(), 0);
        while let Some(record) = self.read() {
            if unwanted(&record) {
                taken += 1;
            } else {
                kept.push(record);
            }
        }
        for record in &kept {
            self.write(record);
        }
        Some(taken)
    }

    /// True if the program's end is still open and its number has not been reused for another file.
    fn has_reader(&self) -> bool {
        // SAFETY: the descriptor is only queried for the identity of its file, if it is open.
        self.reader_is.is(unsafe { BorrowedFd::borrow_raw(self.reader) })
    }

    /// True if the program has closed its end or the provider's.
    pub fn abandoned(&self) -> bool {
        let Ok(writer) = self.writer.get() else { return true };
        let mut poll = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry; returns at once.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & libc::POLLERR != 0 }
    }

    fn write(&self, record: &[u8; N]) -> bool {
        // Without a reader, a write would raise SIGPIPE in the program.
        if self.abandoned() {
            return false;
        }
        // SAFETY: N readable bytes.
        unsafe { libc::write(self.writer.unchecked().as_raw_fd(), record.as_ptr().cast(), N) == N as isize }
    }

    /// Reads one record without blocking, whatever flags the program has set on its end.
    fn read(&self) -> Option<[u8; N]> {
        let mut record = [0; N];
        let mut ready: c_int = 0;
        let vector = libc::iovec { iov_base: record.as_mut_ptr().cast::<c_void>(), iov_len: N };
        // SAFETY: an int and N bytes to fill. Kernels before 6.4 lack RWF_NOWAIT for pipes; there, waiting bytes are missed only if the
        // program reads this channel while it destroys an object on it.
        let got = unsafe {
            if libc::ioctl(self.reader, libc::FIONREAD, &raw mut ready) != 0 || (ready as usize) < N {
                return None;
            }
            match libc::preadv2(self.reader, &raw const vector, 1, -1, libc::RWF_NOWAIT) {
                -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    libc::read(self.reader, vector.iov_base, N)
                }
                got => got,
            }
        };
        (got == N as isize).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::EventPipe;

    #[test]
    fn records_of_a_destroyed_object_are_withdrawn_and_the_others_stay_in_order() {
        let pipe = EventPipe::<8>::new().expect("a pipe");
        for record in [1u64, 2, 1, 3] {
            assert!(pipe.send(record.to_ne_bytes()));
        }
        assert_eq!(pipe.withdraw(|record| u64::from_ne_bytes(*record) == 1), Some(2));
        let left: Vec<u64> = std::iter::from_fn(|| pipe.read()).map(u64::from_ne_bytes).collect();
        assert_eq!(left, [2, 3]);
    }

    #[test]
    fn a_record_for_a_closed_channel_is_dropped_quietly() {
        let pipe = EventPipe::<8>::new().expect("a pipe");
        // SAFETY: the owner of the read end closes it: here, this test.
        unsafe { libc::close(pipe.reader()) };
        assert!(pipe.abandoned());
        assert!(!pipe.send([0; 8]));
        assert_eq!(pipe.withdraw(|_| true), None);
    }
}
