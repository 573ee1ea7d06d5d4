//! What contexts of this process let each other import, by handle.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_mr, ibv_pd};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An object of the program, as an address: it is looked at only while it is on a list.
pub type At = usize;

/// Objects and the handle of each. They come and go by the thousand, and are looked for rarely.
pub type List = Mutex<BTreeMap<At, u32>>;

/// What can be imported from the contexts that share a device.
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
    /// A domain that can be imported from now on.
    pub fn enter_pd(&self, pd: *mut ibv_pd, handle: u32) {
        enter(&self.pds, handle, pd);
    }

    /// It is about to go.
    pub fn leave_pd(&self, pd: *mut ibv_pd) {
        leave(&self.pds, pd);
    }

    /// A region that can be imported from now on.
    pub fn enter_mr(&self, mr: *mut ibv_mr, handle: u32) {
        enter(&self.mrs, handle, mr);
    }

    /// It is about to go.
    pub fn leave_mr(&self, mr: *mut ibv_mr) {
        leave(&self.mrs, mr);
    }

    /// Device memory that can be imported from now on.
    pub fn enter_dm(&self, dm: *mut ibv_dm, handle: u32) {
        enter(&self.dms, handle, dm);
    }

    /// It is about to go.
    pub fn leave_dm(&self, dm: *mut ibv_dm) {
        leave(&self.dms, dm);
    }
}
