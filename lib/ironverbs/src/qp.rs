//! Reliable connections, and receive queues that they share.

use crate::{
    Buf, Device, Error, Pool, Recv, Region, Remote, Request, Result, Window,
    channel::{Channel, Depth, Queue},
    requests::{Hold, WORD, Work},
    source::Source,
    verbs::{
        self, AccessFlags, AddressHandle, LinkLayer, MwBind, PortAttr, QpAttr, QpAttrMask, QpInit, QpState,
        SendOp, Service, Srq, SrqInit, next_variant,
    },
};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    ops::RangeBounds,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, OnceLock},
};

/// Requests and receives that fit into a queue by default.
const DEPTH: u32 = 64;
/// Access of peers by default: regions decide on it.
const ACCESS: AccessFlags =
    AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);
/// READs and atomic operations under way at a time, in each direction.
pub(crate) const READS: u8 = 16;

/// The address of a queue pair for its peer: [`Qp::local`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectTo {
    /// GID of the port.
    pub gid: [u8; 16],
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// Number of the queue pair.
    pub qpn: u32,
    /// PSN of its first packet.
    pub psn: u32,
    /// Bytes of a packet on its port; packets have the smaller size of both sides.
    pub mtu: u32,
}

/// A queue pair to be created, by [`Device::qp`].
#[derive(Clone, Debug)]
pub struct QpBuilder<'a> {
    device: &'a Device,
    sends: u32,
    receives: u32,
    shared: Option<&'a SharedReceives>,
    timeout: u8,
    retries: u8,
    receive_retries: u8,
}

impl Device {
    /// Begins a reliable connection, to be connected by [`Qp::connect`](crate::Qp::connect). [`connect`](crate::connect) and
    /// [`Listener`](crate::Listener) do both.
    pub fn qp(&self) -> QpBuilder<'_> {
        QpBuilder::new(self)
    }
}

impl<'a> QpBuilder<'a> {
    fn new(device: &'a Device) -> Self {
        let (sends, receives) = (DEPTH, DEPTH);
        Self { device, sends, receives, shared: None, timeout: 14, retries: 7, receive_retries: 7 }
    }

    /// Requests under way at a time; further ones wait. 64 by default.
    #[must_use]
    pub fn sends(mut self, count: u32) -> Self {
        self.sends = count;
        self
    }

    /// Receives posted at a time; further ones wait. 64 by default.
    #[must_use]
    pub fn receives(mut self, count: u32) -> Self {
        self.receives = count;
        self
    }

    /// Receives from a shared queue instead of its own.
    #[must_use]
    pub fn shared(mut self, queue: &'a SharedReceives) -> Self {
        self.shared = Some(queue);
        self
    }

    /// The patience with a silent peer: acknowledgements take at most 4.096 us x 2^`timeout`, and a packet is repeated up to `retries` (7) times.
    #[must_use]
    pub fn patience(mut self, timeout: u8, retries: u8) -> Self {
        (self.timeout, self.retries) = (timeout.min(31), retries.min(7));
        self
    }

    /// How often to repeat a message for which the peer has no receive; 7, the default, is forever.
    #[must_use]
    pub fn receive_retries(mut self, retries: u8) -> Self {
        self.receive_retries = retries.min(7);
        self
    }

    pub(crate) fn timeout(&self) -> u8 {
        self.timeout
    }

    /// Creates the queue pair.
    ///
    /// # Errors
    /// The device has no room for it.
    pub fn build(self) -> Result<Qp> {
        let receives = if self.shared.is_some() { 0 } else { self.receives };
        let channel = open(self.device, Service::Rc, self.sends, receives, self.shared)?;
        let Self { timeout, retries, receive_retries, .. } = self;
        let words = OnceLock::new();
        Ok(Qp { channel, words, timeout, retries, receive_retries })
    }
}

/// Creates a queue pair and its completion queue.
pub(crate) fn open(
    device: &Device,
    service: Service,
    sends: u32,
    receives: u32,
    shared: Option<&SharedReceives>,
) -> Result<Arc<Channel>> {
    let (cq, cookie) = device.completion_queue((sends + receives) as usize)?;
    let shared = shared.map(|shared| shared.channel.clone());
    let (recv_cq, srq) = match shared.as_ref().and_then(|shared| Some((shared.cq(), shared.queue()?))) {
        Some((cq, Queue::Shared(srq))) => (cq.clone(), Some(srq.clone())),
        _ => (cq.clone(), None),
    };
    let init = QpInit {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: 1,
        srq,
        cookie,
        ..QpInit::new(service, &cq, &recv_cq)
    };
    let qp = verbs::Qp::create(device.pd(), &init)?;
    // The device may have rounded up, but the completion queue has room for no more.
    let depth = Depth { sends: sends as usize, receives: receives as usize };
    Ok(Channel::new(device, (Queue::Pair(qp), cq, cookie), depth, shared, service == Service::Ud))
}

/// A reliable connection to a peer.
///
/// Requests take a buffer and give it back when they have completed. A call posts its request at once, in the order of calls; if the queue is
/// full, the request waits in line and is posted while its future is awaited. Requests succeed in order.
pub struct Qp {
    channel: Arc<Channel>,
    /// Buffers of atomic operations.
    words: OnceLock<Pool>,
    timeout: u8,
    retries: u8,
    receive_retries: u8,
}

impl Qp {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.channel.device
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.raw().map_or(0, |qp| qp.qpn())
    }

    pub(crate) fn receive_retries(&self) -> u8 {
        self.receive_retries
    }

    fn raw(&self) -> Option<&Arc<verbs::Qp>> {
        self.channel.qp()
    }

    /// Its address, for the peer to connect to it.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn local(&self) -> Result<ConnectTo> {
        let device = self.device();
        let PortAttr { lid, active_mtu: mtu, .. } = device.raw().port()?;
        Ok(ConnectTo { gid: device.gid().0, lid, qpn: self.qpn(), psn: first_psn(device, self.qpn()), mtu })
    }

    /// Connects to the peer, which does the same with what [`local`](Self::local) says here.
    ///
    /// # Errors
    /// There is no way to the peer, or the queue pair is connected.
    pub fn connect(&self, peer: &ConnectTo) -> Result<()> {
        let device = self.device();
        let ah = path(device, peer.gid, peer.lid);
        let attr = QpAttr {
            ah,
            path_mtu: device.raw().port()?.active_mtu.min(peer.mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: first_psn(device, self.qpn()),
            timeout: self.timeout,
            retry_cnt: self.retries,
            rnr_retry: self.receive_retries,
            ..attributes()
        };
        self.start(&attr)
    }

    /// Takes the queue pair to the state in which it sends.
    pub(crate) fn start(&self, attr: &QpAttr) -> Result<()> {
        let qp = self.raw().ok_or(Error::Closed)?;
        match qp.state() {
            QpState::Reset | QpState::Init => Ok(qp.advance_to(QpState::Rts, attr)?),
            _ => Err(Error::Closed),
        }
    }

    /// Lets receives be posted before the connection exists, so that the first message finds one.
    pub(crate) fn init(&self) -> Result<()> {
        let qp = self.raw().ok_or(Error::Closed)?;
        Ok(qp.advance_to(QpState::Init, &attributes())?)
    }

    /// Ends the connection on this side: all requests that are under way fail with [`Error::Closed`].
    pub fn close(&self) {
        close(&self.channel);
    }

    /// Sends the contents of `buffer`. Resolves to the buffer once the peer has the message.
    pub fn send(&self, buffer: Buf) -> Request<Buf> {
        self.request(SendOp::Send, buffer)
    }

    /// Like [`send`](Self::send), with immediate data.
    pub fn send_with(&self, buffer: Buf, immediate: u32) -> Request<Buf> {
        self.request(SendOp::SendImm(immediate), buffer)
    }

    /// Receives the next message, in `buffer` or in one posted earlier.
    pub fn recv(&self, buffer: Buf) -> Recv {
        Recv::new(self.channel.receives(), buffer)
    }

    /// Writes the contents of `buffer` to the peer's memory. Resolves to the buffer once they are there.
    pub fn write(&self, buffer: Buf, to: Remote) -> Request<Buf> {
        let op = SendOp::Write { raddr: to.addr, rkey: to.key };
        self.within(buffer.len(), &to, || self.request(op, buffer))
    }

    /// Like [`write`](Self::write), and completes a receive of the peer with immediate data.
    pub fn write_with(&self, buffer: Buf, to: Remote, immediate: u32) -> Request<Buf> {
        let op = SendOp::WriteImm { raddr: to.addr, rkey: to.key, imm: immediate };
        self.within(buffer.len(), &to, || self.request(op, buffer))
    }

    /// Reads all of `from` into `buffer`.
    pub fn read(&self, mut buffer: Buf, from: Remote) -> Request<Buf> {
        let op = SendOp::Read { raddr: from.addr, rkey: from.key };
        match buffer.resize(from.len()) {
            Ok(()) => self.request(op, buffer),
            Err(error) => Request::failed(&self.channel, error),
        }
    }

    /// Adds to the first word of `to`, atomically. Resolves to the value before.
    pub fn fetch_and_add(&self, to: Remote, add: u64) -> Request<u64> {
        self.atomic(&to, SendOp::FetchAdd { raddr: to.addr, rkey: to.key, add })
    }

    /// Replaces the first word of `to` by `swap` if it is `compare`, atomically. Resolves to the value before.
    pub fn compare_and_swap(&self, to: Remote, compare: u64, swap: u64) -> Request<u64> {
        self.atomic(&to, SendOp::CmpSwap { raddr: to.addr, rkey: to.key, compare, swap })
    }

    fn atomic(&self, to: &Remote, op: SendOp) -> Request<u64> {
        let words = match self.words() {
            Ok(words) => words,
            Err(error) => return Request::failed(&self.channel, error),
        };
        self.within(WORD, to, || Request::new(&self.channel, Work::new(op, WORD), Hold::Word(words)))
    }

    /// One word for each request of the queue.
    fn words(&self) -> Result<Pool> {
        if let Some(words) = self.words.get() {
            return Ok(words.clone());
        }
        let count = self.raw().map_or(0, |qp| qp.cap().max_send_wr as usize);
        let words = Pool::new(self.device(), count, WORD)?;
        Ok(self.words.get_or_init(|| words).clone())
    }

    /// Opens a window for the peer on a part of `region`, which has the right MW_BIND and those given to the peer. Requests of this side's
    /// that the peer gets later find it open.
    pub fn open_window(
        &self,
        region: &Arc<Region>,
        range: impl RangeBounds<usize>,
        rights: AccessFlags,
    ) -> Request<Window> {
        let bound = region.remote().slice(range).and_then(|part| {
            let mw = Window::alloc(self.device())?;
            let key = next_variant(mw.rkey());
            let bind = MwBind { mr: Some(region.mr()), addr: part.addr, len: part.len, access: rights };
            let op = mw.binding(key, &bind).map_err(|_| Error::RemoteAccess)?;
            Ok((op, Window::bound(mw, key, part, region)))
        });
        match bound {
            Ok((op, window)) => Request::new(&self.channel, Work::new(op, 0), Hold::Window(Box::new(window))),
            Err(error) => Request::failed(&self.channel, error),
        }
    }

    fn request(&self, op: SendOp, buffer: Buf) -> Request<Buf> {
        Request::new(&self.channel, Work::new(op, buffer.len()), Hold::Buf(buffer))
    }

    /// Makes a request unless it needs more bytes than the peer has described.
    fn within<T>(&self, len: usize, remote: &Remote, make: impl FnOnce() -> Request<T>) -> Request<T> {
        match len <= remote.len() {
            true => make(),
            false => Request::failed(&self.channel, Error::TooLong { len, room: remote.len() }),
        }
    }
}

/// Ends the connection of a queue pair.
pub(crate) fn close(channel: &Channel) {
    if let Some(qp) = channel.qp() {
        // One that is in RESET has nothing to end, and a device that is gone has ended it.
        let _ = qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE);
    }
    channel.pump();
}

/// Attributes that all connections have.
pub(crate) fn attributes() -> QpAttr {
    QpAttr {
        qp_access_flags: ACCESS,
        port_num: 1,
        max_rd_atomic: READS,
        max_dest_rd_atomic: READS,
        min_rnr_timer: 12,
        ..QpAttr::default()
    }
}

/// The path to the port with `gid` and `lid`.
pub(crate) fn path(device: &Device, gid: [u8; 16], lid: u16) -> AddressHandle {
    AddressHandle {
        dgid: gid,
        sgid_index: device.gid().1,
        hop_limit: 64,
        dlid: lid,
        is_global: device.raw().link_layer() == LinkLayer::Ethernet,
        port_num: 1,
        ..AddressHandle::default()
    }
}

/// The PSN of a queue pair's first packet. It differs between successive connections of a pair, so that stray packets of an earlier one do
/// not match.
pub(crate) fn first_psn(device: &Device, qpn: u32) -> u32 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = match device.machine() {
        Some(_) => 1, // runs are repeatable
        None => *SEED.get_or_init(|| RandomState::new().hash_one(0)),
    };
    (seed.wrapping_mul(u64::from(qpn) | 1) >> 40) as u32 & 0xff_ffff
}

impl AsFd for Qp {
    /// The descriptor of the device's events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.device.raw().events().fd()
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.raw().map(|qp| qp.state());
        f.debug_struct("Qp")
            .field("qpn", &self.qpn())
            .field("state", &state)
            .field("device", self.device())
            .finish()
    }
}

/// A queue of receives that several queue pairs share ([`QpBuilder::shared`]).
#[derive(Clone)]
pub struct SharedReceives {
    pub(crate) channel: Arc<Channel>,
}

impl SharedReceives {
    /// Creates a queue of `count` receives.
    ///
    /// # Errors
    /// The device has no room for it.
    pub fn new(device: &Device, count: u32) -> Result<Self> {
        let (cq, cookie) = device.completion_queue(count as usize)?;
        let srq = Srq::create(device.pd(), &SrqInit { max_wr: count, max_sge: 1, xrc: None, cookie })?;
        let depth = Depth { sends: 0, receives: count as usize };
        Ok(Self { channel: Channel::new(device, (Queue::Shared(srq), cq, cookie), depth, None, false) })
    }

    /// Receives the next message of any of the queue pairs; [`Message::qpn`](crate::Message::qpn) tells which.
    pub fn recv(&self, buffer: Buf) -> Recv {
        Recv::new(&self.channel, buffer)
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceives").field("device", &self.channel.device).finish()
    }
}
