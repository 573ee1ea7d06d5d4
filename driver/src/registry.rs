//! Maps events to the objects of one opener.

use crate::{
    async_queue::Notice,
    event::{DeviceEvent, Event, PortEvent, QpEvent, SrqEvent},
    shared_area::Shared,
};
use crossbeam_queue::SegQueue;
use hwspec::eqe::{CompEvent, Eqe, EventType, PortChange, QueueKind};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// Locks a mutex, ignoring poisoning: its contents are consistent between any two steps of its holders.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The objects that events refer to: cookies by number.
///
/// Every opener sees all events, and numbers are reused: an event older than the current object with its number does
/// not belong to that object.
pub struct Registry {
    pub cqs: Known<KnownCq>,
    qps: Known<KnownQp>,
    pub srqs: Known<u64>,
    pub wqs: Known<u64>,
}

/// The objects of one kind, by number.
pub struct Known<T> {
    shared: Shared,
    all: Mutex<HashMap<u32, (Since, T)>>,
}

/// The number of the first event that may refer to an object.
type Since = u32;

impl<T> Known<T> {
    fn new(shared: &Shared) -> Self {
        Self { shared: shared.clone(), all: Mutex::default() }
    }

    pub fn add(&self, number: u32, object: T) {
        let since = self.shared.events_taken();
        locked(&self.all).insert(number, (since, object));
    }

    pub fn remove(&self, number: u32) {
        locked(&self.all).remove(&number);
    }

    /// Applies `object` to an object, if event `event` is not older than it.
    fn at<R>(&self, event: u32, number: u32, object: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut all = locked(&self.all);
        let (since, known) = all.get_mut(&number)?;
        (event.wrapping_sub(*since) as i32 >= 0).then(|| object(known))
    }
}

/// A CQ with its cookie and its arm sequence number, which is incremented by every completion event.
pub struct KnownCq(pub u64, pub Arc<AtomicU32>);

#[derive(Default)]
struct KnownQp {
    /// Several, since an XRC target QP may be opened more than once.
    cookies: Vec<u64>,
    /// True if the next drain of the send queue is to be reported.
    drained: bool,
}

impl Registry {
    /// Creates the registry for a function with the shared area `shared`.
    pub fn new(shared: &Shared) -> Self {
        Self {
            cqs: Known::new(shared),
            qps: Known::new(shared),
            srqs: Known::new(shared),
            wqs: Known::new(shared),
        }
    }

    pub fn add_qp(&self, qpn: u32, cookie: u64) {
        let new = || (self.qps.shared.events_taken(), KnownQp::default());
        locked(&self.qps.all).entry(qpn).or_insert_with(new).1.cookies.push(cookie);
    }

    /// Sets whether the next drain of the QP's send queue is reported.
    pub fn notify_of_drained(&self, qpn: u32, wanted: bool) {
        if let Some((_, qp)) = locked(&self.qps.all).get_mut(&qpn) {
            qp.drained = wanted;
        }
    }

    pub fn remove_qp(&self, qpn: u32, cookie: u64) {
        let mut qps = locked(&self.qps.all);
        if let Some((_, qp)) = qps.get_mut(&qpn) {
            if let Some(at) = qp.cookies.iter().position(|c| *c == cookie) {
                qp.cookies.swap_remove(at);
            }
            if qp.cookies.is_empty() {
                qps.remove(&qpn);
            }
        }
    }

    /// The event of an armed CQ. The event queue has no other kind.
    pub fn completion(&self, eqe: &Eqe) -> Option<Event> {
        if eqe.event_type() != EventType::Comp {
            return None;
        }
        let cqn = eqe.data::<CompEvent>().cq_number().0;
        let known = locked(&self.cqs.all);
        let (_, KnownCq(cookie, arm_sn)) = known.get(&cqn)?;
        arm_sn.fetch_add(1, Relaxed);
        Some(Event::Cq { cqn, cookie: *cookie })
    }

    /// Converts a notice, event `number`, to an event of our objects. If it concerns several, the others go to
    /// `further`.
    pub fn translate(
        &self,
        number: u32,
        Notice(kind, sub, object): Notice,
        further: &SegQueue<Event>,
    ) -> Option<Event> {
        match kind {
            EventType::CqError => {
                let cookie = self.cqs.at(number, object, |cq| cq.0)?;
                tracing::warn!(cqn = object, syndrome = sub, "a CQ failed");
                Some(Event::CqError { cqn: object, cookie })
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
                let cookie = self.srqs.at(number, object, |cookie| *cookie)?;
                let limit = kind == EventType::SrqRqLimit;
                let kind = if limit { SrqEvent::LimitReached } else { SrqEvent::Error };
                Some(Event::Srq { srqn: object, cookie, kind })
            }
            EventType::WqCatasError if sub == QueueKind::Rq.raw() => {
                let cookie = self.wqs.at(number, object, |cookie| *cookie)?;
                Some(Event::WqFatal { wqn: object, cookie })
            }
            EventType::InternalError => Some(Event::Device(DeviceEvent::Fatal)),
            other => {
                let Some(kind) = qp_event(other) else {
                    return Some(Event::Device(DeviceEvent::Other(other.raw(), sub)));
                };
                let qpn = object;
                let cookies = self.qps.at(number, qpn, |qp| {
                    let wanted = kind != QpEvent::SqDrained || std::mem::take(&mut qp.drained);
                    wanted.then(|| qp.cookies.clone())
                })??;
                let mut all = cookies.into_iter().map(|cookie| Event::Qp { qpn, cookie, kind });
                let first = all.next();
                all.for_each(|event| further.push(event));
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
