//! A job looks up keys and translations on its way to bus addresses. A runner that charges for them has them noted.

use std::cell::RefCell;

/// A thing of a function that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The key of this index.
    Key(u32),
    /// Translations: the index of the first, and how many.
    Translations(u32, u32),
}

/// Lookups of a job, in their order; the same one twice in a row is once.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    noted: RefCell<Vec<Lookup>>,
    /// No key is found.
    unmapped: bool,
}

impl Lookups {
    /// None yet; `unmapped` says that keys are not to be found.
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

    /// Hands over what was noted.
    pub(crate) fn take(&self) -> Vec<Lookup> {
        self.noted.take()
    }
}
