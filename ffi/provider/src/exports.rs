//! The objects that contexts of this process can import from each other, by handle.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_mr, ibv_pd};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Address of a program's object. It may be dereferenced only while it is on a list.
pub type At = usize;

/// Objects and their handles. Keyed by address: objects come and go by the thousands, and lookups by handle are rare.
pub type List = Mutex<BTreeMap<At, u32>>;

/// The objects that contexts sharing a device can import.
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

/// Finds the object with handle `wanted`.
pub fn find(list: &BTreeMap<At, u32>, wanted: u32) -> Option<At> {
    list.iter().find(|(_, handle)| **handle == wanted).map(|(at, _)| *at)
}

impl Exports {
    /// Makes a PD importable.
    pub fn enter_pd(&self, pd: *mut ibv_pd, handle: u32) {
        enter(&self.pds, handle, pd);
    }

    /// Withdraws a PD that is about to be deallocated.
    pub fn leave_pd(&self, pd: *mut ibv_pd) {
        leave(&self.pds, pd);
    }

    /// Makes a memory region importable.
    pub fn enter_mr(&self, mr: *mut ibv_mr, handle: u32) {
        enter(&self.mrs, handle, mr);
    }

    /// Withdraws a memory region that is about to be deregistered.
    pub fn leave_mr(&self, mr: *mut ibv_mr) {
        leave(&self.mrs, mr);
    }

    /// Makes device memory importable.
    pub fn enter_dm(&self, dm: *mut ibv_dm, handle: u32) {
        enter(&self.dms, handle, dm);
    }

    /// Withdraws device memory that is about to be freed.
    pub fn leave_dm(&self, dm: *mut ibv_dm) {
        leave(&self.dms, dm);
    }
}
