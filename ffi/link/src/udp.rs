//! RoCE v2 over the host's own UDP: a socket on port 4791 for every address that both a function and the host have.

use super::{
    bearer::{Bearer, Patience, not_now},
    outer::{Packet, ips},
    sockets,
};
use hwspec::wire::{IpPair, ROCE_PORT};
use nix::{
    errno::Errno,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
        sendmsg,
    },
};
use node::{Frames, Node};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Maximum number of bytes that the kernel takes, or returns, at once.
const MANY: usize = 65_000;
/// Maximum number of packets that every kernel with UDP_SEGMENT takes at once.
const SEGMENTS: usize = 64;
/// Maximum number of buffers that are kept for later trains.
const SPARE: usize = 16;
/// Interval between checks for functions with new addresses.
const LOOK: Duration = Duration::from_millis(250);

/// UDP sockets of a node.
pub struct Udp {
    node: Arc<Node>,
    local: Vec<IpAddr>,
    peers: Vec<IpAddr>,
    sockets: Mutex<Sockets>,
    /// Packets that the next flush sends.
    out: Mutex<Out>,
    patience: Patience,
    /// False once the kernel or a device refused to cut a train.
    cuts: AtomicBool,
    received: Mutex<Vec<u8>>,
}

struct Sockets {
    open: BTreeMap<IpAddr, Arc<UdpSocket>>,
    looked: Option<Instant>,
}

#[derive(Default)]
struct Out {
    trains: Vec<Train>,
    /// Memory of trains that were sent.
    spare: Vec<Vec<u8>>,
}

/// Packets in a row with the same addresses. All have the same length, except that the last may be shorter.
struct Train {
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    /// Length of a packet.
    segment: usize,
    bytes: Vec<u8>,
    /// Bytes sent so far.
    sent: usize,
}

impl Train {
    /// True if a packet of `len` bytes can follow.
    fn takes(&self, socket: &Arc<UdpSocket>, to: SocketAddr, len: usize) -> bool {
        Arc::ptr_eq(&self.socket, socket)
            && self.to == to
            && len <= self.segment
            && self.bytes.len() % self.segment == 0
            && self.bytes.len() / self.segment < SEGMENTS
            && self.bytes.len() + len <= MANY
    }

    /// Packets that are not sent yet.
    fn left(&self) -> usize {
        (self.bytes.len() - self.sent).div_ceil(self.segment)
    }

    /// Sends the rest by one call, which the kernel cuts into packets, if it `cuts`; else the next packet.
    fn send(&mut self, cuts: &AtomicBool) -> io::Result<()> {
        let together = self.left() > 1 && cuts.load(Relaxed);
        if together {
            let (to, segment) = (SockaddrStorage::from(self.to), self.segment as u16);
            let bytes = [IoSlice::new(&self.bytes[self.sent..])];
            let cut = [ControlMessage::UdpGsoSegments(&segment)];
            match sendmsg(self.socket.as_raw_fd(), &bytes, &cut, MsgFlags::empty(), Some(&to)) {
                Ok(_) => {
                    self.sent = self.bytes.len();
                    return Ok(());
                }
                // The kernel does not know how to cut, or the device does not compute checksums.
                Err(Errno::EINVAL | Errno::EIO | Errno::EOPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let end = self.bytes.len().min(self.sent + self.segment);
        self.socket.send_to(&self.bytes[self.sent..end], self.to)?;
        self.sent = end;
        // It can be sent, but not together with others.
        cuts.fetch_and(!together, Relaxed);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Udp {
    /// Binds the addresses that exist already.
    pub fn new(node: &Arc<Node>, local: &[IpAddr], peers: &[IpAddr]) -> io::Result<Self> {
        let mut sockets = Sockets { open: BTreeMap::new(), looked: None };
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
            out: Mutex::default(),
            patience: Patience::default(),
            cuts: AtomicBool::new(true),
            received: Mutex::new(vec![0; 1 << 16]),
        };
        if made.sockets().open.is_empty() {
            let why = format!("no function has an address of this host whose UDP port {ROCE_PORT} is free");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        Ok(made)
    }

    /// The sockets, including those for addresses that functions have got since.
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        let mut sockets = lock(&self.sockets);
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

    /// Appends the frames of the next datagrams that came to `ip`.
    fn receive_at(&self, ip: IpAddr, socket: &UdpSocket, frames: &mut Frames) -> io::Result<()> {
        let mut bytes = lock(&self.received);
        let mut control = nix::cmsg_space!(i32);
        let (len, from, cut) = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let fd = socket.as_raw_fd();
            let came =
                recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
            let cut = came.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::UdpGroSegments(len) => usize::try_from(len).ok(),
                _ => None,
            });
            (came.bytes, came.address.as_ref().and_then(address), cut)
        };
        let (Some(from), Some(owner)) = (from, self.node.device_at(ip)) else { return Ok(()) };
        let addresses = match (from.ip(), ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpPair::V4 { src: src.octets(), dst: dst.octets() },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpPair::V6 { src: src.octets(), dst: dst.octets() },
            _ => return Ok(()),
        };
        if !self.knows(from.ip()) {
            return Ok(());
        }
        for payload in bytes[..len].chunks(cut.unwrap_or(len).max(1)) {
            if let Some(mut packet) = Packet::new(addresses, from.port(), payload) {
                packet.without_identification();
                packet.frame(placeholder_mac(from.ip()), owner.mac, frames);
            }
        }
        Ok(())
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4: &SockaddrIn| SocketAddr::from((v4.ip(), v4.port())));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6: &SockaddrIn6| SocketAddr::from((v6.ip(), v6.port()))))
}

fn bind(ip: IpAddr) -> io::Result<Arc<UdpSocket>> {
    let socket = UdpSocket::bind((ip, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    sockets::enlarge(socket.as_raw_fd());
    sockets::forbid_fragments(socket.as_raw_fd(), ip.is_ipv6())?;
    sockets::receive_many(socket.as_raw_fd());
    Ok(Arc::new(socket))
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
        let Some(packet) = Packet::to_send(frame, ROCE_PORT) else { return Ok(()) };
        let (src, dst) = ips(&packet.addresses);
        let socket = self.sockets().open.get(&src).filter(|_| self.knows(dst)).cloned();
        let Some(socket) = socket else {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("no way from {src} to {dst}"),
            ));
        };
        let (parts, to) = (packet.payload(), SocketAddr::from((dst, ROCE_PORT)));
        let len = parts.iter().map(|part| part.len()).sum();
        let mut out = lock(&self.out);
        if !out.trains.last().is_some_and(|train| train.takes(&socket, to, len)) {
            let bytes = out.spare.pop().unwrap_or_default();
            out.trains.push(Train { socket, to, segment: len, bytes, sent: 0 });
        }
        if let Some(train) = out.trains.last_mut() {
            parts.iter().for_each(|part| train.bytes.extend_from_slice(part));
        }
        Ok(())
    }

    fn flush(&self) -> u64 {
        // Locked until all are sent: other threads' packets must not overtake them.
        let Out { trains, spare } = &mut *lock(&self.out);
        let mut lost = 0;
        for mut train in trains.drain(..) {
            let fd = train.socket.as_raw_fd();
            while train.left() > 0 {
                if let Err(error) = self.patience.send(Some(fd), || train.send(&self.cuts)) {
                    tracing::debug!(to = %train.to, %error, "packets are lost");
                    lost += train.left() as u64;
                    break;
                }
            }
            train.bytes.clear();
            spare.push(train.bytes);
        }
        spare.truncate(SPARE);
        lost
    }

    fn receive(&self, frames: &mut Frames) -> io::Result<()> {
        let open: Vec<_> = self.sockets().open.iter().map(|(ip, socket)| (*ip, socket.clone())).collect();
        let fds: Vec<_> = open.iter().map(|(_, socket)| socket.as_raw_fd()).collect();
        let before = frames.len();
        for (ip, socket) in sockets::readable(&fds).into_iter().map(|at| &open[at]) {
            // A socket that reports an error of an earlier packet is tried again later.
            let _ = self.receive_at(*ip, socket, frames);
        }
        if frames.len() == before { Err(not_now()) } else { Ok(()) }
    }

    fn incoming(&self) -> Vec<RawFd> {
        self.sockets().open.values().map(|socket| socket.as_raw_fd()).collect()
    }

    fn outgoing(&self) -> Option<RawFd> {
        None
    }

    fn neighbour(&self, own: IpAddr, ip: IpAddr) -> Option<[u8; 6]> {
        (self.sockets().open.contains_key(&own) && self.knows(ip)).then(|| placeholder_mac(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::OnceLock, thread};
    use testkit::Scratch;

    /// A node with an address that no other test's process has.
    fn node(scratch: &Scratch) -> (Arc<Node>, IpAddr) {
        static NEXT: OnceLock<Mutex<u16>> = OnceLock::new();
        // Tests that run at once are processes with neighbouring PIDs: each has eight numbers.
        let first = || Mutex::new(0x4000 | (std::process::id() << 3) as u16 & 0x3ff8);
        let mut next = lock(NEXT.get_or_init(first));
        *next += 1;
        let options = node::NodeOptions { node_id: Some(*next), ..node::NodeOptions::default() };
        let node = Node::open_or_create(&scratch.0, &options).unwrap();
        let ip = node.devices()[1].ip;
        (node, ip)
    }

    fn v4(ip: IpAddr) -> [u8; 4] {
        let IpAddr::V4(ip) = ip else { panic!("expected an IPv4 address, found {ip}") };
        ip.octets()
    }

    /// Payloads with the lengths of a message's packets, some that are longer or shorter than those around them, and a long row.
    fn payloads() -> Vec<Vec<u8>> {
        let row = (0..150).map(|i| if i == 40 { 20 } else { 1040 });
        let lens = [1040, 1040, 300, 1056, 4112, 4112, 4112, 16].into_iter().chain(row);
        lens.enumerate().map(|(i, len)| (0..len).map(|at| (at + i) as u8).collect()).collect()
    }

    fn send_all(from: &Udp, (src, dst): (IpAddr, IpAddr)) {
        let addresses = IpPair::V4 { src: v4(src), dst: v4(dst) };
        for payload in payloads() {
            let mut frame = Frames::default();
            Packet::new(addresses, 0xc000, &payload).unwrap().frame([2; 6], [4; 6], &mut frame);
            frame.iter().for_each(|frame| from.send(frame).unwrap());
        }
        assert_eq!(from.flush(), 0);
    }

    fn receive_all(at: &Udp) -> Frames {
        let (mut frames, begun) = (Frames::default(), Instant::now());
        while frames.len() < payloads().len() {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "expected all packets, found {}",
                frames.len()
            );
            if at.receive(&mut frames).is_err() {
                thread::yield_now();
            }
        }
        assert!(at.receive(&mut frames).is_err());
        frames
    }

    #[test]
    fn packets_that_are_sent_together_arrive_one_by_one_and_in_order() {
        let [a, b] = [Scratch::new(), Scratch::new()];
        let ((here, src), (there, dst)) = (node(&a), node(&b));
        let from = Udp::new(&here, &[src], &[]).unwrap();
        let to = Udp::new(&there, &[dst], &[src]).unwrap();
        for cuts in [true, false] {
            from.cuts.store(cuts, Relaxed);
            send_all(&from, (src, dst));
            let sent = payloads();
            for (frame, payload) in receive_all(&to).iter().zip(&sent) {
                let body = &frame[42..];
                assert_eq!(body.len(), payload.len());
                // The last four bytes are an ICRC, which depends on the headers.
                assert_eq!(body[..body.len() - 4], payload[..payload.len() - 4]);
            }
            assert_eq!(from.cuts.load(Relaxed), cuts, "this host can cut");
        }
    }

    #[test]
    fn a_peer_that_takes_single_packets_gets_single_packets() {
        let scratch = Scratch::new();
        let (here, src) = node(&scratch);
        let from = Udp::new(&here, &[src], &[]).unwrap();
        let mut address = v4(src);
        address[3] += 1;
        let peer = UdpSocket::bind((IpAddr::from(address), ROCE_PORT)).unwrap();
        sockets::enlarge(peer.as_raw_fd());
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        send_all(&from, (src, address.into()));
        let mut datagram = [0; 1 << 16];
        for payload in payloads() {
            assert_eq!(peer.recv(&mut datagram).unwrap(), payload.len());
        }
    }
}
