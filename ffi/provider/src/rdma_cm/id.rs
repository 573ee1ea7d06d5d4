//! An ID (`struct rdma_cm_id`): one end of a connection, or a listener.

use super::ports::At;
use super::sockaddr::SockAddr;
use super::uapi::{self, qp_type};
use cm::{ConnId, Path};
use std::os::fd::RawFd;

/// The state of an ID, numbered as in the kernel's `enum rdma_cm_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New.
    Idle,
    /// Has a source address and a port number.
    Bound,
    /// Its destination is being resolved.
    AddrQuery,
    /// Its destination and its device are known.
    AddrResolved,
    /// Its path is known.
    RouteResolved,
    /// From the first message of the connection on.
    Connect,
    /// The connection is over.
    Disconnect,
    /// Listens for requests.
    Listen,
}

impl State {
    /// Its number in the kernel's enumeration.
    pub fn number(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::AddrQuery => 1,
            Self::AddrResolved => 2,
            Self::RouteResolved => 4,
            Self::Connect => 5,
            Self::Disconnect => 6,
            Self::Bound => 7,
            Self::Listen => 8,
        }
    }
}

/// A connection or listener of the protocol: number of the port, and the ID at that port.
pub type Conn = (usize, ConnId);

/// An ID.
pub struct Id {
    /// The program's descriptor of its channel.
    pub file: RawFd,
    /// The program's identifier of it; 0 until a request is accepted.
    pub uid: u64,
    /// Port space.
    pub ps: u16,
    /// Type of its QP (`enum ib_qp_type`).
    pub qp_type: u8,
    /// Its state.
    pub state: State,
    /// Number of its events that the program has fetched.
    pub reported: u32,
    /// Source address.
    pub src: Option<SockAddr>,
    /// Destination.
    pub dst: Option<SockAddr>,
    /// The resolution of its destination, numbered within this process; 0 if none.
    pub search: u64,
    /// Its port and GID.
    pub at: Option<At>,
    /// GID of the destination.
    pub remote_gid: [u8; 16],
    /// Path of its packets.
    pub path: Option<Path>,
    /// Its connection or listener in the protocol.
    pub conn: Option<Conn>,
    /// The port number that it is bound to.
    pub binding: Option<PortBinding>,
    /// Number of further requests that may wait to be fetched.
    pub backlog: u32,
    /// Its QP number.
    pub qp_num: u32,
    /// True if its QP receives from an SRQ.
    pub srq: bool,
    /// First PSN of the peer's packets.
    pub psn: u32,
    /// Q_Key of its datagrams; 0 if not set yet.
    pub qkey: u32,
    /// Type of service.
    pub tos: u8,
    /// Acknowledge timeout, if the program set one.
    pub timeout: Option<u8>,
    /// True if it shares its port number with other IDs that permit it.
    pub reuse: bool,
    /// True if it is restricted to its address family. `None` is the family's default.
    pub af_only: Option<bool>,
    /// Its memberships in multicast groups.
    pub groups: Vec<u32>,
}

impl Id {
    /// Creates an ID.
    pub fn new(file: RawFd, uid: u64, ps: u16, qp_type: u8, psn: u32) -> Self {
        Self {
            file,
            uid,
            ps,
            qp_type,
            state: State::Idle,
            reported: 0,
            src: None,
            dst: None,
            search: 0,
            at: None,
            remote_gid: [0; 16],
            path: None,
            conn: None,
            binding: None,
            backlog: 0,
            qp_num: 0,
            srq: false,
            psn,
            qkey: 0,
            tos: 0,
            timeout: None,
            reuse: false,
            af_only: None,
            groups: Vec::new(),
        }
    }

    /// True if it is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.qp_type == qp_type::UD
    }

    /// Its service ID for listening at or connecting to `address`: the address's own, or one derived from port space and port.
    pub fn service_id(&self, address: &SockAddr) -> u64 {
        address.service_id(self.ps)
    }

    /// True if it is restricted to its address family.
    pub fn is_af_only(&self) -> bool {
        self.af_only.unwrap_or(matches!(self.src, Some(SockAddr::V4 { .. })))
    }

    /// Length of the `cma_hdr` before the program's private data; 0 for IDs of AF_IB.
    pub fn header_len(&self) -> usize {
        let ib = [self.src, self.dst].iter().any(|a| matches!(a, Some(SockAddr::Ib { .. })));
        if ib { 0 } else { super::ip_header::LEN }
    }

    /// The Q_Key of its datagrams: its own, or else that of its port space.
    pub fn q_key(&mut self) -> u32 {
        /// `RDMA_UDP_QKEY`.
        const UDP: u32 = 0x0123_4567;
        /// Q_Key of the IPoIB broadcast group in Linux' setup.
        const IPOIB: u32 = 0x0b1b;
        if self.qkey == 0 {
            self.qkey = if self.ps == uapi::port_space::IPOIB { IPOIB } else { UDP };
        }
        self.qkey
    }
}

/// A port number that an ID is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBinding {
    /// Port space.
    pub(super) space: u16,
    /// Port.
    pub(super) port: u16,
    /// The port of the fabric that it applies to; `None` for all.
    pub(super) at: Option<At>,
}

impl PortBinding {
    /// True if both have the same port number at a common place.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let same = (self.space, self.port) == (other.space, other.port);
        same && (self.at.is_none() || other.at.is_none() || self.at == other.at)
    }
}
