//! The objects that contexts of this process can import from each other, by handle.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_mr, ibv_pd};
use crate::guard::lock;
use crate::ours::Of;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// Objects and their handles. Keyed by address: objects come and go by the thousands, and lookups by handle are rare.
pub struct List<T>(Mutex<Entered>, PhantomData<fn() -> T>);

/// Objects by address, each with its number in the order of their entry, and its handle; and the next number.
type Entered = (BTreeMap<usize, (u64, u32)>, u64);

/// The objects that contexts sharing a device can import.
#[derive(Default)]
pub struct Exports {
    pub pds: List<ibv_pd>,
    pub mrs: List<ibv_mr>,
    pub dms: List<ibv_dm>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> List<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self(Mutex::new((BTreeMap::new(), 0)), PhantomData)
    }

    /// Makes an object importable.
    pub fn enter(&self, object: Of<T>, handle: u32) {
        let (objects, next) = &mut *lock(&self.0);
        objects.insert(object.raw() as usize, (*next, handle));
        *next += 1;
    }

    /// Withdraws an object that is about to be destroyed.
    pub fn leave(&self, object: *const T) {
        lock(&self.0).0.remove(&(object as usize));
    }

    /// Calls `then` with the oldest entry of the list with a `wanted` handle. The object is not destroyed meanwhile.
    pub fn with<R>(&self, wanted: impl Fn(u32) -> bool, then: impl FnOnce(Of<T>) -> R) -> Option<R> {
        let list = lock(&self.0);
        let all = Self::objects(&list).filter(|(.., handle)| wanted(*handle));
        all.min_by_key(|(_, number, _)| *number).map(|(object, ..)| then(object))
    }

    /// Calls `then` with every object and its handle. The objects are not destroyed meanwhile.
    pub fn each<R>(&self, then: impl Fn(Of<T>) -> Option<R>) -> Vec<R> {
        let list = lock(&self.0);
        Self::objects(&list).filter_map(|(object, ..)| then(object)).collect()
    }

    /// The objects of a locked list, with their numbers and handles.
    fn objects(list: &MutexGuard<'_, Entered>) -> impl Iterator<Item = (Of<T>, u64, u32)> {
        list.0.iter().filter_map(|(at, (number, handle))| {
            // SAFETY: on the list, so not destroyed while the lock is held.
            Some((unsafe { Of::new(NonNull::new(*at as *mut T)?) }, *number, *handle))
        })
    }
}
