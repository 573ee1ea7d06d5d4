//! Rows and translations freed by a job, recorded until it commits; `bare` then returns their pages.

use super::Table;

/// A freed object that may leave unused pages behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// A row.
    Row(Table, u32),
    /// Translations: the first entry, and the number requested.
    Translations(u32, u32),
}
