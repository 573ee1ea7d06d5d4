//! Event channels: the file of a program that opened the connection manager's device.
//!
//! The program's descriptor is one end of a socket pair that contains one byte while an event is pending, so its readability under poll,
//! epoll and O_NONBLOCK is that of the kernel's file.

use super::uapi::EventResp;
use driver::transport::{Identity, Kept};
use libc::c_int;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// An event that has not been fetched yet.
pub struct Pending {
    /// The ID that it was reported for; for a request, the listener.
    pub about: u32,
    /// For a request, the new ID.
    pub child: Option<u32>,
    /// The multicast membership that it concerns.
    pub group: Option<u32>,
    /// The response that the program reads.
    pub response: EventResp,
}

/// One event channel.
pub struct EventFile {
    /// The program's end, which the program closes.
    reader: RawFd,
    reader_is: Identity,
    writer: Kept,
    events: VecDeque<Pending>,
    /// The thread that last requested an event, and whether it waits.
    asker: Option<(libc::pid_t, bool)>,
}

impl EventFile {
    /// Creates an event channel.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn new(nonblock: bool) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(nonblock)?;
        let (reader_is, writer) = (Identity::of(reader.as_fd())?, Kept::new(writer.into())?);
        let reader = reader.into_raw_fd();
        Ok(Self { reader, reader_is, writer, events: VecDeque::new(), asker: None })
    }

    /// The program's end.
    pub fn reader(&self) -> RawFd {
        self.reader
    }

    /// True if the program has made its end non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: only reads the flags of a descriptor that the program holds.
        unsafe { libc::fcntl(self.reader, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    /// Records that this thread requests an event, and whether it waits if there is none.
    pub fn asked(&mut self, waits: bool) {
        // SAFETY: takes no arguments.
        self.asker = Some((unsafe { libc::gettid() }, waits));
    }

    /// True if another thread got an event, and has neither requested the next one nor exited.
    pub fn is_to_be_asked(&self) -> bool {
        let Some((asker, false)) = self.asker else { return false };
        // SAFETY: accesses no memory, and sends no signal.
        unsafe { asker != libc::gettid() && libc::syscall(libc::SYS_tgkill, libc::getpid(), asker, 0) == 0 }
    }

    /// Appends an event.
    pub fn push(&mut self, event: Pending) {
        self.events.push_back(event);
        self.show();
    }

    /// Appends the events of another channel in order.
    pub fn extend(&mut self, events: Vec<Pending>) {
        self.events.extend(events);
        self.show();
    }

    /// Removes the oldest event.
    pub fn pop(&mut self) -> Option<Pending> {
        let event = self.events.pop_front();
        self.hide();
        event
    }

    /// Removes and returns the events that `unwanted` selects. Both groups keep their order.
    pub fn withdraw(&mut self, unwanted: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let (out, kept): (Vec<_>, Vec<_>) = self.events.drain(..).partition(unwanted);
        self.events = kept.into();
        self.hide();
        out
    }

    /// Makes the descriptor readable.
    fn show(&self) {
        let mut waiting: c_int = 0;
        // SAFETY: an int to fill, and one byte to send; without a reader no signal is raised.
        unsafe {
            let asked = libc::ioctl(self.reader, libc::FIONREAD, &raw mut waiting);
            if let (false, 0, 0, Ok(writer)) = (self.events.is_empty(), asked, waiting, self.writer.get()) {
                libc::send(
                    writer.as_raw_fd(),
                    [0u8].as_ptr().cast(),
                    1,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                );
            }
        }
    }

    /// Makes the descriptor unreadable once no event is left.
    fn hide(&self) {
        let mut byte = 0u8;
        // SAFETY: the descriptor is only queried for the identity of its file, if it is open.
        let is_there = self.reader_is.is(unsafe { BorrowedFd::borrow_raw(self.reader) });
        if self.events.is_empty() && is_there {
            // SAFETY: one byte to fill; does not block, whatever flags the program has set on its end.
            unsafe { libc::recv(self.reader, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma_cm::uapi::Plain;

    fn event(about: u32) -> Pending {
        Pending { about, child: None, group: None, response: EventResp::zero() }
    }

    fn readable(file: &EventFile) -> bool {
        let mut poll = libc::pollfd { fd: file.reader(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry; returns at once.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_an_event_is_pending() {
        let mut file = EventFile::new(false).expect("a socket pair");
        assert!(!readable(&file) && !file.is_nonblocking());
        [1, 2, 1, 3].into_iter().for_each(|about| file.push(event(about)));
        assert!(readable(&file));
        assert_eq!(file.withdraw(|event| event.about == 1).len(), 2);
        assert!(readable(&file));
        let left: Vec<u32> = std::iter::from_fn(|| file.pop()).map(|event| event.about).collect();
        assert_eq!(left, [2, 3]);
        assert!(!readable(&file) && file.pop().is_none());
        // SAFETY: the test's own end, which a program would close.
        unsafe { libc::close(file.reader()) };
    }
}
