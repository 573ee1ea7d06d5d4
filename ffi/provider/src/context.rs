//! One opening of a device: the context libibverbs made, and what we keep beside it.

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
    /// Where it was opened; a forked child must not touch it.
    pub birth: Birth,
    /// Completion channels by descriptor.
    pub channels: Arc<Channels>,
    /// Who gets which event.
    pub targets: Arc<Targets>,
    /// PDs and CQs of it.
    pub users: Users,
    /// Huge pages that queues lie in, where the environment wants that.
    pub huge: Arc<HugePool>,
    /// The device's clock as the time of day.
    pub wall: WallClock,
    /// The libibverbs whose context it is.
    pub registration: &'static Registration,
    /// What others can import, of all contexts that share the device.
    pub exports: Arc<Exports>,
    /// The thread that waits for the events of the device.
    pub pump: Arc<Pump>,
    /// Of a second context: who waits for its events waits, for they come to the first.
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

    /// Refuses work in a forked child.
    pub fn check_birth(&self) -> Result<(), c_int> {
        if self.birth.is_here() { Ok(()) } else { Err(libc::EIO) }
    }
}

/// The errno of a failed system call.
pub fn io_errno(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}
