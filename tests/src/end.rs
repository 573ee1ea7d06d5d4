//! One end of a connection or service, using the driver's safe verbs and memory that other processes may change at any time.

use driver::{
    AccessFlags, AddressHandle, Ah, Completion, Cq, CqInit, Device, Error, Event, LinkLayer, Mr, Pd,
    PostError, Qp, QpAttr, QpInit, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target, WcFlags,
    WcOpcode, WcStatus,
};
use node::{Node, open_device_of};
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Time limit for whatever a test waits for on a busy machine.
pub const SOON: Duration = Duration::from_secs(10);
/// Q_Key of all ends.
pub const QKEY: u32 = 0x1111_1111;

/// The values that the other end needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// GID.
    pub gid: [u8; 16],
    /// QP number.
    pub qpn: u32,
    /// Address of the region.
    pub addr: u64,
    /// Its rkey.
    pub rkey: u32,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x} {:x} {:x} {:x}", u128::from_be_bytes(self.gid), self.qpn, self.addr, self.rkey)
    }
}

impl FromStr for Card {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("expected GID, QP number, address and key, found {text:?}");
        let mut words = text.split_whitespace();
        let gid = words.next().and_then(|w| u128::from_str_radix(w, 16).ok()).ok_or_else(bad)?;
        let mut number = || words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).ok_or_else(bad);
        Ok(Self { gid: gid.to_be_bytes(), qpn: number()? as u32, addr: number()?, rkey: number()? as u32 })
    }
}

/// Registered memory, accessed in whole words as atomics, because a peer may write them while we read. It starts at a page boundary, so
/// that the way a transfer is split does not depend on the allocator.
pub struct Words {
    pages: Box<[Page]>,
    len: usize,
}

const WORDS_PER_PAGE: usize = 512;

#[repr(align(4096))]
struct Page([AtomicU64; WORDS_PER_PAGE]);

impl Words {
    /// Allocates `len` zeroed bytes (a multiple of 8).
    pub fn new(len: usize) -> Self {
        let page = || Page([const { AtomicU64::new(0) }; WORDS_PER_PAGE]);
        Self { pages: (0..len.div_ceil(size_of::<Page>())).map(|_| page()).collect(), len }
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Returns true if the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.pages.as_ptr() as u64
    }
    fn at(&self, at: usize) -> &AtomicU64 {
        let words = &self.pages[at / size_of::<Page>()].0;
        &words[at / 8 % WORDS_PER_PAGE]
    }
    /// Reads the word at byte `at` (a multiple of 8).
    pub fn word(&self, at: usize) -> u64 {
        self.at(at).load(Relaxed)
    }
    /// Writes the word at byte `at`.
    pub fn set_word(&self, at: usize, value: u64) {
        self.at(at).store(value, Relaxed);
    }
    /// Reads `len` bytes from `at`.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|i| self.word(i & !7).to_ne_bytes()[i & 7]).collect()
    }
    /// Writes `bytes` from `at` on.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in (at..).zip(bytes) {
            let mut word = self.word(i & !7).to_ne_bytes();
            word[i & 7] = *byte;
            self.set_word(i & !7, u64::from_ne_bytes(word));
        }
    }
}

/// Timeout and retries of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// ACK timeout exponent.
    pub timeout: u8,
    /// Transport retries.
    pub retry_cnt: u8,
}

impl Default for Patience {
    fn default() -> Self {
        Self { timeout: 14, retry_cnt: 7 }
    }
}

/// How an end differs from the usual one: an RC queue pair with 64 entries in each queue, and one completion queue.
pub struct Make<'a> {
    /// Bytes of memory.
    pub len: usize,
    /// Service of the queue pair.
    pub service: Service,
    /// Attributes of each completion queue.
    pub cq: CqInit,
    /// True if receives are reported to a separate completion queue.
    pub two_cqs: bool,
    /// Changes the attributes of the queue pair.
    pub qp: &'a dyn Fn(&mut QpInit),
}

impl Default for Make<'_> {
    fn default() -> Self {
        let cq = CqInit { entries: 256, ..CqInit::default() };
        Self { len: 16 << 10, service: Service::Rc, cq, two_cqs: false, qp: &|_| () }
    }
}

/// One end of a connection. Referrers are declared before the objects they refer to, so that they are dropped first.
pub struct End {
    /// Queue pair.
    pub qp: Arc<Qp>,
    /// Completion queue of its sends.
    pub cq: Arc<Cq>,
    /// Completion queue of its receives, usually the same.
    pub receives: Arc<Cq>,
    /// Region over `words`, with all access rights.
    pub mr: Mr,
    /// Protection domain.
    pub pd: Arc<Pd>,
    /// Device.
    pub device: Arc<Device>,
    /// Memory.
    pub words: Arc<Words>,
}

/// All rights that a region can grant to peers, and local write.
pub fn all_rights() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
}

/// Registers all of `words`.
pub fn register(pd: &Arc<Pd>, words: &Words, access: AccessFlags) -> Result<Mr, Error> {
    register_from(pd, words, 0, words.len(), access)
}

/// Registers `len` bytes of `words` from byte `at` on.
#[allow(unsafe_code)] // registration makes memory accessible; the block says why that is sound
pub fn register_from(
    pd: &Arc<Pd>,
    words: &Words,
    at: usize,
    len: usize,
    access: AccessFlags,
) -> Result<Mr, Error> {
    assert!(at + len <= words.len(), "{len} bytes from {at} on, of {}", words.len());
    let addr = words.addr() + at as u64;
    // SAFETY: the holder of the region keeps the words (`End` drops them last), words that may change concurrently are atomics, and the
    // range has been checked to lie within them.
    unsafe { Mr::register(pd, addr as *mut u8, len, addr, access) }
}

/// Attributes of a QP with queues of 64 entries.
fn usual(service: Service, send: &Arc<Cq>, receive: &Arc<Cq>) -> QpInit {
    QpInit {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 64,
        ..QpInit::new(service, send, receive)
    }
}

/// Creates an RC QP with queues of 64 entries that reports to `cq`.
pub fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<Arc<Qp>, Error> {
    Qp::create(pd, &usual(Service::Rc, cq, cq))
}

/// Returns the GID that programs use for the function of `device`; on InfiniBand it has only one.
pub fn own_gid(device: &Device) -> Result<[u8; 16], Error> {
    device.gid(gid_index(device).into())
}

/// Returns the address handle by which `device` reaches the function of its node with GID `gid`. On InfiniBand the LID follows from the
/// last byte of the function's GUID, which is its number.
pub fn way(device: &Device, gid: [u8; 16]) -> AddressHandle {
    let dlid = match device.link_layer() {
        LinkLayer::InfiniBand => u16::from(gid[15]) + 1,
        LinkLayer::Ethernet => 0,
    };
    AddressHandle {
        dgid: gid,
        dlid,
        sgid_index: gid_index(device),
        hop_limit: 64,
        is_global: true,
        port_num: 1,
        ..AddressHandle::default()
    }
}

fn gid_index(device: &Device) -> u8 {
    match device.link_layer() {
        LinkLayer::InfiniBand => 0,
        LinkLayer::Ethernet => 1,
    }
}

/// Returns the attributes by which `qp` is connected to `peer`, from PSN 0 on both sides.
pub fn attributes(qp: &Qp, peer: &Card, patience: Patience) -> QpAttr {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    QpAttr {
        qp_access_flags: access,
        port_num: 1,
        ah: way(qp.pd().device(), peer.gid),
        path_mtu: 4096,
        dest_qp_num: peer.qpn,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: patience.timeout,
        retry_cnt: patience.retry_cnt,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

/// Moves `qp` from RESET to RTS, connected to `peer`.
pub fn connect(qp: &Qp, peer: &Card, patience: Patience) -> Result<(), Error> {
    qp.advance_to(QpState::Rts, &attributes(qp, peer, patience))
}

/// Moves the QP of a service without a peer to RTS.
pub fn run(qp: &Qp) -> Result<(), Error> {
    qp.advance_to(QpState::Rts, &QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() })
}

impl End {
    /// Creates an end with `len` bytes of memory, in RESET.
    pub fn new(device: Arc<Device>, len: usize) -> Result<Self, Error> {
        Self::of(&Pd::alloc(&device)?, &Make { len, ..Make::default() })
    }

    /// Creates an end in domain `pd`, in RESET.
    pub fn of(pd: &Arc<Pd>, make: &Make<'_>) -> Result<Self, Error> {
        let device = pd.device().clone();
        let cq = Cq::create_with(&device, &make.cq, pd.buffers())?;
        let receives = match make.two_cqs {
            true => Cq::create_with(&device, &make.cq, pd.buffers())?,
            false => cq.clone(),
        };
        let words = Arc::new(Words::new(make.len));
        let mr = register(pd, &words, all_rights())?;
        let mut init = usual(make.service, &cq, &receives);
        (make.qp)(&mut init);
        let qp = Qp::create(pd, &init)?;
        Ok(Self { qp, cq, receives, mr, pd: pd.clone(), device, words })
    }

    /// Creates an end of `device`, in RESET.
    ///
    /// # Panics
    /// This and the following functions, where an object cannot be made or a request is refused.
    #[track_caller]
    pub fn on(device: &Arc<Device>, make: &Make<'_>) -> Self {
        Self::of(&Pd::alloc(device).expect("a PD"), make).expect("an end")
    }

    /// Creates an end of `service` that is ready to send without a peer.
    #[track_caller]
    pub fn alone(device: &Arc<Device>, service: Service) -> Self {
        let end = Self::on(device, &Make { service, ..Make::default() });
        run(&end.qp).expect("RTS");
        end
    }

    /// Returns the values that the other end needs.
    #[track_caller]
    pub fn card(&self) -> Card {
        self.card_of(&self.qp)
    }

    /// Returns the values that the peer of `qp` needs, which uses this end's memory.
    #[track_caller]
    pub fn card_of(&self, qp: &Qp) -> Card {
        let gid = own_gid(&self.device).expect("a GID");
        Card { gid, qpn: qp.qpn(), addr: self.words.addr(), rkey: self.mr.rkey() }
    }

    /// Connects to `peer`.
    pub fn connect(&self, peer: &Card, patience: Patience) -> Result<(), Error> {
        connect(&self.qp, peer, patience)
    }

    /// Connects two ends to each other.
    #[track_caller]
    pub fn join(&self, other: &Self) {
        self.connect(&other.card(), Patience::default()).expect("connected");
        other.connect(&self.card(), Patience::default()).expect("connected");
    }

    /// Returns a scatter/gather entry of `len` bytes from `at`.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.words.addr() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Returns a WRITE to this end's memory, for its peer.
    pub fn to_write(&self, at: usize) -> SendOp {
        SendOp::Write { raddr: self.words.addr() + at as u64, rkey: self.mr.rkey() }
    }

    /// Returns a READ of this end's memory, for its peer.
    pub fn to_read(&self, at: usize) -> SendOp {
        SendOp::Read { raddr: self.words.addr() + at as u64, rkey: self.mr.rkey() }
    }

    /// Returns an addition to a word of this end's memory, for its peer.
    pub fn to_add(&self, at: usize, add: u64) -> SendOp {
        SendOp::FetchAdd { raddr: self.words.addr() + at as u64, rkey: self.mr.rkey(), add }
    }

    /// Posts a signaled request, which a damaged device may refuse.
    pub fn try_post(&self, wr_id: u64, op: SendOp, sge: &[Sge]) -> Result<(), PostError> {
        self.qp.post_send([SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }])
    }

    /// Posts a signaled request.
    #[track_caller]
    pub fn post(&self, wr_id: u64, op: SendOp, sge: &[Sge]) {
        self.try_post(wr_id, op, sge).expect("a request");
    }

    /// Posts a signaled SEND of the first `len` bytes to `target`.
    #[track_caller]
    pub fn send_to(&self, wr_id: u64, len: usize, target: &Target<'_>) {
        let wr = SendWr { wr_id, op: SendOp::Send, sge: &[self.sge(0, len)], flags: SendFlags::SIGNALED };
        self.qp.post_send_to([(wr, *target)]).expect("a request");
    }

    /// Posts a receive of `len` bytes at `at`.
    #[track_caller]
    pub fn receive(&self, wr_id: u64, at: usize, len: usize) {
        self.qp.post_recv([RecvWr { wr_id, sge: &[self.sge(at, len)] }]).expect("a receive");
    }

    /// Returns the address handle for the port with `gid`.
    #[track_caller]
    pub fn ah(&self, gid: [u8; 16]) -> Arc<Ah> {
        Ah::create(&self.pd, &way(&self.device, gid)).expect("an address handle")
    }

    /// Returns the next completion, or `None` if there is none within `limit`.
    pub fn next(&self, limit: Duration) -> Option<Completion> {
        completion(&self.cq, limit)
    }

    /// Waits for the next completion.
    #[track_caller]
    pub fn wait(&self) -> Completion {
        self.next(SOON).expect("a completion")
    }

    /// Waits for the next completion, which must be the success of an `opcode`.
    #[track_caller]
    pub fn good(&self, opcode: WcOpcode) -> Completion {
        let wc = self.wait();
        assert_eq!((wc.status, wc.opcode, wc.qpn), (WcStatus::Success, opcode, self.qp.qpn()), "{wc:?}");
        wc
    }

    /// Waits for the next completion, which must be a success.
    #[track_caller]
    pub fn succeeded(&self) -> Completion {
        let wc = self.wait();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }

    /// Checks that nothing completes.
    #[track_caller]
    pub fn nothing(&self) {
        assert_eq!(self.next(Duration::from_millis(30)), None);
    }

    /// Returns the next event, or `None` if there is none within `limit`.
    #[track_caller]
    pub fn event(&self, limit: Duration) -> Option<Event> {
        event(&self.device, limit)
    }

    /// Takes all events that have arrived.
    pub fn drain(&self) {
        while self.device.events().next().is_some() {}
    }
}

/// Returns the next completion of `cq`, or `None` if there is none within `limit`.
pub fn completion(cq: &Cq, limit: Duration) -> Option<Completion> {
    let begin = Instant::now();
    let mut out = [Completion::default()];
    while cq.poll(&mut out) == 0 {
        if begin.elapsed() > limit {
            return None;
        }
        std::thread::yield_now();
    }
    Some(out[0])
}

/// Returns the next event of `device`, or `None` if there is none within `limit`.
///
/// # Panics
/// The descriptor of the device's interrupts cannot be waited for.
pub fn event(device: &Device, limit: Duration) -> Option<Event> {
    let begin = Instant::now();
    loop {
        if let Some(event) = device.events().next() {
            return Some(event);
        }
        let left = limit.checked_sub(begin.elapsed())?;
        device.events().wait(Some(left)).expect("the interrupt's descriptor");
    }
}

/// Creates both ends on functions `a` and `b` of `node`, connected to each other.
#[track_caller]
pub fn pair(node: &Arc<Node>, a: u8, b: u8, len: usize) -> (End, End) {
    pair_with(node, a, b, &Make { len, ..Make::default() })
}

/// Has short messages arrive in CQEs on `device`, as for C programs.
#[allow(unsafe_code)]
pub fn in_cqes(device: Arc<Device>) -> Arc<Device> {
    // SAFETY: tests keep the memory of receives, or deregister it, which the driver knows, before they poll.
    unsafe { device.receive_in_cqes() };
    device
}

/// Like `pair`, with ends as `make` says.
#[track_caller]
pub fn pair_with(node: &Arc<Node>, a: u8, b: u8, make: &Make<'_>) -> (End, End) {
    let [a, b] = [a, b].map(|fid| End::on(&in_cqes(open_device_of(node, fid).expect("a function")), make));
    a.join(&b);
    (a, b)
}

/// Returns `len` bytes that depend on their place and on `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8) ^ (i >> 8) as u8 ^ (i >> 16) as u8 ^ seed).collect()
}

/// Runs all operations from `a` to `b`, those with data at every one of `sizes`.
pub fn every_operation(a: &End, b: &End, sizes: &[usize]) {
    let room = b.words.len();
    for (i, len) in sizes.iter().copied().enumerate() {
        let data = pattern(len, i as u8);
        a.words.put(0, &data);
        a.post(1, b.to_write(0), &[a.sge(0, len)]);
        a.good(WcOpcode::RdmaWrite);
        assert!(b.words.bytes(0, len) == data, "WRITE of {len}");

        b.receive(7, 0, room);
        let (raddr, rkey) = (b.words.addr() + 8, b.mr.rkey());
        let len = len.min(room - 8);
        a.post(2, SendOp::WriteImm { raddr, rkey, imm: 0x0102_0304 }, &[a.sge(0, len)]);
        a.good(WcOpcode::RdmaWrite);
        let wc = b.good(WcOpcode::RecvRdmaWithImm);
        assert_eq!((wc.wr_id, wc.byte_len as usize, wc.imm_or_inv), (7, len, 0x0102_0304));
        assert!(wc.flags.contains(WcFlags::WITH_IMM));
        assert!(b.words.bytes(8, len) == data[..len], "WRITE_IMM of {len}");

        let data = pattern(len, 100 + i as u8);
        b.words.put(0, &data);
        a.post(3, b.to_read(0), &[a.sge(0, len)]);
        a.good(WcOpcode::RdmaRead);
        assert!(a.words.bytes(0, len) == data, "READ of {len}");

        for (op, imm) in [(SendOp::Send, false), (SendOp::SendImm(9), true)] {
            let data = pattern(len, 200 + i as u8);
            a.words.put(0, &data);
            b.words.put(0, &vec![0; len]);
            b.receive(8, 0, room);
            a.post(4, op, &[a.sge(0, len / 2), a.sge(len / 2, len - len / 2)]);
            a.good(WcOpcode::Send);
            let wc = b.good(WcOpcode::Recv);
            assert_eq!((wc.wr_id, wc.byte_len as usize, wc.flags.contains(WcFlags::WITH_IMM)), (8, len, imm));
            assert!(b.words.bytes(0, len) == data, "SEND of {len}");
        }
    }
    b.words.set_word(0, 40);
    let (raddr, rkey) = (b.words.addr(), b.mr.rkey());
    for (op, opcode, before, after) in [
        (SendOp::FetchAdd { raddr, rkey, add: 2 }, WcOpcode::FetchAdd, 40, 42),
        (SendOp::CmpSwap { raddr, rkey, compare: 42, swap: 7 }, WcOpcode::CompSwap, 42, 7),
        (SendOp::CmpSwap { raddr, rkey, compare: 42, swap: 9 }, WcOpcode::CompSwap, 7, 7),
    ] {
        a.post(5, op, &[a.sge(0, 8)]);
        a.good(opcode);
        assert_eq!((a.words.word(0), b.words.word(0)), (before, after), "{op:?}");
    }
}

/// Returns true if a completion status means that the peer is gone.
pub fn is_peer_gone(status: WcStatus) -> bool {
    status == WcStatus::RetryExcErr
}
