//! User contexts, and the destruction of all objects that belong to one.

use super::{
    call::Call,
    caps,
    kinds::end_objects,
    mkey,
    object::end_some,
    refusal::{Done, Syndrome},
};
use crate::{
    Adapter,
    host::{Host, Party},
    region::{Func, FunctionSet, Patience, purge_frames},
    state::{CqRow, Head, MemicRow, MkeyRow, PdRow, QpRow, SrqRow, UctxRow},
};
use hwspec::cmd::{CmdOut, uctx::*};

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateUctxIn = call.input()?;
    if call.step.config.strict.uid {
        Syndrome::UctxRights.unless(input.uctx().cap() & !caps::USER_RIGHTS == 0)?;
    }
    let index = call.make::<UctxRow>(|row| row.cap = input.uctx().cap())?;
    call.created::<UctxRow>(index)
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyUctxIn = call.input()?;
    let uid = input.uid();
    Syndrome::NoSuchUctx.unless(uid != 0 && call.func.row::<UctxRow>(uid.into()).is_some())?;
    call.answer(&CmdOut::zeroed())?;
    end_uctx(call.func, call.step.host, uid);
    call.quiesce = true;
    Ok(())
}

/// Destroys a user context and all its objects without any notification. Commits on the way; the context itself is
/// destroyed last, so that an interrupted call can be repeated.
fn end_uctx(func: &mut Func<'_>, host: &mut dyn Host, uid: u16) {
    end_users(func, host, uid);
    end_objects(func, host, |head| head.uid == uid);
    func.free::<UctxRow>(uid.into());
    func.commit(host);
}

/// Destroys the objects that the function's driver created at uid 0 with a context's domains and CQs, because they work on
/// the memory of the context's program. Linux creates a program's XRC SRQs and their senders there, and its keys.
fn end_users(func: &mut Func<'_>, host: &mut dyn Host, uid: u16) {
    let others = |head: &Head| head.uid != uid;
    let pd = |f: &Func<'_>, pd: u32| f.get::<PdRow>(pd).is_some_and(|row| row.head.uid == uid);
    let cq = |f: &Func<'_>, cq: u32| f.get::<CqRow>(cq).is_some_and(|row| row.head.uid == uid);
    let qp = |f: &Func<'_>, row: &QpRow| others(&row.head) && (cq(f, row.cqn_snd) || cq(f, row.cqn_rcv));
    end_some::<QpRow>(func, host, qp);
    end_some::<MkeyRow>(func, host, |f, row| others(&row.head) && pd(f, row.pd));
    end_some::<SrqRow>(func, host, |f, row| others(&row.head) && pd(f, row.pd));
}

impl Adapter {
    /// Destroys all user contexts of an exited party on `functions`, those that it used, and its allocations of their
    /// device memory, which are at uid 0 because `ALLOC_MEMIC` has no uid. Peers see unanswered requests; there is no
    /// other visible effect. On return nothing refers to the party's memory. Returns the number of contexts, and the
    /// functions that were locked. `None` if a stopped party holds one of them: the caller must retry.
    pub fn reap(
        &self,
        host: &mut dyn Host,
        party: Party,
        functions: FunctionSet,
    ) -> Option<(usize, FunctionSet)> {
        let (mut ended, mut locked) = (0, 0);
        for fid in self.functions().filter(|fid| functions & 1 << fid != 0) {
            let mut func = Func::lock_with(self.region(), fid, host, Patience::UntilStopped)?;
            let uids = func.which::<UctxRow>(|row| row.head.party == party.0);
            uids.iter().for_each(|uid| end_uctx(&mut func, host, *uid as u16));
            let of_party = |head: &Head| head.uid == 0 && head.party == party.0;
            let memic =
                |f: &Func<'_>, number: u32| f.get::<MemicRow>(number).is_some_and(|row| of_party(&row.head));
            let key = |f: &Func<'_>, row: &MkeyRow| mkey::memic(row).is_some_and(|number| memic(f, number));
            end_some::<MkeyRow>(&mut func, host, key);
            end_some::<MemicRow>(&mut func, host, |_, row| of_party(&row.head));
            drop(func);
            // Needed even if the contexts were destroyed in an earlier, interrupted call.
            locked |= purge_frames(self.region(), host, fid, Patience::UntilStopped)? | 1 << fid;
            ended += uids.len();
        }
        Some((ended, locked))
    }
}
