//! The libibverbs of this process that have our devices.

use crate::abi::probe::Layout;
use crate::abi::public::ibv_device;
use crate::abi::verbs_types::{verbs_device, verbs_device_ops};
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A libibverbs that has our devices. It lives as long as the process.
#[repr(C)]
pub struct Registration {
    /// The first member, so that the pointer to it that libibverbs keeps in a device leads to the whole.
    pub ops: verbs_device_ops,
    /// The library's functions, and its layout.
    pub layout: Layout,
}

impl Registration {
    /// The libibverbs that a device belongs to.
    ///
    /// # Safety
    /// `device` is one that [`crate::matching::alloc_device`] made and libibverbs has taken over, which sets its operations.
    pub unsafe fn of(device: *const ibv_device) -> &'static Self {
        // SAFETY: V1, V2; operations that name our functions are the first member of a registration, which is never
        // freed.
        unsafe { &*(*device.cast::<verbs_device>()).ops.cast::<Self>() }
    }
}

/// The libraries and loaders of this process that concern us.
#[derive(Default)]
pub struct Process {
    /// An address inside each libibverbs that was examined, whether it was accepted or refused.
    pub seen: Vec<usize>,
    pub registrations: Vec<&'static Registration>,
    /// Paths of the loaders that are loaded (`ffi/loader`).
    pub loaders: Vec<CString>,
}

/// Never held while the dynamic linker is called, because constructors come here with the linker's lock held.
static PROCESS: Mutex<Process> =
    Mutex::new(Process { seen: Vec::new(), registrations: Vec::new(), loaders: Vec::new() });

/// The libraries and loaders that were loaded into this process, locked.
pub fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The root of sysfs as libibverbs sees it, once one has accepted us. All read it from the same variable.
pub fn sysfs() -> Option<String> {
    let first = process().registrations.first().copied();
    first.map(|registration| registration.layout.library.sysfs())
}
