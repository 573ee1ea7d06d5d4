//! The table of commands: one line for each opcode; everything else is refused.

use super::{
    adapter, call::Call, caps, congestion, counter_set, cq, eq, eswitch, flow, flow_entry, hca_vport,
    mad_ifc, mcg, memic, memory, mkey, nic_vport, object, pages, port_counters, qp, qp_modify, refusal::Done,
    registers, rq, sq, srq, tir, uctx, vport,
};
use crate::state::*;
use hwspec::cmd::{
    Opcode,
    adapter::{CANT_GIVE, GIVE, READ, TAKE, WRITE},
    cq::{FIELDS, RESIZE},
    srq::ARM,
};

/// The parties that may send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The function's own driver only: uid 0.
    Owner,
    /// Any user context as well: the command reads data without an owner.
    General,
    /// Any user context as well, for its own objects; the handler checks their owner.
    Object,
}

/// A line of the table.
#[derive(Debug)]
pub struct Command {
    /// The command.
    pub opcode: Opcode,
    /// States of the bring-up in which it is allowed.
    pub states: &'static [HcaState],
    /// The valid `op_mod`s.
    pub op_mods: &'static [u16],
    /// The parties that may send it.
    pub sender: Sender,
    /// The handler.
    pub(super) run: fn(&mut Call<'_, '_, '_>) -> Done,
}

const ALWAYS: &[HcaState] = &[HcaState::Reset, HcaState::Enabled, HcaState::Running];
const ENABLED: &[HcaState] = &[HcaState::Enabled, HcaState::Running];
const SETUP: &[HcaState] = &[HcaState::Enabled];
const RUNNING: &[HcaState] = &[HcaState::Running];

/// The only `op_mod` of a command without variants.
const ONE: &[u16] = &[0];
const PAGES_OF: &[u16] = &[pages::BOOT, pages::INIT, pages::REGULAR];
const PAGES_ARE: &[u16] = &[CANT_GIVE, GIVE, TAKE];
const REGISTER: &[u16] = &[WRITE, READ];
const CQ_FIELDS: &[u16] = &[FIELDS, RESIZE];
const LIMIT: &[u16] = &[ARM];
const MAD: &[u16] =
    &[0, mad_ifc::IGNORE_MKEY, mad_ifc::IGNORE_BKEY, mad_ifc::IGNORE_MKEY | mad_ifc::IGNORE_BKEY];
const VPORT: &[u16] = &[vport::VNIC, vport::ESWITCH, vport::UPLINK];
const ROOT: &[u16] = &[flow::CONNECT, flow::DISCONNECT];
const ENTRY: &[u16] = &[flow_entry::ADD, flow_entry::MODIFY];

macro_rules! commands { ($( $opcode:ident, $states:ident, $op_mods:path, $sender:ident, $run:path; )*) => {
    /// All commands of this device, in ascending order of opcodes.
    pub const COMMANDS: &[Command] = &[ $( Command {
        opcode: Opcode::$opcode,
        states: $states,
        op_mods: $op_mods,
        sender: Sender::$sender,
        run: $run,
    } ),* ];
} }

commands! {
    QueryHcaCap,            ENABLED, caps::QUERY,  General, caps::query;
    QueryAdapter,           ENABLED, ONE,          General, adapter::query;
    InitHca,                SETUP,   ONE,          Owner,   adapter::init;
    TeardownHca,            RUNNING, ONE,          Owner,   adapter::teardown;
    EnableHca,              ALWAYS,  ONE,          Owner,   adapter::enable;
    DisableHca,             ALWAYS,  ONE,          Owner,   adapter::disable;
    QueryPages,             ENABLED, PAGES_OF,     Owner,   pages::query;
    ManagePages,            ENABLED, PAGES_ARE,    Owner,   pages::manage;
    SetHcaCap,              SETUP,   caps::SET,    Owner,   caps::set;
    QueryIssi,              ENABLED, ONE,          General, adapter::query_issi;
    SetIssi,                ENABLED, ONE,          Owner,   adapter::set_issi;
    SetDriverVersion,       ENABLED, ONE,          Owner,   adapter::driver_version;

    CreateMkey,             RUNNING, ONE,          Object,  mkey::create;
    QueryMkey,              RUNNING, ONE,          Object,  mkey::query;
    DestroyMkey,            RUNNING, ONE,          Object,  mkey::destroy;
    QuerySpecialContexts,   RUNNING, ONE,          Owner,   adapter::special_contexts;
    AllocMemic,             RUNNING, ONE,          Object,  memic::alloc;
    DeallocMemic,           RUNNING, ONE,          Object,  memic::dealloc;

    CreateEq,               RUNNING, ONE,          Object,  eq::create;
    DestroyEq,              RUNNING, ONE,          Object,  eq::destroy;
    QueryEq,                RUNNING, ONE,          Object,  eq::query;

    CreateCq,               RUNNING, ONE,          Object,  cq::create;
    DestroyCq,              RUNNING, ONE,          Object,  object::destroy::<CqRow>;
    QueryCq,                RUNNING, ONE,          Object,  cq::query;
    ModifyCq,               RUNNING, CQ_FIELDS,    Object,  cq::modify;

    CreateQp,               RUNNING, ONE,          Object,  qp::create;
    DestroyQp,              RUNNING, ONE,          Object,  object::destroy::<QpRow>;
    Rst2initQp,             RUNNING, ONE,          Object,  qp_modify::transition;
    Init2rtrQp,             RUNNING, ONE,          Object,  qp_modify::transition;
    Rtr2rtsQp,              RUNNING, ONE,          Object,  qp_modify::transition;
    Rts2rtsQp,              RUNNING, ONE,          Object,  qp_modify::transition;
    Sqerr2rtsQp,            RUNNING, ONE,          Object,  qp_modify::transition;
    Qp2Err,                 RUNNING, ONE,          Object,  qp_modify::to_error;
    Rts2sqdQp,              RUNNING, ONE,          Object,  qp_modify::transition;
    Qp2Rst,                 RUNNING, ONE,          Object,  qp_modify::to_reset;
    QueryQp,                RUNNING, ONE,          Object,  qp::query;
    SqdRtsQp,               RUNNING, ONE,          Object,  qp_modify::transition;
    MadIfc,                 RUNNING, MAD,          Owner,   mad_ifc::run;
    Init2initQp,            RUNNING, ONE,          Object,  qp_modify::transition;
    Sqd2sqdQp,              RUNNING, ONE,          Object,  qp_modify::transition;

    CreateSrq,              RUNNING, ONE,          Object,  srq::create;
    DestroySrq,             RUNNING, ONE,          Object,  srq::destroy;
    QuerySrq,               RUNNING, ONE,          Object,  srq::query;
    ArmRq,                  RUNNING, LIMIT,        Object,  srq::arm;
    CreateXrcSrq,           RUNNING, ONE,          Object,  srq::create;
    DestroyXrcSrq,          RUNNING, ONE,          Object,  srq::destroy;
    QueryXrcSrq,            RUNNING, ONE,          Object,  srq::query;
    ArmXrcSrq,              RUNNING, LIMIT,        Object,  srq::arm;

    QueryEswFunctions,      RUNNING, ONE,          General, eswitch::functions;
    QueryVportState,        RUNNING, VPORT,        General, vport::query_state;
    ModifyVportState,       RUNNING, VPORT,        Owner,   vport::modify_state;
    QueryEswVportContext,   RUNNING, ONE,          General, eswitch::query_context;
    ModifyEswVportContext,  RUNNING, ONE,          Owner,   eswitch::modify_context;
    QueryNicVportContext,   RUNNING, ONE,          General, nic_vport::query;
    ModifyNicVportContext,  RUNNING, ONE,          Owner,   nic_vport::modify;
    QueryRoceAddress,       RUNNING, ONE,          General, vport::query_roce_address;
    SetRoceAddress,         RUNNING, ONE,          Owner,   vport::set_roce_address;
    QueryHcaVportContext,   RUNNING, ONE,          General, hca_vport::query_context;
    ModifyHcaVportContext,  RUNNING, ONE,          Owner,   hca_vport::modify_context;
    QueryHcaVportGid,       RUNNING, ONE,          Owner,   hca_vport::query_gid;
    QueryHcaVportPkey,      RUNNING, ONE,          Owner,   hca_vport::query_pkey;
    QueryVportCounter,      RUNNING, ONE,          General, port_counters::query_vport;

    AllocQCounter,          RUNNING, ONE,          Object,  object::alloc::<CounterRow>;
    DeallocQCounter,        RUNNING, ONE,          Object,  object::destroy::<CounterRow>;
    QueryQCounter,          RUNNING, ONE,          Object,  counter_set::query;
    CreateSchedulingElement, RUNNING, ONE,         Object,  eswitch::create_element;
    DestroySchedulingElement, RUNNING, ONE,        Object,  eswitch::destroy_element;
    QuerySchedulingElement, RUNNING, ONE,          Object,  eswitch::query_element;
    ModifySchedulingElement, RUNNING, ONE,         Object,  eswitch::modify_element;
    AllocPd,                RUNNING, ONE,          Object,  object::alloc::<PdRow>;
    DeallocPd,              RUNNING, ONE,          Object,  object::destroy::<PdRow>;
    AllocUar,               RUNNING, ONE,          Object,  object::alloc::<UarRow>;
    DeallocUar,             RUNNING, ONE,          Object,  object::destroy::<UarRow>;
    AccessReg,              ENABLED, REGISTER,     Owner,   registers::access;
    AttachToMcg,            RUNNING, ONE,          Object,  mcg::attach;
    DetachFromMcg,          RUNNING, ONE,          Object,  mcg::detach;
    Nop,                    ALWAYS,  ONE,          General, adapter::nop;
    AllocXrcd,              RUNNING, ONE,          Object,  object::alloc::<XrcdRow>;
    DeallocXrcd,            RUNNING, ONE,          Object,  object::destroy::<XrcdRow>;
    AllocTransportDomain,   RUNNING, ONE,          Object,  object::alloc::<TdRow>;
    DeallocTransportDomain, RUNNING, ONE,          Object,  object::destroy::<TdRow>;

    QueryCongStatus,        RUNNING, ONE,          General, congestion::query_status;
    ModifyCongStatus,       RUNNING, ONE,          Owner,   congestion::modify_status;
    QueryCongParams,        RUNNING, ONE,          General, congestion::query_parameters;
    ModifyCongParams,       RUNNING, ONE,          Owner,   congestion::modify_parameters;
    QueryCongStatistics,    RUNNING, ONE,          General,  congestion::query_statistics;

    SetL2TableEntry,        RUNNING, ONE,          Object,  eswitch::set_address;
    QueryL2TableEntry,      RUNNING, ONE,          Object,  eswitch::query_address;
    DeleteL2TableEntry,     RUNNING, ONE,          Object,  eswitch::delete_address;
    CreateTir,              RUNNING, ONE,          Object,  tir::create_tir;
    ModifyTir,              RUNNING, ONE,          Object,  tir::modify_tir;
    DestroyTir,             RUNNING, ONE,          Object,  object::destroy::<TirRow>;
    QueryTir,               RUNNING, ONE,          Object,  tir::query_tir;
    CreateSq,               RUNNING, ONE,          Object,  sq::create;
    ModifySq,               RUNNING, ONE,          Object,  sq::modify;
    DestroySq,              RUNNING, ONE,          Object,  object::destroy::<SqRow>;
    QuerySq,                RUNNING, ONE,          Object,  sq::query;
    CreateRq,               RUNNING, ONE,          Object,  rq::create;
    ModifyRq,               RUNNING, ONE,          Object,  rq::modify;
    DestroyRq,              RUNNING, ONE,          Object,  object::destroy::<RqRow>;
    QueryRq,                RUNNING, ONE,          Object,  rq::query;
    CreateRmp,              RUNNING, ONE,          Object,  srq::create;
    ModifyRmp,              RUNNING, ONE,          Object,  srq::modify_rmp;
    DestroyRmp,             RUNNING, ONE,          Object,  srq::destroy;
    QueryRmp,               RUNNING, ONE,          Object,  srq::query;
    CreateTis,              RUNNING, ONE,          Object,  tir::create_tis;
    ModifyTis,              RUNNING, ONE,          Object,  tir::modify_tis;
    DestroyTis,             RUNNING, ONE,          Object,  object::destroy::<TisRow>;
    QueryTis,               RUNNING, ONE,          Object,  tir::query_tis;
    CreateRqt,              RUNNING, ONE,          Object,  tir::create_rqt;
    ModifyRqt,              RUNNING, ONE,          Object,  tir::modify_rqt;
    DestroyRqt,             RUNNING, ONE,          Object,  object::destroy::<RqtRow>;
    QueryRqt,               RUNNING, ONE,          Object,  tir::query_rqt;

    SetFlowTableRoot,       RUNNING, ROOT,         Owner,   flow::set_root;
    CreateFlowTable,        RUNNING, ONE,          Object,  flow::create_table;
    DestroyFlowTable,       RUNNING, ONE,          Object,  flow::destroy_table;
    QueryFlowTable,         RUNNING, ONE,          Object,  flow::query_table;
    CreateFlowGroup,        RUNNING, ONE,          Object,  flow::create_group;
    DestroyFlowGroup,       RUNNING, ONE,          Object,  flow::destroy_group;
    QueryFlowGroup,         RUNNING, ONE,          Object,  flow::query_group;
    SetFlowTableEntry,      RUNNING, ENTRY,        Object,  flow_entry::set;
    QueryFlowTableEntry,    RUNNING, ONE,          Object,  flow_entry::query;
    DeleteFlowTableEntry,   RUNNING, ONE,          Object,  flow_entry::delete;
    AllocFlowCounter,       RUNNING, ONE,          Object,  flow::alloc_counter;
    DeallocFlowCounter,     RUNNING, ONE,          Object,  object::destroy::<FlowCounterRow>;
    QueryFlowCounter,       RUNNING, ONE,          Object,  flow::query_counter;
    ModifyFlowTable,        RUNNING, ONE,          Object,  flow::modify_table;

    CreateUctx,             RUNNING, ONE,          Owner,   uctx::create;
    DestroyUctx,            RUNNING, ONE,          Owner,   uctx::destroy;
    CreateUmem,             RUNNING, ONE,          Object,  memory::create;
    DestroyUmem,            RUNNING, ONE,          Object,  object::destroy::<UmemRow>;
}

// A duplicate or misplaced opcode does not compile.
const _: () = {
    let mut i = 1;
    while i < COMMANDS.len() {
        assert!(COMMANDS[i - 1].opcode.raw() < COMMANDS[i].opcode.raw());
        i += 1;
    }
};

/// The line of `opcode`, if there is one.
pub(super) fn find(opcode: Opcode) -> Option<&'static Command> {
    let at = COMMANDS.binary_search_by_key(&opcode.raw(), |command| command.opcode.raw()).ok()?;
    COMMANDS.get(at)
}
