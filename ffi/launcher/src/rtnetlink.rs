//! The settings of a virtual function that an administrator makes through the PF's net device: `RTM_SETLINK` with `IFLA_VFINFO_LIST`, as
//! sent by `ip link set PF vf N` (rtnetlink(7)).

use super::netlink::Netlink;
use super::nldev::codes::{NLM_F_ACK, NLM_F_REQUEST};
use super::nldev::message::{Attributes, HEADER, Header, requests};
use libc::{IFLA_VFINFO_LIST, RTM_SETLINK};
use nix::sys::socket::MsgFlags;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Attributes of a VF in the list of a link.
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_TRUST: u16 = 9;
/// Size of the address in `struct ifla_vf_mac`.
const ADDRESS: usize = 32;
/// Size of `struct ifinfomsg`.
const LINK: usize = 16;
/// Time limit for the kernel, which waits for the card.
const PATIENCE: Duration = Duration::from_secs(60);
/// The sequence number of the only message.
const SEQUENCE: u32 = 1;

/// The settings to make; `None` or false leaves a setting unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfSettings {
    /// Its MAC address.
    pub mac: Option<[u8; 6]>,
    /// The VLAN of all its frames; 0 is none.
    pub vlan: Option<u16>,
    /// Trust the VF with operations such as receiving all frames or taking another MAC.
    pub trust: bool,
}

impl VfSettings {
    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Sets `settings` of VF `vf`, counted from 0, of the physical function with net device `net`.
///
/// # Errors
/// The kernel's, such as EPERM (this takes CAP_NET_ADMIN) and EOPNOTSUPP.
pub fn set_vf(net: &str, vf: u32, settings: &VfSettings) -> io::Result<()> {
    let index = std::fs::read_to_string(Path::new("/sys/class/net").join(net).join("ifindex"))?;
    let index = index.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let socket = Netlink::open(libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    socket.set_patience(PATIENCE)?;
    socket.bind(0)?;
    socket.send(0, &message(index, vf, settings))?;
    loop {
        let received = socket.receive(8192, MsgFlags::empty())?;
        // Only messages from the kernel count.
        if received.from != 0 {
            continue;
        }
        let answer = requests(&received.bytes).find(|answer| answer.header.seq == SEQUENCE);
        match answer.and_then(|answer| answer.errno()) {
            Some(0) => return Ok(()),
            Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
            None => {}
        }
    }
}

fn message(index: i32, vf: u32, settings: &VfSettings) -> Vec<u8> {
    let mut list = Attributes::default();
    list.nest(IFLA_VFINFO_LIST, |list| {
        list.nest(IFLA_VF_INFO, |info| {
            if let Some(mac) = settings.mac {
                let mut bytes = [0; 4 + ADDRESS];
                bytes[..4].copy_from_slice(&vf.to_ne_bytes());
                bytes[4..10].copy_from_slice(&mac);
                info.bytes(IFLA_VF_MAC, &bytes);
            }
            if let Some(vlan) = settings.vlan {
                let priority = 0u32;
                info.bytes(IFLA_VF_VLAN, &words(&[vf, vlan.into(), priority]));
            }
            if settings.trust {
                info.bytes(IFLA_VF_TRUST, &words(&[vf, 1]));
            }
        });
    });
    let len = HEADER + LINK + list.len();
    let mut out = Vec::with_capacity(len);
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    Header { len: len as u32, kind: RTM_SETLINK, flags, seq: SEQUENCE, port: 0 }.put(&mut out);
    let mut link = [0; LINK];
    link[4..8].copy_from_slice(&index.to_ne_bytes());
    out.extend(link);
    out.extend(list.as_bytes());
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For VF 3 of the net device with index 7, structure by structure of `linux/if_link.h`.
    #[test]
    fn the_message_is_laid_out_as_the_headers_say() {
        let settings = VfSettings { mac: Some([2, 0, 0, 0, 0, 5]), vlan: Some(100), trust: true };
        let sent = message(7, 3, &settings);
        let word = |at: usize| u32::from_ne_bytes(sent[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_ne_bytes(sent[at..at + 2].try_into().unwrap());
        assert_eq!((word(0) as usize, half(4), half(6)), (sent.len(), 19, 5));
        assert_eq!((word(16), word(20), word(24), word(28)), (0, 7, 0, 0), "struct ifinfomsg");
        assert_eq!((usize::from(half(32)), half(34)), (sent.len() - 32, 22));
        assert_eq!((usize::from(half(36)), half(38)), (sent.len() - 36, 1));
        assert_eq!((half(40), half(42), word(44)), (40, 1, 3));
        assert_eq!(sent[48..80], [&[2, 0, 0, 0, 0, 5][..], &[0; 26]].concat());
        assert_eq!((half(80), half(82), word(84), word(88), word(92)), (16, 2, 3, 100, 0));
        assert_eq!((half(96), half(98), word(100), word(104)), (12, 9, 3, 1));
        assert_eq!(sent.len(), 108);
    }

    #[test]
    fn the_kernel_reads_it_and_says_what_it_cannot_do() {
        let settings = VfSettings { trust: true, ..VfSettings::default() };
        // The loopback interface has no virtual functions, and the user may lack the privilege.
        let error = set_vf("lo", 0, &settings).unwrap_err().raw_os_error().unwrap();
        assert!([libc::EOPNOTSUPP, libc::EPERM].contains(&error), "{error}");
        assert_eq!(set_vf("no-such-net", 0, &settings).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
