//! The table of the kinds of objects.

use super::{
    cq, eswitch, flow, flow_entry, mcg,
    memory::{entries, umem},
    mkey,
    object::{Object, Ref, end, end_some, to},
    qp,
    refusal::Syndrome,
    rq, tir,
};
use crate::{
    host::Host,
    region::{Func, MttRange, Row},
    state::*,
    translate::REPEAT,
};
use hwspec::{
    context::{ServiceType, tir::DIRECT},
    pcie::FIRST_UAR,
};

/// The second of two alternatives, if it is given.
macro_rules! or {
    ($default:expr) => {
        $default
    };
    ($default:expr, $given:expr) => {
        $given
    };
}

/// A line for each kind: its row, the syndrome for a wrong number, the first index, and if needed: the function that destroys an object, if
/// that takes more than freeing it; the objects it refers to; the translation entries it owns.
macro_rules! objects { ($(
    $R:ident, $missing:ident, $first:expr
        $(, by $end:path)?
        $(; |$row:ident| $( refers [$($to:expr),*] $([$more:expr])? )? $( owns $entries:expr )? )?;
)*) => {
    $( impl Object for $R {
        const MISSING: Syndrome = Syndrome::$missing;
        const FIRST: u32 = $first;
        const END: fn(&mut Func<'_>, u32) = |func, index| or!(end::<Self>(func, index) $(, $end(func, index))?);
        fn refers(&self) -> impl Iterator<Item = Ref> {
            let all = [ $( $( $({ let $row = self; $to },)* )? )? None ].into_iter().flatten();
            $( $( $( let $row = self; let all = all.chain($more); )? )? )?
            all
        }
        fn entries(&self) -> MttRange {
            or!(MttRange::default() $( $(, { let $row = self; $entries })? )?)
        }
    } )*

    /// Destroys all objects that match `pick`; user contexts only if it matches all. Commits on the way.
    pub(crate) fn end_objects(func: &mut Func<'_>, host: &mut dyn Host, pick: impl Fn(&Head) -> bool) {
        $( end_some::<$R>(func, host, |_, row| pick(row.head())); )*
    }
} }

// Referrers are destroyed before the objects they refer to.
objects! {
    FlowEntryRow, NoSuchFlowEntry, 0, by flow_entry::end; |row| refers [to::<FlowGroupRow>(row.group)] [flow_entry::refers(row)];
    FlowGroupRow, NoSuchFlowGroup, 1; |row| refers [to::<FlowTableRow>(row.table)];
    FlowTableRow, NoSuchFlowTable, 1, by flow::end_table;
    FlowCounterRow, NoSuchFlowCounter, 1;
    // Rows of ports and of layer-2 addresses are not allocated: the index is that of the port or entry.
    VportRow, FunctionId, 0, by Func::clear_at::<VportRow>;
    SchedulingRow, NoSuchElement, 1, by eswitch::end_element; |row| refers [to::<SchedulingRow>(row.parent)];
    L2Row, TableIndex, 0, by Func::clear_at::<L2Row>;
    TirRow, NoSuchTir, 0, by tir::end; |row| refers [
        to::<TdRow>(row.td),
        to::<RqRow>((row.disp == u32::from(DIRECT)).then_some(row.rqn)),
        to::<RqtRow>((row.disp != u32::from(DIRECT)).then_some(row.rqt))
    ];
    RqtRow, NoSuchRqt, 0; |row| owns MttRange { first: row.mtt, len: row.actual };
    SqRow, NoSuchSq, 0; |row| refers [
        to::<PdRow>(row.pd),
        to::<UarRow>(row.uar),
        to::<CqRow>(row.cqn),
        to::<TisRow>((row.flags & SqRow::HAS_TIS != 0).then_some(row.tis)),
        umem(row.umems[0]),
        umem(row.umems[1])
    ] owns entries(&row.memory);
    RqRow, NoSuchRq, 0, by rq::end; |row| refers [
        to::<PdRow>((row.flags & RqRow::HAS_PD != 0).then_some(row.pd)),
        to::<CqRow>(row.cqn),
        umem(row.umems[0]),
        umem(row.umems[1])
    ] owns entries(&row.memory);
    TisRow, NoSuchTis, 0; |row| refers [to::<TdRow>(row.td)];
    // The numbers 0 and 1 of QP0 and QP1 are not allocated.
    QpRow, NoSuchQp, 2, by qp::end; |row| refers [
        to::<PdRow>(row.pd),
        to::<UarRow>(row.uar),
        to::<XrcdRow>((row.service == ServiceType::Xrc.raw()).then_some(row.xrcd)),
        to::<CqRow>(row.cqn_snd),
        to::<CqRow>(row.cqn_rcv),
        to::<SrqRow>(row.has(QpFlags::HAS_SRQ).then_some(row.srqn)),
        umem(row.umems[0]),
        umem(row.umems[1])
    ] owns entries(&row.memory);
    GroupRow, NotInGroup, 0, by mcg::end;
    // The indices before the first are reserved for the reserved lkey, the null key and repeat blocks.
    MkeyRow, NoSuchMkey, (REPEAT >> 8) + 1, by mkey::end; |row| refers [
        to::<PdRow>(row.pd),
        to::<MemicRow>(mkey::memic(row))
    ] owns mkey::entries(row);
    MemicRow, Memic, 0;
    SrqRow, NoSuchSrq, 1; |row| refers [
        to::<PdRow>(row.pd),
        to::<CqRow>((row.kind == SrqKind::Xrc as u32).then_some(row.cqn)),
        to::<XrcdRow>((row.kind == SrqKind::Xrc as u32).then_some(row.xrcd)),
        umem(row.umems[0]),
        umem(row.umems[1])
    ] owns entries(&row.memory);
    CqRow, NoSuchCq, 0, by cq::end; |row| refers [
        to::<UarRow>(row.uar),
        to::<EqRow>(row.eqn),
        umem(row.umems[0]),
        umem(row.umems[1])
    ] owns entries(&row.memory);
    // In a CQ's row, number 0 means no event queue.
    EqRow, NoSuchEq, 1; |row| refers [to::<UarRow>(row.uar)] owns entries(&row.memory);
    UmemRow, NoSuchUmem, 0; |row| owns entries(&row.memory);
    PdRow, NoSuchPd, 0;
    // A TIR in domain 0 is in none.
    TdRow, NoSuchTd, 1;
    XrcdRow, NoSuchXrcd, 0;
    // The number is that of the page in BAR0.
    UarRow, NoSuchUar, FIRST_UAR;
    // Set 0 is the default of QPs.
    CounterRow, NoSuchCounter, 1;
    // The index is the uid; uid 0 is the function's own driver. A context belongs to uid 0 itself.
    UctxRow, NoSuchUctx, 1;
}
