//! Creation and destruction of queue pairs.

use super::{
    call::{Call, let_go},
    memory::{self, Layout as Memory},
    qp_context,
    refusal::{Done, Syndrome},
    special_qps,
};
use crate::{
    region::{Func, Table},
    state::{CqRow, FunctionRow, PdRow, QpFlags, QpRow, SrqKind, SrqRow, UarRow, XrcdRow},
    transport::Timer,
};
use hwspec::{
    cmd::{CmdOut, qp::*, uctx::INTERNAL_DEV_RES},
    context::{QpState, ServiceType},
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

/// `qpc.rq_type`.
const RQ_OWN: u8 = 0;
const RQ_SHARED: u8 = 1;
const RQ_NONE: u8 = 3;

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
    let pd = match service {
        ServiceType::RegUmr => None,
        _ => Some(call.own::<PdRow>(context.pd(), Syndrome::NoSuchPd)?),
    };
    let target = service == ServiceType::Xrc && context.no_sq();
    let uar = match target {
        true => None,
        false => Some(call.shared::<UarRow>(context.uar_page(), Syndrome::NoSuchUar)?),
    };
    let xrcd = match service {
        ServiceType::Xrc => Some(call.shared::<XrcdRow>(context.xrcd(), Syndrome::NoSuchXrcd)?),
        _ => None,
    };
    let send_cq = call.own::<CqRow>(context.cqn_snd(), Syndrome::NoSuchCq)?;
    // An XRC QP receives by other means, and may name the driver's shared CQ for that.
    let receive_cq = match xrcd {
        Some(_) => call.shared::<CqRow>(context.cqn_rcv(), Syndrome::NoSuchCq)?,
        None => call.own::<CqRow>(context.cqn_rcv(), Syndrome::NoSuchCq)?,
    };
    let srq = match (context.rq_type(), xrcd) {
        (RQ_OWN | RQ_NONE, _) => None,
        (RQ_SHARED, Some(_)) => Some(call.shared::<SrqRow>(context.srqn_rmpn_xrqn(), Syndrome::NoSuchSrq)?),
        (RQ_SHARED, None) => Some(call.own::<SrqRow>(context.srqn_rmpn_xrqn(), Syndrome::NoSuchSrq)?),
        _ => return Syndrome::RqType.refuse(),
    };
    // XRC SRQs serve XRC QPs only, and XRC QPs use no other SRQs.
    let xrc = |row: &SrqRow| row.kind == SrqKind::Xrc as u32;
    let fits = srq.and_then(|i| call.func.row::<SrqRow>(i)).is_none_or(|row| xrc(row) == xrcd.is_some());
    Syndrome::NoSuchSrq.unless(fits && (srq.is_some() || xrcd.is_none()))?;
    let umem = context.dbr_umem_valid().then_some(context.dbr_umem_id());
    let dbr = memory::record_in(call, umem, context.dbr_addr())?;

    let (no_sq, no_rq) = (context.no_sq(), context.rq_type() != RQ_OWN);
    let log_stride = context.log_rq_stride() + 4;
    let size_ok =
        (no_sq || context.log_sq_size() <= LOG_MAX_SIZE) && (no_rq || context.log_rq_size() <= LOG_MAX_SIZE);
    Syndrome::QueueSize.unless(size_ok)?;
    Syndrome::Stride.unless(no_rq || log_stride <= LOG_MAX_RQ_STRIDE)?;
    let rq_bytes = if no_rq { 0 } else { 1u64 << (context.log_rq_size() + log_stride) };
    let sq_bytes = if no_sq { 0 } else { (WQE_BB as u64) << context.log_sq_size() };
    let layout = Memory {
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        bytes: rq_bytes + sq_bytes,
    };
    let memory = match input.wq_umem_valid() {
        true => memory::within(call, input.wq_umem_id(), input.wq_umem_offset(), layout.bytes)?,
        false => memory::map(call, CreateQpIn::SIZE, layout)?,
    };

    Syndrome::TableFull.unless(call.func.used::<QpRow>() < max_qps(call.func))?;
    // The numbers 0 and 1 of QP0 and QP1 are not allocated.
    let index = call.alloc::<QpRow>(2)?;
    pd.iter().for_each(|pd| call.hold::<PdRow>(*pd));
    uar.iter().for_each(|uar| call.hold::<UarRow>(*uar));
    xrcd.iter().for_each(|xrcd| call.hold::<XrcdRow>(*xrcd));
    call.hold::<CqRow>(send_cq);
    call.hold::<CqRow>(receive_cq);
    srq.iter().for_each(|srq| call.hold::<SrqRow>(*srq));
    let ring = input.wq_umem_valid().then_some(input.wq_umem_id());
    let umems = memory::hold(call, [ring, umem]);
    if let Some(row) = call.func.row_mut::<QpRow>(index) {
        row.state = QpState::Reset.raw();
        row.service = service.raw();
        row.pd = if pd.is_some() { context.pd() } else { NO_PD };
        row.xrcd = if xrcd.is_some() { context.xrcd() } else { 0 };
        row.deth_sqpn = if call.uid == 0 { context.deth_sqpn() } else { 0 };
        row.cqn_snd = context.cqn_snd();
        row.cqn_rcv = context.cqn_rcv();
        row.user_index = context.user_index();
        row.dbr = dbr;
        row.memory = memory;
        row.umems = umems;
        row.sq_offset = rq_bytes as u32;
        row.log_sq = context.log_sq_size();
        row.log_rq = context.log_rq_size();
        row.log_rq_stride = log_stride;
        row.uar = uar.unwrap_or(NO_UAR);
        row.counter_set = context.counter_set_id().into();
        row.set(QpFlags::NO_SQ, no_sq);
        row.set(QpFlags::NO_RQ, context.rq_type() == RQ_NONE);
        row.set(QpFlags::HAS_SRQ, srq.is_some());
        row.srqn = if srq.is_some() { context.srqn_rmpn_xrqn() } else { 0 };
        row.set(QpFlags::RESERVED_LKEY, context.rlky() && call.uid == 0);
        row.set(QpFlags::BLOCK_MULTICAST_LOOPBACK, context.block_lb_mc());
        let connected = matches!(service, ServiceType::Rc | ServiceType::Uc);
        row.set(QpFlags::SCATTER_RES, context.cs_res() != 0 && connected);
        row.set(QpFlags::SCATTER_REQ, context.cs_req() != 0);
        reset(row);
    }
    special_qps::enter(call.func, service, index);
    call.answer(&CreateQpOut::with(|s| s.qpn(call.func.number::<QpRow>(index))))
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
    let input: QueryQpIn = call.input()?;
    let index = call.own::<QpRow>(input.qpn(), Syndrome::NoSuchQp)?;
    let Some(row) = call.func.row::<QpRow>(index) else { return Syndrome::NoSuchQp.refuse() };
    let context = qp_context::show(row);
    let out = QueryQpOut::with(|s| s.qpc(context));
    let pages = row.memory;
    let mut bytes = out.as_bytes().to_vec();
    // The page list follows, as far as it fits.
    let room = call.output.len().saturating_sub(bytes.len()) / 8;
    for i in 0..pages.pages.min(room as u32) {
        bytes.extend_from_slice(&(call.func.mtt(pages.mtt + i) & !0xfff).to_be_bytes());
    }
    call.answer_bytes(&bytes)
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyQpIn = call.input()?;
    let index = call.own::<QpRow>(input.qpn(), Syndrome::NoSuchQp)?;
    let refs = call.func.row::<QpRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the QP without completions; its peer's requests are no longer answered.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<QpRow>(index) else { return };
    let (memory, pd, uar, send_cq, receive_cq) = (row.memory, row.pd, row.uar, row.cqn_snd, row.cqn_rcv);
    let umems = row.umems;
    let srq = row.has(QpFlags::HAS_SRQ).then_some(row.srqn);
    let xrcd = (row.service == ServiceType::Xrc.raw()).then_some(row.xrcd);
    special_qps::leave(func, index);
    super::mcg::leave_all(func, index);
    func.forget_timers(index);
    memory::unmap(func, memory);
    memory::release(func, umems);
    let_go::<PdRow>(func, pd);
    let_go::<UarRow>(func, uar);
    let_go::<CqRow>(func, send_cq);
    let_go::<CqRow>(func, receive_cq);
    srq.iter().for_each(|srq| let_go::<SrqRow>(func, *srq));
    xrcd.iter().for_each(|xrcd| let_go::<XrcdRow>(func, *xrcd));
    func.free::<QpRow>(index);
}

/// Maximum number of QPs of the driver.
fn max_qps(func: &Func<'_>) -> u32 {
    match func.function().caps_set[FunctionRow::SET_LOG_MAX_QP] {
        0 => func.rows(Table::Qp),
        chosen => 1 << chosen,
    }
}
