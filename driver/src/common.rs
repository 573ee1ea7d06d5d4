//! Values that all their users in this process share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The values in use, by key.
pub struct Common<K, T>(Mutex<Vec<(K, Weak<T>)>>);

impl<K: PartialEq, T> Common<K, T> {
    /// None are in use.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns the value in use for `key`, or a new one. A value that is no longer `good` stays with its present users.
    pub fn get<E>(
        &self,
        key: K,
        good: impl Fn(&T) -> bool,
        new: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, known)| known.upgrade().is_some_and(|known| good(&known)));
        if let Some(known) = all.iter().find(|(of, _)| *of == key).and_then(|(_, known)| known.upgrade()) {
            return Ok(known);
        }
        let new = Arc::new(new()?);
        all.push((key, Arc::downgrade(&new)));
        Ok(new)
    }
}
