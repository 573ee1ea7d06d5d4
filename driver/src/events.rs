//! Events a function reports of its own accord.

use crate::{eq::EventQueue, function::Function, shared_area::FunctionState, transport::Interrupt};
use crossbeam_queue::SegQueue;
use hwspec::eqe::{CompEvent, CqErrorEvent, Eqe, EventType, PagesEvent, PortChange, QueueKind};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

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
    pub(crate) interrupt: Interrupt,
    pub(crate) queue: Mutex<Option<EventQueue>>,
    pub(crate) registry: Arc<Registry>,
    /// Events not yet returned, of an EQE that concerns several objects.
    pub(crate) further: SegQueue<Event>,
    /// There was an event since `next` last returned `None`.
    pub(crate) taken: AtomicBool,
    /// The caller has been given the event that the way to the device is gone.
    pub(crate) gone: AtomicBool,
}

/// The objects that events are about: cookies by number.
#[derive(Default)]
pub(crate) struct Registry {
    cqs: Mutex<HashMap<u32, (u64, Arc<AtomicU32>)>>,
    /// Cookies (a target QP of XRC may be open more than once), and whether the draining of the send queue is to be an
    /// event.
    qps: Mutex<HashMap<u32, (Vec<u64>, bool)>>,
    srqs: Mutex<HashMap<u32, u64>>,
    wqs: Mutex<HashMap<u32, u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Registry {
    /// A CQ with its cookie and the serial number of its arming, which goes up with every event.
    pub fn add_cq(&self, cqn: u32, cookie: u64, arm_sn: Arc<AtomicU32>) {
        locked(&self.cqs).insert(cqn, (cookie, arm_sn));
    }

    pub fn remove_cq(&self, cqn: u32) {
        locked(&self.cqs).remove(&cqn);
    }

    pub fn add_qp(&self, qpn: u32, cookie: u64) {
        locked(&self.qps).entry(qpn).or_default().0.push(cookie);
    }

    /// Whether the next draining of the QP's send queue is an event.
    pub fn notify_of_drained(&self, qpn: u32, wanted: bool) {
        if let Some(qp) = locked(&self.qps).get_mut(&qpn) {
            qp.1 = wanted;
        }
    }

    pub fn remove_qp(&self, qpn: u32, cookie: u64) {
        let mut qps = locked(&self.qps);
        if let Some((cookies, _)) = qps.get_mut(&qpn) {
            if let Some(at) = cookies.iter().position(|c| *c == cookie) {
                cookies.swap_remove(at);
            }
            if cookies.is_empty() {
                qps.remove(&qpn);
            }
        }
    }

    pub fn add_srq(&self, srqn: u32, cookie: u64) {
        locked(&self.srqs).insert(srqn, cookie);
    }

    pub fn remove_srq(&self, srqn: u32) {
        locked(&self.srqs).remove(&srqn);
    }

    pub fn add_wq(&self, wqn: u32, cookie: u64) {
        locked(&self.wqs).insert(wqn, cookie);
    }

    pub fn remove_wq(&self, wqn: u32) {
        locked(&self.wqs).remove(&wqn);
    }
}

impl Events {
    /// Readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.interrupt.fd.as_fd()
    }

    /// Waits until there may be an event or `timeout` passes.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<bool> {
        self.interrupt.wait(timeout)
    }

    /// The next event, if any. When it returns `None` the queue is armed, and the descriptor becomes readable with the
    /// next event. Requests of the device for pages are served on the way.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&self) -> Option<Event> {
        loop {
            if let Some(event) = self.further.pop() {
                return Some(event);
            }
            let Some(eqe) = self.take() else {
                if self.function.transport.is_gone() && !self.gone.swap(true, Relaxed) {
                    return Some(Event::Device(DeviceEvent::Fatal));
                }
                self.sweep_after_dead_openers();
                return None;
            };
            self.taken.store(true, Relaxed);
            if let Some(event) = self.translate(&eqe) {
                return Some(event);
            }
        }
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

    fn take(&self) -> Option<Eqe> {
        let mut queue = locked(&self.queue);
        let queue = queue.as_mut()?;
        if let Some(eqe) = queue.next() {
            return Some(eqe);
        }
        self.function.transport.idle();
        if let Some(eqe) = queue.next() {
            return Some(eqe);
        }
        // Clear, then arm, then look again: an event after that look makes the descriptor readable.
        if let Err(error) = self.interrupt.clear() {
            tracing::warn!(%error, "the interrupt's descriptor cannot be read");
        }
        queue.arm();
        queue.next()
    }

    fn translate(&self, eqe: &Eqe) -> Option<Event> {
        match eqe.event_type() {
            EventType::Comp => {
                let cqn = eqe.data::<CompEvent>().cq_number().0;
                let (cookie, arm_sn) = locked(&self.registry.cqs).get(&cqn)?.clone();
                arm_sn.fetch_add(1, Relaxed);
                Some(Event::Cq { cqn, cookie })
            }
            EventType::CqError => {
                let data = eqe.data::<CqErrorEvent>();
                let cqn = data.cqn().0;
                tracing::warn!(cqn, syndrome = ?data.syndrome(), "a CQ failed");
                let cookie = locked(&self.registry.cqs).get(&cqn)?.0;
                Some(Event::CqError { cqn, cookie })
            }
            EventType::PageRequest => {
                let data = eqe.data::<PagesEvent>();
                let pages = data.num_pages() as i32;
                let served =
                    self.function.pages().and_then(|supply| supply.change(data.function_id(), pages));
                if let Err(error) = served {
                    tracing::warn!(pages, %error, "a request for pages could not be served");
                }
                None
            }
            EventType::PortChange => {
                let port = eqe.data::<hwspec::eqe::PortEvent>().port_num();
                let kind = match PortChange::from_raw(eqe.event_sub_type()) {
                    PortChange::Active => PortEvent::Active,
                    PortChange::Down | PortChange::Initialized => PortEvent::Error,
                    PortChange::Lid => PortEvent::LidChange,
                    PortChange::Pkey => PortEvent::PkeyChange,
                    PortChange::Guid => PortEvent::GidChange,
                    PortChange::ClientRereg => PortEvent::ClientReregister,
                    other => PortEvent::Other(other.raw()),
                };
                Some(Event::Port { port, kind })
            }
            kind @ (EventType::SrqRqLimit | EventType::SrqCatasError) => {
                let srqn = eqe.data::<hwspec::eqe::QpEvent>().qpn_rqn_sqn().0;
                let cookie = *locked(&self.registry.srqs).get(&srqn)?;
                let limit = kind == EventType::SrqRqLimit;
                let kind = if limit { SrqEvent::LimitReached } else { SrqEvent::Error };
                Some(Event::Srq { srqn, cookie, kind })
            }
            EventType::WqCatasError if eqe.data::<hwspec::eqe::QpEvent>().kind() == QueueKind::Rq => {
                let wqn = eqe.data::<hwspec::eqe::QpEvent>().qpn_rqn_sqn().0;
                let cookie = *locked(&self.registry.wqs).get(&wqn)?;
                Some(Event::WqFatal { wqn, cookie })
            }
            EventType::InternalError => Some(Event::Device(DeviceEvent::Fatal)),
            other => {
                let Some(kind) = qp_event(other) else {
                    return Some(Event::Device(DeviceEvent::Other(other.raw(), eqe.event_sub_type())));
                };
                let qpn = eqe.data::<hwspec::eqe::QpEvent>().qpn_rqn_sqn().0;
                let cookies = {
                    let mut qps = locked(&self.registry.qps);
                    let (cookies, drained) = qps.get_mut(&qpn)?;
                    if kind == QpEvent::SqDrained && !std::mem::take(drained) {
                        return None;
                    }
                    cookies.clone()
                };
                let mut all = cookies.into_iter().map(|cookie| Event::Qp { qpn, cookie, kind });
                let first = all.next();
                all.for_each(|event| self.further.push(event));
                first
            }
        }
    }
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
