//! The structures in a command's input and output, by opcode.

use super::{Structure, Value};
use crate::{
    cmd::{
        self, CmdIn, CmdOut, Half, Opcode, Tail, adapter::AccessRegisterIn, flow::SetFteIn,
        mkey::CreateMkeyIn,
    },
    context::{
        AccessMode, CapType,
        caps::*,
        eswitch::{EswitchCap, EswitchFlowTableCaps},
        flow::{FlowCounterId, FlowDestination, FlowTableCaps},
        mkey::Mtt,
        port::*,
    },
    layout::{Bits, Field, Layout, load, row},
    wqe::KlmSeg,
};

/// No bits at all: any set bit is reserved.
const UNOWNED: &[Field] = &[Field { name: "", offset: 0, width: 0, inner: &[] }];

/// The byte order of the driver's host (Linux: `mlx5_reg_host_endianness`).
const HOST_ENDIANNESS: &[Field] = &[row("he", 0, 31, 24, 8)];

/// Name and table of a register by its id (PRM: register access). A table without rows means unstructured bytes,
/// as in a node description.
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

/// The structures of one input or output: a head, and up to two lists after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape([Option<Structure>; 3]);

impl Shape {
    /// The structures, in byte order.
    pub fn structures(&self) -> impl Iterator<Item = &Structure> {
        self.0.iter().flatten()
    }

    /// Calls [`Structure::walk`] for each structure. Also reports bits set after the last structure.
    pub fn walk(&self, whole: &[u8], found: &mut dyn FnMut(&super::Path<'_>, Value<'_>)) {
        self.structures().for_each(|structure| structure.walk(whole, found));
    }

    /// The first dword of `whole` with a set bit outside all fields: its offset, and the bits.
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

/// The structures of a command's input. For an unknown opcode, only the header.
pub fn input(whole: &[u8]) -> Shape {
    match cmd::find(CmdIn::read(whole).opcode()) {
        Some(command) => shape(&command.input, whole, whole),
        None => shape(&Half::of::<CmdIn>(Tail::None), whole, whole),
    }
}

/// The number of the object that an input names: the field at the end of its third dword. `None` if the command has no such
/// field, or the input is shorter than the command.
pub fn object(whole: &[u8]) -> Option<u32> {
    let input = cmd::find(CmdIn::read(whole).opcode())?.input;
    let field = input.fields.iter().find(|field| field.offset + field.width == 96)?;
    (whole.len() >= input.size).then(|| load(whole, 8, field.width - 1, 0) as u32)
}

/// The least size of the output of a command: that of a header, which is shorter for a few.
pub fn least_output(opcode: Opcode) -> usize {
    cmd::find(opcode).map_or(CmdOut::SIZE, |command| command.output.size.min(CmdOut::SIZE))
}

/// The structures of the output for `input`. A refused command returns only a header.
pub fn output(input: &[u8], whole: &[u8]) -> Shape {
    match cmd::find(CmdIn::read(input).opcode()) {
        Some(command) if CmdOut::read(whole).status() == cmd::Status::Ok => {
            shape(&command.output, input, whole)
        }
        _ => shape(&Half::of::<CmdOut>(Tail::None), input, whole),
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
        Tail::Translations => {
            let context = CreateMkeyIn::read(whole).memory_key_mkey_entry();
            let mode =
                AccessMode::from_bits((context.access_mode_4_2() << 2 | context.access_mode_1_0()).into());
            match mode {
                AccessMode::Klm | AccessMode::Ksm => [Some(rest("klm", KlmSeg::SIZE, KlmSeg::FIELDS)), None],
                _ => [Some(rest("mtt", Mtt::SIZE, Mtt::FIELDS)), None],
            }
        }
        Tail::Destinations => {
            let context = SetFteIn::read(whole).flow_context();
            // Limited to the destinations that fit; any further one reads as absent.
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
        Tail::Register => {
            let known = register(AccessRegisterIn::read(input).register_id());
            let (name, fields) = known.unwrap_or(("register_data", &[]));
            [Some(Structure::one(name, at, to_end, fields)), None]
        }
        Tail::Capability => {
            let page = CapType::from_bits(u64::from(CmdIn::read(input).op_mod() >> 1));
            [Some(Structure::one("capability", at, to_end, capability(page))), None]
        }
    };
    Shape([Some(head), first, second])
}
