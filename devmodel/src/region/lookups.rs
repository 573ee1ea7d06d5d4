//! Records the key and translation lookups that a job makes to form bus addresses, for runners that charge time for them.

use std::cell::RefCell;

/// A lookup within a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The key with this index.
    Key(u32),
    /// Translations: the index of the first, and their number.
    Translations(u32, u32),
}

/// Lookups of a job in order; immediate repetitions are recorded once.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    noted: RefCell<Vec<Lookup>>,
    /// Every key lookup fails.
    unmapped: bool,
}

impl Lookups {
    /// An empty list; `unmapped` makes all key lookups fail.
    pub(crate) fn new(mut room: Vec<Lookup>, unmapped: bool) -> Self {
        room.clear();
        Self { noted: RefCell::new(room), unmapped }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn note(&self, lookup: Lookup) -> bool {
        let mut noted = self.noted.borrow_mut();
        if noted.last() != Some(&lookup) {
            noted.push(lookup);
        }
        !self.unmapped
    }

    /// Takes the recorded lookups.
    pub(crate) fn take(&self) -> Vec<Lookup> {
        self.noted.take()
    }
}
