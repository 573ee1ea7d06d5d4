//! Events a function reports of its own accord.

use crate::{
    async_queue::{Notice, Reader},
    eq::EventQueue,
    function::Function,
    shared_area::{FunctionState, Shared},
    transport::Bell,
};
use crossbeam_queue::SegQueue;
use hwspec::eqe::{CompEvent, Eqe, EventType, PortChange, QueueKind};
use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Events that [`Events::drain`] takes at most.
const DRAINED: u32 = 1024;

/// What happened to a QP or its receive queue (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// Communication established: a packet came while in RTR.
    CommEstablished,
    /// The send queue has drained (SQD).
    SqDrained,
    /// The last receive work request of a QP on an SRQ is done.
    LastWqeReached,
    /// Catastrophic error on the work queue.
    Fatal,
    /// Invalid request: local work queue error.
    RequestError,
    /// Local access violation.
    AccessError,
    /// Path migrated.
    PathMigrated,
    /// Path migration failed.
    PathMigrationFailed,
}

/// What happened to a shared receive queue (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqEvent {
    /// Fewer receives are left than it was armed for.
    LimitReached,
    /// Catastrophic error: its entries cannot be read.
    Error,
}

/// What happened to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Link up.
    Active,
    /// Link down.
    Error,
    /// Its LID changed.
    LidChange,
    /// Its P_Keys changed.
    PkeyChange,
    /// Its GIDs changed.
    GidChange,
    /// The subnet manager asks its clients to register anew.
    ClientReregister,
    /// Something else of its attributes changed; the raw subtype.
    Other(u8),
}

/// What happened to the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device reported a fatal error, or the way to it is gone.
    Fatal,
    /// An event this driver has no name for: type and subtype.
    Other(u8, u8),
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CQ that was armed has a completion.
    Cq {
        /// CQ number.
        cqn: u32,
        /// What the CQ was created with.
        cookie: u64,
    },
    /// A CQ failed: overrun or no access to its memory.
    CqError {
        /// CQ number.
        cqn: u32,
        /// What the CQ was created with.
        cookie: u64,
    },
    /// A QP's affiliated event.
    Qp {
        /// QP number.
        qpn: u32,
        /// What the QP was created with.
        cookie: u64,
        /// What happened.
        kind: QpEvent,
    },
    /// A shared receive queue's event.
    Srq {
        /// SRQ number.
        srqn: u32,
        /// What the SRQ was created with.
        cookie: u64,
        /// What happened.
        kind: SrqEvent,
    },
    /// A work queue of [`Wq`](crate::Wq) failed, and could not say so in a completion.
    WqFatal {
        /// Its number.
        wqn: u32,
        /// What the work queue was created with.
        cookie: u64,
    },
    /// The port changed.
    Port {
        /// Port number, from 1.
        port: u8,
        /// What happened.
        kind: PortEvent,
    },
    /// The function itself.
    Device(DeviceEvent),
}

/// The events of one opener. A thread of the caller takes them: poll(2) on the descriptor, then [`Events::next`] until
/// it returns `None`.
pub struct Events {
    pub(crate) function: Arc<Function>,
    pub(crate) bell: Bell,
    /// Of completions.
    pub(crate) queue: Mutex<Option<EventQueue>>,
    /// Of everything else.
    pub(crate) notices: Mutex<Reader>,
    pub(crate) registry: Arc<Registry>,
    /// Events not yet returned, of an EQE that concerns several objects.
    pub(crate) further: SegQueue<Event>,
    /// There was an event since `next` last returned `None`.
    pub(crate) taken: AtomicBool,
    /// The caller has been given the event that the way to the device is gone.
    pub(crate) gone: AtomicBool,
}

/// The objects that events are about: cookies by number.
///
/// All openers hear of all events, and numbers are used again: an event that is older than the object with its number
/// is not this object's.
pub(crate) struct Registry {
    shared: Shared,
    cqs: Mutex<HashMap<u32, KnownCq>>,
    qps: Mutex<HashMap<u32, KnownQp>>,
    srqs: Mutex<HashMap<u32, (u64, Since)>>,
    wqs: Mutex<HashMap<u32, (u64, Since)>>,
}

/// The number of the first event that may be an object's.
type Since = u32;

struct KnownCq {
    cookie: u64,
    /// Goes up with every event of a completion.
    arm_sn: Arc<AtomicU32>,
    since: Since,
}

struct KnownQp {
    /// More than one: a target QP of XRC may be open more than once.
    cookies: Vec<u64>,
    /// Whether the draining of the send queue is to be an event.
    drained: bool,
    since: Since,
}

/// Whether event `number` came after the object was known.
fn is_of(number: u32, since: Since) -> bool {
    number.wrapping_sub(since) as i32 >= 0
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Registry {
    /// Of a function whose openers share `shared`.
    pub fn new(shared: Shared) -> Self {
        Self {
            shared,
            cqs: Mutex::default(),
            qps: Mutex::default(),
            srqs: Mutex::default(),
            wqs: Mutex::default(),
        }
    }

    fn since(&self) -> Since {
        self.shared.events_taken()
    }

    /// A CQ with its cookie and the serial number of its arming, which goes up with every event.
    pub fn add_cq(&self, cqn: u32, cookie: u64, arm_sn: Arc<AtomicU32>) {
        let since = self.since();
        locked(&self.cqs).insert(cqn, KnownCq { cookie, arm_sn, since });
    }

    pub fn remove_cq(&self, cqn: u32) {
        locked(&self.cqs).remove(&cqn);
    }

    pub fn add_qp(&self, qpn: u32, cookie: u64) {
        let new = || KnownQp { cookies: Vec::new(), drained: false, since: self.since() };
        locked(&self.qps).entry(qpn).or_insert_with(new).cookies.push(cookie);
    }

    /// Whether the next draining of the QP's send queue is an event.
    pub fn notify_of_drained(&self, qpn: u32, wanted: bool) {
        if let Some(qp) = locked(&self.qps).get_mut(&qpn) {
            qp.drained = wanted;
        }
    }

    pub fn remove_qp(&self, qpn: u32, cookie: u64) {
        let mut qps = locked(&self.qps);
        if let Some(qp) = qps.get_mut(&qpn) {
            if let Some(at) = qp.cookies.iter().position(|c| *c == cookie) {
                qp.cookies.swap_remove(at);
            }
            if qp.cookies.is_empty() {
                qps.remove(&qpn);
            }
        }
    }

    pub fn add_srq(&self, srqn: u32, cookie: u64) {
        let since = self.since();
        locked(&self.srqs).insert(srqn, (cookie, since));
    }

    pub fn remove_srq(&self, srqn: u32) {
        locked(&self.srqs).remove(&srqn);
    }

    pub fn add_wq(&self, wqn: u32, cookie: u64) {
        let since = self.since();
        locked(&self.wqs).insert(wqn, (cookie, since));
    }

    pub fn remove_wq(&self, wqn: u32) {
        locked(&self.wqs).remove(&wqn);
    }
}

impl Events {
    /// Readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Waits until there may be an event or `timeout` passes.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<bool> {
        self.bell.wait(timeout)
    }

    /// Lets the descriptor become readable as if there were an event.
    pub(crate) fn wake(&self) -> std::io::Result<()> {
        self.bell.ring()
    }

    /// The next event, if any. When it returns `None` the queue is armed, and the descriptor becomes readable with the
    /// next event, or is so already. Requests of the device for pages are served on the way.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&self) -> Option<Event> {
        let mut began = None;
        loop {
            if let Some(event) = self.further.pop() {
                return Some(event);
            }
            let Some(taken) = self.take() else {
                if self.function.transport.is_gone() && !self.gone.swap(true, Relaxed) {
                    return Some(Event::Device(DeviceEvent::Fatal));
                }
                self.sweep_after_dead_openers();
                return None;
            };
            self.taken.store(true, Relaxed);
            let event = match taken {
                Taken::Completion(eqe) => self.completion(&eqe),
                Taken::Notice(number, notice) => self.translate(number, notice),
            };
            if event.is_some() {
                return event;
            }
            // Served requests for pages, and events of others: a device that has no end of them gives the caller a turn.
            if began.get_or_insert_with(Instant::now).elapsed() > self.function.options.command_timeout {
                if let Err(error) = self.wake() {
                    tracing::warn!(%error, "the interrupt's descriptor cannot be made readable");
                }
                return None;
            }
        }
    }

    /// Hands what events there are to `take`, up to so many that a device which raises them for ever does not keep the caller.
    /// Whether there may be more.
    pub fn drain(&self, mut take: impl FnMut(Event)) -> bool {
        for _ in 0..DRAINED {
            let Some(event) = self.next() else { return false };
            take(event);
        }
        true
    }

    /// An interrupt without an event may mean that another opener has died. Destroys the objects that only it held.
    fn sweep_after_dead_openers(&self) {
        if self.taken.swap(false, Relaxed) {
            return;
        }
        let shared = &self.function.shared;
        if shared.state() != FunctionState::Up || crate::cmd::is_gone(&self.function.bar) {
            return;
        }
        if let Some(lock) = shared.try_lock() {
            crate::abandoned::sweep(&self.function, &lock);
        }
    }

    /// What is there, and then nothing is armed.
    fn look(&self) -> Option<Taken> {
        if let Some(eqe) = locked(&self.queue).as_mut()?.next() {
            return Some(Taken::Completion(eqe));
        }
        self.function.attend();
        locked(&self.notices).next().map(|(number, notice)| Taken::Notice(number, notice))
    }

    fn take(&self) -> Option<Taken> {
        if let Some(found) = self.look() {
            return Some(found);
        }
        self.function.transport.idle();
        if let Some(found) = self.look() {
            return Some(found);
        }
        // Clear, then arm, then look again: an event after that look makes the descriptor readable.
        if let Err(error) = self.bell.clear() {
            tracing::warn!(%error, "the interrupt's descriptor cannot be read");
        }
        locked(&self.queue).as_mut()?.arm();
        locked(&self.notices).arm();
        self.look()
    }

    /// The event of a CQ that was armed. The queue has no others.
    fn completion(&self, eqe: &Eqe) -> Option<Event> {
        if eqe.event_type() != EventType::Comp {
            return None;
        }
        let cqn = eqe.data::<CompEvent>().cq_number().0;
        let known = locked(&self.registry.cqs);
        let cq = known.get(&cqn)?;
        cq.arm_sn.fetch_add(1, Relaxed);
        Some(Event::Cq { cqn, cookie: cq.cookie })
    }

    fn translate(&self, number: u32, Notice(kind, sub, object): Notice) -> Option<Event> {
        match kind {
            EventType::CqError => {
                let known = locked(&self.registry.cqs);
                let cq = known.get(&object).filter(|cq| is_of(number, cq.since))?;
                tracing::warn!(cqn = object, syndrome = sub, "a CQ failed");
                Some(Event::CqError { cqn: object, cookie: cq.cookie })
            }
            EventType::PortChange => {
                let kind = match PortChange::from_raw(sub) {
                    PortChange::Active => PortEvent::Active,
                    PortChange::Down | PortChange::Initialized => PortEvent::Error,
                    PortChange::Lid => PortEvent::LidChange,
                    PortChange::Pkey => PortEvent::PkeyChange,
                    PortChange::Guid => PortEvent::GidChange,
                    PortChange::ClientRereg => PortEvent::ClientReregister,
                    other => PortEvent::Other(other.raw()),
                };
                Some(Event::Port { port: object as u8, kind })
            }
            kind @ (EventType::SrqRqLimit | EventType::SrqCatasError) => {
                let known = locked(&self.registry.srqs).get(&object).copied();
                let (cookie, _) = known.filter(|(_, since)| is_of(number, *since))?;
                let limit = kind == EventType::SrqRqLimit;
                let kind = if limit { SrqEvent::LimitReached } else { SrqEvent::Error };
                Some(Event::Srq { srqn: object, cookie, kind })
            }
            EventType::WqCatasError if sub == QueueKind::Rq.raw() => {
                let known = locked(&self.registry.wqs).get(&object).copied();
                let (cookie, _) = known.filter(|(_, since)| is_of(number, *since))?;
                Some(Event::WqFatal { wqn: object, cookie })
            }
            EventType::InternalError => Some(Event::Device(DeviceEvent::Fatal)),
            other => {
                let Some(kind) = qp_event(other) else {
                    return Some(Event::Device(DeviceEvent::Other(other.raw(), sub)));
                };
                let qpn = object;
                let cookies = {
                    let mut qps = locked(&self.registry.qps);
                    let qp = qps.get_mut(&qpn).filter(|qp| is_of(number, qp.since))?;
                    if kind == QpEvent::SqDrained && !std::mem::take(&mut qp.drained) {
                        return None;
                    }
                    qp.cookies.clone()
                };
                let mut all = cookies.into_iter().map(|cookie| Event::Qp { qpn, cookie, kind });
                let first = all.next();
                all.for_each(|event| self.further.push(event));
                first
            }
        }
    }
}

/// What the device has written.
enum Taken {
    Completion(Eqe),
    /// Number of the event, and what it says.
    Notice(u32, Notice),
}

fn qp_event(kind: EventType) -> Option<QpEvent> {
    Some(match kind {
        EventType::CommEst => QpEvent::CommEstablished,
        EventType::SqDrained => QpEvent::SqDrained,
        EventType::SrqLastWqe => QpEvent::LastWqeReached,
        EventType::WqCatasError => QpEvent::Fatal,
        EventType::WqInvalReqError => QpEvent::RequestError,
        EventType::WqAccessError => QpEvent::AccessError,
        EventType::PathMig => QpEvent::PathMigrated,
        EventType::PathMigFailed => QpEvent::PathMigrationFailed,
        _ => return None,
    })
}
