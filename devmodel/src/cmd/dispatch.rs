//! Which command is allowed when, and where it is carried out.

use super::{
    adapter,
    call::Call,
    caps, cq, eq, flow, flow_entry, hca_vport, mad_ifc, mcg, memic, memory, mkey, nic_vport, pages,
    port_counters, qp, qp_modify,
    refusal::{Done, Syndrome},
    registers, resource, rq, sq, srq, tir, uctx, vport,
};
use crate::{
    pipe::event,
    region::Func,
    state::{EqRow, UctxRow},
};
use hwspec::cmd::Opcode;
use hwspec::eqe::{CmdEvent, Eqe, EventType};

/// `FunctionRow::hca_state`: after a reset.
pub(super) const RESET: u32 = 0;
/// `FunctionRow::hca_state`: after `ENABLE_HCA`.
pub(super) const ENABLED: u32 = 1;
/// `FunctionRow::hca_state`: after `INIT_HCA`.
pub(crate) const RUNNING: u32 = 2;

/// The least state of the bring-up in which a command is allowed.
fn least_state(op: Opcode) -> u32 {
    match op {
        Opcode::EnableHca | Opcode::DisableHca | Opcode::Nop => RESET,
        Opcode::QueryIssi
        | Opcode::SetIssi
        | Opcode::QueryPages
        | Opcode::ManagePages
        | Opcode::QueryHcaCap
        | Opcode::SetHcaCap
        | Opcode::InitHca
        | Opcode::TeardownHca
        | Opcode::AccessReg
        | Opcode::QueryAdapter
        | Opcode::SetDriverVersion => ENABLED,
        _ => RUNNING,
    }
}

/// Whether the command gives `op_mod` a meaning.
fn takes_op_mod(op: Opcode) -> bool {
    matches!(
        op,
        Opcode::QueryHcaCap
            | Opcode::SetHcaCap
            | Opcode::QueryPages
            | Opcode::ManagePages
            | Opcode::AccessReg
            | Opcode::MadIfc
            | Opcode::QueryVportState
            | Opcode::ModifyVportState
            | Opcode::ModifyCq
            | Opcode::ArmRq
            | Opcode::ArmXrcSrq
            | Opcode::SetFlowTableRoot
            | Opcode::SetFlowTableEntry
    )
}

/// The uid of resources shared by all user contexts (Linux: MLX5_SHARED_RESOURCE_UID).
pub(super) const SHARED_UID: u16 = 0xffff;

/// Whether the command creates, changes or ends an object that may belong to a user context.
fn takes_uid(op: Opcode) -> bool {
    !(least_state(op) < RUNNING
        || matches!(
            op,
            Opcode::CreateUctx
                | Opcode::DestroyUctx
                | Opcode::ModifyVportState
                | Opcode::ModifyNicVportContext
                | Opcode::SetRoceAddress
                | Opcode::ModifyHcaVportContext
                | Opcode::MadIfc
                | Opcode::QuerySpecialContexts
        ))
}

/// Carries out the command in `call`.
pub(super) fn run(call: &mut Call<'_, '_, '_>, op: Opcode) -> Done {
    if !op.is_named() {
        return Syndrome::UnknownOpcode.refuse();
    }
    Syndrome::HcaState.unless(call.func.function().hca_state >= least_state(op))?;
    Syndrome::OpMod.unless(call.op_mod == 0 || takes_op_mod(op))?;
    // What the driver lets all user contexts use is its own.
    if call.uid == SHARED_UID {
        call.uid = 0;
    }
    if call.uid != 0 {
        // Commands without a uid field carry zero there or, from user programs, the uid of their context.
        Syndrome::Privileged.unless(takes_uid(op))?;
        Syndrome::Uid.unless(call.func.row::<UctxRow>(call.uid.into()).is_some())?;
    }
    match op {
        Opcode::EnableHca => adapter::enable(call),
        Opcode::DisableHca => adapter::disable(call),
        Opcode::InitHca => adapter::init(call),
        Opcode::TeardownHca => adapter::teardown(call),
        Opcode::QueryIssi => adapter::query_issi(call),
        Opcode::SetIssi => adapter::set_issi(call),
        Opcode::QueryAdapter => adapter::query(call),
        Opcode::SetDriverVersion => adapter::driver_version(call),
        Opcode::QuerySpecialContexts => adapter::special_contexts(call),
        Opcode::Nop => call.done(),
        Opcode::QueryPages => pages::query(call),
        Opcode::ManagePages => pages::manage(call),
        Opcode::QueryHcaCap => caps::query(call),
        Opcode::SetHcaCap => caps::set(call),
        Opcode::AccessReg => registers::access(call),

        Opcode::CreateUctx => uctx::create(call),
        Opcode::DestroyUctx => uctx::destroy(call),
        Opcode::CreateUmem => memory::create(call),
        Opcode::DestroyUmem => memory::destroy(call),
        Opcode::AllocPd => resource::alloc_pd(call),
        Opcode::DeallocPd => resource::dealloc_pd(call),
        Opcode::AllocUar => resource::alloc_uar(call),
        Opcode::DeallocUar => resource::dealloc_uar(call),
        Opcode::AllocTransportDomain => resource::alloc_td(call),
        Opcode::DeallocTransportDomain => resource::dealloc_td(call),
        Opcode::AllocXrcd => resource::alloc_xrcd(call),
        Opcode::DeallocXrcd => resource::dealloc_xrcd(call),
        Opcode::AllocQCounter => resource::alloc_counter(call),
        Opcode::DeallocQCounter => resource::dealloc_counter(call),
        Opcode::QueryQCounter => resource::query_counter(call),

        Opcode::CreateEq => eq::create(call),
        Opcode::QueryEq => eq::query(call),
        Opcode::DestroyEq => eq::destroy(call),
        Opcode::CreateCq => cq::create(call),
        Opcode::QueryCq => cq::query(call),
        Opcode::ModifyCq => cq::modify(call),
        Opcode::DestroyCq => cq::destroy(call),
        Opcode::CreateMkey => mkey::create(call),
        Opcode::QueryMkey => mkey::query(call),
        Opcode::DestroyMkey => mkey::destroy(call),
        Opcode::AllocMemic => memic::alloc(call),
        Opcode::DeallocMemic => memic::dealloc(call),

        Opcode::CreateQp => qp::create(call),
        Opcode::QueryQp => qp::query(call),
        Opcode::DestroyQp => qp::destroy(call),
        Opcode::Rst2initQp
        | Opcode::Init2initQp
        | Opcode::Init2rtrQp
        | Opcode::Rtr2rtsQp
        | Opcode::Rts2rtsQp
        | Opcode::Sqerr2rtsQp
        | Opcode::SqdRtsQp
        | Opcode::Rts2sqdQp
        | Opcode::Sqd2sqdQp
        | Opcode::Qp2Err
        | Opcode::Qp2Rst => qp_modify::transition(call, op),

        Opcode::AttachToMcg => mcg::attach(call),
        Opcode::DetachFromMcg => mcg::detach(call),

        Opcode::CreateSrq | Opcode::CreateXrcSrq | Opcode::CreateRmp => srq::create(call, op),
        Opcode::QuerySrq | Opcode::QueryXrcSrq | Opcode::QueryRmp => srq::query(call, op),
        Opcode::ArmRq | Opcode::ArmXrcSrq => srq::arm(call, op),
        Opcode::ModifyRmp => srq::modify_rmp(call),
        Opcode::DestroySrq | Opcode::DestroyXrcSrq | Opcode::DestroyRmp => srq::destroy(call, op),

        Opcode::CreateSq => sq::create(call),
        Opcode::ModifySq => sq::modify(call),
        Opcode::QuerySq => sq::query(call),
        Opcode::DestroySq => sq::destroy(call),
        Opcode::CreateRq => rq::create(call),
        Opcode::ModifyRq => rq::modify(call),
        Opcode::QueryRq => rq::query(call),
        Opcode::DestroyRq => rq::destroy(call),
        Opcode::CreateTis => tir::create_tis(call),
        Opcode::ModifyTis => tir::modify_tis(call),
        Opcode::QueryTis => tir::query_tis(call),
        Opcode::DestroyTis => tir::destroy_tis(call),
        Opcode::CreateTir => tir::create_tir(call),
        Opcode::ModifyTir => tir::modify_tir(call),
        Opcode::QueryTir => tir::query_tir(call),
        Opcode::DestroyTir => tir::destroy_tir(call),
        Opcode::CreateRqt => tir::create_rqt(call),
        Opcode::ModifyRqt => tir::modify_rqt(call),
        Opcode::QueryRqt => tir::query_rqt(call),
        Opcode::DestroyRqt => tir::destroy_rqt(call),

        Opcode::CreateFlowTable => flow::create_table(call),
        Opcode::ModifyFlowTable => flow::modify_table(call),
        Opcode::QueryFlowTable => flow::query_table(call),
        Opcode::DestroyFlowTable => flow::destroy_table(call),
        Opcode::SetFlowTableRoot => flow::set_root(call),
        Opcode::CreateFlowGroup => flow::create_group(call),
        Opcode::QueryFlowGroup => flow::query_group(call),
        Opcode::DestroyFlowGroup => flow::destroy_group(call),
        Opcode::SetFlowTableEntry => flow_entry::set(call),
        Opcode::QueryFlowTableEntry => flow_entry::query(call),
        Opcode::DeleteFlowTableEntry => flow_entry::delete(call),
        Opcode::AllocFlowCounter => flow::alloc_counter(call),
        Opcode::DeallocFlowCounter => flow::dealloc_counter(call),
        Opcode::QueryFlowCounter => flow::query_counter(call),

        Opcode::QueryVportState => vport::query_state(call),
        Opcode::ModifyVportState => vport::modify_state(call),
        Opcode::QueryNicVportContext => nic_vport::query(call),
        Opcode::ModifyNicVportContext => nic_vport::modify(call),
        Opcode::SetRoceAddress => vport::set_roce_address(call),
        Opcode::QueryRoceAddress => vport::query_roce_address(call),
        Opcode::QueryVportCounter => port_counters::query_vport(call),
        Opcode::QueryHcaVportContext => hca_vport::query_context(call),
        Opcode::ModifyHcaVportContext => hca_vport::modify_context(call),
        Opcode::QueryHcaVportGid => hca_vport::query_gid(call),
        Opcode::QueryHcaVportPkey => hca_vport::query_pkey(call),
        Opcode::MadIfc => mad_ifc::run(call),
        _ => Syndrome::UnknownOpcode.refuse(),
    }
}

/// The event queue command completions go to.
pub(super) fn command_eq(func: &Func<'_>) -> Option<u32> {
    let bit = 1u64 << EventType::Cmd.raw();
    func.live::<EqRow>().into_iter().find(|i| func.row::<EqRow>(*i).is_some_and(|eq| eq.mask[0] & bit != 0))
}

/// Tells that the command of `slot` is complete.
pub(super) fn command_event(func: &mut Func<'_>, slot: u32) {
    let Some(eqn) = command_eq(func) else { return };
    let mut event = CmdEvent::zeroed();
    event.set().command_completion_vector(1 << slot);
    event::push(func, eqn, Eqe::new(EventType::Cmd, event));
}
