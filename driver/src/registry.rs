//! The objects of one opener that events are about.

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

/// Locks a mutex whose contents are whole between any two steps of its holders.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The objects that events are about: cookies by number.
///
/// All openers hear of all events, and numbers are used again: an event that is older than the object with its number
/// is not this object's.
pub struct Registry {
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
    /// True if the draining of the send queue is to be an event.
    drained: bool,
    since: Since,
}

/// True if event `number` came after the object was known.
fn is_of(number: u32, since: Since) -> bool {
    number.wrapping_sub(since) as i32 >= 0
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

    /// True if the next draining of the QP's send queue is an event.
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

    /// The event of a CQ that was armed. The queue has no others.
    pub fn completion(&self, eqe: &Eqe) -> Option<Event> {
        if eqe.event_type() != EventType::Comp {
            return None;
        }
        let cqn = eqe.data::<CompEvent>().cq_number().0;
        let known = locked(&self.cqs);
        let cq = known.get(&cqn)?;
        cq.arm_sn.fetch_add(1, Relaxed);
        Some(Event::Cq { cqn, cookie: cq.cookie })
    }

    /// The event of our objects that a notice, event `number`, reports. If it reports several, the others go to `further`.
    pub fn translate(
        &self,
        number: u32,
        Notice(kind, sub, object): Notice,
        further: &SegQueue<Event>,
    ) -> Option<Event> {
        match kind {
            EventType::CqError => {
                let known = locked(&self.cqs);
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
                let known = locked(&self.srqs).get(&object).copied();
                let (cookie, _) = known.filter(|(_, since)| is_of(number, *since))?;
                let limit = kind == EventType::SrqRqLimit;
                let kind = if limit { SrqEvent::LimitReached } else { SrqEvent::Error };
                Some(Event::Srq { srqn: object, cookie, kind })
            }
            EventType::WqCatasError if sub == QueueKind::Rq.raw() => {
                let known = locked(&self.wqs).get(&object).copied();
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
                    let mut qps = locked(&self.qps);
                    let qp = qps.get_mut(&qpn).filter(|qp| is_of(number, qp.since))?;
                    if kind == QpEvent::SqDrained && !std::mem::take(&mut qp.drained) {
                        return None;
                    }
                    qp.cookies.clone()
                };
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
