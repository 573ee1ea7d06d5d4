//! Waiting for completions, under any executor.
//!
//! A future polls its completion queue whenever it is polled. When it has to sleep, it depends on the thread: under [`block_on`] that loop
//! polls the queue for a while before it sleeps, too. Elsewhere the queue is armed, polled once more, so that no completion is missed, and
//! left to the device's [reactor](crate::reactor), which wakes the future after the next completion.

use crate::{device, sim::machine::Machine, source::Source};
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// Time for which [`block_on`] polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Real time for which a program in virtual time may stand still before that counts as a deadlock.
const STUCK: Duration = Duration::from_secs(10);

thread_local! {
    /// The sources that `block_on` looks after on this thread, if it runs.
    static LOCAL: RefCell<Option<Vec<Arc<dyn Source>>>> = const { RefCell::new(None) };
}

/// A future of `source` goes to sleep.
pub(crate) fn sleep(source: Arc<dyn Source>) {
    let known = |one: &Arc<dyn Source>| Arc::ptr_eq(one, &source);
    let adopted = LOCAL.with_borrow_mut(|local| {
        let Some(local) = local else { return false };
        if !local.iter().any(known) {
            local.push(source.clone());
        }
        true
    });
    if !adopted {
        watch(&source);
    }
}

/// Leaves a source to the reactor. Completions before the arming are found here, later ones raise an event.
fn watch(source: &Arc<dyn Source>) {
    source.react();
    source.arm();
    source.pump();
    source.check();
}

/// Runs a future on this thread. It polls for a short while before it sleeps, so that answers that come soon come without a system call.
///
/// On a simulated machine ([`sim`](crate::sim)) it moves virtual time on whenever the future waits.
///
/// # Panics
/// On a simulated machine, if the future waits for something that never happens.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let local = Local::enter();
    let signal = Arc::new(Signal { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(signal.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        local.wait(&signal);
    }
}

/// Runs two futures at a time.
pub async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none() {
            first = ready(a.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(b.as_mut().poll(cx));
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            rest => {
                (first, second) = rest;
                Poll::Pending
            }
        }
    })
    .await
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Signal {
    thread: Thread,
    woken: AtomicBool,
}

impl Signal {
    fn take(&self) -> bool {
        self.woken.load(Relaxed) && self.woken.swap(false, Acquire)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Release) && self.thread.id() != thread::current().id() {
            self.thread.unpark();
        }
    }
}

/// The sources of a [`block_on`], and those of one around it.
struct Local(Option<Vec<Arc<dyn Source>>>);

impl Local {
    fn enter() -> Self {
        Self(LOCAL.with_borrow_mut(|local| local.replace(Vec::new())))
    }

    fn wait(&self, signal: &Signal) {
        let begin = Instant::now();
        let mut all = LOCAL.with_borrow_mut(|local| local.as_mut().map(std::mem::take)).unwrap_or_default();
        while !signal.take() {
            all.retain(|source| !source.pump() || source.sleeps());
            if signal.take() {
                break;
            }
            if advance(&all) {
                continue;
            }
            let simulated = !all.is_empty() && all.iter().all(|source| source.machine().is_some());
            if simulated || begin.elapsed() > SPIN {
                all.iter().for_each(watch);
                park(signal, simulated);
                all.retain(|source| source.sleeps());
                break;
            }
            std::hint::spin_loop();
        }
        LOCAL.with_borrow_mut(|local| *local = Some(all));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let left = LOCAL.with_borrow_mut(|local| std::mem::replace(local, self.0.take()));
        let real = |source: &Arc<dyn Source>| source.machine().is_none() && source.sleeps();
        left.into_iter().flatten().filter(real).for_each(|source| watch(&source));
    }
}

/// Does what is due on each simulated machine with a source that waits, or moves time on there. Returns false if there is no such machine,
/// or nothing to wait for.
fn advance(all: &[Arc<dyn Source>]) -> bool {
    let mut done: Vec<&Machine> = Vec::new();
    let mut any = false;
    for machine in all.iter().filter_map(|source| source.machine()) {
        if !done.iter().any(|other| other.is_same(machine)) {
            any |= step(machine);
            done.push(machine);
        }
    }
    any
}

fn step(machine: &Machine) -> bool {
    // Those without a future that waits, too: a listener refuses connections.
    let sources = device::sources_of(machine);
    if sources.iter().fold(false, |any, source| any | source.pump()) {
        return true;
    }
    let limit = sources.iter().filter_map(|source| source.deadline()).min();
    machine.advance(limit.map(|at| at.as_nanos() as u64 * 1000))
}

fn park(signal: &Signal, simulated: bool) {
    let begin = Instant::now();
    while !signal.take() {
        thread::park_timeout(STUCK);
        let stuck = simulated && begin.elapsed() > STUCK && !signal.woken.load(Relaxed);
        assert!(!stuck, "nothing is due in virtual time, and nothing has happened for {STUCK:?}: a deadlock");
    }
    signal.woken.store(true, Relaxed);
}
