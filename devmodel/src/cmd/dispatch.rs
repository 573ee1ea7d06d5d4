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
use hwspec::cmd::Opcode::{self, *};
use hwspec::eqe::{CmdEvent, Eqe, EventType};

/// `FunctionRow::hca_state`: after a reset.
pub(super) const RESET: u32 = 0;
/// `FunctionRow::hca_state`: after `ENABLE_HCA`.
pub(super) const ENABLED: u32 = 1;
/// `FunctionRow::hca_state`: after `INIT_HCA`.
pub(super) const RUNNING: u32 = 2;

/// The least state of the bring-up in which a command is allowed.
fn least_state(op: Opcode) -> u32 {
    match op {
        EnableHca | DisableHca | Nop => RESET,
        QueryIssi | SetIssi | QueryPages | ManagePages | QueryHcaCap | SetHcaCap | InitHca | TeardownHca
        | AccessReg | QueryAdapter | SetDriverVersion => ENABLED,
        _ => RUNNING,
    }
}

/// Whether the command gives `op_mod` a meaning.
fn takes_op_mod(op: Opcode) -> bool {
    matches!(
        op,
        QueryHcaCap
            | SetHcaCap
            | QueryPages
            | ManagePages
            | AccessReg
            | MadIfc
            | QueryVportState
            | ModifyVportState
            | ModifyCq
            | ArmRq
            | ArmXrcSrq
            | SetFlowTableRoot
            | SetFlowTableEntry
    )
}

/// The uid of resources shared by all user contexts (Linux: MLX5_SHARED_RESOURCE_UID).
pub(super) const SHARED_UID: u16 = 0xffff;

/// Whether the command creates, changes or ends an object that may belong to a user context.
fn takes_uid(op: Opcode) -> bool {
    !(least_state(op) < RUNNING
        || matches!(
            op,
            CreateUctx
                | DestroyUctx
                | ModifyVportState
                | ModifyNicVportContext
                | SetRoceAddress
                | ModifyHcaVportContext
                | MadIfc
                | QuerySpecialContexts
        ))
}

/// Carries out the command in `call`.
pub(super) fn run(call: &mut Call<'_, '_, '_>, op: Opcode) -> Done {
    if let Other(_) = op {
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
        EnableHca => adapter::enable(call),
        DisableHca => adapter::disable(call),
        InitHca => adapter::init(call),
        TeardownHca => adapter::teardown(call),
        QueryIssi => adapter::query_issi(call),
        SetIssi => adapter::set_issi(call),
        QueryAdapter => adapter::query(call),
        SetDriverVersion => adapter::driver_version(call),
        QuerySpecialContexts => adapter::special_contexts(call),
        Nop => call.done(),
        QueryPages => pages::query(call),
        ManagePages => pages::manage(call),
        QueryHcaCap => caps::query(call),
        SetHcaCap => caps::set(call),
        AccessReg => registers::access(call),

        CreateUctx => uctx::create(call),
        DestroyUctx => uctx::destroy(call),
        CreateUmem => memory::create(call),
        DestroyUmem => memory::destroy(call),
        AllocPd => resource::alloc_pd(call),
        DeallocPd => resource::dealloc_pd(call),
        AllocUar => resource::alloc_uar(call),
        DeallocUar => resource::dealloc_uar(call),
        AllocTransportDomain => resource::alloc_td(call),
        DeallocTransportDomain => resource::dealloc_td(call),
        AllocXrcd => resource::alloc_xrcd(call),
        DeallocXrcd => resource::dealloc_xrcd(call),
        AllocQCounter => resource::alloc_counter(call),
        DeallocQCounter => resource::dealloc_counter(call),
        QueryQCounter => resource::query_counter(call),

        CreateEq => eq::create(call),
        QueryEq => eq::query(call),
        DestroyEq => eq::destroy(call),
        CreateCq => cq::create(call),
        QueryCq => cq::query(call),
        ModifyCq => cq::modify(call),
        DestroyCq => cq::destroy(call),
        CreateMkey => mkey::create(call),
        QueryMkey => mkey::query(call),
        DestroyMkey => mkey::destroy(call),
        AllocMemic => memic::alloc(call),
        DeallocMemic => memic::dealloc(call),

        CreateQp => qp::create(call),
        QueryQp => qp::query(call),
        DestroyQp => qp::destroy(call),
        Rst2initQp | Init2initQp | Init2rtrQp | Rtr2rtsQp | Rts2rtsQp | Sqerr2rtsQp | SqdRtsQp
        | Rts2sqdQp | Sqd2sqdQp | Qp2Err | Qp2Rst => qp_modify::transition(call, op),

        AttachToMcg => mcg::attach(call),
        DetachFromMcg => mcg::detach(call),

        CreateSrq | CreateXrcSrq | CreateRmp => srq::create(call, op),
        QuerySrq | QueryXrcSrq | QueryRmp => srq::query(call, op),
        ArmRq | ArmXrcSrq => srq::arm(call, op),
        ModifyRmp => srq::modify_rmp(call),
        DestroySrq | DestroyXrcSrq | DestroyRmp => srq::destroy(call, op),

        CreateSq => sq::create(call),
        ModifySq => sq::modify(call),
        QuerySq => sq::query(call),
        DestroySq => sq::destroy(call),
        CreateRq => rq::create(call),
        ModifyRq => rq::modify(call),
        QueryRq => rq::query(call),
        DestroyRq => rq::destroy(call),
        CreateTis => tir::create_tis(call),
        ModifyTis => tir::modify_tis(call),
        QueryTis => tir::query_tis(call),
        DestroyTis => tir::destroy_tis(call),
        CreateTir => tir::create_tir(call),
        ModifyTir => tir::modify_tir(call),
        QueryTir => tir::query_tir(call),
        DestroyTir => tir::destroy_tir(call),
        CreateRqt => tir::create_rqt(call),
        ModifyRqt => tir::modify_rqt(call),
        QueryRqt => tir::query_rqt(call),
        DestroyRqt => tir::destroy_rqt(call),

        CreateFlowTable => flow::create_table(call),
        ModifyFlowTable => flow::modify_table(call),
        QueryFlowTable => flow::query_table(call),
        DestroyFlowTable => flow::destroy_table(call),
        SetFlowTableRoot => flow::set_root(call),
        CreateFlowGroup => flow::create_group(call),
        QueryFlowGroup => flow::query_group(call),
        DestroyFlowGroup => flow::destroy_group(call),
        SetFlowTableEntry => flow_entry::set(call),
        QueryFlowTableEntry => flow_entry::query(call),
        DeleteFlowTableEntry => flow_entry::delete(call),
        AllocFlowCounter => flow::alloc_counter(call),
        DeallocFlowCounter => flow::dealloc_counter(call),
        QueryFlowCounter => flow::query_counter(call),

        QueryVportState => vport::query_state(call),
        ModifyVportState => vport::modify_state(call),
        QueryNicVportContext => nic_vport::query(call),
        ModifyNicVportContext => nic_vport::modify(call),
        SetRoceAddress => vport::set_roce_address(call),
        QueryRoceAddress => vport::query_roce_address(call),
        QueryVportCounter => port_counters::query_vport(call),
        QueryHcaVportContext => hca_vport::query_context(call),
        ModifyHcaVportContext => hca_vport::modify_context(call),
        QueryHcaVportGid => hca_vport::query_gid(call),
        QueryHcaVportPkey => hca_vport::query_pkey(call),
        MadIfc => mad_ifc::run(call),
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
