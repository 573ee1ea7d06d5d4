//! User contexts, and the destruction of all objects that belong to one.

use super::{
    call::Call,
    caps, cq, eq, eswitch, flow, flow_entry, memic, memory, mkey, qp,
    refusal::{Done, Syndrome},
    rq, sq, srq, tir,
};
use crate::{
    Adapter,
    host::{Host, Party},
    region::{Func, FunctionSet, Patience, Row, purge_frames},
    state::{
        CounterRow, CqRow, EqRow, FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, Head, L2Row,
        MemicRow, MkeyRow, PdRow, QpRow, RqRow, RqtRow, SchedulingRow, SqRow, SrqRow, TdRow, TirRow, TisRow,
        UarRow, UctxRow, UmemRow, VportRow, XrcdRow,
    },
};
use hwspec::cmd::uctx::*;

/// Number of objects destroyed between two commits: as many as the journal surely holds.
const CHUNK: usize = 16;

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateUctxIn = call.input()?;
    if call.step.config.strict.uid {
        Syndrome::UctxRights.unless(input.uctx().cap() & !caps::USER_RIGHTS == 0)?;
    }
    // The index is the uid; uid 0 is the function's own driver.
    let index = call.alloc::<UctxRow>(1)?;
    if let Some(row) = call.func.row_mut::<UctxRow>(index) {
        row.cap = input.uctx().cap();
    }
    call.answer(&CreateUctxOut::with(|s| s.uid(index as u16)))
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyUctxIn = call.input()?;
    let uid = input.uid();
    Syndrome::NoSuchUctx.unless(uid != 0 && call.func.row::<UctxRow>(uid.into()).is_some())?;
    call.done()?;
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
    some::<QpRow>(func, host, qp, qp::end);
    some::<MkeyRow>(func, host, |f, row| others(&row.head) && pd(f, row.pd), mkey::end);
    some::<SrqRow>(func, host, |f, row| others(&row.head) && pd(f, row.pd), srq::end);
}

/// Destroys all objects that match `pick`; user contexts only if it matches all. Commits on the way.
pub(crate) fn end_objects(func: &mut Func<'_>, host: &mut dyn Host, pick: impl Fn(&Head) -> bool) {
    // Destroys referrers before the objects they refer to.
    each::<FlowEntryRow>(func, host, &pick, flow_entry::end);
    each::<FlowGroupRow>(func, host, &pick, flow::end_group);
    each::<FlowTableRow>(func, host, &pick, flow::end_table);
    each::<FlowCounterRow>(func, host, &pick, |f, i| f.free::<FlowCounterRow>(i));
    each::<VportRow>(func, host, &pick, |f, i| f.clear_at::<VportRow>(i));
    each::<SchedulingRow>(func, host, &pick, eswitch::end_element);
    each::<L2Row>(func, host, &pick, |f, i| f.clear_at::<L2Row>(i));
    each::<TirRow>(func, host, &pick, tir::end_tir);
    each::<RqtRow>(func, host, &pick, tir::end_rqt);
    each::<SqRow>(func, host, &pick, sq::end);
    each::<RqRow>(func, host, &pick, rq::end);
    each::<TisRow>(func, host, &pick, tir::end_tis);
    each::<QpRow>(func, host, &pick, qp::end);
    each::<MkeyRow>(func, host, &pick, mkey::end);
    each::<MemicRow>(func, host, &pick, memic::end);
    each::<SrqRow>(func, host, &pick, srq::end);
    each::<CqRow>(func, host, &pick, cq::end);
    each::<EqRow>(func, host, &pick, eq::end);
    each::<UmemRow>(func, host, &pick, memory::end);
    each::<PdRow>(func, host, &pick, |f, i| f.free::<PdRow>(i));
    each::<TdRow>(func, host, &pick, |f, i| f.free::<TdRow>(i));
    each::<XrcdRow>(func, host, &pick, |f, i| f.free::<XrcdRow>(i));
    each::<UarRow>(func, host, &pick, |f, i| f.free::<UarRow>(i));
    each::<CounterRow>(func, host, &pick, |f, i| f.free::<CounterRow>(i));
    // A context belongs to uid 0 itself.
    each::<UctxRow>(func, host, &pick, |f, i| f.free::<UctxRow>(i));
}

fn each<R: Row>(
    func: &mut Func<'_>,
    host: &mut dyn Host,
    pick: &impl Fn(&Head) -> bool,
    end: fn(&mut Func<'_>, u32),
) {
    some::<R>(func, host, |_, row| pick(row.head()), end);
}

fn some<R: Row>(
    func: &mut Func<'_>,
    host: &mut dyn Host,
    pick: impl Fn(&Func<'_>, &R) -> bool,
    end: fn(&mut Func<'_>, u32),
) {
    let mut all = func.live::<R>();
    all.retain(|i| func.row::<R>(*i).is_some_and(|row| pick(func, row)));
    for some in all.chunks(CHUNK) {
        for index in some {
            end(func, *index);
            // An object with many dependents may fill the journal alone.
            if !func.has_room() {
                func.commit(host);
            }
        }
        func.commit(host);
    }
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
            let mut uids = func.live::<UctxRow>();
            uids.retain(|i| func.row::<UctxRow>(*i).is_some_and(|row| row.head.party == party.0));
            uids.iter().for_each(|uid| end_uctx(&mut func, host, *uid as u16));
            let of_party = |head: &Head| head.uid == 0 && head.party == party.0;
            let memic =
                |f: &Func<'_>, number: u32| f.get::<MemicRow>(number).is_some_and(|row| of_party(&row.head));
            let key = |f: &Func<'_>, row: &MkeyRow| mkey::memic(row).is_some_and(|number| memic(f, number));
            some::<MkeyRow>(&mut func, host, key, mkey::end);
            each::<MemicRow>(&mut func, host, &of_party, memic::end);
            drop(func);
            // Needed even if the contexts were destroyed in an earlier, interrupted call.
            locked |= purge_frames(self.region(), host, fid, Patience::UntilStopped)? | 1 << fid;
            ended += uids.len();
        }
        Some((ended, locked))
    }
}
