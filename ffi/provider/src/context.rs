//! An open device: the context that libibverbs allocated, and the provider's state for it.

use crate::abi::public::{ibv_context, ibv_device};
use crate::channel::Channels;
use crate::clock::WallClock;
use crate::events::{AsyncFile, Pump, Targets};
use crate::exports::Exports;
use crate::guard::Birth;
use crate::huge::HugePool;
use crate::ours::{Born, Object, Of, Ours};
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
unsafe impl Object for ibv_context {
    type Behind = Context;

    #[inline(always)]
    unsafe fn behind(public: NonNull<Self>) -> NonNull<Context> {
        // SAFETY: V1: `alloc_context` or `import_context` returned the pointer, after `join` had written the word.
        unsafe { public.add(1).cast::<NonNull<Context>>().read() }
    }
}

impl Of<ibv_context> {
    /// Number of completion vectors.
    pub fn completion_vectors(self) -> c_int {
        // SAFETY: V1: `join` has set the member.
        unsafe { (*self.raw()).num_comp_vectors }
    }

    /// The device as libibverbs knows it.
    pub fn library_device(self) -> Of<ibv_device> {
        // SAFETY: V1: the library has set the member, and does not change it.
        unsafe { (*self.raw()).device }
    }
}

impl<T: Ours> Of<T> {
    /// The context that the object was created in.
    pub fn context(self) -> Of<ibv_context> {
        // SAFETY: V1 and V2, by the invariants of the pointer and the trait; V3 for the context.
        unsafe { Of::new(self.raw().byte_add(T::CONTEXT).cast::<NonNull<ibv_context>>().read()) }
    }
}

impl Born for ibv_context {
    fn birth(of: Of<Self>) -> Birth {
        of.birth
    }
}

/// The errno of a failed system call.
pub fn io_errno(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}
