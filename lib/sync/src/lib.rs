//! Locks in memory that programs share: they outlive their holders, and a thread that takes one again and again pays no
//! locked instruction for it.
//!
//! A program that dies with a [`Lock`] does not keep it, and the next to take it learns what is to be repaired. A
//! program that is stopped does keep it, and contenders that can do without wait only until they know that.
//!
//! ```
//! use sync::{Contender, Dead, Lock, Party};
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
//! // Here it repairs what party 1 left half done.
//! holding.repaired();
//! holding.release();
//! assert_eq!(lock.holder(), None);
//! ```
//!
//! The lock asks little of the machine around it, a [`Contender`]. So it stands apart from the adapter it was made for,
//! and a model checker judges it by itself: `scripts/test-loom.sh`.
//!
//! [`Ring`] is the order of things in a ring whose fillers hold such a lock, so that one who dies leaves no half of a
//! frame in it.
//!
//! [`Bell`] wakes a thread that has nothing to do, and [`Eager`] says when such a thread had better look than sleep.
//!
//! [`BiasedMutex`] is the same for threads of one process, and cheaper for it. Beside the two stands what they and
//! their users need of the machine: the number of a thread ([`this_thread`]), barriers in other threads ([`barrier`]),
//! forks ([`fork`]), a thread that no signal interrupts ([`Quiet`]), and descriptors that the program may close ([`Kept`]).

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

/// A process, a server for guests or a test, as far as it takes locks. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Party(pub u16);

/// A runner that wants a lock, and what it can find out about others.
pub trait Contender {
    /// The party it works for.
    fn party(&self) -> Party;
    /// The same, if it is the one runner of that party that is always the same thread's, and [`barrier`](Self::barrier)
    /// of others reaches that thread. At most one runner of a party says so, and none in a child of fork: the parent's
    /// thread goes on being it (see [`fork::generation`]).
    fn steady(&self) -> Option<Party>;
    /// Carries out a full memory barrier here and in every thread whose runner is [`steady`](Self::steady), in this
    /// party and all others.
    fn barrier(&mut self);
    /// True if `party` still lives. Called only when it holds a lock for long, or has a seat that another needs.
    fn alive(&mut self, party: Party) -> bool;
    /// Yields the processor while `holder` has a lock that this runner waits for, the `times`th time since the lock
    /// changed hands. True if the holder is stopped, so that the wait may be without end.
    fn relax(&mut self, holder: Party, times: u32) -> bool;
}
