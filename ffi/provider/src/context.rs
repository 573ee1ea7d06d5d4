//! An open device: the context that libibverbs allocated, and the provider's state for it.

use crate::abi::public::ibv_context;
use crate::channel::Channels;
use crate::clock::WallClock;
use crate::device::IronDevice;
use crate::events::{AsyncFile, Pump, Targets};
use crate::exports::Exports;
use crate::guard::Birth;
use crate::huge::HugePool;
use crate::ours::{Born, Object, Of};
use crate::registration::Registration;
use crate::users::Users;
use libc::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

/// The provider's state of an open device.
pub struct Context {
    /// The function that was opened.
    pub device: Arc<driver::Device>,
    /// The process that opened the device. A forked child must not touch it.
    pub birth: Birth,
    /// Completion channels by descriptor.
    pub channels: Arc<Channels>,
    /// The objects that events are reported for.
    pub targets: Arc<Targets>,
    /// Counts the context's objects.
    pub users: Users,
    /// Huge pages for queues, if the environment asks for them.
    pub huge: Arc<HugePool>,
    /// Converts the device clock to wall clock time.
    pub wall: WallClock,
    /// The libibverbs instance that the context belongs to.
    pub registration: &'static Registration,
    /// The objects that contexts sharing the device can import.
    pub exports: Arc<Exports>,
    /// The threads that forward the device's events.
    pub pump: Arc<Pump>,
    /// The async event file of an imported context. It stays empty: events go to the first context.
    pub _silent: Option<AsyncFile>,
}

// SAFETY: the pointer to this structure follows the library's part of the context.
unsafe impl Object for Context {
    type Public = ibv_context;

    #[inline(always)]
    unsafe fn behind(public: NonNull<ibv_context>) -> NonNull<Self> {
        // SAFETY: V1: `alloc_context` or `import_context` returned the pointer, after `join` had written the word.
        unsafe { public.add(1).cast::<NonNull<Self>>().read() }
    }
}

impl Of<Context> {
    /// Number of completion vectors.
    pub fn completion_vectors(self) -> c_int {
        // SAFETY: V1: `join` has set the member.
        unsafe { (*self.raw()).num_comp_vectors }
    }

    /// The device as libibverbs knows it.
    pub fn library_device(self) -> Of<IronDevice> {
        // SAFETY: V1: the library has set the member, and does not change it.
        unsafe { (*self.raw()).device }
    }
}

impl Born for Context {
    fn birth(of: Of<Self>) -> Birth {
        of.birth
    }
}

/// The errno of a failed system call.
pub fn io_errno(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}
