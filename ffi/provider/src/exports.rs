//! The objects that contexts of this process let each other import, by handle.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_mr, ibv_pd};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An object of the program, as an address. It may be dereferenced only while it is on a list.
pub type At = usize;

/// Objects, and the handle of each. Thousands come and go, and lookups are rare.
pub type List = Mutex<BTreeMap<At, u32>>;

/// The objects that can be imported from the contexts that share a device.
#[derive(Default)]
pub struct Exports {
    pub pds: List,
    pub mrs: List,
    pub dms: List,
}

/// Locks a list.
pub fn hold<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter<T>(list: &List, handle: u32, object: *mut T) {
    hold(list).insert(object as At, handle);
}

fn leave<T>(list: &List, object: *mut T) {
    hold(list).remove(&(object as At));
}

/// The object with handle `wanted`.
pub fn find(list: &BTreeMap<At, u32>, wanted: u32) -> Option<At> {
    list.iter().find(|(_, handle)| **handle == wanted).map(|(at, _)| *at)
}

impl Exports {
    /// Lets a domain be imported from now on.
    pub fn enter_pd(&self, pd: *mut ibv_pd, handle: u32) {
        enter(&self.pds, handle, pd);
    }

    /// Stops that, for it is about to be deallocated.
    pub fn leave_pd(&self, pd: *mut ibv_pd) {
        leave(&self.pds, pd);
    }

    /// Lets a region be imported from now on.
    pub fn enter_mr(&self, mr: *mut ibv_mr, handle: u32) {
        enter(&self.mrs, handle, mr);
    }

    /// Stops that, for it is about to be deregistered.
    pub fn leave_mr(&self, mr: *mut ibv_mr) {
        leave(&self.mrs, mr);
    }

    /// Lets device memory be imported from now on.
    pub fn enter_dm(&self, dm: *mut ibv_dm, handle: u32) {
        enter(&self.dms, handle, dm);
    }

    /// Stops that, for it is about to be freed.
    pub fn leave_dm(&self, dm: *mut ibv_dm) {
        leave(&self.dms, dm);
    }
}
