//! Flows: rules that select the frames received by a raw packet queue pair.
//!
//! The openers of a function share one flow table, created by the first opener that needs it. Entries of lower index
//! match first, so every priority has its own part of the table.

use super::{Qp, Service};
use crate::{error::Error, function::Function};
use hwspec::{
    cmd::{CmdOut, Opcode, flow::*},
    context::flow::*,
    layout::prefix,
};
use std::sync::Arc;

/// log2 of the number of entries.
const LOG_SIZE: u8 = 10;
/// Parts of the table: one for each priority, one for multicast frames and one for all the rest.
const PARTS: u32 = 16;
const PART: u32 = (1 << LOG_SIZE) / PARTS;
/// Number of flow priorities.
pub const FLOW_PRIORITIES: u16 = PARTS as u16 - 2;
/// The user context of objects accessible to all openers.
const ALL: u16 = 0xffff;
/// Word of the shared area with the table's id.
const WORD: usize = 5;

/// Kinds of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowKind {
    /// Frames that match its specs.
    #[default]
    Normal,
    /// All frames that no other flow matches.
    AllDefault,
    /// All multicast frames that no other flow matches.
    McDefault,
}

/// Fields that a frame must match: values and masks in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FlowSpec {
    Eth {
        dst: [[u8; 6]; 2],
        src: [[u8; 6]; 2],
        ether_type: [u16; 2],
        vlan: [u16; 2],
    },
    Ipv4 {
        src: [[u8; 4]; 2],
        dst: [[u8; 4]; 2],
    },
    /// IP of this version: protocol or next header, type of service or traffic class, TTL or hop limit.
    IpMore {
        version: u8,
        proto: [u8; 2],
        class: [u8; 2],
        ttl: [u8; 2],
    },
    Ipv6 {
        src: [[u8; 16]; 2],
        dst: [[u8; 16]; 2],
    },
    Tcp {
        dst_port: [u16; 2],
        src_port: [u16; 2],
    },
    Udp {
        dst_port: [u16; 2],
        src_port: [u16; 2],
    },
    /// Drops matching frames instead.
    Drop,
}

/// The attributes of a new flow.
#[derive(Clone, Debug, Default)]
pub struct FlowAttr {
    /// The kind of flow.
    pub kind: FlowKind,
    /// Priority, 0 is tried first; less than [`FLOW_PRIORITIES`].
    pub priority: u16,
    /// Specs, all of which must match.
    pub specs: Vec<FlowSpec>,
}

/// Mask and value to match, and whether matching frames are dropped.
struct Match([MatchHeaders; 2], bool);

impl FlowAttr {
    fn headers(&self) -> Result<Match, Error> {
        let mut both = [MatchHeaders::zeroed(); 2];
        let mut drop = false;
        for spec in &self.specs {
            for (which, headers) in both.iter_mut().enumerate() {
                // The mask comes first.
                let pick = 1 - which;
                fill(headers, spec, pick, which == 0);
            }
            drop |= *spec == FlowSpec::Drop;
        }
        if self.kind == FlowKind::McDefault {
            both.iter_mut().for_each(|headers| drop_into(headers, [1, 0, 0, 0, 0, 0], false));
        }
        if self.kind != FlowKind::Normal && !self.specs.is_empty() {
            return Err(Error::invalid("a default flow has no parts"));
        }
        Ok(Match(both, drop))
    }

    /// Index of the flow's part of the table.
    fn part(&self) -> Result<u32, Error> {
        match self.kind {
            FlowKind::Normal if self.priority < FLOW_PRIORITIES => Ok(self.priority.into()),
            FlowKind::Normal => Err(Error::invalid(format!(
                "priority {} was given, there are {FLOW_PRIORITIES}",
                self.priority
            ))),
            FlowKind::McDefault => Ok(PARTS - 2),
            FlowKind::AllDefault => Ok(PARTS - 1),
        }
    }
}

/// Sets the source or destination MAC.
fn drop_into(headers: &mut MatchHeaders, mac: [u8; 6], source: bool) {
    let (high, low) = (u32::from_be_bytes(prefix(&mac)), u16::from_be_bytes(prefix(&mac[4..])));
    match source {
        true => headers.set().smac_47_16(high).smac_15_0(low),
        false => headers.set().dmac_47_16(high).dmac_15_0(low),
    };
}

/// Fills in the value (0) or mask (1) of a spec.
fn fill(headers: &mut MatchHeaders, spec: &FlowSpec, pick: usize, is_mask: bool) {
    /// IP versions and protocols.
    const VERSION_BITS: u8 = 15;
    let exact = |value: u8, bits: u8| if is_mask { bits } else { value };
    match *spec {
        FlowSpec::Eth { dst, src, ether_type, vlan } => {
            drop_into(headers, dst[pick], false);
            drop_into(headers, src[pick], true);
            headers.set().ethertype(ether_type[pick]);
            if vlan[1] != 0 {
                let tci = vlan[pick];
                headers.set().cvlan_tag(true).first_vid(tci & 0xfff).first_cfi(tci >> 12 & 1 != 0);
                headers.set().first_prio((tci >> 13) as u8);
            }
        }
        FlowSpec::Ipv4 { src, dst } => {
            let wide = |ip: [u8; 4]| {
                let mut all = [0; 16];
                all[12..].copy_from_slice(&ip);
                all
            };
            headers.set().ip_version(exact(4, VERSION_BITS));
            headers.set().src_ipv4_src_ipv6(wide(src[pick])).dst_ipv4_dst_ipv6(wide(dst[pick]));
        }
        FlowSpec::IpMore { version, proto, class, ttl } => {
            headers.set().ip_version(exact(version, VERSION_BITS)).ttl_hoplimit(ttl[pick]);
            headers.set().ip_dscp(class[pick] >> 2).ip_ecn(class[pick] & 3);
            if proto[1] != 0 {
                headers.set().ip_protocol(proto[pick]);
            }
        }
        FlowSpec::Ipv6 { src, dst } => {
            headers.set().ip_version(exact(6, VERSION_BITS));
            headers.set().src_ipv4_src_ipv6(src[pick]).dst_ipv4_dst_ipv6(dst[pick]);
        }
        FlowSpec::Tcp { dst_port, src_port } => {
            headers.set().ip_protocol(exact(6, 0xff));
            headers.set().tcp_dport(dst_port[pick]).tcp_sport(src_port[pick]);
        }
        FlowSpec::Udp { dst_port, src_port } => {
            headers.set().ip_protocol(exact(17, 0xff));
            headers.set().udp_dport(dst_port[pick]).udp_sport(src_port[pick]);
        }
        FlowSpec::Drop => {}
    }
}

/// A flow, removed on drop.
pub struct Flow {
    function: Arc<Function>,
    uid: u16,
    /// Keeps the destination of the entry alive.
    _qp: Arc<Qp>,
    table: u32,
    group: u32,
    /// Index in the table, once inserted.
    entry: Option<u32>,
}

impl Flow {
    /// Steers frames to `qp`. EINVAL: not a raw packet queue pair that receives, or an impossible flow; EOPNOTSUPP: the
    /// device has no flow tables; ENOMEM: no entry is left for this priority. Of equal flows, the first gets the
    /// frames.
    pub fn create(qp: &Arc<Qp>, attr: &FlowAttr) -> Result<Flow, Error> {
        let tir = qp.tir().filter(|_| qp.service() == Service::RawPacket);
        let tir = tir.ok_or_else(|| Error::invalid("only raw packet queue pairs that receive have flows"))?;
        let device = &qp.pd().device;
        let (function, uid) = (device.function.clone(), device.opener.uid());
        let Match([mask, value], drop) = attr.headers()?;
        let first = attr.part()? * PART;
        let table = table(&function)?;

        let mut input = CreateFlowGroupIn::zeroed();
        let criteria = MatchParam::with(|s| s.outer_headers(mask));
        input.set().table_id(table).match_criteria(criteria);
        input.set().match_criteria_enable(if attr.kind == FlowKind::AllDefault { 0 } else { OUTER });
        let mut made = Err(Error::no_memory(format!("all {PART} flows of this priority are taken")));
        for index in first..first + PART {
            // A flow group of one entry. The device refuses it if another opener has taken the entry.
            input.set().start_flow_index(index).end_flow_index(index);
            let out: Result<CreateFlowGroupOut, Error> = function.call(Opcode::CreateFlowGroup, uid, &input);
            match out {
                Ok(out) => {
                    made = Ok((index, out.group_id()));
                    break;
                }
                Err(Error::Command { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (index, group) = made?;
        let mut flow = Flow { function, uid, _qp: qp.clone(), table, group, entry: None };
        let wanted = MatchParam::with(|s| s.outer_headers(value));
        let mut context = FlowContext::zeroed();
        // CQEs have the tag in place of the QP number. The tag is the QP number, so that polls find the QP.
        context.set().group_id(group).flow_tag(qp.qpn()).match_value(wanted);
        let mut list = Vec::new();
        if drop {
            context.set().action(DROP);
        } else {
            context.set().action(FORWARD).destination_list_size(1);
            let to = FlowDestination::with(|s| s.destination_type(TO_TIR).destination_id(tir));
            list.push(u64::from_be_bytes(*to.as_bytes()));
        }
        let input = SetFteIn::with(|s| s.table_id(table).flow_index(index).flow_context(context));
        let _: CmdOut = flow.function.call_with(Opcode::SetFlowTableEntry, uid, &input, &list)?;
        flow.entry = Some(index);
        Ok(flow)
    }

    fn end(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        if let Some(index) = self.entry.take() {
            let input = DeleteFteIn::with(|s| s.table_id(self.table).flow_index(index));
            result = self.function.order(Opcode::DeleteFlowTableEntry, self.uid, &input);
        }
        let input = DestroyFlowGroupIn::with(|s| s.table_id(self.table).group_id(self.group));
        result.and(self.function.order(Opcode::DestroyFlowGroup, self.uid, &input))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a flow could not be removed");
        }
    }
}

/// The function's flow table, created by the first opener that needs it and destroyed with the function.
fn table(function: &Function) -> Result<u32, Error> {
    let lock = function.lock()?;
    let mut words = lock.placeholders();
    if words[WORD] != 0 {
        return Ok(words[WORD] - 1);
    }
    let context = FlowTableContext::with(|s| s.log_size(LOG_SIZE));
    let input = CreateFlowTableIn::with(|s| s.flow_table_context(context));
    let out: CreateFlowTableOut = function.call(Opcode::CreateFlowTable, ALL, &input)?;
    let root = SetFlowTableRootIn::with(|s| s.table_id(out.table_id()));
    function.order(Opcode::SetFlowTableRoot, 0, &root)?;
    words[WORD] = out.table_id() + 1;
    lock.set_placeholders(words);
    Ok(out.table_id())
}
