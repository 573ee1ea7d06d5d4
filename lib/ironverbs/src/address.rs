//! Addresses of datagram sockets.

use crate::verbs::{Completion, RawCompletion, WcFlags};
use hwspec::{
    cqe::RoceL3Type,
    layout::prefix,
    wire::{Ipv4, Ipv6, ip::gid_of_v4},
};
use node::gid::gid_of_ip;
use std::net::IpAddr;

/// Bytes of the network header before a datagram in its buffer.
pub(crate) const GRH: usize = 40;
/// The Q_Key of sockets that have chosen none: any, as long as both sides have the same.
pub(crate) const QKEY: u32 = 0x1b56_0001;
/// The queue pair number that means all members of a group.
const MEMBERS: u32 = 0xff_ffff;

/// The address of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// GID of the port.
    pub gid: [u8; 16],
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The key that its datagrams carry.
    pub qkey: u32,
}

impl Address {
    /// The members of an IP multicast group ([`Datagrams::join`](crate::Datagrams::join)), on Ethernet.
    pub fn group(ip: IpAddr) -> Self {
        Self { gid: gid_of_ip(ip), lid: 0, qpn: MEMBERS, qkey: QKEY }
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// GID of its port; zero on InfiniBand if the datagram came from the same subnet.
    pub gid: [u8; 16],
    /// LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// Number of its queue pair.
    pub qpn: u32,
}

impl Source {
    pub(crate) fn of(wc: &Completion, raw: &RawCompletion, header: &[u8; GRH]) -> Self {
        let gid = match (wc.flags.contains(WcFlags::GRH), raw.roce_l3_type()) {
            (false, _) => [0; 16],
            (true, RoceL3Type::Ipv4) => {
                gid_of_v4(Ipv4::from_bytes(prefix(&header[GRH - Ipv4::SIZE..])).src())
            }
            (true, _) => Ipv6::from_bytes(*header).src(),
        };
        Self { gid, lid: wc.slid, qpn: wc.src_qp }
    }

    /// The address for an answer, if the sender has the usual Q_Key.
    pub fn address(&self) -> Address {
        Address { gid: self.gid, lid: self.lid, qpn: self.qpn, qkey: QKEY }
    }
}
