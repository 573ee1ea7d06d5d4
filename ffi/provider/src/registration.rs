//! The libibverbs instances in this process that the provider is registered with.

use crate::abi::probe::Layout;
use crate::abi::public::ibv_device;
use crate::abi::verbs_types::{verbs_device, verbs_device_ops};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A registration with one libibverbs instance. It lives as long as the process.
#[repr(C)]
pub struct Registration {
    /// The first member, so that libibverbs' pointer to it in a device also points to the registration.
    pub ops: verbs_device_ops,
    /// The library's functions and its layout.
    pub layout: Layout,
}

impl Registration {
    /// The registration that a device belongs to.
    ///
    /// # Safety
    /// `device` was returned by [`crate::matching::alloc_device`] and initialized by libibverbs, which sets its operations.
    pub unsafe fn of(device: *const ibv_device) -> &'static Self {
        // SAFETY: V1, V2; device operations that name the provider's functions are the first member of a registration, which is never
        // freed.
        unsafe { &*(*device.cast::<verbs_device>()).ops.cast::<Self>() }
    }
}

/// The libraries and loaders in this process.
#[derive(Default)]
pub struct Process {
    /// An address inside each libibverbs that was examined, whether accepted or refused.
    pub seen: Vec<usize>,
    pub registrations: Vec<&'static Registration>,
    /// Paths of the loaded loaders (`ffi/loader`).
    pub loaders: Vec<CString>,
}

/// Never held across a call to the dynamic linker, because constructors take it with the linker's lock held.
static PROCESS: Mutex<Process> =
    Mutex::new(Process { seen: Vec::new(), registrations: Vec::new(), loaders: Vec::new() });

/// Locks the list of libraries and loaders in this process.
pub fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The root of sysfs as libibverbs sees it, once the provider is registered with one. All instances read the same variable.
pub fn sysfs() -> Option<String> {
    let first = process().registrations.first().copied();
    first.map(|registration| registration.layout.library.sysfs())
}
