//! The events of one opener, taken from the device.

use crate::{
    async_queue::{Notice, Reader},
    completions::{CompletionQueue, DRAINED},
    error::Error,
    event::{DeviceEvent, Event},
    function::Function,
    registry::{Registry, locked},
    shared_area::FunctionState,
    transport::Bell,
};
use crossbeam_queue::SegQueue;
use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The events of one opener. A thread of the caller takes them: poll(2) on the descriptor, then [`Events::next`] until
/// it returns `None`.
pub struct Events {
    function: Arc<Function>,
    bell: Bell,
    /// Events of completion vector 0.
    pub(crate) completions: CompletionQueue,
    /// All other events.
    notices: Mutex<Reader>,
    registry: Arc<Registry>,
    /// Remaining events of an EQE that concerns several objects.
    further: SegQueue<Event>,
    /// An event was taken since `next` last returned `None`.
    taken: AtomicBool,
    /// The caller has been told that the connection to the device is gone.
    gone: AtomicBool,
}

impl Events {
    /// Creates the events: completions on `completions`, and other events from now on. Either rings `bell`.
    pub(crate) fn new(
        function: &Arc<Function>,
        bell: Bell,
        completions: CompletionQueue,
        registry: &Arc<Registry>,
    ) -> Result<Self, Error> {
        let up = || Error::device("the function's event queue", "none");
        Ok(Self {
            bell,
            completions,
            notices: Mutex::new(Reader::new(function.events.as_ref().ok_or_else(up)?)),
            function: function.clone(),
            registry: registry.clone(),
            further: SegQueue::new(),
            taken: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Waits until there may be an event or `timeout` passes.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<bool> {
        self.bell.wait(timeout)
    }

    /// Makes the descriptor readable as if there were an event.
    pub fn wake(&self) -> std::io::Result<()> {
        self.bell.ring()
    }

    /// Takes the next event, if any. Before it returns `None` the queue is armed, and the descriptor becomes readable
    /// with the next event, or already is. Page requests of the device are served on the way.
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
                Taken::Completion(event) => event,
                Taken::Notice(number, notice) => self.registry.translate(number, notice, &self.further),
            };
            if event.is_some() {
                return event;
            }
            // Page requests and events of other openers only: a device that never stops sending them must not hold the
            // caller.
            if began.get_or_insert_with(Instant::now).elapsed() > self.function.options.command_timeout {
                if let Err(error) = self.wake() {
                    tracing::warn!(%error, "the interrupt's descriptor cannot be made readable");
                }
                return None;
            }
        }
    }

    /// Passes available events to `take`, up to a limit, so that a device that raises events forever does not hold the
    /// caller. Returns true if there may be more.
    pub fn drain(&self, mut take: impl FnMut(Event)) -> bool {
        for _ in 0..DRAINED {
            let Some(event) = self.next() else { return false };
            take(event);
        }
        true
    }

    /// An interrupt without an event may mean that another opener has died. Destroys objects that only it held.
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

    fn take(&self) -> Option<Taken> {
        let look = || {
            if let Some(event) = self.completions.next() {
                return Some(Taken::Completion(event));
            }
            self.function.attend();
            locked(&self.notices).next().map(|(number, notice)| Taken::Notice(number, notice))
        };
        let arm = || {
            self.completions.arm();
            locked(&self.notices).arm();
        };
        self.bell.take(&*self.function.transport, look, arm)
    }
}

/// An entry that the device has written.
enum Taken {
    /// The event of a CQ, unless the CQ is gone.
    Completion(Option<Event>),
    /// Number and contents of the event.
    Notice(u32, Notice),
}
