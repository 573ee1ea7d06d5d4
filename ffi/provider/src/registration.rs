//! The libibverbs instances in this process that the provider is registered with.

use crate::abi::probe::Layout;
use crate::abi::public::ibv_device;
use crate::abi::verbs_types::verbs_device_ops;
use crate::guard::lock;
use crate::ours::Of;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};

/// A registration with one libibverbs instance. It lives as long as the process.
#[repr(C)]
pub struct Registration {
    /// The first member, so that libibverbs' pointer to it in a device also points to the registration.
    pub ops: verbs_device_ops,
    /// The library's functions and its layout.
    pub layout: Layout,
}

impl Of<ibv_device> {
    /// The registration that a device belongs to.
    pub fn registration(self) -> &'static Registration {
        // SAFETY: V1, V2: libibverbs has set the device's operations to those that name this provider's functions, the first member of a
        // registration, which is never freed.
        unsafe { &*self.device.ops.cast::<Registration>() }
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
    lock(&PROCESS)
}

/// The root of sysfs as libibverbs sees it, once the provider is registered with one. All instances read the same variable.
pub fn sysfs() -> Option<String> {
    let first = process().registrations.first().copied();
    first.map(|registration| registration.layout.library.sysfs())
}
