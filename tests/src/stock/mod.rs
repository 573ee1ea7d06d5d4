//! Debian's programs and our C programs, run on a node by `ironverbs run` as users run them.
//!
//! They need `ironverbs` and the provider built (`scripts/test.sh build`).

mod bundled;
mod compile;
pub mod customers;
mod go;
mod node;
mod pair;
mod running;

pub use bundled::{rename, renamed_libraries};
pub use compile::{
    compiled, compiled_alone, compiled_cm, compiled_cpp, compiled_library, compiled_mpi, sanitized,
};
pub use go::GoPrograms;
pub use node::{Node, ironverbs};
pub use pair::{LISTENING, Pair, address, figures, is_heard, locks, port};
pub use running::{Running, until_rest};

/// Checks that `said` contains every one of `parts`.
///
/// # Panics
/// One is missing.
#[track_caller]
pub fn has_all<S: AsRef<str>>(said: &str, parts: impl IntoIterator<Item = S>) {
    for part in parts {
        assert!(said.contains(part.as_ref()), "{:?} is missing in\n{said}", part.as_ref());
    }
}
