//! Connections by address: the protocol of communication management on queue pair 1 of a device.

mod connection;
mod listener;
mod locks;

pub use connection::{Connection, connect};
pub use listener::{Incoming, Listener};

use crate::{
    Device, Error, Result, channel::Channel, device::Shared, qp, runtime, sim::machine::Machine,
    source::Source, verbs::Gsi,
};
use cm::{Agent, Command, Config, ConnId, Event, Input, Output, RejectReason, Request};
use hwspec::wire::mad::cm::CMA_HEADER_SIZE;
use locks::Locks;
use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// Requests that a listener holds until they are accepted.
const BACKLOG: usize = 128;
/// Private data that fits into a request, behind the IP addresses.
const REQUEST_DATA: usize = 92 - CMA_HEADER_SIZE;

/// The connections of a device.
struct Manager {
    shared: Weak<Shared>,
    machine: Option<Machine>,
    opened: Instant,
    armed: AtomicBool,
    locks: Locks,
    gsi: Gsi,
    protocol: Mutex<Protocol>,
}

struct Protocol {
    agent: Agent,
    ends: BTreeMap<ConnId, End>,
    listeners: BTreeMap<ConnId, Waiting<Request>>,
}

/// Events in order, and the tasks that wait for one.
struct Waiting<T> {
    happened: VecDeque<(ConnId, T)>,
    wakers: Vec<Waker>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { happened: VecDeque::new(), wakers: Vec::new() }
    }
}

/// One end of a connection.
#[derive(Default)]
struct End {
    events: Waiting<Event>,
    /// The queue pair to close when the peer hangs up.
    channel: Weak<Channel>,
}

/// Consequences that take effect without the lock.
#[derive(Default)]
struct After {
    wake: Vec<Waker>,
    close: Vec<Weak<Channel>>,
}

impl After {
    fn run(self) {
        self.close.iter().filter_map(Weak::upgrade).for_each(|channel| qp::close(&channel));
        self.wake.into_iter().for_each(Waker::wake);
    }
}

impl Device {
    /// The manager of its connections.
    fn manager(&self) -> Result<Arc<Manager>> {
        let (_, manager) = self.manager_or(|| {
            let manager = Manager::open(self)?;
            Ok((manager.clone(), manager))
        })?;
        manager.clone().downcast().map_err(|_| Error::DeviceGone)
    }
}

impl Manager {
    fn open(device: &Device) -> Result<Arc<Self>> {
        let locks = Locks::open(device)?;
        let cookie = device.cookie();
        let attr = device.raw().attr();
        // Communication ids of a predecessor must not come again, except in repeatable runs.
        let first = match device.machine() {
            Some(_) => 1,
            None => RandomState::new().hash_one(cookie) as u16,
        };
        let ca_guid = u64::from_be_bytes(attr.node_guid);
        let config = Config { tag: locks.tag, first, ca_guid, ack_delay: attr.local_ca_ack_delay };
        let (ends, listeners) = Default::default();
        let this = Arc::new(Self {
            shared: device.downgrade(),
            machine: device.machine().cloned(),
            opened: device.opened(),
            armed: AtomicBool::new(false),
            gsi: Gsi::open(device.raw(), cookie)?,
            locks,
            protocol: Mutex::new(Protocol { agent: Agent::new(config), ends, listeners }),
        });
        let source: Arc<dyn Source> = this.clone();
        device.sources().insert(cookie, Arc::downgrade(&source));
        Ok(this)
    }

    fn lock(&self) -> MutexGuard<'_, Protocol> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        Device::time(self.machine.as_ref(), self.opened)
    }

    /// Calls `act`, then lets the protocol do what follows from it.
    fn act<T>(&self, act: impl FnOnce(&mut Protocol, &mut After) -> T) -> T {
        let mut after = After::default();
        let mut protocol = self.lock();
        let result = act(&mut protocol, &mut after);
        self.see_to(&mut protocol, &mut after);
        drop(protocol);
        after.run();
        result
    }

    /// Issues a command.
    fn command(&self, id: ConnId, command: Command) -> Result<()> {
        let now = self.now();
        let done = self.act(|protocol, _| protocol.agent.handle(now, Input::Command(id, command)));
        done.map_err(|refused| Error::Protocol(refused.to_string()))
    }

    /// Opens an end for a queue pair.
    fn end(self: &Arc<Self>, channel: &Arc<Channel>) -> Result<Id> {
        let opened = self.act(|protocol, _| {
            let id = protocol.agent.open()?;
            protocol.ends.insert(id, End { channel: Arc::downgrade(channel), ..End::default() });
            Ok(id)
        });
        let id = opened.map_err(|refused: cm::Refused| Error::Protocol(refused.to_string()))?;
        Ok(Id { manager: self.clone(), id })
    }

    /// Takes an end of the protocol's into care, with its queue pair.
    fn adopt(self: &Arc<Self>, id: ConnId, channel: &Arc<Channel>) {
        self.act(|protocol, _| {
            protocol.ends.insert(id, End { channel: Arc::downgrade(channel), ..End::default() })
        });
    }

    /// Has messages of peers handled from now on, whatever this program does. On a simulated machine `block_on` does so anyway.
    fn look_after(self: &Arc<Self>) {
        if self.machine.is_none() {
            runtime::sleep(self.clone());
        }
    }

    /// Waits for what `queue` finds.
    fn wait<T>(
        self: &Arc<Self>,
        cx: &Context<'_>,
        queue: impl Fn(&mut Protocol) -> Option<&mut Waiting<T>>,
    ) -> Poll<Result<(ConnId, T)>> {
        let attempt = |enters: bool| {
            self.act(|protocol, _| {
                let waiting = queue(protocol).ok_or(Error::Closed)?;
                let found = waiting.happened.pop_front();
                if found.is_none()
                    && enters
                    && !waiting.wakers.iter().any(|waker| waker.will_wake(cx.waker()))
                {
                    waiting.wakers.push(cx.waker().clone());
                }
                Ok::<_, Error>(found)
            })
        };
        if let Some(found) = attempt(false)? {
            return Poll::Ready(Ok(found));
        }
        self.pump();
        if let Some(found) = attempt(true)? {
            return Poll::Ready(Ok(found));
        }
        if self.shared.upgrade().is_none_or(|shared| shared.is_gone()) {
            return Poll::Ready(Err(Error::DeviceGone));
        }
        runtime::sleep(self.clone());
        Poll::Pending
    }

    /// Waits for the next event of an end.
    async fn event(self: &Arc<Self>, id: ConnId) -> Result<Event> {
        let next = poll_fn(|cx| self.wait(cx, |protocol| Some(&mut protocol.ends.get_mut(&id)?.events)));
        Ok(next.await?.1)
    }

    fn see_to(&self, protocol: &mut Protocol, after: &mut After) {
        while let Some(output) = protocol.agent.poll() {
            match output {
                // The protocol repeats what could not be sent.
                Output::Send { to, mad } => _ = self.gsi.send(&to, &mad),
                Output::Event(id, event) => self.happened(protocol, id, event, after),
                Output::Unclaimed(unclaimed) if self.locks.answers(&unclaimed.wanted) => {
                    protocol.agent.refuse(&unclaimed)
                }
                Output::Unclaimed(_) => {}
            }
        }
    }

    fn happened(&self, protocol: &mut Protocol, id: ConnId, event: Event, after: &mut After) {
        let command = match &event {
            Event::Request(request) => return self.requested(protocol, id, request, after),
            // This crate serves no datagrams by SIDR.
            Event::SidrRequest(_) => Command::Destroy,
            Event::Disconnect { .. } => Command::DisconnectReply { private_data: Vec::new() },
            _ => Command::Established,
        };
        let ends = matches!(event, Event::Disconnect { .. } | Event::Disconnected { .. } | Event::Failed(_));
        if !matches!(command, Command::Established) {
            let _ = protocol.agent.handle(self.now(), Input::Command(id, command));
        }
        let Some(end) = protocol.ends.get_mut(&id) else { return };
        if ends {
            after.close.push(end.channel.clone());
        }
        end.events.happened.push_back((id, event));
        after.wake.append(&mut end.events.wakers);
    }

    fn requested(&self, protocol: &mut Protocol, id: ConnId, request: &Request, after: &mut After) {
        let listener = protocol.listeners.get_mut(&request.listener);
        let Some(listener) = listener.filter(|listener| listener.happened.len() < BACKLOG) else {
            let full = Command::Reject {
                reason: RejectReason::NoResources,
                info: Vec::new(),
                private_data: Vec::new(),
            };
            let _ = protocol.agent.handle(self.now(), Input::Command(id, full));
            return;
        };
        listener.happened.push_back((id, request.clone()));
        after.wake.append(&mut listener.wakers);
    }
}

impl Source for Manager {
    fn pump(&self) -> bool {
        let now = self.now();
        self.act(|protocol, _| {
            let mut any = false;
            while let Ok(Some((from, mad))) = self.gsi.next() {
                let _ = protocol.agent.handle(now, Input::Mad { from, bytes: &mad[..] });
                any = true;
            }
            let due = protocol.agent.deadline().is_some_and(|at| at <= now);
            if due {
                let _ = protocol.agent.handle(now, Input::Tick);
            }
            any || due
        })
    }

    /// Connections are looked after even if nobody waits: their peers may hang up.
    fn sleeps(&self) -> bool {
        !self.lock().agent.is_empty()
    }

    fn arm(&self) {
        if !self.armed.swap(true, Relaxed) {
            self.gsi.arm();
        }
    }

    fn fired(&self) {
        self.armed.store(false, Relaxed);
    }

    fn check(&self) {
        if self.shared.upgrade().is_none_or(|shared| shared.is_gone()) {
            self.act(|protocol, after| {
                protocol.ends.values_mut().for_each(|end| after.wake.append(&mut end.events.wakers));
                protocol.listeners.values_mut().for_each(|listener| after.wake.append(&mut listener.wakers));
            });
        }
    }

    fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    fn react(&self) {
        if let Some(device) = Device::upgrade(&self.shared) {
            device.react();
        }
    }

    fn deadline(&self) -> Option<Duration> {
        self.lock().agent.deadline()
    }
}

/// An end or a listener of the protocol, which ends when this is dropped: the peer gets the message due to it.
struct Id {
    manager: Arc<Manager>,
    id: ConnId,
}

impl Drop for Id {
    fn drop(&mut self) {
        let _ = self.manager.command(self.id, Command::Destroy);
        self.manager.act(|protocol, _| {
            protocol.ends.remove(&self.id);
            protocol.listeners.remove(&self.id);
        });
    }
}
