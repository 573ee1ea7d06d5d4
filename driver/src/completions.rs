//! Completion vectors: each is an event queue for the CQs created with it, and an interrupt. The first is created with
//! the device and also serves its asynchronous events ([`Events`](crate::Events)); the others are created when a CQ
//! first uses them.

use crate::{
    eq::EventQueue,
    error::Error,
    event::Event,
    function::Function,
    registry::{Registry, locked},
    transport::Bell,
    vectors::{self, Claim},
};
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex},
};

/// Maximum number of events drained before control returns to the caller.
pub const DRAINED: u32 = 1024;

/// An event queue for completions, and the CQs that its entries refer to.
pub struct CompletionQueue {
    /// `None` after destruction.
    queue: Mutex<Option<EventQueue>>,
    registry: Arc<Registry>,
    eqn: u8,
}

impl CompletionQueue {
    /// Creates a queue that signals `vector`, for the opener with this user context and doorbell page.
    pub fn create(
        function: &Function,
        (uid, uar): (u16, u32),
        vector: u16,
        registry: &Arc<Registry>,
    ) -> Result<Self, Error> {
        let entries = function.options.eq_entries;
        let queue = EventQueue::create(function, uid, uar, vector, entries)?;
        let eqn = queue.eqn();
        Ok(Self { queue: Mutex::new(Some(queue)), registry: registry.clone(), eqn })
    }

    /// Its number.
    pub fn eqn(&self) -> u8 {
        self.eqn
    }

    /// Takes the next entry, if any, and returns its event: `Some(None)` if the CQ no longer exists.
    pub fn next(&self) -> Option<Option<Event>> {
        let eqe = locked(&self.queue).as_mut()?.next()?;
        Some(self.registry.completion(&eqe))
    }

    /// Requests an interrupt for the next entry.
    pub fn arm(&self) {
        if let Some(queue) = locked(&self.queue).as_mut() {
            queue.arm();
        }
    }

    /// Destroys the queue. Further calls do nothing.
    pub fn destroy(&self, function: &Function, uid: u16) -> Result<(), Error> {
        match locked(&self.queue).take() {
            Some(queue) => queue.destroy(function, uid),
            None => Ok(()),
        }
    }
}

/// The events of CQs on one completion vector other than the first. A thread of the caller takes them: poll(2) on the
/// descriptor, then [`drain`](Self::drain) until it returns false.
pub struct CompletionEvents {
    function: Arc<Function>,
    bell: Bell,
    queue: CompletionQueue,
    _claim: Claim,
}

impl CompletionEvents {
    /// The number of its event queue.
    pub(crate) fn eqn(&self) -> u8 {
        self.queue.eqn()
    }

    /// Readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Passes available events to `to`, up to a limit, so that a device that raises events forever does not hold the
    /// caller. Returns true if there may be more. Otherwise the queue is armed, and the descriptor becomes readable
    /// with the next event, or already is.
    pub fn drain(&self, mut to: impl FnMut(Event)) -> bool {
        for _ in 0..DRAINED {
            let transport = &*self.function.transport;
            match self.bell.take(transport, || self.queue.next(), || self.queue.arm()) {
                None => return false,
                Some(event) => event.into_iter().for_each(&mut to),
            }
        }
        true
    }
}

/// An opener's completion vectors other than the first.
#[derive(Default)]
pub struct CompletionVectors(Mutex<Vec<Option<Arc<CompletionEvents>>>>);

impl CompletionVectors {
    /// Number of vectors, including the first: one for each processor available to this process, if the function has as
    /// many interrupts.
    pub fn count(function: &Function) -> u32 {
        let interrupts = vectors::of_completions(function).len();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.clamp(1, interrupts.max(1)) as u32
    }

    /// Returns vector `number`, not 0, for the opener with this user context and doorbell page; creates it if
    /// necessary. `None` if no interrupt is left for it: its CQs then use the first vector.
    pub fn get(
        &self,
        function: &Arc<Function>,
        opener: (u16, u32),
        registry: &Arc<Registry>,
        number: usize,
    ) -> Result<Option<Arc<CompletionEvents>>, Error> {
        let mut all = locked(&self.0);
        if all.len() < number {
            all.resize(number, None);
        }
        let place = &mut all[number - 1];
        if place.is_none() {
            let (claim, interrupt) = match Claim::new(function) {
                Err(Error::Invalid { errno: libc::EBUSY, .. }) => return Ok(None),
                claimed => claimed?,
            };
            let bell = Bell::new(interrupt, None).map_err(Error::io("cannot wait for an interrupt"))?;
            let queue = CompletionQueue::create(function, opener, claim.vector(), registry)?;
            *place =
                Some(Arc::new(CompletionEvents { function: function.clone(), bell, queue, _claim: claim }));
        }
        Ok(place.clone())
    }

    /// Destroys all their queues, and returns the first error.
    pub fn destroy(&self, function: &Function, uid: u16) -> Result<(), Error> {
        let all = std::mem::take(&mut *locked(&self.0));
        let destroyed = all.iter().flatten().map(|events| events.queue.destroy(function, uid));
        destroyed.fold(Ok(()), Result::and)
    }
}
