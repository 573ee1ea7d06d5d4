//! A completion queue and the requests that complete there.

use crate::{
    Device, Error, Result,
    inbox::Inbox,
    requests::{Hold, Requests},
    runtime,
    sim::machine::Machine,
    source::Source,
    verbs::{Completion, Cq, Qp, QpAttr, QpAttrMask, QpState, RawCompletion, Srq, WcStatus},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

/// Completions that one poll takes.
const TOGETHER: usize = 4;
/// Polls before a future goes to sleep, which costs as much as several of them.
const LOOKS: usize = 3;
/// Bit of a work request id that tells receives from other requests.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// A queue of work requests.
pub(crate) enum Queue {
    Pair(Arc<Qp>),
    Shared(Arc<Srq>),
}

/// A queue, its completion queue, and the requests on it. Requests keep it alive, so a queue ends when the last handle and the last future of
/// it are gone.
pub(crate) struct Channel {
    /// `None` once it is destroyed.
    queue: Option<Queue>,
    cq: Arc<Cq>,
    /// The channel of the shared receive queue, if the receives complete there.
    pub shared: Option<Arc<Channel>>,
    pub device: Device,
    /// Messages are preceded by a network header.
    datagrams: bool,
    cookie: u64,
    armed: AtomicBool,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub requests: Requests,
    pub inbox: Inbox,
    /// The device is known to be gone.
    gone: bool,
}

/// Consequences of completions that take effect without the lock: tasks to wake, and what goes back to its owner.
#[derive(Default)]
pub(crate) struct After(Vec<Later>);

enum Later {
    Wake(Waker),
    Return(#[allow(dead_code)] Hold), // by its drop
}

impl After {
    pub fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.0.extend(wakers.into_iter().map(Later::Wake));
    }

    pub fn give_back(&mut self, hold: Hold) {
        if !matches!(hold, Hold::Nothing) {
            self.0.push(Later::Return(hold));
        }
    }

    fn run(self) {
        for later in self.0 {
            if let Later::Wake(waker) = later {
                waker.wake();
            }
        }
    }
}

/// Number of requests that fit into a queue: sends and receives.
#[derive(Clone, Copy)]
pub(crate) struct Depth {
    pub sends: usize,
    pub receives: usize,
}

impl Channel {
    /// Registers a channel whose completion queue has the cookie `cookie`.
    pub fn new(
        device: &Device,
        (queue, cq, cookie): (Queue, Arc<Cq>, u64),
        depth: Depth,
        shared: Option<Arc<Channel>>,
        datagrams: bool,
    ) -> Arc<Self> {
        let state =
            State { requests: Requests::new(depth.sends), inbox: Inbox::new(depth.receives), gone: false };
        let this = Arc::new(Self {
            queue: Some(queue),
            cq,
            shared,
            device: device.clone(),
            datagrams,
            cookie,
            armed: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        let source: Arc<dyn Source> = this.clone();
        device.sources().insert(cookie, Arc::downgrade(&source));
        this
    }

    /// The channel where receives complete.
    pub fn receives(self: &Arc<Self>) -> &Arc<Self> {
        self.shared.as_ref().unwrap_or(self)
    }

    /// The queue pair; `None` for a shared receive queue.
    pub fn qp(&self) -> Option<&Arc<Qp>> {
        match &self.queue {
            Some(Queue::Pair(qp)) => Some(qp),
            _ => None,
        }
    }

    pub fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub fn queue(&self) -> Option<&Queue> {
        self.queue.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the state locked; its consequences follow afterwards.
    pub fn act<T>(&self, act: impl FnOnce(&mut State, &mut After) -> T) -> T {
        let mut after = After::default();
        let result = act(&mut self.lock(), &mut after);
        after.run();
        result
    }

    /// Polls a future: `attempt` takes its result, if there is one; `enter` makes it wait.
    pub fn poll<T>(
        self: &Arc<Self>,
        cx: &Context<'_>,
        mut attempt: impl FnMut(&Self, &mut State, &mut After) -> Option<Result<T>>,
        enter: impl FnOnce(&mut State, &Waker),
    ) -> Poll<Result<T>> {
        let found = self.act(|state, after| {
            if let Some(found) = attempt(self, state, after) {
                return Some(found);
            }
            for _ in 0..LOOKS {
                if self.take(state, after) {
                    if let Some(found) = attempt(self, state, after) {
                        return Some(found);
                    }
                }
            }
            if state.gone || self.cq.is_gone() {
                return Some(Err(Error::DeviceGone));
            }
            enter(state, cx.waker());
            None
        });
        match found {
            Some(found) => Poll::Ready(found),
            None => {
                runtime::sleep(self.clone());
                // A peer that hangs up ends the wait, too.
                if let Some(manager) = self.device.manager_if_any() {
                    runtime::sleep(manager.clone());
                }
                Poll::Pending
            }
        }
    }

    /// Takes available completions. Under the lock, so that messages stay in order.
    fn take(&self, state: &mut State, after: &mut After) -> bool {
        let mut found = [Completion::default(); TOGETHER];
        if self.datagrams {
            let mut raw = RawCompletion::zeroed();
            let any = self.cq.poll_raw(&mut found[0], &mut raw);
            if any {
                self.complete(&found[0], Some(&raw), state, after);
            }
            return any;
        }
        let count = self.cq.poll(&mut found);
        found[..count].iter().for_each(|wc| self.complete(wc, None, state, after));
        count != 0
    }

    fn complete(&self, wc: &Completion, raw: Option<&RawCompletion>, state: &mut State, after: &mut After) {
        match wc.wr_id & RECEIVE {
            0 => {
                if self.datagrams && !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushErr) {
                    self.resume();
                }
                state.requests.complete(wc, after);
            }
            _ => state.inbox.complete(wc, raw, after),
        }
    }

    /// Recovers from a failed datagram, which stops its queue pair from sending but not from receiving (IBTA 10.3.1.6).
    fn resume(&self) {
        let attr = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Sqe, ..QpAttr::default() };
        if let Some(qp) = self.qp() {
            // If that fails, later datagrams end with `Closed`.
            let _ = qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE);
        }
    }

    /// Fails all requests if the device is gone. Their buffers stay with the channel.
    fn fail_if_gone(&self) {
        if self.cq.is_gone() {
            self.act(|state, after| {
                state.gone = true;
                state.requests.wake_all(after);
                state.inbox.wake_all(after);
            });
        }
    }
}

impl Source for Channel {
    fn pump(&self) -> bool {
        self.act(|state, after| self.take(state, after))
    }

    fn sleeps(&self) -> bool {
        let state = self.lock();
        state.requests.sleeps() || state.inbox.sleeps()
    }

    fn arm(&self) {
        if !self.armed.swap(true, Relaxed) {
            self.cq.arm(false);
        }
    }

    fn fired(&self) {
        self.armed.store(false, Relaxed);
    }

    fn check(&self) {
        self.fail_if_gone();
    }

    fn machine(&self) -> Option<&Machine> {
        self.device.machine()
    }

    fn react(&self) {
        self.device.react();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.device.sources().remove(&self.cookie);
        let destroyed = match self.queue.take() {
            Some(Queue::Pair(qp)) => qp.destroy(),
            Some(Queue::Shared(srq)) => srq.destroy(),
            None => Ok(()),
        };
        if destroyed.is_err() {
            // The device may still access their buffers.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(&mut state.requests, Requests::new(0)));
            std::mem::forget(std::mem::replace(&mut state.inbox, Inbox::new(0)));
        }
    }
}
