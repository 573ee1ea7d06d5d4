//! Points at which a test may let another program go on, stop this one or kill it.
//!
//! Between two of them a runner does nothing that another can see half done: they stand before and behind each store to a word
//! that parties share, and in each loop that waits. Without the feature `laboratory` they are no code at all; with it each calls
//! what this thread hooked in.

/// What a runner is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// Touch a word of a lock.
    Lock,
    /// Look again at a lock that somebody else holds.
    Spin,
    /// Note or clear something in a journal.
    Journal,
    /// Carry out one of a job's effects.
    Effect,
    /// Take one of a job's changes back.
    Undo,
    /// Touch a slot or an index of a receive ring.
    Ring,
    /// Touch an index of an outlet.
    Outlet,
    /// Touch the set of functions that sent to one.
    Senders,
    /// Tell those without the lock what waits in a function.
    Publish,
    /// Ask whether somebody is about to run a function that got a frame.
    Arrived,
}

#[cfg(feature = "laboratory")]
mod hooked {
    use super::Site;
    use std::cell::Cell;

    thread_local! {
        static HOOK: Cell<Option<fn(Site)>> = const { Cell::new(None) };
    }

    /// Has `hook` called at every [`Site`] that this thread comes to, until another takes its place.
    pub fn set_hook(hook: Option<fn(Site)>) {
        HOOK.set(hook);
    }

    /// Comes to `site`.
    #[inline]
    pub fn step(site: Site) {
        if let Some(hook) = HOOK.get() {
            hook(site);
        }
    }
}

#[cfg(feature = "laboratory")]
pub use hooked::{set_hook, step};

/// Nothing: this is no laboratory.
#[cfg(not(feature = "laboratory"))]
#[inline(always)]
pub fn step(_: Site) {}
