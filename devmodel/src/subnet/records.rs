//! The ports on the subnet, and the records that describe them (IBTA 15.2.5.2, 15.2.5.3).

use super::{
    Asked, Subnet,
    mad::{self, DEFAULT_PKEY},
    switch,
};
use crate::{
    identity,
    region::{Outlet, OutletRing},
    state::{DEFAULT_PREFIX, FunctionRow, IbPort, PKEYS, SubnetPortRow},
};
use hwspec::{
    layout::Layout,
    wire::mad::{
        BASE_VERSION,
        sa::{NodeRecord, PortInfoRecord},
        smp::{self, CHANNEL_ADAPTER, NodeInfo, SWITCH},
    },
};
use std::mem::offset_of;
use zerocopy::FromZeros;

/// IEEE vendor id (OUI).
const VENDOR: u32 = 0x02c9;

impl SubnetPortRow {
    /// Its first GID.
    pub(super) fn gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&DEFAULT_PREFIX);
        gid[8..].copy_from_slice(&self.guids[1]);
        gid
    }

    /// Number of its adapter. Every row has the LID of one.
    pub(super) fn adapter(&self) -> u16 {
        identity::node_of_lid(self.lid).unwrap_or_default()
    }

    /// Its function; `None` is the switch.
    fn fid(&self) -> Option<u8> {
        identity::fid_of_lid(self.adapter(), self.lid)
    }

    /// `NodeInfo` of its node.
    pub(super) fn node_info(&self) -> NodeInfo {
        let is_switch = self.fid().is_none();
        // A switch is a system by itself; a function is a part of its adapter.
        let system = if is_switch { self.guids[0] } else { identity::guid(self.adapter(), 0) };
        NodeInfo::with(|s| {
            s.base_version(BASE_VERSION)
                .class_version(smp::CLASS_VERSION)
                .node_type(if is_switch { SWITCH } else { CHANNEL_ADAPTER })
                .num_ports(self.ports as u8)
                .system_image_guid(system)
                .node_guid(self.guids[0])
                .port_guid(self.guids[1])
                .partition_cap(if is_switch { 1 } else { PKEYS as u16 })
                .device_id(self.device_id)
                .local_port_num(u8::from(!is_switch))
                .vendor_id(VENDOR)
        })
    }
}

/// Components of the two records, by bit of the mask: LID, and port number.
const LID: u64 = 1 << 0;
const PORT_NUM: u64 = 1 << 1;

impl Subnet<'_> {
    /// Ports of this adapter: the switch, then the functions that are present.
    pub fn ends_here(&self) -> Vec<SubnetPortRow> {
        let functions = (0..self.region.functions()).filter(|fid| self.region.is_present(*fid));
        std::iter::once(self.switch_end()).chain(functions.map(|fid| self.end_of(fid))).collect()
    }

    /// The port of function `fid`.
    pub fn end_of(&self, fid: u8) -> SubnetPortRow {
        let pkeys = offset_of!(FunctionRow, ib) + offset_of!(IbPort, pkeys);
        SubnetPortRow {
            guids: self.region.guids(self.config, fid),
            pkeys: self.region.look(fid, pkeys).unwrap_or([0; PKEYS]),
            lid: identity::lid(self.config.node_id, fid),
            device_id: self.config.strict.card.device_id(fid),
            ports: 1,
            ..SubnetPortRow::new_zeroed()
        }
    }

    /// The switch's own port. It is in the default partition.
    pub fn switch_end(&self) -> SubnetPortRow {
        let mut end = SubnetPortRow {
            guids: [identity::switch_guid(self.config.node_id); 2],
            lid: self.switch_lid(),
            device_id: switch::DEVICE_ID,
            ports: self.ports().into(),
            ..SubnetPortRow::new_zeroed()
        };
        end.pkeys[0] = DEFAULT_PKEY;
        end
    }

    /// Ports of other adapters, as last reported by the link; none without a link.
    pub fn ends_elsewhere(&self) -> Vec<SubnetPortRow> {
        match OutletRing::of(self.region, Outlet::Uplink).is_open() {
            true => self.region.objects::<SubnetPortRow>(0).map(|(_, row)| row).collect(),
            false => Vec::new(),
        }
    }

    /// All ports: those of this adapter come first.
    pub fn ends(&self) -> Vec<SubnetPortRow> {
        [self.ends_here(), self.ends_elsewhere()].concat()
    }

    /// The port with this LID.
    pub fn by_lid(&self, lid: u16) -> Option<SubnetPortRow> {
        self.ends().into_iter().find(|end| end.lid == lid)
    }

    /// The port whose own GID this is.
    pub fn by_gid(&self, gid: &[u8; 16]) -> Option<SubnetPortRow> {
        self.ends().into_iter().find(|end| end.gid() == *gid)
    }

    /// The matching `NodeRecord`s.
    pub fn nodes(&self, asked: &Asked<NodeRecord>) -> Vec<Vec<u8>> {
        let matching = self.ends().into_iter().filter(|end| !asked.has(LID) || end.lid == asked.want.lid());
        matching
            .map(|end| {
                let description =
                    end.fid().map_or_else(switch::description, |fid| mad::description(end.adapter(), fid));
                NodeRecord::with(|s| s.lid(end.lid).node_info(end.node_info()).node_description(description))
                    .bytes()
                    .to_vec()
            })
            .collect()
    }

    /// The matching `PortInfoRecord`s: all ports of this switch, and the own port of any other switch.
    pub fn ports_of_nodes(&self, asked: &Asked<PortInfoRecord>) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for end in self.ends() {
            if asked.has(LID) && end.lid != asked.want.endport_lid() {
                continue;
            }
            let numbers = match end.fid() {
                Some(_) => 1..=1,
                None if end.lid == self.switch_lid() => 0..=self.ports(),
                None => 0..=0,
            };
            for number in numbers.filter(|n| !asked.has(PORT_NUM) || *n == asked.want.port_num()) {
                let info = match end.fid() {
                    Some(fid) => {
                        let (id, [_, guid]) = (end.adapter(), end.guids);
                        super::smp::described(end.lid, &mad::port(id, fid, guid), true)
                    }
                    None if number == 0 => switch::own_port(end.lid),
                    None => self.switch_port(number),
                };
                let record =
                    PortInfoRecord::with(|s| s.endport_lid(end.lid).port_num(number).port_info(info));
                records.push(record.bytes().to_vec());
            }
        }
        records
    }
}
