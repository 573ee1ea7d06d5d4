//! Unreliable datagrams.

use crate::{
    Address, Buf, Device, Error, Recv, Request, Result,
    address::{GRH, QKEY},
    channel::Channel,
    qp,
    requests::{Hold, Work},
    verbs::{Ah, QpAttr, QpState, SendOp, Service},
};
use node::gid::gid_of_ip;
use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Address handles that a socket keeps.
const KNOWN: usize = 1024;

type Port = ([u8; 16], u16);

/// A socket for datagrams of up to one packet, which may get lost. Buffers for receives have room for 40 bytes more, which the network header
/// takes on the way.
pub struct Datagrams {
    channel: Arc<Channel>,
    /// By GID and LID.
    known: Mutex<HashMap<Port, Arc<Ah>>>,
}

impl Datagrams {
    /// Bytes by which a receive buffer is longer than the longest message.
    pub const HEADER: usize = GRH;

    /// Opens a socket with room for `depth` requests and receives each.
    ///
    /// # Errors
    /// The device has no room for it.
    pub fn open(device: &Device, depth: u32) -> Result<Self> {
        let channel = qp::open(device, Service::Ud, depth, depth, None)?;
        let attr = QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() };
        channel.qp().ok_or(Error::Closed)?.advance_to(QpState::Rts, &attr)?;
        Ok(Self { channel, known: Mutex::default() })
    }

    /// Its address, for peers.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn address(&self) -> Result<Address> {
        let device = &self.channel.device;
        let qpn = self.channel.qp().map_or(0, |qp| qp.qpn());
        Ok(Address { gid: device.gid().0, lid: device.raw().port()?.lid, qpn, qkey: QKEY })
    }

    /// Joins an IP multicast group, until the socket is dropped.
    ///
    /// # Errors
    /// The address is not that of a group, or the device is not on Ethernet.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        let qp = self.channel.qp().ok_or(Error::Closed)?;
        Ok(qp.attach_mcast(&gid_of_ip(group), 0)?)
    }

    /// Sends the contents of `buffer` to a socket. Resolves to the buffer once it is sent; nobody knows whether it arrives. The first datagram
    /// to a peer outside of the adapter may take a second, for its MAC.
    pub fn send_to(&self, buffer: Buf, to: &Address) -> Request<Buf> {
        let ah = match self.way(to) {
            Ok(ah) => ah,
            Err(error) => return Request::failed(&self.channel, error),
        };
        let work = Work { to: Some((ah, to.qpn, to.qkey)), ..Work::new(SendOp::Send, buffer.len()) };
        Request::new(&self.channel, work, Hold::Buf(buffer))
    }

    /// Receives the next datagram, in `buffer` or in one posted earlier.
    pub fn recv(&self, buffer: Buf) -> Recv {
        Recv::new(&self.channel, buffer)
    }

    fn way(&self, to: &Address) -> Result<Arc<Ah>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ah) = known.get(&(to.gid, to.lid)) {
            return Ok(ah.clone());
        }
        let device = &self.channel.device;
        let ah = Ah::create(device.pd(), &qp::path(device, to.gid, to.lid))?;
        if known.len() == KNOWN {
            known.clear();
        }
        known.insert((to.gid, to.lid), ah.clone());
        Ok(ah)
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let qpn = self.channel.qp().map(|qp| qp.qpn());
        f.debug_struct("Datagrams").field("qpn", &qpn).field("device", &self.channel.device).finish()
    }
}
