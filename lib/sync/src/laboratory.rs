//! Points at which a test may let another program go on, stop this one or kill it.
//!
//! They stand before and behind each store to a word that parties share, and in each loop that waits, so that a runner
//! does nothing between two of them that another could see half done. Without the feature `laboratory` they are no
//! code; with it each calls the hook of its thread.

/// The next action of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// Touch a word of a lock.
    Lock,
    /// Look again at a lock that another holds.
    Spin,
    /// Write or clear an entry of a journal.
    Journal,
    /// Carry out one of a job's effects.
    Effect,
    /// Undo one of a job's changes.
    Undo,
    /// Touch a slot or an index of a receive ring.
    Ring,
    /// Touch an index of an outlet.
    Outlet,
    /// Touch the set of functions that sent to one.
    Senders,
    /// Publish what waits in a function, for contenders without its lock.
    Publish,
    /// Check whether some runner is about to run a function that got a frame.
    Arrived,
}

#[cfg(feature = "laboratory")]
mod hooked {
    use super::Site;
    use std::cell::Cell;

    thread_local! {
        static HOOK: Cell<Option<fn(Site)>> = const { Cell::new(None) };
    }

    /// Has `hook` called at every [`Site`] that this thread reaches, in place of an earlier one.
    pub fn set_hook(hook: Option<fn(Site)>) {
        HOOK.set(hook);
    }

    /// Reaches `site`.
    #[inline]
    pub fn step(site: Site) {
        if let Some(hook) = HOOK.get() {
            hook(site);
        }
    }
}

#[cfg(feature = "laboratory")]
pub use hooked::{set_hook, step};

/// Nothing, outside of the laboratory.
#[cfg(not(feature = "laboratory"))]
#[inline(always)]
pub fn step(_: Site) {}
