//! The services that the chip asks of the machine it is plugged into.
//!
//! A [`Host`] is one runner's view: the memory it can reach, the interrupts it can raise and the other parties of the
//! node it can wake. The model calls nothing else.

pub use sync::{Party, forward};

/// Requester id: the function (0 is the PF, `i` is VF `i`) that a transfer or an interrupt comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid(pub u8);

/// A bus address. The host decides what its bits mean; the model only adds offsets to it.
pub type Iova = u64;

/// The host refused a transfer: nothing is mapped there, or not for this function, or its owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Reading failed: a read, or the source of a copy.
    Source,
    /// Writing failed: a write, or the destination of a copy.
    Destination,
    /// The program whose memory it is has ended: nobody answers for it any more, and nobody is to be informed.
    Gone,
}

/// Where a copy comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A bus address in the mapping of a function.
    Bus(Rid, Iova),
    /// An offset into the bytes handed over with the moves.
    Staged(u32),
}

/// One copy to a bus address, possibly between the memories of two parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where from.
    pub src: Source,
    /// The function whose mapping `dst` belongs to.
    pub dst_rid: Rid,
    /// Where to.
    pub dst: Iova,
    /// Bytes.
    pub len: u32,
}

/// The services that the chip asks of the machine it is plugged into.
pub trait Host {
    /// Reads `buf.len()` bytes at `at`.
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort>;
    /// Writes `data` at `at`, in ascending order: the last byte becomes visible last, after all writes before.
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort>;
    /// Carries out all `moves`; those into the memory of one party in the order given. `staged` holds the bytes of
    /// [`Source::Staged`] moves. On an abort some may have been done.
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort>;
    /// Raises the MSI-X interrupt of table entry `vector`, whose message is `address` and `data`.
    fn msix(&mut self, rid: Rid, vector: u16, address: u64, data: u32);
    /// The party this runner works for.
    fn party(&self) -> Party;
    /// The same, if this runner is the one of that party that is always the same thread's, and [`barrier`](Self::barrier) of
    /// others reaches that thread. At most one runner of a party says so.
    fn steady(&self) -> Option<Party> {
        None
    }
    /// Carries out a full memory barrier in every thread whose runner is [`steady`](Self::steady), in this party and all
    /// others. Needed only where there may be such.
    fn barrier(&mut self) {}
    /// True if this runner can copy to and from the memory of `party`'s program. If not, the party must do it itself.
    fn reaches(&mut self, party: Party) -> bool;
    /// True if frames of `from` to `to` may refer to the memory of `from`: whoever takes one can read it. If not, payload
    /// travels by value.
    fn by_reference(&mut self, from: Rid, to: Rid) -> bool {
        let _ = (from, to);
        true
    }
    /// True if somebody else is about to run function `rid` anyway: frames that arrive there are left to them. Asked
    /// behind the frame's store without a fence: who stops tending makes sure that what others stored before is seen,
    /// and then looks for frames once more.
    fn is_tended(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// A frame waits in the uplink, for the party that takes from it.
    fn uplink_waits(&mut self) {}
    /// A frame waits in the capture.
    fn capture_waits(&mut self) {}
    /// The party that alone runs function `rid`, if that is another one: only it reaches what the function works on.
    fn keeper(&mut self, rid: Rid) -> Option<Party> {
        let _ = rid;
        None
    }
    /// True if that somebody is ourselves: we come back to `rid` without being woken.
    fn tends(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// Tells `party` that work waits in its queue.
    fn wake(&mut self, party: Party);
    /// True if the party of this runner uses function `rid`. A runner works on functions its party uses and on those that these
    /// exchange frames with, and leaves all others to their own users: a program that is stopped while it holds a function must
    /// not hold up somebody it has nothing to do with.
    fn uses(&mut self, rid: Rid) -> bool {
        let _ = rid;
        true
    }
    /// Tells the parties that use function `rid` that it has work. False if there are none.
    fn leave_to_users(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// True if `party` still lives. Asked only when it holds a lock for long.
    fn alive(&mut self, party: Party) -> bool;
    /// Yields the processor while `holder` has a lock that this runner waits for: the `times`th time since the lock changed
    /// hands. True if the holder is stopped, so that waiting on may take as long as somebody likes.
    fn relax(&mut self, holder: Party, times: u32) -> bool;
    /// True if `party` is stopped (by a signal, a debugger or a freezer). Asked when a timer ran out because of it, perhaps.
    fn is_stopped(&mut self, party: Party) -> bool {
        let _ = party;
        false
    }
    /// True if one of the parties that use function `rid` is stopped.
    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// Randomness for the adapter, asked for once, when it is powered on. The default makes equal adapters, for worlds in which
    /// everything happens the same at every run.
    fn entropy(&mut self) -> [u64; 2] {
        [0; 2]
    }
}

/// A host is the contender for the locks of the model it drives.
impl sync::Contender for dyn Host + '_ {
    #[inline]
    fn party(&self) -> Party {
        Host::party(self)
    }
    #[inline]
    fn steady(&self) -> Option<Party> {
        Host::steady(self)
    }
    fn barrier(&mut self) {
        Host::barrier(self);
    }
    fn alive(&mut self, party: Party) -> bool {
        Host::alive(self, party)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        Host::relax(self, holder, times)
    }
}
