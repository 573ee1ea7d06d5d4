//! Which structures lie in a command's input and in its output, by opcode.

use super::{Structure, Value};
use crate::{
    cmd::{
        CmdIn, CmdOut, Opcode, adapter::*, adapter_id::*, congestion::*, cq::*, eq::*, eswitch::*, flow::*,
        mcg::*, memic::*, mkey::*, qp::*, resource::*, rq_sq::*, srq::*, tir::*, uctx::*, umem::*, vport::*,
    },
    context::{
        AccessMode, CapType,
        caps::*,
        eswitch::{EswitchCap, EswitchFlowTableCaps},
        flow::{FlowCounterId, FlowDestination, FlowTableCaps},
        mkey::Mtt,
        port::*,
        vport::{MacAddressLayout, Pkey, TrafficCounter},
    },
    layout::{Bits, Field, Layout, row},
    wqe::KlmSeg,
};
use Tail::{Capability, Destinations, Register, Translations};

/// The bytes that follow the fixed part of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// Nothing.
    None,
    /// Entries of one kind, to the end: name, bytes of each, its rows.
    List(&'static str, usize, &'static [Field]),
    /// Translation entries of a memory key, of the kind its access mode says.
    Translations,
    /// Destinations, then counters of a flow table entry, as many as its context says.
    Destinations,
    /// The register that the input names.
    Register,
    /// The capability page that `op_mod` of the input names.
    Capability,
}

/// A line of the table.
#[derive(Debug)]
struct Line {
    opcode: Opcode,
    input: Half,
    output: Half,
}

/// Input or output of a line: bytes and rows of the fixed part, then what follows it.
#[derive(Clone, Copy, Debug)]
struct Half {
    size: usize,
    fields: &'static [Field],
    tail: Tail,
}

const fn half<T: Layout>(tail: Tail) -> Half {
    Half { size: T::SIZE, fields: T::FIELDS, tail }
}

const NONE: Tail = Tail::None;
/// No bits at all: whatever is set there is reserved.
const UNOWNED: &[Field] = &[Field { name: "", offset: 0, width: 0, inner: &[] }];
/// A page of 4 KiB, by address.
const PAGE: &[Field] = &[row("pa", 0, 63, 12, 64)];
const PAGES: Tail = Tail::List("pas", 8, PAGE);
const MTTS: Tail = Tail::List("mtt", 8, Mtt::FIELDS);
const RQ_NUM: Tail = Tail::List("rq_num", 4, &[row("rq_num", 0, 23, 0, 32)]);
const ADDRESSES: Tail = Tail::List("current_uc_mac_address", 8, MacAddressLayout::FIELDS);
const GIDS: Tail = Tail::List("gid", 16, &[]);
const PKEYS: Tail = Tail::List("pkey", 4, Pkey::FIELDS);
const TRAFFIC: Tail = Tail::List("flow_statistics", 16, TrafficCounter::FIELDS);

macro_rules! lines { ($( $opcode:ident, $input:ident $in_tail:ident, $output:ident $out_tail:ident; )*) => {
    /// Every command, by rising opcode.
    const LINES: &[Line] = &[ $( Line {
        opcode: Opcode::$opcode,
        input: half::<$input>($in_tail),
        output: half::<$output>($out_tail),
    } ),* ];
} }

lines! {
    // Their page begins where the header ends.
    QueryHcaCap, QueryHcaCapIn NONE, CmdOut Capability;
    QueryAdapter, QueryAdapterIn NONE, QueryAdapterOut NONE;
    InitHca, InitHcaIn NONE, InitHcaOut NONE;
    TeardownHca, TeardownHcaIn NONE, TeardownHcaOut NONE;
    EnableHca, EnableHcaIn NONE, EnableHcaOut NONE;
    DisableHca, DisableHcaIn NONE, DisableHcaOut NONE;
    QueryPages, QueryPagesIn NONE, QueryPagesOut NONE;
    ManagePages, ManagePagesIn PAGES, ManagePagesOut PAGES;
    SetHcaCap, QueryHcaCapIn Capability, SetHcaCapOut NONE;
    QueryIssi, QueryIssiIn NONE, QueryIssiOut NONE;
    SetIssi, SetIssiIn NONE, SetIssiOut NONE;
    SetDriverVersion, SetDriverVersionIn NONE, SetDriverVersionOut NONE;
    CreateMkey, CreateMkeyIn Translations, CreateMkeyOut NONE;
    QueryMkey, QueryMkeyIn NONE, QueryMkeyOut NONE;
    DestroyMkey, DestroyMkeyIn NONE, DestroyMkeyOut NONE;
    QuerySpecialContexts, QuerySpecialContextsIn NONE, QuerySpecialContextsOut NONE;
    AllocMemic, AllocMemicIn NONE, AllocMemicOut NONE;
    DeallocMemic, DeallocMemicIn NONE, DeallocMemicOut NONE;
    CreateEq, CreateEqIn PAGES, CreateEqOut NONE;
    DestroyEq, DestroyEqIn NONE, DestroyEqOut NONE;
    QueryEq, QueryEqIn NONE, QueryEqOut PAGES;
    CreateCq, CreateCqIn PAGES, CreateCqOut NONE;
    DestroyCq, DestroyCqIn NONE, DestroyCqOut NONE;
    QueryCq, QueryCqIn NONE, QueryCqOut PAGES;
    ModifyCq, ModifyCqIn PAGES, ModifyCqOut NONE;
    CreateQp, CreateQpIn PAGES, CreateQpOut NONE;
    DestroyQp, DestroyQpIn NONE, DestroyQpOut NONE;
    Rst2initQp, Rst2initQpIn NONE, Rst2initQpOut NONE;
    Init2rtrQp, Init2rtrQpIn NONE, Init2rtrQpOut NONE;
    Rtr2rtsQp, Rtr2rtsQpIn NONE, Rtr2rtsQpOut NONE;
    Rts2rtsQp, Rts2rtsQpIn NONE, Rts2rtsQpOut NONE;
    Sqerr2rtsQp, Sqerr2rtsQpIn NONE, Sqerr2rtsQpOut NONE;
    Qp2Err, Qp2errIn NONE, Qp2errOut NONE;
    // The header has no structure of its own for these two; the driver fills them as it does the other transitions.
    Rts2sqdQp, Sqd2rtsQpIn NONE, Sqd2rtsQpOut NONE;
    Qp2Rst, Qp2rstIn NONE, Qp2rstOut NONE;
    QueryQp, QueryQpIn NONE, QueryQpOut PAGES;
    SqdRtsQp, Sqd2rtsQpIn NONE, Sqd2rtsQpOut NONE;
    MadIfc, MadIfcIn NONE, MadIfcOut NONE;
    Init2initQp, Init2initQpIn NONE, Init2initQpOut NONE;
    Sqd2sqdQp, Sqd2rtsQpIn NONE, Sqd2rtsQpOut NONE;
    CreateSrq, CreateSrqIn PAGES, CreateSrqOut NONE;
    DestroySrq, DestroySrqIn NONE, DestroySrqOut NONE;
    QuerySrq, QuerySrqIn NONE, QuerySrqOut PAGES;
    ArmRq, ArmRqIn NONE, ArmRqOut NONE;
    CreateXrcSrq, CreateXrcSrqIn PAGES, CreateXrcSrqOut NONE;
    DestroyXrcSrq, DestroyXrcSrqIn NONE, DestroyXrcSrqOut NONE;
    QueryXrcSrq, QueryXrcSrqIn NONE, QueryXrcSrqOut PAGES;
    ArmXrcSrq, ArmXrcSrqIn NONE, ArmXrcSrqOut NONE;
    QueryEswFunctions, QueryEswFunctionsIn NONE, QueryEswFunctionsOut NONE;
    QueryVportState, QueryVportStateIn NONE, QueryVportStateOut NONE;
    ModifyVportState, ModifyVportStateIn NONE, ModifyVportStateOut NONE;
    QueryEswVportContext, QueryEswVportContextIn NONE, QueryEswVportContextOut NONE;
    ModifyEswVportContext, ModifyEswVportContextIn NONE, ModifyEswVportContextOut NONE;
    QueryNicVportContext, QueryNicVportContextIn NONE, QueryNicVportContextOut ADDRESSES;
    ModifyNicVportContext, ModifyNicVportContextIn ADDRESSES, ModifyNicVportContextOut NONE;
    QueryRoceAddress, QueryRoceAddressIn NONE, QueryRoceAddressOut NONE;
    SetRoceAddress, SetRoceAddressIn NONE, SetRoceAddressOut NONE;
    QueryHcaVportContext, QueryHcaVportContextIn NONE, QueryHcaVportContextOut NONE;
    ModifyHcaVportContext, ModifyHcaVportContextIn NONE, ModifyHcaVportContextOut NONE;
    QueryHcaVportGid, QueryHcaVportGidIn NONE, QueryHcaVportGidOut GIDS;
    QueryHcaVportPkey, QueryHcaVportPkeyIn NONE, QueryHcaVportPkeyOut PKEYS;
    QueryVportCounter, QueryVportCounterIn NONE, QueryVportCounterOut NONE;
    AllocQCounter, AllocQCounterIn NONE, AllocQCounterOut NONE;
    DeallocQCounter, DeallocQCounterIn NONE, DeallocQCounterOut NONE;
    QueryQCounter, QueryQCounterIn NONE, QueryQCounterOut NONE;
    CreateSchedulingElement, CreateSchedulingElementIn NONE, CreateSchedulingElementOut NONE;
    DestroySchedulingElement, DestroySchedulingElementIn NONE, DestroySchedulingElementOut NONE;
    QuerySchedulingElement, QuerySchedulingElementIn NONE, QuerySchedulingElementOut NONE;
    ModifySchedulingElement, ModifySchedulingElementIn NONE, ModifySchedulingElementOut NONE;
    AllocPd, AllocPdIn NONE, AllocPdOut NONE;
    DeallocPd, DeallocPdIn NONE, DeallocPdOut NONE;
    AllocUar, AllocUarIn NONE, AllocUarOut NONE;
    DeallocUar, DeallocUarIn NONE, DeallocUarOut NONE;
    AccessReg, AccessRegisterIn Register, AccessRegisterOut Register;
    AttachToMcg, AttachToMcgIn NONE, AttachToMcgOut NONE;
    DetachFromMcg, DetachFromMcgIn NONE, DetachFromMcgOut NONE;
    Nop, NopIn NONE, NopOut NONE;
    AllocXrcd, AllocXrcdIn NONE, AllocXrcdOut NONE;
    DeallocXrcd, DeallocXrcdIn NONE, DeallocXrcdOut NONE;
    AllocTransportDomain, AllocTransportDomainIn NONE, AllocTransportDomainOut NONE;
    DeallocTransportDomain, DeallocTransportDomainIn NONE, DeallocTransportDomainOut NONE;
    QueryCongStatus, QueryCongStatusIn NONE, QueryCongStatusOut NONE;
    ModifyCongStatus, ModifyCongStatusIn NONE, ModifyCongStatusOut NONE;
    QueryCongParams, QueryCongParamsIn NONE, QueryCongParamsOut NONE;
    ModifyCongParams, ModifyCongParamsIn NONE, ModifyCongParamsOut NONE;
    QueryCongStatistics, QueryCongStatisticsIn NONE, QueryCongStatisticsOut NONE;
    SetL2TableEntry, SetL2TableEntryIn NONE, SetL2TableEntryOut NONE;
    QueryL2TableEntry, QueryL2TableEntryIn NONE, QueryL2TableEntryOut NONE;
    DeleteL2TableEntry, DeleteL2TableEntryIn NONE, DeleteL2TableEntryOut NONE;
    CreateTir, CreateTirIn NONE, CreateTirOut NONE;
    ModifyTir, ModifyTirIn NONE, ModifyTirOut NONE;
    DestroyTir, DestroyTirIn NONE, DestroyTirOut NONE;
    QueryTir, QueryTirIn NONE, QueryTirOut NONE;
    CreateSq, CreateSqIn PAGES, CreateSqOut NONE;
    ModifySq, ModifySqIn NONE, ModifySqOut NONE;
    DestroySq, DestroySqIn NONE, DestroySqOut NONE;
    QuerySq, QuerySqIn NONE, QuerySqOut PAGES;
    CreateRq, CreateRqIn PAGES, CreateRqOut NONE;
    ModifyRq, ModifyRqIn NONE, ModifyRqOut NONE;
    DestroyRq, DestroyRqIn NONE, DestroyRqOut NONE;
    QueryRq, QueryRqIn NONE, QueryRqOut PAGES;
    CreateRmp, CreateRmpIn PAGES, CreateRmpOut NONE;
    ModifyRmp, ModifyRmpIn PAGES, ModifyRmpOut NONE;
    DestroyRmp, DestroyRmpIn NONE, DestroyRmpOut NONE;
    QueryRmp, QueryRmpIn NONE, QueryRmpOut PAGES;
    CreateTis, CreateTisIn NONE, CreateTisOut NONE;
    ModifyTis, ModifyTisIn NONE, ModifyTisOut NONE;
    DestroyTis, DestroyTisIn NONE, DestroyTisOut NONE;
    QueryTis, QueryTisIn NONE, QueryTisOut NONE;
    CreateRqt, CreateRqtIn RQ_NUM, CreateRqtOut NONE;
    ModifyRqt, ModifyRqtIn RQ_NUM, ModifyRqtOut NONE;
    DestroyRqt, DestroyRqtIn NONE, DestroyRqtOut NONE;
    QueryRqt, QueryRqtIn NONE, QueryRqtOut RQ_NUM;
    SetFlowTableRoot, SetFlowTableRootIn NONE, SetFlowTableRootOut NONE;
    CreateFlowTable, CreateFlowTableIn NONE, CreateFlowTableOut NONE;
    DestroyFlowTable, DestroyFlowTableIn NONE, DestroyFlowTableOut NONE;
    QueryFlowTable, QueryFlowTableIn NONE, QueryFlowTableOut NONE;
    CreateFlowGroup, CreateFlowGroupIn NONE, CreateFlowGroupOut NONE;
    DestroyFlowGroup, DestroyFlowGroupIn NONE, DestroyFlowGroupOut NONE;
    QueryFlowGroup, QueryFlowGroupIn NONE, QueryFlowGroupOut NONE;
    SetFlowTableEntry, SetFteIn Destinations, SetFteOut NONE;
    QueryFlowTableEntry, QueryFteIn NONE, QueryFteOut Destinations;
    DeleteFlowTableEntry, DeleteFteIn NONE, DeleteFteOut NONE;
    AllocFlowCounter, AllocFlowCounterIn NONE, AllocFlowCounterOut NONE;
    DeallocFlowCounter, DeallocFlowCounterIn NONE, DeallocFlowCounterOut NONE;
    QueryFlowCounter, QueryFlowCounterIn NONE, QueryFlowCounterOut TRAFFIC;
    ModifyFlowTable, ModifyFlowTableIn NONE, ModifyFlowTableOut NONE;
    CreateUctx, CreateUctxIn NONE, CreateUctxOut NONE;
    DestroyUctx, DestroyUctxIn NONE, DestroyUctxOut NONE;
    CreateUmem, CreateUmemIn MTTS, CreateUmemOut NONE;
    DestroyUmem, DestroyUmemIn NONE, DestroyUmemOut NONE;
}

// An opcode with two lines, or one out of its place, does not compile.
const _: () = {
    let mut i = 1;
    while i < LINES.len() {
        assert!(LINES[i - 1].opcode.raw() < LINES[i].opcode.raw());
        i += 1;
    }
};

/// The byte order of the driver's machine (Linux: `mlx5_reg_host_endianness`).
const HOST_ENDIANNESS: &[Field] = &[row("he", 0, 31, 24, 8)];

/// The name of a register, and its table, by its id (PRM: register access). No rows: bytes without structure, as a
/// node description is.
pub fn register(id: u16) -> Option<(&'static str, &'static [Field])> {
    Some(match id {
        0x5001 => ("pcap", Pcap::FIELDS),
        0x5002 => ("pmlp", Pmlp::FIELDS),
        0x5003 => ("pmtu", Pmtu::FIELDS),
        0x5004 => ("ptys", Ptys::FIELDS),
        0x5006 => ("paos", Paos::FIELDS),
        0x5007 => ("pfcc", Pfcc::FIELDS),
        0x5008 => ("ppcnt", Ppcnt::FIELDS),
        0x500f => ("pvlc", Pvlc::FIELDS),
        0x5023 => ("pplm", Pplm::FIELDS),
        0x5041 => ("pcmr", Pcmr::FIELDS),
        0x6001 => ("node_desc", &[]),
        0x7004 => ("host_endianness", HOST_ENDIANNESS),
        _ => return None,
    })
}

/// The table of a capability page.
fn capability(page: CapType) -> &'static [Field] {
    match page {
        CapType::General => HcaCap::FIELDS,
        CapType::EthernetOffloads => EthernetOffloadCaps::FIELDS,
        CapType::Odp => OdpCap::FIELDS,
        CapType::Atomic => AtomicCaps::FIELDS,
        CapType::Roce => RoceCap::FIELDS,
        CapType::FlowTable => FlowTableCaps::FIELDS,
        CapType::EswitchFlowTable => EswitchFlowTableCaps::FIELDS,
        CapType::Eswitch => EswitchCap::FIELDS,
        CapType::Qos => QosCap::FIELDS,
        CapType::DeviceMem => DeviceMemCap::FIELDS,
        CapType::General2 => HcaCap2::FIELDS,
        _ => &[],
    }
}

/// Where the structures of one input or output are: a head, and up to two lists behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape([Option<Structure>; 3]);

impl Shape {
    /// The structures, in the order of their bytes.
    pub fn structures(&self) -> impl Iterator<Item = &Structure> {
        self.0.iter().flatten()
    }

    /// See [`Structure::walk`]. Tells of all structures, and of set bits behind the last.
    pub fn walk(&self, whole: &[u8], found: &mut dyn FnMut(&super::Path<'_>, Value<'_>)) {
        self.structures().for_each(|structure| structure.walk(whole, found));
    }

    /// The first dword of `whole` that has a set bit no field owns: its byte, and the bits.
    pub fn reserved(&self, whole: &[u8]) -> Option<(usize, u32)> {
        let mut first: Option<(usize, u32)> = None;
        self.walk(whole, &mut |_, value| {
            if let Value::Reserved { at, bits } = value {
                if first.is_none_or(|(earlier, _)| at < earlier) {
                    first = Some((at, bits));
                }
            }
        });
        first
    }
}

fn line(opcode: Opcode) -> Option<&'static Line> {
    let at = LINES.binary_search_by_key(&opcode.raw(), |line| line.opcode.raw()).ok()?;
    LINES.get(at)
}

/// True if the table has a line for `opcode`.
pub fn is_known(opcode: Opcode) -> bool {
    line(opcode).is_some()
}

/// The structures of a command's input. Of an opcode without a line, only the header is known.
pub fn input(whole: &[u8]) -> Shape {
    match line(CmdIn::read(whole).opcode()) {
        Some(line) => shape(&line.input, whole, whole),
        None => shape(&half::<CmdIn>(NONE), whole, whole),
    }
}

/// The structures of the output that answers `input`. A refusal is nothing but a header.
pub fn output(input: &[u8], whole: &[u8]) -> Shape {
    match line(CmdIn::read(input).opcode()) {
        Some(line) if CmdOut::read(whole).status() == crate::cmd::Status::Ok => {
            shape(&line.output, input, whole)
        }
        _ => shape(&half::<CmdOut>(NONE), input, whole),
    }
}

fn shape(half: &Half, input: &[u8], whole: &[u8]) -> Shape {
    let head = Structure::one("", 0, half.size, half.fields);
    let at = half.size;
    let rest = |name, size, fields| Structure::list(name, at, size, usize::MAX, fields);
    let to_end = whole.len().saturating_sub(at);
    let [first, second] = match half.tail {
        Tail::None if to_end > 0 => [Some(Structure::one("", at, to_end, UNOWNED)), None],
        Tail::None => [None; 2],
        Tail::List(name, size, fields) => [Some(rest(name, size, fields)), None],
        Translations => {
            let context = CreateMkeyIn::read(whole).memory_key_mkey_entry();
            let mode =
                AccessMode::from_bits((context.access_mode_4_2() << 2 | context.access_mode_1_0()).into());
            match mode {
                AccessMode::Klm | AccessMode::Ksm => [Some(rest("klm", KlmSeg::SIZE, KlmSeg::FIELDS)), None],
                _ => [Some(rest("mtt", Mtt::SIZE, Mtt::FIELDS)), None],
            }
        }
        Destinations => {
            let context = SetFteIn::read(whole).flow_context();
            // One entry more than there are bytes for reads as none.
            let count = (context.destination_list_size() as usize).min(to_end / FlowDestination::SIZE);
            let counters = at + count * FlowDestination::SIZE;
            [
                Some(Structure::list(
                    "destination",
                    at,
                    FlowDestination::SIZE,
                    count,
                    FlowDestination::FIELDS,
                )),
                Some(Structure::list(
                    "counter",
                    counters,
                    FlowCounterId::SIZE,
                    usize::MAX,
                    FlowCounterId::FIELDS,
                )),
            ]
        }
        Register => {
            let known = register(AccessRegisterIn::read(input).register_id());
            let (name, fields) = known.unwrap_or(("register_data", &[]));
            [Some(Structure::one(name, at, to_end, fields)), None]
        }
        Capability => {
            let page = CapType::from_bits(u64::from(CmdIn::read(input).op_mod() >> 1));
            [Some(Structure::one("capability", at, to_end, capability(page))), None]
        }
    };
    Shape([Some(head), first, second])
}
