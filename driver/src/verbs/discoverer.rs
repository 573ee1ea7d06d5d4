//! Resolves the MACs of a function's peers, and answers requests for its own addresses: ARP and neighbour discovery
//! over a raw packet queue pair of the driver. Used for functions without a node or kernel to answer for them.
//!
//! There is one discoverer per function and process, since of several equal flows only one gets the frames. It opens
//! the function separately, with a thread that waits for that opener's events, and ends with the last device opened
//! with it.

use super::{
    AccessFlags, Completion, Cq, Device, FLOW_PRIORITIES, Flow, FlowAttr, FlowSpec, LinkLayer, Mr, Pd, Qp,
    QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target, WcStatus,
    neighbours::{Conflict, Lookup, Neighbours, PATIENCE, TRIES},
    path,
};
use crate::{
    dma::DmaMem,
    error::Error,
    event::{DeviceEvent, Event},
    function::Function,
    options::OpenOptions,
    resolve::{OwnAddress, Resolve},
    transport::Transport,
};
use hwspec::wire::{DiscoveryFrame, EtherType};
use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::*},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use sync::Quiet;

/// Receives always posted, and maximum number of outstanding sends.
const DEPTH: u32 = 64;
/// Size of a receive buffer: a frame at the usual MTU.
const STRIDE: usize = 2048;
/// How long a waiting caller sleeps at a time.
const TURN: Duration = Duration::from_millis(50);
/// Maximum restarts of the queue pair after errors within one call.
const RESTARTS: usize = 4;
/// Next header of ICMPv6.
const ICMP: u8 = 58;
/// Marks the completions of sends.
const SEND: u64 = u64::MAX;

/// Stands in for the discoverer of a function that cannot send requests, with the reason.
#[derive(Debug)]
struct Unable(String);

impl Resolve for Unable {
    fn resolve(&self, _: IpAddr, _: OwnAddress) -> Result<[u8; 6], String> {
        Err(format!(", and the function cannot ask for it: {}", self.0))
    }
}

/// The discoverer of one function.
struct Discoverer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Fork generation at creation: a child does not have the thread.
    generation: u32,
}

impl fmt::Debug for Discoverer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discoverer").finish_non_exhaustive()
    }
}

struct Shared {
    inner: Mutex<Inner>,
    /// Signalled when an address was learned, or the device is gone.
    changed: Condvar,
    stop: AtomicBool,
    gone: AtomicBool,
    device: Arc<Device>,
}

struct Inner {
    neighbours: Neighbours,
    port: RawPort,
}

/// The discoverers of this process, by transport.
static OPEN: Mutex<Vec<(usize, Weak<Discoverer>)>> = Mutex::new(Vec::new());

/// Opens a function with address resolution on the wire, both for its peers and for its own addresses. On InfiniBand,
/// which needs no resolution, equivalent to [`Device::open`].
pub fn open_resolving(transport: Arc<dyn Transport>, options: OpenOptions) -> Result<Arc<Device>, Error> {
    let key = Arc::as_ptr(&transport).cast::<()>() as usize;
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, known)| known.strong_count() > 0);
    let known = open.iter().find(|(of, _)| *of == key).and_then(|(_, known)| known.upgrade());
    let resolver: Arc<dyn Resolve> = match known {
        Some(known) => known,
        None => {
            let device = Device::open(transport.clone(), options.clone())?;
            if device.link_layer() != LinkLayer::Ethernet {
                return Ok(device);
            }
            match Discoverer::start(device) {
                Ok(fresh) => {
                    let fresh = Arc::new(fresh);
                    open.push((key, Arc::downgrade(&fresh)));
                    fresh as Arc<dyn Resolve>
                }
                Err(error) => {
                    tracing::warn!(%error, "addresses cannot be resolved on the wire");
                    Arc::new(Unable(error.to_string()))
                }
            }
        }
    };
    drop(open);
    Device::open(transport, OpenOptions { resolver: Some(resolver), ..options })
}

impl Discoverer {
    fn start(device: Arc<Device>) -> Result<Self, Error> {
        sync::fork::watch();
        let port = RawPort::open(&device)?;
        let neighbours = Neighbours::new(device.function.vport.mac, own_addresses(&device.function)?);
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner { neighbours, port }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            device,
        });
        let theirs = shared.clone();
        let thread = Quiet::spawn("ironverbs-address", 128 << 10, move || theirs.run());
        let thread = Some(thread.map_err(Error::io("cannot start the thread that answers for addresses"))?);
        Ok(Self { shared, thread, generation: sync::fork::generation() })
    }

    /// Requests the MAC of `ip` on behalf of `from`. `None` if there is no answer within [`PATIENCE`], or the device is
    /// gone.
    fn find(&self, ip: IpAddr, from: OwnAddress) -> Option<[u8; 6]> {
        let shared = &self.shared;
        let mut inner = shared.lock();
        while !shared.gone.load(Acquire) && self.generation == sync::fork::generation() {
            let now = Instant::now();
            inner.neighbours.poll(now);
            let found = inner.neighbours.lookup(ip, from, now);
            if inner.flush() {
                // Wake the thread, which may have to repeat requests.
                shared.wake();
            }
            match found {
                Lookup::Known(mac) => return Some(mac),
                Lookup::Silent => return None,
                Lookup::Asked => {}
            }
            inner = match shared.changed.wait_timeout(inner, TURN) {
                Ok((inner, _)) => inner,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        None
    }
}

impl Resolve for Discoverer {
    fn resolve(&self, ip: IpAddr, from: OwnAddress) -> Result<[u8; 6], String> {
        self.find(ip, from).ok_or_else(|| {
            let protocol = if ip.is_ipv4() { "ARP requests" } else { "neighbour solicitations" };
            let vlan = from.vlan.map_or(String::new(), |vid| format!(" in VLAN {vid}"));
            format!(": it answered none of {TRIES} {protocol} from {}{vlan} in {PATIENCE:?}", from.ip)
        })
    }
}

impl Drop for Discoverer {
    fn drop(&mut self) {
        if self.generation != sync::fork::generation() {
            return;
        }
        self.shared.stop.store(true, Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread through the descriptor that it waits for.
    fn wake(&self) {
        if let Err(error) = self.device.events().wake() {
            tracing::debug!(%error, "the thread that answers for addresses was not woken");
        }
    }

    fn run(&self) {
        let events = self.device.events();
        loop {
            let mut failed = false;
            let drain = || events.drain(|event| failed |= event == Event::Device(DeviceEvent::Fatal));
            let Some(more) = unless_stopped(&self.stop, drain) else { return };
            if failed {
                return self.end("the device has failed");
            }
            let mut inner = self.lock();
            let now = Instant::now();
            let received = inner.receive(now);
            inner.neighbours.poll(now);
            inner.flush();
            let due = inner.neighbours.due();
            drop(inner);
            self.changed.notify_all();
            match received {
                Err(error) => return self.end(&error.to_string()),
                Ok(conflicts) => conflicts.iter().for_each(tell),
            }
            if more {
                continue;
            }
            let left =
                due.map(|due| due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            if let Err(error) = events.wait(left) {
                return self.end(&error.to_string());
            }
        }
    }

    fn end(&self, why: &str) {
        tracing::warn!(why, "addresses are not resolved any more");
        self.gone.store(true, Release);
        self.changed.notify_all();
    }
}

/// Drains events. `None` if the thread is to stop. The flag is checked after draining, since that also clears a wake-up
/// sent along with a concurrent store to `stop`.
fn unless_stopped<T>(stop: &AtomicBool, drain: impl FnOnce() -> T) -> Option<T> {
    let drained = drain();
    (!stop.load(Acquire)).then_some(drained)
}

fn tell(conflict: &Conflict) {
    let mac = conflict.mac.map(|byte| format!("{byte:02x}")).join(":");
    eprintln!("ironverbs: {}, an address of ours, is in use by the station with MAC {mac}", conflict.ip);
}

impl Inner {
    /// Sends pending frames. Returns true if there were any.
    fn flush(&mut self) -> bool {
        let mut any = false;
        while let Some(frame) = self.neighbours.frame() {
            any = true;
            if let Err(error) = self.port.send(&frame) {
                // The frame is repeated if no answer comes.
                tracing::debug!(%error, "a frame of address discovery was not sent");
            }
        }
        any
    }

    /// Processes received frames.
    fn receive(&mut self, now: Instant) -> Result<Vec<Conflict>, Error> {
        let neighbours = &mut self.neighbours;
        let mut conflicts = Vec::new();
        self.port.receive(|frame| conflicts.extend(neighbours.heard(frame, now)))?;
        Ok(conflicts)
    }
}

/// A raw packet queue pair that receives address resolution traffic.
struct RawPort {
    under_way: u32,
    /// Dropped before the queue pair.
    _flows: Vec<Flow>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    mr: Mr,
    mem: Arc<DmaMem>,
}

impl RawPort {
    fn open(device: &Arc<Device>) -> Result<Self, Error> {
        let pd = Pd::alloc(device)?;
        let cq = Cq::create(device, 2 * DEPTH, 0)?;
        let mem = Arc::new(pd.queue_memory(DEPTH as usize * STRIDE)?);
        let mr = Mr::over(&pd, &mem, AccessFlags::LOCAL_WRITE)?;
        let init = QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: DiscoveryFrame::MOST as u32,
            sq_sig_all: true,
            block_multicast_loopback: true,
            ..QpInit::new(Service::RawPacket, &cq, &cq)
        };
        let qp = Qp::create(&pd, &init)?;
        let flows = flows(&qp)?;
        let port = Self { under_way: 0, _flows: flows, qp, cq, mr, mem };
        port.start()?;
        Ok(port)
    }

    /// Takes the queue pair from RESET to RTS, with all receives posted.
    fn start(&self) -> Result<(), Error> {
        let attr = QpAttr { port_num: 1, ..QpAttr::default() };
        self.qp.advance_to(QpState::Init, &attr)?;
        (0..u64::from(DEPTH)).try_for_each(|slot| self.post(slot))?;
        self.qp.advance_to(QpState::Rts, &attr)?;
        self.cq.arm(false);
        Ok(())
    }

    fn post(&self, slot: u64) -> Result<(), Error> {
        let addr = self.mem.iova() + slot * STRIDE as u64;
        let sge = [Sge { addr, length: STRIDE as u32, lkey: self.mr.lkey() }];
        let posted = self.qp.post_recv([RecvWr { wr_id: slot, sge: &sge }]);
        posted.map_err(|error| Error::Invalid {
            what: "a receive of the raw queue pair".into(),
            errno: error.errno,
        })
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        let failed = |errno| Error::Invalid { what: "a raw packet was not sent".into(), errno };
        if self.under_way >= DEPTH {
            return Err(failed(libc::EAGAIN));
        }
        let wr = SendWr { wr_id: SEND, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
        self.qp.post_inline(wr, &Target::Peer, frame).map_err(|error| failed(error.errno))?;
        self.under_way += 1;
        Ok(())
    }

    /// Passes all received frames to `take`.
    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut frame = [0; STRIDE];
        for _ in 0..RESTARTS {
            // A completion after the check makes the descriptor readable.
            self.cq.arm(false);
            let mut failed = None;
            let mut wc = [Completion::default()];
            // At most one round of the queue, regardless of frames that arrive in the meantime.
            for _ in 0..2 * DEPTH {
                if self.cq.poll(&mut wc) == 0 {
                    return Ok(());
                }
                let wc = &wc[0];
                match (wc.wr_id, wc.status) {
                    (SEND, WcStatus::Success) => self.under_way = self.under_way.saturating_sub(1),
                    (slot, WcStatus::Success) if slot < DEPTH.into() => {
                        let len = (wc.byte_len as usize).min(STRIDE);
                        self.mem.copy_out(slot as usize * STRIDE, &mut frame[..len]);
                        take(&frame[..len]);
                        self.post(slot)?;
                    }
                    (_, status) => {
                        failed = Some(status);
                        break;
                    }
                }
            }
            let Some(status) = failed else { return Ok(()) };
            // For example, a frame longer than its buffer.
            tracing::debug!(?status, "the raw queue pair of address discovery is started again");
            let reset = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
            self.qp.modify(&reset, QpAttrMask::STATE)?;
            self.under_way = 0;
            self.start()?;
        }
        Ok(())
    }
}

/// The flows of ARP and ICMPv6, at lower precedence than all flows of programs.
fn flows(qp: &Arc<Qp>) -> Result<Vec<Flow>, Error> {
    const ANY: [[u8; 6]; 2] = [[0; 6]; 2];
    let arp = FlowSpec::Eth { dst: ANY, src: ANY, ether_type: [EtherType::ARP.raw(), 0xffff], vlan: [0; 2] };
    let icmp = FlowSpec::IpMore { version: 6, proto: [ICMP, 0xff], class: [0; 2], ttl: [0; 2] };
    let flow = |spec| {
        let attr = FlowAttr { priority: FLOW_PRIORITIES - 1, specs: vec![spec], ..FlowAttr::default() };
        Flow::create(qp, &attr)
    };
    [arp, icmp].into_iter().map(flow).collect()
}

/// All addresses in the GID table.
fn own_addresses(function: &Function) -> Result<Vec<OwnAddress>, Error> {
    let mut own = Vec::new();
    for index in 0..function.gid_table_len() {
        match path::own_address(function, index)? {
            Some(address) if !own.contains(&address) => own.push(address),
            _ => {}
        }
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The closing thread sets `stop` and wakes the other thread. This may happen before any step of the latter: before
    /// it begins, between its check for events and its clearing of the descriptor, or afterwards.
    #[test]
    fn no_thread_waits_that_is_to_stop() {
        for (stops, wakes) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)] {
            let (stop, awake) = (AtomicBool::new(false), Cell::new(false));
            let step = |now: u32| {
                if stops == now {
                    stop.store(true, Release);
                }
                if wakes == now {
                    awake.set(true);
                }
            };
            step(0);
            let goes_on = unless_stopped(&stop, || {
                step(1);
                awake.set(false);
            });
            step(2);
            assert!(goes_on.is_none() || awake.get(), "stopped before step {stops}, woken before {wakes}");
        }
    }
}
