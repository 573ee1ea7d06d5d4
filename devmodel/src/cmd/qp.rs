//! Creation and destruction of queue pairs.

use super::{
    bind::Bound,
    call::Call,
    memory::Given,
    object,
    refusal::{Done, Syndrome},
    special_qps,
};
use crate::{
    region::{Func, Table},
    state::{CqRow, FunctionRow, PdRow, QpFlags, QpRow, SrqKind, SrqRow, UarRow, XrcdRow},
    transport::Timer,
};
use hwspec::{
    cmd::{qp::*, uctx::INTERNAL_DEV_RES},
    context::{QpState, ServiceType, qp::*},
    wqe::WQE_BB,
};

/// log2 of the maximum number of send basic blocks, and of receive WQEs.
pub(super) const LOG_MAX_SIZE: u8 = 15;
/// log2 of the largest receive WQE in bytes.
pub(super) const LOG_MAX_RQ_STRIDE: u8 = 9;
/// Service types that the pipeline implements.
const SERVICES: &[ServiceType] = &[
    ServiceType::Rc,
    ServiceType::Uc,
    ServiceType::Ud,
    ServiceType::Xrc,
    ServiceType::Qp0,
    ServiceType::Qp1,
    ServiceType::RegUmr,
];
/// `QpRow::pd` of a QP without a protection domain.
const NO_PD: u32 = u32::MAX;
/// `QpRow::uar` of a QP without doorbells.
const NO_UAR: u32 = u32::MAX;

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateQpIn = call.input()?;
    let context = input.qpc();
    let service = context.st();
    Syndrome::ServiceType.unless(SERVICES.contains(&service))?;
    let privileged = match service {
        ServiceType::Qp0 => call.uid == 0,
        ServiceType::Qp1 => call.uid == 0 || call.has_right(INTERNAL_DEV_RES),
        _ => true,
    };
    Syndrome::Privileged.unless(privileged)?;
    Syndrome::InUse.unless(special_qps::may_create(call, service))?;
    Syndrome::Signature.unless(!context.wq_signature())?;
    // The QP for memory registration works on all domains.
    let has_pd = service != ServiceType::RegUmr;
    if has_pd {
        call.own::<PdRow>(context.pd())?;
    }
    let is_xrc = service == ServiceType::Xrc;
    let has_uar = !(is_xrc && context.no_sq());
    if has_uar {
        call.shared::<UarRow>(context.uar_page())?;
    }
    if is_xrc {
        call.shared::<XrcdRow>(context.xrcd())?;
    }
    call.own::<CqRow>(context.cqn_snd())?;
    // An XRC QP receives by other means, and may name the driver's shared CQ for that.
    match is_xrc {
        true => call.shared::<CqRow>(context.cqn_rcv())?,
        false => call.own::<CqRow>(context.cqn_rcv())?,
    };
    let srq = match (context.rq_type(), is_xrc) {
        (RQ_OWN | RQ_NONE, _) => None,
        (RQ_SHARED, true) => Some(call.shared::<SrqRow>(context.srqn_rmpn_xrqn())?),
        (RQ_SHARED, false) => Some(call.own::<SrqRow>(context.srqn_rmpn_xrqn())?),
        _ => return Syndrome::RqType.refuse(),
    };
    // XRC SRQs serve XRC QPs only, and XRC QPs use no other SRQs.
    let xrc = |row: &SrqRow| row.kind == SrqKind::Xrc as u32;
    let fits = srq.and_then(|i| call.func.row::<SrqRow>(i)).is_none_or(|row| xrc(row) == is_xrc);
    Syndrome::NoSuchSrq.unless(fits && (srq.is_some() || !is_xrc))?;

    let (no_sq, no_rq) = (context.no_sq(), context.rq_type() != RQ_OWN);
    let log_stride = context.log_rq_stride() + 4;
    let size_ok =
        (no_sq || context.log_sq_size() <= LOG_MAX_SIZE) && (no_rq || context.log_rq_size() <= LOG_MAX_SIZE);
    Syndrome::QueueSize.unless(size_ok)?;
    Syndrome::Stride.unless(no_rq || log_stride <= LOG_MAX_RQ_STRIDE)?;
    let rq_bytes = if no_rq { 0 } else { 1u64 << (context.log_rq_size() + log_stride) };
    let sq_bytes = if no_sq { 0 } else { (WQE_BB as u64) << context.log_sq_size() };
    let given = Given {
        list: CreateQpIn::SIZE,
        pages: (context.log_page_size(), context.page_offset()),
        ring: input.wq_umem_valid().then_some((input.wq_umem_id(), input.wq_umem_offset())),
        record: context.dbr_umem_valid().then_some(context.dbr_umem_id()),
        dbr: context.dbr_addr(),
    };
    let place = given.map(call, rq_bytes + sq_bytes)?;

    Syndrome::TableFull.unless(call.func.used::<QpRow>() < max_qps(call.func))?;
    let is_driver = call.uid == 0;
    let index = call.make::<QpRow>(|row| {
        row.take(&context);
        row.service = service.raw();
        row.pd = if has_pd { context.pd() } else { NO_PD };
        row.uar = if has_uar { context.uar_page() } else { NO_UAR };
        row.xrcd = if is_xrc { context.xrcd() } else { 0 };
        row.srqn = if srq.is_some() { context.srqn_rmpn_xrqn() } else { 0 };
        row.deth_sqpn = if is_driver { context.deth_sqpn() } else { 0 };
        (row.dbr, row.memory, row.umems) = (place.dbr, place.memory, place.umems);
        row.sq_offset = rq_bytes as u32;
        row.log_rq_stride = log_stride;
        let connected = matches!(service, ServiceType::Rc | ServiceType::Uc);
        for (flag, on) in [
            (QpFlags::NO_SQ, no_sq),
            (QpFlags::NO_RQ, context.rq_type() == RQ_NONE),
            (QpFlags::HAS_SRQ, srq.is_some()),
            (QpFlags::RESERVED_LKEY, context.rlky() && is_driver),
            (QpFlags::BLOCK_MULTICAST_LOOPBACK, context.block_lb_mc()),
            (QpFlags::SCATTER_RES, context.cs_res() != 0 && connected),
            (QpFlags::SCATTER_REQ, context.cs_req() != 0),
        ] {
            row.set(flag, on);
        }
        reset(row);
    })?;
    special_qps::enter(call.func, service, index);
    call.created::<QpRow>(index)
}

/// Returns the QP to its state after creation and drops all outstanding work.
pub(super) fn reset(row: &mut QpRow) {
    let kept = QpFlags::SCATTER_RES
        | QpFlags::SCATTER_REQ
        | QpFlags::RESERVED_LKEY
        | QpFlags::HAS_SRQ
        | QpFlags::BLOCK_MULTICAST_LOOPBACK
        | QpFlags::NO_SQ
        | QpFlags::NO_RQ
        // Entries in the ready ring and the timer heap stay there and are ignored later.
        | QpFlags::READY;
    let kept = Timer::ALL.into_iter().fold(kept, |kept, timer| kept | QpFlags::of_timer(timer));
    *row = QpRow {
        head: row.head,
        flags: row.flags & kept.bits(),
        state: QpState::Reset.raw(),
        service: row.service,
        pd: row.pd,
        cqn_snd: row.cqn_snd,
        cqn_rcv: row.cqn_rcv,
        user_index: row.user_index,
        srqn: row.srqn,
        dbr: row.dbr,
        memory: row.memory,
        umems: row.umems,
        sq_offset: row.sq_offset,
        log_sq: row.log_sq,
        log_rq: row.log_rq,
        log_rq_stride: row.log_rq_stride,
        counter_set: row.counter_set,
        uar: row.uar,
        xrcd: row.xrcd,
        deth_sqpn: row.deth_sqpn,
        special_next: row.special_next,
        ..zerocopy::FromZeros::new_zeroed()
    };
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let row = *call.row::<QpRow>(call.named::<QpRow>()?)?;
    let out = QueryQpOut::with(|s| s.qpc(row.show()));
    // The page list follows, as far as it fits.
    let room = call.output.len().saturating_sub(QueryQpOut::SIZE) / 8;
    let pages = 0..row.memory.pages.min(room as u32);
    let list: Vec<_> = pages.map(|i| (call.func.mtt(row.memory.mtt + i) & !0xfff).to_be_bytes()).collect();
    call.answer_list(&out, list)
}

/// Destroys the QP without completions; its peer's requests are no longer answered.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    special_qps::leave(func, index);
    super::mcg::leave_all(func, index);
    func.forget_timers(index);
    object::end::<QpRow>(func, index);
}

/// Maximum number of QPs of the driver.
fn max_qps(func: &Func<'_>) -> u32 {
    match func.function().caps_set[FunctionRow::SET_LOG_MAX_QP] {
        0 => func.rows(Table::Qp),
        chosen => 1 << chosen,
    }
}
