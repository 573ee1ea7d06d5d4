//! An open device: the context that libibverbs made, and our state of it.

use crate::abi::public::ibv_context;
use crate::channel::Channels;
use crate::clock::WallClock;
use crate::events::{AsyncFile, Pump, Targets};
use crate::exports::Exports;
use crate::guard::Birth;
use crate::huge::HugePool;
use crate::registration::Registration;
use crate::users::Users;
use libc::c_int;
use std::sync::Arc;

/// Our side of an open device.
pub struct Context {
    /// The function.
    pub device: Arc<driver::Device>,
    /// The process that opened it. A forked child must not touch it.
    pub birth: Birth,
    /// Completion channels by descriptor.
    pub channels: Arc<Channels>,
    /// The objects that events concern.
    pub targets: Arc<Targets>,
    /// Objects of the context that exist.
    pub users: Users,
    /// Huge pages for queues, if the environment asks for them.
    pub huge: Arc<HugePool>,
    /// Relates the device's clock to the time of day.
    pub wall: WallClock,
    /// The libibverbs that the context belongs to.
    pub registration: &'static Registration,
    /// The objects that can be imported from the contexts that share the device.
    pub exports: Arc<Exports>,
    /// The thread that waits for the events of the device.
    pub pump: Arc<Pump>,
    /// The event file of a second context, in which nothing appears: events go to the first context.
    pub _silent: Option<AsyncFile>,
}

impl Context {
    /// The context behind what the program holds.
    ///
    /// # Safety
    /// `context` is one [`alloc_context`](crate::open::alloc_context) made, not yet closed.
    #[inline]
    pub unsafe fn of<'a>(context: *const ibv_context) -> &'a Self {
        // SAFETY: our pointer follows the library's part.
        unsafe { &*context.add(1).cast::<*const Self>().read() }
    }
}

/// The errno of a failed system call.
pub fn io_errno(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}
