//! Threads that forward device events to the descriptors that programs wait on.

use crate::abi::public as abi;
use crate::channel::Channel;
use crate::guard::lock;
use crate::pipe::{self, EventPipe};
use driver::transport::Kept;
use driver::{CompletionEvents, DeviceEvent, Event, HealthWatch, PortEvent, QpEvent, SrqEvent};
use libc::c_int;
use node::timed::spawn_apart;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The asynchronous events of a context, each `{ u64 element, u32 type, u32 0 }`.
pub type AsyncFile = EventPipe<16>;

/// An object that events are reported for, and the number of events sent for it.
struct Target {
    /// Address of the object that the program holds.
    object: usize,
    channel: Option<Arc<Channel>>,
    completions: u32,
    errors: u32,
}

/// Objects by cookie. Events for destroyed objects are dropped.
pub struct Targets {
    by_cookie: Mutex<HashMap<u64, Target>>,
    next_cookie: AtomicU64,
    async_file: AsyncFile,
}

/// Number of events that were sent for an object and not withdrawn. The program acknowledges that many before the object is freed. `None`:
/// the program has closed the event file, so the number of events it has read is unknown; or the object was removed by an earlier attempt
/// to destroy it, which the device refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Completion events.
    pub completions: Option<u32>,
    /// Asynchronous events.
    pub errors: Option<u32>,
}

/// Initializes the locks of a new object, which libibverbs leaves to the provider.
pub fn init_locks(mutex: &mut libc::pthread_mutex_t, cond: &mut libc::pthread_cond_t) {
    // SAFETY: the references are to a lock and a condition that are not in use, because the object is new.
    unsafe {
        libc::pthread_mutex_init(mutex, std::ptr::null());
        libc::pthread_cond_init(cond, std::ptr::null());
    }
}

/// Removes an object from the targets of its context, and waits until the program has acknowledged the events that it read of it.
/// libibverbs increments the named counters, members of the object, under the object's mutex.
macro_rules! withdraw {
    ($of:expr, $($counter:ident: $kind:ident),+) => {{
        let sent = $of.context().targets.leave($of.cookie);
        let object = $of.raw();
        // SAFETY: V1 and V5: libibverbs has initialized these members, and the object is not freed meanwhile.
        unsafe {
            let (mutex, cond) = (&raw mut (*object).mutex, &raw mut (*object).cond);
            let counters = [$((&raw const (*object).$counter, sent.$kind)),+];
            libc::pthread_mutex_lock(mutex);
            while counters.iter().any(|(done, sent)| sent.is_some_and(|sent| done.read_volatile() != sent)) {
                libc::pthread_cond_wait(cond, mutex);
            }
            libc::pthread_mutex_unlock(mutex);
        }
    }};
}
pub(crate) use withdraw;

impl Targets {
    /// Creates an empty set.
    pub fn new(async_file: AsyncFile) -> Self {
        Self { by_cookie: Mutex::default(), next_cookie: AtomicU64::new(1), async_file }
    }

    /// Returns a cookie that is unique within this context.
    pub fn new_cookie(&self) -> u64 {
        self.next_cookie.fetch_add(1, Ordering::Relaxed)
    }

    /// Reports events with this cookie for `object`.
    pub fn enter(&self, cookie: u64, object: usize, channel: Option<Arc<Channel>>) {
        lock(&self.by_cookie).insert(cookie, Target { object, channel, completions: 0, errors: 0 });
    }

    /// Removes an object, and withdraws its unread events.
    pub fn leave(&self, cookie: u64) -> Delivered {
        let Some(target) = lock(&self.by_cookie).remove(&cookie) else {
            return Delivered { completions: None, errors: None };
        };
        let is_object = |bytes: &[u8]| bytes.starts_with(&(target.object as u64).to_ne_bytes());
        let unread = target.channel.map_or(Some(0), |channel| channel.withdraw(|record| is_object(record)));
        let unseen = self.async_file.withdraw(|record| is_object(record) && is_affiliated(record));
        Delivered {
            completions: unread.map(|unread| target.completions.wrapping_sub(unread as u32)),
            errors: unseen.map(|unseen| target.errors.wrapping_sub(unseen as u32)),
        }
    }

    fn completion(&self, cookie: u64) {
        let mut targets = lock(&self.by_cookie);
        let Some(target) = targets.get_mut(&cookie) else { return };
        let record = (target.object as u64).to_ne_bytes();
        if target.channel.as_ref().is_some_and(|channel| channel.send(record)) {
            target.completions = target.completions.wrapping_add(1);
        }
    }

    fn affiliated(&self, cookie: u64, kind: u32) {
        let mut targets = lock(&self.by_cookie);
        let Some(target) = targets.get_mut(&cookie) else { return };
        if self.send_async(target.object as u64, kind) {
            target.errors = target.errors.wrapping_add(1);
        }
    }

    fn send_async(&self, element: u64, kind: u32) -> bool {
        let mut record = [0; 16];
        record[..8].copy_from_slice(&element.to_ne_bytes());
        record[8..12].copy_from_slice(&kind.to_ne_bytes());
        self.async_file.send(record)
    }

    fn deliver(&self, event: Event) {
        match event {
            Event::Cq { cookie, .. } => self.completion(cookie),
            Event::CqError { cookie, .. } => self.affiliated(cookie, abi::IBV_EVENT_CQ_ERR),
            Event::Qp { cookie, kind, .. } => self.affiliated(cookie, qp_event(kind)),
            Event::Srq { cookie, kind, .. } => self.affiliated(cookie, srq_event(kind)),
            Event::WqFatal { cookie, .. } => self.affiliated(cookie, abi::IBV_EVENT_WQ_FATAL),
            Event::Port { port, kind } => {
                if let Some(kind) = port_event(kind) {
                    self.send_async(u64::from(port), kind);
                }
            }
            Event::Device(DeviceEvent::Fatal) => {
                self.send_async(0, abi::IBV_EVENT_DEVICE_FATAL);
                // Wakes every waiter for completions, because there will be none.
                let all: Vec<u64> = lock(&self.by_cookie).keys().copied().collect();
                all.into_iter().for_each(|cookie| self.completion(cookie));
            }
            Event::Device(DeviceEvent::Other(..)) => {}
        }
    }
}

/// True if the event is reported for an object, not for a port or the device.
fn is_affiliated(record: &[u8; 16]) -> bool {
    let kind = u32::from_ne_bytes([record[8], record[9], record[10], record[11]]);
    kind < abi::IBV_EVENT_DEVICE_FATAL
        || (abi::IBV_EVENT_SRQ_ERR..=abi::IBV_EVENT_QP_LAST_WQE_REACHED).contains(&kind)
        || kind == abi::IBV_EVENT_WQ_FATAL
}

fn qp_event(kind: QpEvent) -> u32 {
    match kind {
        QpEvent::CommEstablished => abi::IBV_EVENT_COMM_EST,
        QpEvent::SqDrained => abi::IBV_EVENT_SQ_DRAINED,
        QpEvent::LastWqeReached => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
        QpEvent::Fatal => abi::IBV_EVENT_QP_FATAL,
        QpEvent::RequestError => abi::IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessError => abi::IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::PathMigrated => abi::IBV_EVENT_PATH_MIG,
        QpEvent::PathMigrationFailed => abi::IBV_EVENT_PATH_MIG_ERR,
    }
}

fn srq_event(kind: SrqEvent) -> u32 {
    match kind {
        SrqEvent::LimitReached => abi::IBV_EVENT_SRQ_LIMIT_REACHED,
        SrqEvent::Error => abi::IBV_EVENT_SRQ_ERR,
    }
}

fn port_event(kind: PortEvent) -> Option<u32> {
    Some(match kind {
        PortEvent::Active => abi::IBV_EVENT_PORT_ACTIVE,
        PortEvent::Error => abi::IBV_EVENT_PORT_ERR,
        PortEvent::LidChange => abi::IBV_EVENT_LID_CHANGE,
        PortEvent::PkeyChange => abi::IBV_EVENT_PKEY_CHANGE,
        PortEvent::GidChange => abi::IBV_EVENT_GID_CHANGE,
        PortEvent::ClientReregister => abi::IBV_EVENT_CLIENT_REREGISTER,
        PortEvent::Other(_) => return None,
    })
}

/// The threads that forward events from the device to the descriptors: one for completion vector 0 and all other events, and one for each
/// further completion vector that a CQ uses.
pub struct Pump {
    device: Arc<driver::Device>,
    targets: Arc<Targets>,
    /// Threads by completion vector. Never empty.
    threads: Mutex<Vec<Option<JoinHandle<()>>>>,
    /// Readable once the threads are to exit: `stop`, its other end, is closed then.
    stopped: Arc<Kept>,
    stop: Kept,
}

impl Pump {
    /// Starts the first thread.
    pub fn start(device: Arc<driver::Device>, targets: Arc<Targets>) -> io::Result<Self> {
        let (stopped, stop) = pipe::ends()?;
        let (stopped, stop) = (Arc::new(Kept::new(stopped)?), Kept::new(stop)?);
        let thread = {
            let (device, targets, stopped) = (device.clone(), targets.clone(), stopped.clone());
            spawn(move || run(&device, &targets, &stopped))?
        };
        Ok(Self { device, targets, threads: Mutex::new(vec![Some(thread)]), stopped, stop })
    }

    /// Makes sure that a thread forwards the events of completion vector `vector`.
    pub fn attend(&self, vector: u32) -> io::Result<()> {
        let at = vector as usize;
        let mut threads = lock(&self.threads);
        if threads.len() <= at {
            threads.resize_with(at + 1, || None);
        }
        if threads[at].is_none() {
            let events = self.device.completion_vector(vector);
            let events = events.map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
            // A vector without an event file of its own is served by the first thread.
            let Some(events) = events else { return Ok(()) };
            let (targets, stopped) = (self.targets.clone(), self.stopped.clone());
            threads[at] = Some(spawn(move || carry_completions(&events, &targets, &stopped))?);
        }
        Ok(())
    }

    /// Stops the threads, waits for them and returns the device.
    pub fn stop(self) -> Arc<driver::Device> {
        drop(self.stop);
        for thread in self.threads.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten()
        {
            let _ = thread.join();
        }
        self.device
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    spawn_apart("ironverbs-events", 128 << 10, run)
}

/// Forwards the events of one completion vector.
fn carry_completions(events: &CompletionEvents, targets: &Targets, stopped: &Kept) {
    loop {
        let limit = if survives(|| events.drain(|event| targets.deliver(event))) { 0 } else { -1 };
        if !wait(events.fd().as_raw_fd(), stopped.unchecked().as_raw_fd(), limit) {
            return;
        }
    }
}

/// Returns the result of `drain`, or false if it panicked. A process that can map no more of its node has lost the node, and this thread is
/// needed to report that.
fn survives(drain: impl FnOnce() -> bool) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(drain)).unwrap_or(false)
}

/// Time between two checks of the device's health.
const LOOK: Duration = Duration::from_secs(2);

fn run(device: &driver::Device, targets: &Targets, stopped: &Kept) {
    let events = device.events();
    let mut watch = HealthWatch::default();
    // Time of the next health check. `None` once the device is lost.
    let mut next = Some(Instant::now() + LOOK);
    loop {
        let mut fatal = false;
        let more = survives(|| {
            events.drain(|event| match event {
                Event::Device(DeviceEvent::Fatal) => fatal = true,
                event => targets.deliver(event),
            })
        });
        let now = Instant::now();
        if next.is_some_and(|next| now >= next) {
            next = Some(now + LOOK);
            // A removed device raises no event; its registers read as all ones.
            fatal |= !watch.look(&device.health(), now);
        }
        if fatal && next.take().is_some() {
            device.give_up();
            targets.deliver(Event::Device(DeviceEvent::Fatal));
        }
        let limit = match next {
            _ if more => 0,
            Some(next) => next.saturating_duration_since(now).as_millis() as c_int + 1,
            None => -1,
        };
        if !wait(events.fd().as_raw_fd(), stopped.unchecked().as_raw_fd(), limit) {
            return;
        }
    }
}

/// Waits for an event, at most `limit` milliseconds (-1 is forever). Returns false if the pump is stopped.
fn wait(events: RawFd, stopped: RawFd, limit: c_int) -> bool {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(events), entry(stopped)];
    // SAFETY: two entries.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), 2, limit) };
    match ready {
        -1 => io::Error::last_os_error().kind() == io::ErrorKind::Interrupted,
        _ => entries[1].revents == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> Targets {
        Targets::new(AsyncFile::new().expect("a pipe"))
    }

    #[test]
    fn an_event_for_an_object_that_is_gone_reaches_nobody() {
        let targets = targets();
        let channel = Arc::new(Channel::new().expect("a pipe"));
        targets.enter(7, 0x1000, Some(Arc::clone(&channel)));
        targets.leave(7);
        targets.deliver(Event::Cq { cqn: 1, cookie: 7 });
        assert_eq!(channel.withdraw(|_| true), Some(0));
    }

    /// The counters already include the events sent before the object was removed; a second attempt must not wait for them again.
    #[test]
    fn an_object_that_leaves_again_waits_for_nothing() {
        let targets = targets();
        targets.enter(7, 0x1000, None);
        targets.leave(7);
        assert_eq!(targets.leave(7), Delivered { completions: None, errors: None });
    }

    #[test]
    fn unread_events_need_no_acknowledgement() {
        let targets = targets();
        let channel = Arc::new(Channel::new().expect("a pipe"));
        targets.enter(7, 0x1000, Some(Arc::clone(&channel)));
        targets.enter(8, 0x2000, Some(Arc::clone(&channel)));
        for cookie in [7, 8, 7] {
            targets.deliver(Event::Cq { cqn: 1, cookie });
        }
        targets.deliver(Event::Qp { qpn: 2, cookie: 7, kind: QpEvent::Fatal });
        targets.deliver(Event::Port { port: 1, kind: PortEvent::Active });
        assert_eq!(targets.leave(7), Delivered { completions: Some(0), errors: Some(0) });
        assert_eq!(channel.withdraw(|_| true), Some(1), "the other object's event stayed");
        assert_eq!(targets.async_file.withdraw(|_| true), Some(1), "the port's event stayed");
    }
}
