//! The services that the model requires of its host.

use crate::{
    machine::{Fault, functions, machine},
    schedule::{Point, visit},
};
use devmodel::host::{Abort, Bus, Iova, Move, Parties, Party, Rid, Source};

/// The host of one runner.
pub struct LabHost {
    pub party: Party,
    /// True for a program's first thread.
    pub steady: bool,
}

/// Number of times that a waiter checks the lock before it asks if the holder is stopped.
const LOOKS: u32 = 3;

impl Bus for LabHost {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        visit(Point::Copy);
        let done = machine().memory.borrow_mut().mapped.read(rid, at, buf);
        done.map_err(|abort| machine().abort(rid, at, abort))
    }

    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        visit(Point::Copy);
        let done = machine().memory.borrow_mut().mapped.write(rid, at, data);
        done.map_err(|abort| machine().abort(rid, at, abort))
    }

    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        for one in moves {
            visit(Point::Copy);
            let done = machine().memory.borrow_mut().mapped.copy(staged, std::slice::from_ref(one));
            done.map_err(|abort| match (abort, one.src) {
                (Abort::Source, Source::Bus(rid, at)) => machine().abort(rid, at, abort),
                _ => machine().abort(one.dst_rid, one.dst, abort),
            })?;
        }
        Ok(())
    }

    // Programs poll, so interrupts wake no thread.
}

impl Parties for LabHost {
    fn party(&self) -> Party {
        self.party
    }

    fn steady(&self) -> Option<Party> {
        self.steady.then_some(self.party)
    }

    fn barrier(&mut self) {
        visit(Point::Barrier);
    }

    fn reaches(&mut self, _: Party) -> bool {
        true
    }

    fn wake(&mut self, party: Party) {
        machine().wake(party.0);
    }

    fn serves(&mut self, rid: Rid) -> bool {
        functions(machine().place(self.party).open.get()).any(|fid| fid == rid.0)
    }

    fn wake_users(&mut self, rid: Rid) -> bool {
        machine().openers(rid.0).inspect(|slot| machine().wake(*slot)).count() != 0
    }

    fn alive(&mut self, party: Party) -> bool {
        let place = machine().place(party);
        place.taken.get() && !place.dead.get()
    }

    fn relax(&mut self, holder: Party, times: u32) -> bool {
        visit(Point::Relax);
        times >= LOOKS && machine().fault != Some(Fault::PatienceIsEndless) && self.is_stopped(holder)
    }

    fn is_stopped(&mut self, party: Party) -> bool {
        party != self.party && machine().place(party).stopped.get()
    }

    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        machine().openers(rid.0).any(|slot| machine().place(Party(slot)).stopped.get())
    }
}
