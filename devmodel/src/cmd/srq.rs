//! Shared receive queues: SRQ, XRC SRQ and RMP, which differ only in their contexts.

use super::{
    call::{Call, let_go},
    memory::{self, Layout as Memory},
    refusal::{Done, Syndrome},
    srq_context::{self, Shape},
};
use crate::{
    region::Func,
    state::{CqRow, PdRow, SrqKind, SrqRow, XrcdRow},
};
use hwspec::cmd::{CmdOut, Opcode, srq::*};

/// log2 of the maximum number of WQEs.
pub(super) const LOG_MAX_SIZE: u8 = 15;
/// log2 of a WQE in bytes: at least a next segment and one data segment.
const LOG_STRIDES: std::ops::RangeInclusive<u8> = 5..=9;
/// `modify_rmp` bitmask: the limit.
const LWM: u64 = 1;
/// `rmp_state`: ready.
const RMP_READY: u8 = 1;
/// `op_mod` of `ARM_RQ` and `ARM_XRC_SRQ`.
pub(super) const ARM: u16 = 1;

fn kind_of(op: Opcode) -> SrqKind {
    match op {
        Opcode::CreateXrcSrq | Opcode::QueryXrcSrq | Opcode::DestroyXrcSrq | Opcode::ArmXrcSrq => {
            SrqKind::Xrc
        }
        Opcode::CreateRmp | Opcode::QueryRmp | Opcode::DestroyRmp | Opcode::ModifyRmp => SrqKind::Rmp,
        _ => SrqKind::Srq,
    }
}

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let kind = kind_of(call.opcode);
    Syndrome::InputLength.unless(call.input.len() >= CreateSrqIn::SIZE)?;
    let shape = srq_context::read(call.input, kind);
    Syndrome::Umem.unless(!shape.umem)?;
    Syndrome::Signature.unless(!shape.signature)?;
    Syndrome::RqType.unless(!shape.cyclic)?;
    Syndrome::QueueSize.unless(shape.log_size <= LOG_MAX_SIZE)?;
    Syndrome::Stride.unless(LOG_STRIDES.contains(&shape.log_stride))?;
    let pd = call.own::<PdRow>(shape.pd, Syndrome::NoSuchPd)?;
    let (mut cq, mut xrcd) = (None, None);
    if kind == SrqKind::Xrc {
        cq = Some(call.own::<CqRow>(shape.cqn, Syndrome::NoSuchCq)?);
        xrcd = Some(call.shared::<XrcdRow>(shape.xrcd, Syndrome::NoSuchXrcd)?);
    }
    let dbr = memory::record(shape.dbr)?;
    let layout = Memory {
        log_page_size: shape.log_page_size,
        page_offset: shape.page_offset,
        bytes: 1u64 << (shape.log_size + shape.log_stride),
    };
    let memory = memory::map(call, CreateSrqIn::SIZE, layout)?;
    let index = call.alloc::<SrqRow>(1)?;
    call.hold::<PdRow>(pd);
    cq.iter().for_each(|cq| call.hold::<CqRow>(*cq));
    xrcd.iter().for_each(|xrcd| call.hold::<XrcdRow>(*xrcd));
    let number = call.func.number::<SrqRow>(index);
    if let Some(row) = call.func.row_mut::<SrqRow>(index) {
        row.memory = memory;
        row.dbr = dbr;
        row.kind = kind as u32;
        row.pd = shape.pd;
        row.cqn = shape.cqn;
        row.xrcd = shape.xrcd;
        row.log_size = shape.log_size.into();
        row.log_stride = shape.log_stride.into();
        row.lwm = shape.lwm.into();
        row.user_index = if shape.user_index_is_number { number } else { shape.user_index };
    }
    call.answer(&CreateSrqOut::with(|s| s.srqn(number)))
}

/// The index of `number`, if it is of this kind.
fn find(call: &Call<'_, '_, '_>, number: u32, kind: SrqKind) -> Done<u32> {
    let index = call.own::<SrqRow>(number, Syndrome::NoSuchSrq)?;
    let is = call.func.row::<SrqRow>(index).is_some_and(|row| row.kind == kind as u32);
    Syndrome::NoSuchSrq.unless(is)?;
    Ok(index)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QuerySrqIn = call.input()?;
    let kind = kind_of(call.opcode);
    let index = find(call, input.srqn(), kind)?;
    let Some(row) = call.func.row::<SrqRow>(index) else { return Syndrome::NoSuchSrq.refuse() };
    let (page_offset, log_page_size) = memory::page_layout(&row.memory);
    let shape = Shape {
        log_size: row.log_size as u8,
        log_stride: row.log_stride as u8,
        log_page_size,
        page_offset,
        pd: row.pd,
        cqn: row.cqn,
        xrcd: row.xrcd,
        dbr: row.dbr,
        lwm: row.lwm as u16,
        user_index: row.user_index,
        filled: row.counter.wrapping_sub(row.consumed) as u16,
        ..Shape::default()
    };
    let out = srq_context::show(&shape, kind);
    call.answer_bytes(&out)
}

pub(super) fn arm(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ArmRqIn = call.input()?;
    let index = find(call, input.srq_number(), kind_of(call.opcode))?;
    set_limit(call, index, input.lwm())?;
    call.answer(&CmdOut::zeroed())
}

fn set_limit(call: &mut Call<'_, '_, '_>, index: u32, lwm: u16) -> Done {
    let Some(row) = call.func.row_mut::<SrqRow>(index) else { return Syndrome::NoSuchSrq.refuse() };
    Syndrome::QueueSize.unless(u32::from(lwm) < 1 << row.log_size)?;
    row.lwm = lwm.into();
    Ok(())
}

pub(super) fn modify_rmp(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRmpIn = call.input()?;
    let index = find(call, input.rmpn(), SrqKind::Rmp)?;
    let fields = u64::from_be_bytes(input.bitmask());
    Syndrome::ModifyField.unless(fields & !LWM == 0 && input.rmp_state() == RMP_READY)?;
    if fields & LWM != 0 {
        set_limit(call, index, input.ctx().wq().lwm())?;
    }
    call.answer(&CmdOut::zeroed())
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroySrqIn = call.input()?;
    let index = find(call, input.srqn(), kind_of(call.opcode))?;
    let refs = call.func.row::<SrqRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the queue, even if other objects refer to it.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<SrqRow>(index) else { return };
    let (memory, kind, pd, cqn, xrcd) = (row.memory, row.kind, row.pd, row.cqn, row.xrcd);
    memory::unmap(func, memory);
    let_go::<PdRow>(func, pd);
    if kind == SrqKind::Xrc as u32 {
        let_go::<CqRow>(func, cqn);
        let_go::<XrcdRow>(func, xrcd);
    }
    func.free::<SrqRow>(index);
}
