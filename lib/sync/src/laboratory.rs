//! Points at which a test may let another program continue, or stop or kill this one.
//!
//! There is one before and after each store to a shared word, and in each loop that waits, so that between two of them
//! a runner does nothing that another could observe half done. Without the feature `laboratory` they compile to
//! nothing; with it, each calls the hook of its thread.

/// The next action of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// Access a word of a lock.
    Lock,
    /// Check again a lock that another party holds.
    Spin,
    /// Write or clear an entry of a journal.
    Journal,
    /// Execute one of a job's effects.
    Effect,
    /// Undo one of a job's changes.
    Undo,
    /// Access a slot or an index of a receive ring.
    Ring,
    /// Access an index of an outlet.
    Outlet,
    /// Access the set of functions that sent to a function.
    Senders,
    /// Publish pending work of a function, for contenders without its lock.
    Publish,
    /// Check if a runner is about to run a function that received a frame.
    Arrived,
}

#[cfg(feature = "laboratory")]
mod hooked {
    use super::Site;
    use std::cell::Cell;

    thread_local! {
        static HOOK: Cell<Option<fn(Site)>> = const { Cell::new(None) };
    }

    /// Sets the hook that is called at every [`Site`] that this thread reaches, replacing a previous one.
    pub fn set_hook(hook: Option<fn(Site)>) {
        HOOK.set(hook);
    }

    /// Calls the hook for `site`.
    #[inline]
    pub fn step(site: Site) {
        if let Some(hook) = HOOK.get() {
            hook(site);
        }
    }
}

#[cfg(feature = "laboratory")]
pub use hooked::{set_hook, step};

/// Does nothing without the feature `laboratory`.
#[cfg(not(feature = "laboratory"))]
#[inline(always)]
pub fn step(_: Site) {}
