//! Completion channels. libibverbs creates them by writing command 17 to the device file, so the provider intercepts its `write`.

use crate::guard::{guard, lock, set_errno};
use crate::pipe::EventPipe;
use libc::{c_int, c_void, size_t, ssize_t};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL` of the kernel's write interface.
const CREATE_COMP_CHANNEL: u32 = 17;
/// Length of the command header (command and lengths) plus the address of the response.
const COMMAND_LEN: usize = 16;

/// A completion channel carries the addresses of CQs, 8 bytes each.
pub type Channel = EventPipe<8>;

/// The completion channels of one context, by file descriptor.
#[derive(Default)]
pub struct Channels(Mutex<HashMap<RawFd, Arc<Channel>>>);

impl Channels {
    fn create(&self) -> std::io::Result<RawFd> {
        let channel = Channel::new()?;
        let fd = channel.reader();
        let mut all = lock(&self.0);
        all.retain(|_, channel| Arc::strong_count(channel) > 1 || !channel.abandoned());
        all.insert(fd, Arc::new(channel));
        Ok(fd)
    }

    /// Returns the channel of a descriptor.
    pub fn get(&self, fd: RawFd) -> Option<Arc<Channel>> {
        lock(&self.0).get(&fd).cloned()
    }
}

/// The channels of each open context, by its command descriptor.
static OPEN: Mutex<Vec<(RawFd, Arc<Channels>)>> = Mutex::new(Vec::new());

/// Handles commands on `fd` for these channels from now on.
pub fn enter(fd: RawFd, channels: &Arc<Channels>) {
    let mut open = lock(&OPEN);
    open.retain(|(other, _)| *other != fd);
    open.push((fd, Arc::clone(channels)));
}

/// Stops handling commands for these channels, because the context is being closed.
pub fn leave(channels: &Arc<Channels>) {
    lock(&OPEN).retain(|(_, other)| !Arc::ptr_eq(channels, other));
}

/// True if `fd` is the command descriptor of an open context of this provider.
pub fn is_ours(fd: RawFd) -> bool {
    lock(&OPEN).iter().any(|(other, _)| *other == fd)
}

/// Replaces write(2) in libibverbs.
///
/// # Safety
/// As for write(2). libibverbs built any command that is written to one of the provider's descriptors.
pub unsafe extern "C" fn write_command(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    let ours = guard(None, || {
        let open = lock(&OPEN);
        open.iter().find(|(other, _)| *other == fd).map(|(_, channels)| Arc::clone(channels))
    });
    let Some(channels) = ours else {
        // SAFETY: the arguments are the caller's, unchanged.
        return unsafe { libc::write(fd, buffer, length) };
    };
    let answer = guard(Err(libc::EIO), || {
        // SAFETY: the buffer is readable for its length, which is checked first.
        let command = (length >= COMMAND_LEN).then(|| unsafe { buffer.cast::<u32>().read_unaligned() });
        if command != Some(CREATE_COMP_CHANNEL) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: as above; the second half of the command is the address of an int for the response.
        unsafe {
            let answer = buffer.cast::<u64>().add(1).read_unaligned() as *mut c_int;
            answer.write_unaligned(channels.create().map_err(|e| e.raw_os_error().unwrap_or(libc::EMFILE))?);
        }
        Ok(length as ssize_t)
    });
    answer.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A descriptor number that is not open in this process.
    const FD: RawFd = 1 << 20;

    fn command(number: u32, answer: &mut c_int) -> ssize_t {
        let mut bytes = [0u8; COMMAND_LEN];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes[8..].copy_from_slice(&(&raw mut *answer as u64).to_ne_bytes());
        // SAFETY: the buffer holds a whole command.
        unsafe { write_command(FD, bytes.as_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn a_channel_is_created_by_its_command_and_no_other_command_passes() {
        let channels = Arc::new(Channels::default());
        enter(FD, &channels);
        let mut fd = -1;
        assert_eq!(command(CREATE_COMP_CHANNEL, &mut fd), COMMAND_LEN as ssize_t);
        assert!(channels.get(fd).is_some());
        assert_eq!(command(9, &mut fd), -1);
        leave(&channels);
        assert_eq!(command(CREATE_COMP_CHANNEL, &mut fd), -1, "the real write on a descriptor that is none");
    }
}
