//! The switch that connects all ports: its own management port, and the forwarding of directed-route packets (IBTA 14.2.2, 14.2.5.4). It
//! has a port for each function and for each other adapter of the subnet, in the order of adapter numbers.

use super::{
    Subnet,
    mad::{self, Answer, DEFAULT_PKEY, PORT_CAPABILITIES},
    smp,
};
use crate::{
    identity,
    state::{DEFAULT_PREFIX, SUBNET_GROUPS, SubnetPortRow},
};
use hwspec::{
    layout::{Layout, prefix},
    wire::{
        lrh::PERMISSIVE_LID,
        mad::{
            Mad, Method, MgmtClass, Smp,
            smp::{PortInfo, SmInfo, SwitchInfo, attribute},
            status,
        },
    },
};
use std::collections::BTreeSet;

/// Linear forwarding table, a block of 64 LIDs each.
const LINEAR_FORWARDING: u16 = 0x19;
/// Port of a forwarding table that leads nowhere.
const NOWHERE: u8 = 0xff;
/// `sm_state`: master.
const MASTER: u8 = 3;
/// Hops of a directed route.
const MAX_HOPS: u8 = 63;
/// `capability_mask`: a subnet manager is here.
const IS_SM: u32 = 1 << 1;
/// Device ID of the switch, which no real device has.
pub(super) const DEVICE_ID: u16 = 0x1b56;

/// The result of forwarding a subnet management packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The switch answers its sender.
    Back(Mad),
    /// It leaves through the port to this neighbour.
    Out(Neighbour, Mad),
    /// It is dropped.
    Lost,
}

/// The other end of a port of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// A function's port.
    Function(u8),
    /// The switch of another adapter.
    Adapter(u16),
}

/// True if `from` may change the port of function `to`: the PF may change those of its adapter, as the subnet's manager would, and each
/// function its own. Without a management key, nothing else protects a guest's port from other guests.
pub(super) fn may_set(from: Option<Neighbour>, to: u8) -> bool {
    from == Some(Neighbour::Function(0)) || from == Some(Neighbour::Function(to))
}

/// `NodeDescription` of the switch.
pub(super) fn description() -> [u8; 64] {
    prefix(b"ironverbs switch")
}

/// `PortInfo` of port 0 of the switch with this LID.
pub(super) fn own_port(lid: u16) -> PortInfo {
    let mut info = smp::link_of(true);
    info.set()
        .gid_prefix(DEFAULT_PREFIX)
        .lid(lid)
        .master_sm_lid(lid)
        .capability_mask(PORT_CAPABILITIES | IS_SM)
        .guid_cap(1);
    info
}

impl Subnet<'_> {
    /// LID of the switch.
    pub fn switch_lid(&self) -> u16 {
        identity::switch_lid(self.config.node_id)
    }

    /// Numbers of the other adapters of the subnet.
    fn adapters(&self) -> BTreeSet<u16> {
        self.ends_elsewhere().iter().map(SubnetPortRow::adapter).collect()
    }

    /// Number of ports of the switch, except its own.
    pub fn ports(&self) -> u8 {
        let last = self.adapters().pop_last().map(Neighbour::Adapter);
        last.map_or(self.region.functions(), |last| self.port_of(last))
    }

    /// The port that leads to a neighbour; 0 is the switch's own.
    pub fn port_of(&self, neighbour: Neighbour) -> u8 {
        match neighbour {
            Neighbour::Function(fid) => fid.saturating_add(1),
            Neighbour::Adapter(id) => self.region.functions().saturating_add(1).saturating_add(id as u8),
        }
    }

    /// The other end of `port`, if there is one.
    pub fn neighbour(&self, port: u8) -> Option<Neighbour> {
        let fid = port.checked_sub(1)?;
        match fid.checked_sub(self.region.functions()) {
            None => Some(Neighbour::Function(fid)).filter(|_| self.is_up(fid)),
            Some(id) => Some(Neighbour::Adapter(id.into())).filter(|_| self.adapters().contains(&id.into())),
        }
    }

    /// The neighbour through which packets from and to `lid` pass.
    pub fn neighbour_to(&self, lid: u16) -> Option<Neighbour> {
        match identity::fid_of_lid(self.config.node_id, lid) {
            Some(fid) => Some(Neighbour::Function(fid)).filter(|_| self.is_up(fid)),
            None => {
                identity::node_of_lid(lid).filter(|id| self.adapters().contains(id)).map(Neighbour::Adapter)
            }
        }
    }

    /// Handles a subnet management packet from a neighbour.
    pub fn switch(&self, from: Neighbour, request: &Mad) -> Way {
        let mut packet = Smp::read(request);
        let mut header = packet.header();
        if header.mgmt_class() != MgmtClass::SubnDirected {
            return self.switch_answer(from, request).map_or(Way::Lost, Way::Back);
        }
        let (pointer, count) = (header.hop_pointer(), header.hop_count());
        // The whole route is directed: it has no LID-routed parts.
        let whole = packet.dr_slid() == PERMISSIVE_LID && packet.dr_dlid() == PERMISSIVE_LID;
        if !whole || count > MAX_HOPS || pointer == 0 || pointer > count {
            return Way::Lost;
        }
        if header.status() & status::DIRECTION != 0 {
            // C14-13: one hop back along the return path.
            if pointer < 2 {
                return Way::Lost;
            }
            let port = packet.return_path()[usize::from(pointer) - 1];
            header.set().hop_pointer(pointer - 1);
            packet.set().header(header);
            return self.out(port, &packet);
        }
        let mut path = packet.return_path();
        path[usize::from(pointer)] = self.port_of(from);
        packet.set().return_path(path);
        if pointer == count {
            return self.switch_answer(from, packet.as_bytes()).map_or(Way::Lost, Way::Back);
        }
        // C14-9: one hop on along the initial path.
        header.set().hop_pointer(pointer + 1);
        packet.set().header(header);
        let port = packet.initial_path()[usize::from(pointer) + 1];
        let may_set = |to| matches!(to, Neighbour::Function(to) if may_set(Some(from), to));
        if header.method() == Method::Set && !self.neighbour(port).is_some_and(may_set) {
            return Way::Lost;
        }
        self.out(port, &packet)
    }

    /// True if the function is present.
    pub fn is_up(&self, fid: u8) -> bool {
        fid < self.region.functions() && self.region.is_present(fid)
    }

    fn out(&self, port: u8, packet: &Smp) -> Way {
        self.neighbour(port).map_or(Way::Lost, |to| Way::Out(to, *packet.as_bytes()))
    }

    /// The switch's own answer to a packet from a neighbour.
    pub fn switch_answer(&self, from: Neighbour, request: &Mad) -> Option<Mad> {
        // The switch's attributes follow from the adapter and cannot be set.
        smp::respond(request, &[Method::Get], |_, id, modifier| Ok(Some((0, self.get(from, id, modifier)?))))
    }

    fn get(&self, from: Neighbour, id: u16, modifier: u32) -> Answer<[u8; 64]> {
        Ok(match id {
            attribute::NODE_DESCRIPTION => description(),
            attribute::NODE_INFO => {
                let mut info = self.switch_end().node_info();
                info.set().local_port_num(self.port_of(from));
                prefix(info.bytes())
            }
            attribute::SWITCH_INFO => prefix(self.switch_info().bytes()),
            attribute::PORT_INFO => {
                let port = u8::try_from(modifier & 0x7fff_ffff).or(Err(status::BAD_FIELD))?;
                if port > self.ports() {
                    return Err(status::BAD_FIELD);
                }
                let mut info = self.switch_port(port);
                info.set().local_port_num(self.port_of(from));
                prefix(info.bytes())
            }
            attribute::GUID_INFO if modifier == 0 => prefix(&identity::switch_guid(self.config.node_id)),
            attribute::PKEY_TABLE if modifier & 0xffff == 0 => prefix(&DEFAULT_PKEY.to_be_bytes()),
            attribute::SL_TO_VL => [0; 64],
            attribute::SM_INFO => {
                let info =
                    SmInfo::with(|s| s.guid(identity::switch_guid(self.config.node_id)).sm_state(MASTER));
                prefix(info.bytes())
            }
            LINEAR_FORWARDING => {
                let mut ports = [NOWHERE; 64];
                for (i, port) in ports.iter_mut().enumerate() {
                    let lid = modifier.saturating_mul(64).saturating_add(i as u32);
                    let lid = u16::try_from(lid).or(Err(status::BAD_FIELD))?;
                    match self.neighbour_to(lid) {
                        Some(neighbour) => *port = self.port_of(neighbour),
                        None if lid == self.switch_lid() => *port = 0,
                        None => {}
                    }
                }
                ports
            }
            _ => return Err(status::BAD_ATTRIBUTE),
        })
    }

    fn switch_info(&self) -> SwitchInfo {
        let last = self.adapters().into_iter().chain([self.config.node_id]).max();
        SwitchInfo::with(|s| {
            s.linear_fdb_cap(identity::switch_lid(identity::MAX_SUBNET_ID) + 1)
                .multicast_fdb_cap(SUBNET_GROUPS as u16)
                .linear_fdb_top(identity::switch_lid(last.unwrap_or_default()))
                .life_time_value(mad::PACKET_LIFE)
        })
    }

    /// `PortInfo` of a port of the switch: 0 is its own.
    pub fn switch_port(&self, port: u8) -> PortInfo {
        match port {
            0 => own_port(self.switch_lid()),
            _ => smp::link_of(self.neighbour(port).is_some()),
        }
    }
}
