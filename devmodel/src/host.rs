//! The services that the chip needs from the machine it is plugged into.
//!
//! A [`Host`] is one runner's view of that machine: its [`Bus`], with the memory it can reach and the interrupts it can raise,
//! and the [`Parties`] of the node that it waits for and wakes. A machine with a single party is [`Alone`]. The model calls
//! nothing else.

use crate::region::Outlet;
use std::ops::Range;
pub use sync::{Party, forward};

/// Requester ID: the function (0 is the PF, `i` is VF `i`) that issues a transfer or an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid(pub u8);

/// A bus address. The host defines its meaning; the model only adds offsets to it.
pub type Iova = u64;

/// The host refused a transfer: the address is not mapped, not mapped for this function, or its owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The read failed: a plain read, or the source of a copy.
    Source,
    /// The write failed: a plain write, or the destination of a copy.
    Destination,
    /// The program that owns the memory has exited: there is no owner left to respond or to be notified.
    Gone,
}

/// The source of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A bus address in the mapping of a function.
    Bus(Rid, Iova),
    /// An offset into the bytes passed with the moves.
    Staged(u32),
}

/// One copy to a bus address, possibly between the memories of two parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The source.
    pub src: Source,
    /// The function with the mapping of `dst`.
    pub dst_rid: Rid,
    /// The destination.
    pub dst: Iova,
    /// Bytes.
    pub len: u32,
}

/// The bus of the machine: transfers and interrupts of functions. By default nothing is attached to it: every address is unmapped.
pub trait Bus {
    /// Reads `buf.len()` bytes at `at`.
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let _ = (rid, at, buf);
        Err(Abort::Source)
    }
    /// Writes `data` at `at` in ascending order: the last byte becomes visible last, after all earlier writes.
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        let _ = (rid, at, data);
        Err(Abort::Destination)
    }
    /// Carries out all `moves`, those into the memory of one party in the given order. `staged` holds the bytes of
    /// [`Source::Staged`] moves. After an abort, some of the moves may have been carried out.
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        moves.iter().try_for_each(|one| one.through_buffer(self, staged))
    }
    /// Raises the MSI-X interrupt of table entry `vector` with the message `address` and `data`.
    fn msix(&mut self, rid: Rid, vector: u16, address: u64, data: u32) {
        let _ = (rid, vector, address, data);
    }
}

impl Move {
    /// Carries out the move by a read and a write of `bus`.
    pub fn through_buffer(&self, bus: &mut (impl Bus + ?Sized), staged: &[u8]) -> Result<(), Abort> {
        let len = self.len as usize;
        match self.src {
            Source::Staged(at) => {
                let bytes = staged.get(at as usize..).and_then(|bytes| bytes.get(..len));
                bus.write(self.dst_rid, self.dst, bytes.ok_or(Abort::Source)?)
            }
            Source::Bus(rid, at) => {
                let mut bytes = vec![0; len];
                bus.read(rid, at, &mut bytes)?;
                bus.write(self.dst_rid, self.dst, &bytes)
            }
        }
    }
}

/// The parties of the machine, as seen by one of them: how they wait for, wake and watch each other.
pub trait Parties {
    /// The party that this runner works for.
    fn party(&self) -> Party;
    /// Like [`party`](Self::party), but only for a runner that always runs on the same thread, which the
    /// [`barrier`](Self::barrier) of other runners reaches; else `None`. At most one runner of a party returns its party here.
    fn steady(&self) -> Option<Party> {
        None
    }
    /// Executes a full memory barrier on every thread with a [`steady`](Self::steady) runner, in this party and all others.
    /// Needed only where such runners may exist.
    fn barrier(&mut self) {}
    /// True if this runner can copy to and from the memory of `party`'s program. Otherwise the party must copy itself.
    fn reaches(&mut self, party: Party) -> bool;
    /// True if frames from `from` to `to` may refer to the memory of `from`, that is, if every possible receiver can read it.
    /// If not, the payload travels by value.
    fn by_reference(&mut self, from: Rid, to: Rid) -> bool {
        let _ = (from, to);
        true
    }
    /// True if another runner is about to run function `rid` anyway, so that frames that arrive there can be left to it. Called after the
    /// frame is stored, without a fence: a runner that stops polling must first make earlier stores of other threads visible to itself, and
    /// then check for frames once more.
    fn is_polled(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// Free slots in the receive ring of the function with `mac`, if a link joins its adapter directly to this one.
    fn room_beside(&mut self, mac: [u8; 6]) -> Option<usize> {
        let _ = mac;
        None
    }
    /// Delivers a frame to a function of such an adapter. Returns false if the uplink must take it.
    fn deliver_beside(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        let _ = (headers, payload);
        false
    }
    /// A frame waits in an outlet for the party that drains it.
    fn outlet_waits(&mut self, outlet: Outlet) {
        let _ = outlet;
    }
    /// The party that exclusively runs function `rid`, if that is another party: only it can reach the memory that the function
    /// works on.
    fn exclusive_runner(&mut self, rid: Rid) -> Option<Party> {
        let _ = rid;
        None
    }
    /// True if this party is the one that polls `rid`, the counterpart of [`is_polled`](Self::is_polled): it comes back to
    /// `rid` without a wakeup.
    fn polls_itself(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// Tells `party` that work waits in its queue.
    fn wake(&mut self, party: Party);
    /// True if the party of this runner uses function `rid`. A runner works on the functions that its party uses and on those they exchange
    /// frames with, and leaves all others to their own users: a program that is stopped while it holds a function must not block programs
    /// that do not use that function.
    fn serves(&mut self, rid: Rid) -> bool {
        let _ = rid;
        true
    }
    /// Tells the parties that use function `rid` that it has work. False if there are no such parties.
    fn wake_users(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// True if `party` is still alive. Called only when it has held a lock for a long time.
    fn alive(&mut self, party: Party) -> bool;
    /// Yields the processor while `holder` has a lock that this runner waits for; `times` counts the calls since the lock
    /// changed hands. True if the holder is stopped, so that the wait has no bound.
    fn relax(&mut self, holder: Party, times: u32) -> bool;
    /// True if `party` is stopped (by a signal, a debugger or a freezer). Called when this may be the reason why a timer
    /// expired.
    fn is_stopped(&mut self, party: Party) -> bool {
        let _ = party;
        false
    }
    /// True if one of the parties that use function `rid` is stopped.
    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        let _ = rid;
        false
    }
    /// Randomness for the adapter, requested once at power-on. The default yields identical adapters, for simulations that must
    /// be the same at every run.
    fn entropy(&mut self) -> [u64; 2] {
        [0; 2]
    }
}

/// A host with a single party: its runners wait only for one another, and wake no other party.
pub trait Alone {
    /// True if a program that uses a function is stopped.
    fn has_stopped_program(&self) -> bool {
        false
    }
}

impl<H: Alone> Parties for H {
    fn party(&self) -> Party {
        Party(1)
    }
    fn reaches(&mut self, _: Party) -> bool {
        true
    }
    fn wake(&mut self, _: Party) {}
    fn alive(&mut self, _: Party) -> bool {
        true
    }
    fn relax(&mut self, _: Party, _: u32) -> bool {
        std::thread::yield_now();
        false
    }
    fn has_stopped_user(&mut self, _: Rid) -> bool {
        self.has_stopped_program()
    }
}

/// Implements [`Parties`] for a wrapper of a host by calls to the wrapped host.
macro_rules! forward_parties {
    ($this:ident.$host:tt) => {
        $crate::host::forward! { $this.$host:
            fn party(&$this) -> Party;
            fn steady(&$this) -> Option<Party>;
            fn barrier(&mut $this);
            fn reaches(&mut $this, party: Party) -> bool;
            fn by_reference(&mut $this, from: Rid, to: Rid) -> bool;
            fn is_polled(&mut $this, rid: Rid) -> bool;
            fn room_beside(&mut $this, mac: [u8; 6]) -> Option<usize>;
            fn deliver_beside(&mut $this, headers: &[u8], payload: &[u8]) -> bool;
            fn outlet_waits(&mut $this, outlet: $crate::region::Outlet);
            fn exclusive_runner(&mut $this, rid: Rid) -> Option<Party>;
            fn polls_itself(&mut $this, rid: Rid) -> bool;
            fn wake(&mut $this, party: Party);
            fn serves(&mut $this, rid: Rid) -> bool;
            fn wake_users(&mut $this, rid: Rid) -> bool;
            fn alive(&mut $this, party: Party) -> bool;
            fn relax(&mut $this, holder: Party, times: u32) -> bool;
            fn is_stopped(&mut $this, party: Party) -> bool;
            fn has_stopped_user(&mut $this, rid: Rid) -> bool;
            fn entropy(&mut $this) -> [u64; 2];
        }
    };
}
pub(crate) use forward_parties;

/// The services that the chip needs from the machine it is plugged into.
pub trait Host: Bus + Parties {}

impl<H: Bus + Parties> Host for H {}

/// A machine with one flat memory for all functions, in which a bus address is an offset. It records writes and interrupts.
#[derive(Clone, Debug, Default)]
pub struct FlatMachine {
    /// The memory.
    pub memory: Vec<u8>,
    /// Functions and vectors of the interrupts that were raised, in order.
    pub interrupts: Vec<(u8, u16)>,
    /// Address and length of every write.
    pub written: Vec<(Iova, u32)>,
    /// Addresses that are not mapped.
    pub hole: Range<Iova>,
    /// A program that uses a function is stopped.
    pub has_stopped_program: bool,
}

impl Alone for FlatMachine {
    fn has_stopped_program(&self) -> bool {
        self.has_stopped_program
    }
}

impl FlatMachine {
    fn range(&self, at: Iova, len: usize) -> Option<Range<usize>> {
        let end = at.checked_add(len as u64)?;
        let hole = at < self.hole.end && end > self.hole.start;
        (end <= self.memory.len() as u64 && !hole).then_some(at as usize..end as usize)
    }
}

impl Bus for FlatMachine {
    fn read(&mut self, _: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let range = self.range(at, buf.len()).ok_or(Abort::Source)?;
        buf.copy_from_slice(&self.memory[range]);
        Ok(())
    }
    fn write(&mut self, _: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        let range = self.range(at, data.len()).ok_or(Abort::Destination)?;
        self.memory[range].copy_from_slice(data);
        self.written.push((at, data.len() as u32));
        Ok(())
    }
    // Most of a simulation's copies are from memory to memory, which needs no buffer.
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        for one in moves {
            let Source::Bus(_, at) = one.src else {
                one.through_buffer(self, staged)?;
                continue;
            };
            let to = self.range(one.dst, one.len as usize).ok_or(Abort::Destination)?;
            let from = self.range(at, one.len as usize).ok_or(Abort::Source)?;
            self.memory.copy_within(from, to.start);
            self.written.push((one.dst, one.len));
        }
        Ok(())
    }
    fn msix(&mut self, rid: Rid, vector: u16, _: u64, _: u32) {
        self.interrupts.push((rid.0, vector));
    }
}

/// The host contends for the locks of the model it drives.
impl sync::Contender for dyn Host + '_ {
    #[inline]
    fn party(&self) -> Party {
        Parties::party(self)
    }
    #[inline]
    fn steady(&self) -> Option<Party> {
        Parties::steady(self)
    }
    fn barrier(&mut self) {
        Parties::barrier(self);
    }
    fn alive(&mut self, party: Party) -> bool {
        Parties::alive(self, party)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        Parties::relax(self, holder, times)
    }
}
