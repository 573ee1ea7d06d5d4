//! RoCE v2 over the host's own UDP: a socket on port 4791 for every address that both a function and the host have.

use super::{
    bearer::{Bearer, not_now},
    outer::{Packet, ips},
    sockets,
};
use devmodel::region::MAX_FRAME;
use hwspec::wire::{IpPair, ROCE_PORT};
use node::Node;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::{IpAddr, UdpSocket},
    os::fd::{AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Interval between checks for functions with new addresses.
const LOOK: Duration = Duration::from_millis(250);

/// UDP sockets of a node.
pub struct Udp {
    node: Arc<Node>,
    local: Vec<IpAddr>,
    peers: Vec<IpAddr>,
    sockets: Mutex<Sockets>,
}

struct Sockets {
    open: BTreeMap<IpAddr, UdpSocket>,
    looked: Option<Instant>,
    /// Index of the socket to check next.
    next: usize,
}

impl Udp {
    /// Binds the addresses that exist already.
    pub fn new(node: &Arc<Node>, local: &[IpAddr], peers: &[IpAddr]) -> io::Result<Self> {
        let mut sockets = Sockets { open: BTreeMap::new(), looked: None, next: 0 };
        for ip in local {
            let failed =
                |e: io::Error| io::Error::new(e.kind(), format!("UDP port {ROCE_PORT} of {ip}: {e}"));
            sockets.open.insert(*ip, bind(*ip).map_err(failed)?);
        }
        let made = Self {
            node: node.clone(),
            local: local.into(),
            peers: peers.into(),
            sockets: Mutex::new(sockets),
        };
        if made.sockets().open.is_empty() {
            let why = format!("no function has an address of this host whose UDP port {ROCE_PORT} is free");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        Ok(made)
    }

    /// The sockets, including those for addresses that functions have got since.
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if self.local.is_empty() && sockets.looked.is_none_or(|at| at.elapsed() > LOOK) {
            sockets.looked = Some(Instant::now());
            let wanted: Vec<IpAddr> = self.node.devices().into_iter().map(|device| device.ip).collect();
            sockets.open.retain(|ip, _| wanted.contains(ip));
            for ip in wanted {
                if let Entry::Vacant(free) = sockets.open.entry(ip) {
                    // Addresses that do not belong to this host are skipped.
                    if let Ok(socket) = bind(ip) {
                        free.insert(socket);
                    }
                }
            }
        }
        sockets
    }

    fn knows(&self, peer: IpAddr) -> bool {
        self.peers.is_empty() || self.peers.contains(&peer)
    }
}

fn bind(ip: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((ip, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    sockets::enlarge(socket.as_raw_fd());
    sockets::forbid_fragments(socket.as_raw_fd(), ip.is_ipv6())?;
    Ok(socket)
}

/// A placeholder MAC for a machine known by its IP address: locally administered, with the end of the address.
fn placeholder_mac(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x06, 0x04, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [0x06, 0x06, a, b, c, d]
        }
    }
}

impl Bearer for Udp {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        // Address discovery and other protocols are not carried over UDP.
        let Some(packet) = Packet::of_frame(frame) else { return Ok(()) };
        let (src, dst) = ips(&packet.addresses);
        let sockets = self.sockets();
        let Some(socket) = sockets.open.get(&src).filter(|_| self.knows(dst)) else {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("no way from {src} to {dst}"),
            ));
        };
        socket.send_to(packet.with_port(ROCE_PORT).payload(), (dst, ROCE_PORT)).map(drop)
    }

    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<()> {
        let mut sockets = self.sockets();
        let count = sockets.open.len();
        for _ in 0..count {
            let at = sockets.next % count;
            let Some((ip, socket)) = sockets.open.iter().nth(at) else { break };
            frame.resize(MAX_FRAME, 0);
            let Ok((len, from)) = socket.recv_from(frame) else {
                sockets.next = at + 1;
                continue;
            };
            let addresses = match (from.ip(), *ip) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => IpPair::V4 { src: src.octets(), dst: dst.octets() },
                (IpAddr::V6(src), IpAddr::V6(dst)) => IpPair::V6 { src: src.octets(), dst: dst.octets() },
                _ => continue,
            };
            let payload = frame.get(..len).unwrap_or_default().to_vec();
            let Some(mut packet) = Packet::new(addresses, from.port(), payload) else { continue };
            let Some(owner) = self.node.device_at(*ip).filter(|_| self.knows(from.ip())) else { continue };
            packet.without_identification();
            *frame = packet.frame(placeholder_mac(from.ip()), owner.mac);
            return Ok(());
        }
        Err(not_now())
    }

    fn incoming(&self) -> Vec<RawFd> {
        self.sockets().open.values().map(|socket| socket.as_raw_fd()).collect()
    }

    fn outgoing(&self) -> Option<RawFd> {
        self.sockets().open.values().next().map(|socket| socket.as_raw_fd())
    }

    fn neighbour(&self, own: IpAddr, ip: IpAddr) -> Option<[u8; 6]> {
        (self.sockets().open.contains_key(&own) && self.knows(ip)).then(|| placeholder_mac(ip))
    }
}
