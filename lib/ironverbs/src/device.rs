//! Devices: how they are named and opened, and what queues on them share.

use crate::{
    Error, Result,
    reactor::{Reactor, Served},
    sim::machine::Machine,
    source::Source,
    verbs::{self, Cq, CqInit, DeviceEvent, Event, HealthWatch, LinkLayer, Pd},
};
use node::place::Place;
use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Real time between steps of virtual time for futures that run outside of [`block_on`](crate::block_on).
const STEP: Duration = Duration::from_millis(1);
/// The GID of the first IP address on Ethernet, after the link-local one.
const FIRST_IP: u16 = 1;

/// A device, open. Clones are the same device.
///
/// [`open`](Self::open) takes the words by which the launcher describes devices:
///
/// | Device | Words |
/// |---|---|
/// | `iron1` of an adapter | `node=/dev/shm/adapter fid=1` |
/// | a function bound to vfio-pci | `vfio=0000:c1:00.2 address=10.0.0.2` |
/// | a function of `ironverbs serve` | `vfio-user=/run/vf.sock address=10.0.0.2 neighbour=10.0.0.1=02:1b:56:00:00:01` |
///
/// Functions on an adapter have their addresses. Others have those of `address=`, which may be given several times, beside the link-local one;
/// `neighbour=` names peers that cannot be found by ARP.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

/// The sources of a device's completions, by the cookie in their events.
pub(crate) type Sources = BTreeMap<u64, Weak<dyn Source>>;

/// The connection manager of a device, as a source and as itself: devices know no more of it.
pub(crate) type Managing = (Arc<dyn Source>, Arc<dyn Any + Send + Sync>);

/// The state of a device that its queues share.
pub(crate) struct Shared {
    raw: Arc<verbs::Device>,
    pd: Arc<Pd>,
    place: Option<Place>,
    machine: Option<Machine>,
    /// The index of the GID that connections use.
    gid_index: u8,
    gid: [u8; 16],
    opened: Instant,
    sources: Mutex<Sources>,
    cookies: AtomicU64,
    reactor: Mutex<Reactor>,
    manager: OnceLock<Managing>,
    health: Mutex<(HealthWatch, Duration)>,
    /// Held while the manager is made: a device has one queue pair 1.
    managing: Mutex<()>,
}

impl Device {
    /// Opens the device that `place` describes, as [above](Self). Words are separated by spaces, or by ends of lines if a path has spaces.
    ///
    /// # Errors
    /// [`Error::NotADevice`], [`Error::Open`].
    pub fn open(place: &str) -> Result<Self> {
        let lines = if place.contains('\n') { place.to_owned() } else { place.replace(' ', "\n") };
        Self::at(&Place::parse(lines.as_bytes()).map_err(Error::NotADevice)?)
    }

    /// Opens the device at `place`.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn at(place: &Place) -> Result<Self> {
        Self::of(place.open()?, Some(place.clone()), None)
    }

    pub(crate) fn of(
        raw: Arc<verbs::Device>,
        place: Option<Place>,
        machine: Option<Machine>,
    ) -> Result<Self> {
        let pd = Pd::alloc(&raw)?;
        let is_given = |index| raw.gid(index).ok().filter(|gid| *gid != [0; 16]);
        let ethernet = raw.link_layer() == LinkLayer::Ethernet;
        let gid_index = if ethernet && is_given(FIRST_IP).is_some() { FIRST_IP } else { 0 };
        let gid = raw.gid(gid_index)?;
        let (sources, cookies, reactor, manager, health, managing) = Default::default();
        let opened = Instant::now();
        let gid_index = gid_index as u8;
        let shared = Arc::new(Shared {
            raw,
            pd,
            place,
            machine,
            gid_index,
            gid,
            opened,
            sources,
            cookies,
            reactor,
            manager,
            health,
            managing,
        });
        let mut open = open_devices();
        open.retain(|device| device.strong_count() != 0);
        open.push(Arc::downgrade(&shared));
        Ok(Self(shared))
    }

    /// Its IP address.
    pub fn address(&self) -> IpAddr {
        node::gid::ip_of_gid(&self.0.gid)
    }

    /// The device of [`verbs`], for objects that this crate does not have.
    pub fn raw(&self) -> &Arc<verbs::Device> {
        &self.0.raw
    }

    /// Time since it was opened; virtual time on a simulated machine.
    pub fn now(&self) -> Duration {
        Self::time(self.0.machine.as_ref(), self.0.opened)
    }

    pub(crate) fn time(machine: Option<&Machine>, opened: Instant) -> Duration {
        match machine {
            Some(machine) => Duration::from_nanos(machine.now() / 1000),
            None => opened.elapsed(),
        }
    }

    /// The open device with this address.
    pub(crate) fn with(ip: IpAddr) -> Option<Self> {
        let open = open_devices();
        open.iter().filter_map(Self::upgrade).find(|device| device.address() == ip)
    }

    /// The open device with the longest prefix in common with an address.
    pub(crate) fn towards(ip: IpAddr) -> Option<Self> {
        let wanted = u128::from_be_bytes(node::gid::gid_of_ip(ip));
        let open = open_devices();
        let common = |device: &Self| (u128::from_be_bytes(device.0.gid) ^ wanted).leading_zeros();
        open.iter().filter_map(Self::upgrade).max_by_key(common)
    }

    /// The only domain of this crate's objects. Whoever had it could have the device write to buffers behind the back of their owners.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.0.pd
    }

    pub(crate) fn gid(&self) -> ([u8; 16], u8) {
        (self.0.gid, self.0.gid_index)
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    pub(crate) fn opened(&self) -> Instant {
        self.0.opened
    }

    pub(crate) fn machine(&self) -> Option<&Machine> {
        self.0.machine.as_ref()
    }

    pub(crate) fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new completion queue of at least `entries`, and the cookie of its events.
    pub(crate) fn completion_queue(&self, entries: usize) -> Result<(Arc<Cq>, u64)> {
        let cookie = self.cookie();
        let init = CqInit { entries: entries as u32, cookie, ..CqInit::default() };
        Ok((Cq::create_with(&self.0.raw, &init, None)?, cookie))
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.0.cookies.fetch_add(1, Relaxed)
    }

    /// The manager of its connections, made by `make` at the first call.
    pub(crate) fn manager_or(&self, make: impl FnOnce() -> Result<Managing>) -> Result<&Managing> {
        let _once = self.0.managing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manager) = self.0.manager.get() {
            return Ok(manager);
        }
        let manager = make()?;
        Ok(self.0.manager.get_or_init(|| manager))
    }

    /// The connection manager as a source, if there is one.
    pub(crate) fn manager_if_any(&self) -> Option<&Arc<dyn Source>> {
        self.0.manager.get().map(|(source, _)| source)
    }

    pub(crate) fn downgrade(&self) -> Weak<Shared> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(shared: &Weak<Shared>) -> Option<Self> {
        shared.upgrade().map(Self)
    }

    /// Has events taken while nobody looks.
    pub(crate) fn react(&self) {
        let mut reactor = self.0.reactor.lock().unwrap_or_else(PoisonError::into_inner);
        // Without it futures still work under `block_on`, which looks by itself until then.
        let weak: Weak<Shared> = Arc::downgrade(&self.0);
        let _ = reactor.start(&self.0.raw, weak);
    }
}

/// The devices that this program has open, for addresses.
fn open_devices() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sources on a simulated machine, in the order of their creation.
pub(crate) fn sources_of(machine: &Machine) -> Vec<Arc<dyn Source>> {
    let on_it = |shared: &Arc<Shared>| shared.machine.as_ref().is_some_and(|one| one.is_same(machine));
    let devices: Vec<_> = open_devices().iter().filter_map(Weak::upgrade).filter(on_it).collect();
    devices.iter().flat_map(|shared| shared.all()).collect()
}

impl Shared {
    pub fn is_gone(&self) -> bool {
        self.raw.transport().is_gone()
    }

    /// Looks at the device's health when it is time: a device that was pulled out raises no event. Returns the time of the next look.
    fn look(&self, now: Duration, all: &[Arc<dyn Source>]) -> Option<Duration> {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let (watch, next) = &mut *health;
        if self.is_gone() {
            return None;
        }
        if *next <= now {
            *next = now + HealthWatch::INTERVAL;
            if !watch.look(&self.raw.health(), Instant::now()) {
                self.raw.give_up();
                all.iter().for_each(|source| source.check());
                return None;
            }
        }
        Some(*next)
    }

    fn all(&self) -> Vec<Arc<dyn Source>> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.values().filter_map(Weak::upgrade).collect()
    }

    fn take(&self, event: Event) {
        match event {
            Event::Cq { cookie, .. } => {
                let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
                let source = sources.get(&cookie).and_then(Weak::upgrade);
                drop(sources);
                let Some(source) = source else { return };
                source.fired();
                source.pump();
                if source.sleeps() {
                    source.arm();
                    source.pump();
                }
            }
            Event::Device(DeviceEvent::Fatal) => self.all().iter().for_each(|source| source.check()),
            _ => {}
        }
    }
}

impl Served for Shared {
    fn serve(&self) -> Option<Duration> {
        while self.raw.events().drain(|event| self.take(event)) {}
        let all = self.all();
        if let Some(machine) = self.machine.as_ref().filter(|_| all.iter().any(|source| source.sleeps())) {
            machine.advance(None);
            all.iter().for_each(|source| _ = source.pump());
            return Some(STEP);
        }
        let now = self.opened.elapsed();
        let due = |source: &&Arc<dyn Source>| source.deadline().is_some_and(|at| at <= now);
        all.iter().filter(due).for_each(|source| _ = source.pump());
        let deadlines = all.iter().filter_map(|source| source.deadline());
        deadlines.chain(self.look(now, &all)).min().map(|at| at.saturating_sub(now))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let reactor = std::mem::take(self.reactor.get_mut().unwrap_or_else(PoisonError::into_inner));
        let _ = self.raw.events().wake();
        reactor.stop();
    }
}

impl AsFd for Device {
    /// The descriptor of its events, readable when there may be one. Only to be waited for: the crate takes the events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.raw.events().fd()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("address", &self.address())
            .field("virtual", &self.0.raw.is_virtual())
            .finish()
    }
}
