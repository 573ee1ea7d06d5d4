//! Rows and translations that a job frees, noted until it is committed: see `bare`.

use super::Table;

/// Something that may leave pages without use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// A row.
    Row(Table, u32),
    /// Translations: the first, and how many were asked for.
    Translations(u32, u32),
}
