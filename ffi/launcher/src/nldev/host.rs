//! The kernel's answers, on hosts with their own RDMA devices.

use super::codes::*;
use super::message::{Asker, Request, requests};
use crate::{netlink::Netlink, seccomp::NETLINK_RDMA};
use nix::sys::socket::MsgFlags;
use std::io;
use std::time::Duration;

/// How long the kernel may take for one datagram.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the largest datagram the kernel sends.
const LARGEST: usize = 64 << 10;
/// Maximum number of datagrams in one answer.
const MANY: usize = 4096;

/// A socket of the host's RDMA netlink.
pub struct Host(Netlink);

impl Host {
    /// Opens a socket to the kernel.
    ///
    /// # Errors
    /// The kernel has no RDMA.
    pub fn open() -> io::Result<Self> {
        let socket = Netlink::open(libc::SOCK_RAW, NETLINK_RDMA)?;
        socket.bind(0)?;
        socket.set_patience(PATIENCE)?;
        Ok(Self(socket))
    }

    /// The kernel's result for a request that is only acknowledged: an errno, 0 for success.
    pub fn order(&self, request: &Request<'_>, asker: &Asker) -> io::Result<i32> {
        let bytes = request.acknowledged();
        let asked = requests(&bytes).next().ok_or(io::ErrorKind::InvalidInput)?;
        let answers = self.ask(&asked, asker)?;
        let last = answers.last().and_then(|datagram| requests(datagram).last().and_then(|m| m.errno()));
        last.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The messages of a dump, without its end, because ours follow.
    pub fn messages(&self, request: &Request<'_>, asker: &Asker) -> io::Result<Vec<Vec<u8>>> {
        let mut all = self.ask(request, asker)?;
        all.retain(|datagram| requests(datagram).all(|m| m.header.kind >= NLMSG_MIN_TYPE));
        Ok(all)
    }

    /// The datagrams of the kernel's answer to a request, addressed as if the asker had sent it.
    pub fn ask(&self, request: &Request<'_>, asker: &Asker) -> io::Result<Vec<Vec<u8>>> {
        self.0.send(0, request.bytes)?;
        let mut all = Vec::new();
        let acknowledged = request.header.flags & NLM_F_ACK != 0;
        while all.len() < MANY {
            let mut datagram = self.0.receive(LARGEST, MsgFlags::empty())?.bytes;
            let of_ours = requests(&datagram).all(|m| m.header.seq == request.header.seq);
            // Skips what remains of an earlier answer that took too long.
            if !of_ours {
                continue;
            }
            let last = requests(&datagram).last().map(|m| m.header);
            address(&mut datagram, asker.port);
            all.push(datagram);
            let ended = last.is_none_or(|last| match last.kind {
                NLMSG_DONE | NLMSG_ERROR => true,
                _ => last.flags & NLM_F_MULTI == 0 && !acknowledged,
            });
            if ended {
                break;
            }
        }
        Ok(all)
    }
}

/// Puts the asker's port into every message.
fn address(datagram: &mut [u8], port: u32) {
    let mut at = 0;
    let lens: Vec<usize> = requests(datagram).map(|m| m.bytes.len()).collect();
    for len in lens {
        if let Some(place) = datagram.get_mut(at + 12..at + 16) {
            place.copy_from_slice(&port.to_ne_bytes());
        }
        at += len.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Attributes, request};
    use super::*;

    #[test]
    fn every_message_of_a_datagram_is_addressed_to_the_asker() {
        let mut a = Attributes::default();
        a.text(attr::DEV_NAME, "mlx5_0");
        let mut datagram = [request(cmd::GET, 0, 1, &a), request(cmd::GET, 0, 1, &a)].concat();
        address(&mut datagram, 99);
        assert!(requests(&datagram).all(|m| m.header.port == 99) && requests(&datagram).count() == 2);
    }
}
