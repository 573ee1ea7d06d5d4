//! Locks in memory shared between programs: they survive the death of a holder, and a thread that takes the same lock
//! repeatedly needs no locked instruction for it.
//!
//! A program that dies with a [`Lock`] does not keep it; the next holder is told what has to be repaired. A program
//! that is stopped does keep it; contenders that can do without the lock wait only until they detect that.
//!
//! ```
//! use ironverbs_sync::{Contender, Dead, Lock, Party};
//!
//! /// A program; number 1 has died.
//! struct Program(u16);
//! impl Contender for Program {
//!     fn party(&self) -> Party { Party(self.0) }
//!     fn steady(&self) -> Option<Party> { None }
//!     fn barrier(&mut self) {}
//!     fn alive(&mut self, party: Party) -> bool { party != Party(1) }
//!     fn relax(&mut self, _holder: Party, _times: u32) -> bool { false }
//! }
//!
//! let lock = Lock::default();
//! let _ = lock.acquire(&mut Program(1));
//! let (holding, dead) = lock.acquire(&mut Program(2));
//! assert_eq!(dead, Dead([Some(Party(1)), None]));
//! // Repair the work that party 1 left half done here.
//! holding.repaired();
//! holding.release();
//! assert_eq!(lock.holder(), None);
//! ```
//!
//! The lock's requirements on its environment are few, and defined by [`Contender`]. So it is independent of the
//! adapter that it was made for, and a model checker tests it in isolation: `scripts/test-loom.sh`.
//!
//! [`Ring`] manages a ring with producers that hold such a lock, so that a producer that dies leaves no partial frame
//! in it.
//!
//! [`Bell`] wakes a thread that has nothing to do, and [`Eager`] decides when such a thread should poll rather than
//! sleep.
//!
//! [`BiasedMutex`] is a cheaper version for threads of one process. The other modules provide what both locks and their
//! users need from the machine: thread numbers ([`this_thread`]), barriers in other threads ([`barrier`]), forks
//! ([`fork`]), signal-free sections ([`Quiet`]), and descriptors that the program may close ([`Kept`]).

pub mod barrier;
mod bell;
mod bias;
#[cfg(all(test, loom))]
mod checker;
mod eager;
pub mod fork;
mod forward;
mod kept;
pub mod laboratory;
mod lock;
mod mutex;
mod quiet;
mod ring;
mod thread;

pub use bell::Bell;
pub use eager::Eager;
pub use kept::{Identity, Kept};
pub use lock::{Dead, Holding, Lock, Patience};
pub use mutex::{BiasedGuard, BiasedMutex};
pub use quiet::Quiet;
pub use ring::Ring;
pub use thread::{ANY_THREAD, this_thread};

/// A user of locks: a process, a server for guests or a test. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Party(pub u16);

/// A runner that wants a lock, and its knowledge of others.
pub trait Contender {
    /// The party that it works for.
    fn party(&self) -> Party;
    /// The party, if this is the party's only runner that is always on the same thread, and [`barrier`](Self::barrier)
    /// of other runners reaches that thread. At most one runner of a party is steady, and none in a child of fork,
    /// where the parent's thread keeps that role ([`fork::generation`] tells the two apart).
    fn steady(&self) -> Option<Party>;
    /// Executes a full memory barrier in this thread and in every thread with a [`steady`](Self::steady) runner, of
    /// this party and all others.
    fn barrier(&mut self);
    /// True if `party` is alive. Called only when it holds a lock for long, or has a seat that another party needs.
    fn alive(&mut self, party: Party) -> bool;
    /// Yields the processor while `holder` has a lock that this runner waits for, called for the `times`th time since
    /// the lock changed hands. Returns true if the holder is stopped, so that the wait may never end.
    fn relax(&mut self, holder: Party, times: u32) -> bool;
}
