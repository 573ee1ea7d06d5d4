//! One end of an RC connection, using the driver's safe verbs and memory that other processes may change at any time.

use driver::{
    AccessFlags, AddressHandle, Completion, Cq, Device, Error, Event, LinkLayer, Mr, Pd, PostError, Qp,
    QpAttr, QpInit, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, WcStatus,
};
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

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

/// One end of a connection. Referrers are declared before the objects they refer to, so that they are dropped first.
pub struct End {
    /// Queue pair.
    pub qp: Arc<Qp>,
    /// Its completion queue.
    pub cq: Arc<Cq>,
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

/// Creates a QP with queues of 64 entries that reports to `cq`.
pub fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<Arc<Qp>, Error> {
    let init = QpInit {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 64,
        ..QpInit::new(Service::Rc, cq, cq)
    };
    Qp::create(pd, &init)
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

/// Moves `qp` from RESET to RTS, connected to `peer`, from PSN 0 on both sides.
pub fn connect(qp: &Qp, peer: &Card, patience: Patience) -> Result<(), Error> {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let attr = QpAttr {
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
    };
    qp.advance_to(QpState::Rts, &attr)
}

impl End {
    /// Creates an end with `len` bytes of memory, in RESET.
    pub fn new(device: Arc<Device>, len: usize) -> Result<Self, Error> {
        let pd = Pd::alloc(&device)?;
        let cq = Cq::create(&device, 256, 0)?;
        let words = Arc::new(Words::new(len));
        let mr = register(&pd, &words, all_rights())?;
        let qp = queue_pair(&pd, &cq)?;
        Ok(Self { qp, cq, mr, pd, device, words })
    }

    /// Returns the values that the other end needs.
    pub fn card(&self) -> Result<Card, Error> {
        Ok(Card {
            gid: own_gid(&self.device)?,
            qpn: self.qp.qpn(),
            addr: self.words.addr(),
            rkey: self.mr.rkey(),
        })
    }

    /// Connects to `peer`.
    pub fn connect(&self, peer: &Card, patience: Patience) -> Result<(), Error> {
        connect(&self.qp, peer, patience)
    }

    /// Returns a scatter/gather entry of `len` bytes from `at`.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.words.addr() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Posts a signaled request.
    pub fn post(&self, wr_id: u64, op: SendOp, sge: &[Sge]) -> Result<(), PostError> {
        self.qp.post_send([SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }])
    }

    /// Posts a receive of `len` bytes at `at`.
    pub fn receive(&self, wr_id: u64, at: usize, len: usize) -> Result<(), PostError> {
        self.qp.post_recv([RecvWr { wr_id, sge: &[self.sge(at, len)] }])
    }

    /// Returns the next completion, or `None` if there is none within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Completion> {
        completion(&self.cq, limit)
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
pub fn pair(
    node: &Arc<node::Node>,
    a: u8,
    b: u8,
    len: usize,
) -> Result<(End, End), Box<dyn std::error::Error>> {
    let open = |fid| node::open_device_of(node, fid);
    let (a, b) = (End::new(open(a)?, len)?, End::new(open(b)?, len)?);
    a.connect(&b.card()?, Patience::default())?;
    b.connect(&a.card()?, Patience::default())?;
    Ok((a, b))
}

/// Returns true if a completion status means that the peer is gone.
pub fn is_peer_gone(status: WcStatus) -> bool {
    status == WcStatus::RetryExcErr
}
