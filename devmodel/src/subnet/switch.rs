//! The switch all ports hang on: its own management port, and the way of directed-route packets through it (IBTA 14.2.2,
//! 14.2.5.4).

use super::{
    Subnet,
    mad::{self, Answer, DEFAULT_PKEY, PORT_CAPABILITIES},
    smp,
};
use crate::{
    identity,
    state::{DEFAULT_PREFIX, SUBNET_GROUPS},
};
use hwspec::{
    layout::{Layout, prefix},
    wire::{
        lrh::PERMISSIVE_LID,
        mad::{
            BASE_VERSION, Mad, Method, MgmtClass, Smp,
            smp::{CLASS_VERSION, NodeInfo, PortInfo, SWITCH, SmInfo, SwitchInfo, attribute},
            status,
        },
    },
};

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
/// Device id of the switch: not one of a real device.
const DEVICE_ID: u16 = 0x1b56;

/// The way of a subnet management packet that comes to the switch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Back to where it came from, answered.
    Back(Mad),
    /// Out of the port of this function.
    Out(u8, Mad),
    /// Nowhere.
    Lost,
}

/// The port a function hangs on; 0 is the switch's own.
fn port_of(fid: u8) -> u8 {
    fid + 1
}

/// The function that hangs on `port`.
fn port_fid(port: u8) -> Option<u8> {
    port.checked_sub(1)
}

/// True if function `from` may change the port of `to`: the PF may change any, as the subnet's manager would, and each its
/// own. Without a management key nothing else keeps guests from one another's ports.
pub(super) fn may_set(from: u8, to: Option<u8>) -> bool {
    from == 0 || Some(from) == to
}

/// `NodeDescription` of the switch.
pub(super) fn description() -> [u8; 64] {
    prefix(b"ironverbs switch")
}

fn switch_info() -> SwitchInfo {
    SwitchInfo::with(|s| {
        s.linear_fdb_cap(identity::SWITCH_LID + 1)
            .multicast_fdb_cap(SUBNET_GROUPS as u16)
            .linear_fdb_top(identity::SWITCH_LID)
            .life_time_value(mad::PACKET_LIFE)
    })
}

impl Subnet<'_> {
    /// A subnet management packet from function `from`.
    pub fn switch(&self, from: u8, request: &Mad) -> Way {
        let mut packet = Smp::read(request);
        let mut header = packet.header();
        if header.mgmt_class() != MgmtClass::SubnDirected {
            return self.switch_answer(from, request).map_or(Way::Lost, Way::Back);
        }
        let (pointer, count) = (header.hop_pointer(), header.hop_count());
        // The directed part begins and ends here: no LID-routed parts around it.
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
        path[usize::from(pointer)] = port_of(from);
        packet.set().return_path(path);
        if pointer == count {
            return self.switch_answer(from, packet.as_bytes()).map_or(Way::Lost, Way::Back);
        }
        // C14-9: one hop on along the initial path.
        header.set().hop_pointer(pointer + 1);
        packet.set().header(header);
        let port = packet.initial_path()[usize::from(pointer) + 1];
        if header.method() == Method::Set && !may_set(from, port_fid(port)) {
            return Way::Lost;
        }
        self.out(port, &packet)
    }

    /// True if there is such a function.
    pub fn is_up(&self, fid: u8) -> bool {
        fid < self.region.functions() && self.region.is_present(fid)
    }

    fn out(&self, port: u8, packet: &Smp) -> Way {
        match port_fid(port) {
            Some(fid) if self.is_up(fid) => Way::Out(fid, *packet.as_bytes()),
            _ => Way::Lost,
        }
    }

    /// The switch's own answer to a packet from function `from`.
    pub fn switch_answer(&self, from: u8, request: &Mad) -> Option<Mad> {
        // The attributes of the switch follow from the adapter: nothing can be set.
        smp::respond(request, &[Method::Get], |_, id, modifier| Ok(Some((0, self.get(from, id, modifier)?))))
    }

    fn get(&self, from: u8, id: u16, modifier: u32) -> Answer<[u8; 64]> {
        Ok(match id {
            attribute::NODE_DESCRIPTION => description(),
            attribute::NODE_INFO => {
                let mut info = self.switch_node();
                info.set().local_port_num(port_of(from));
                prefix(info.bytes())
            }
            attribute::SWITCH_INFO => prefix(switch_info().bytes()),
            attribute::PORT_INFO => {
                let port = u8::try_from(modifier & 0x7fff_ffff).or(Err(status::BAD_FIELD))?;
                if port > self.region.functions() {
                    return Err(status::BAD_FIELD);
                }
                let mut info = self.switch_port(port);
                info.set().local_port_num(port_of(from));
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
                    match identity::fid_of_lid(lid).filter(|fid| self.is_up(*fid)) {
                        Some(fid) => *port = port_of(fid),
                        None if lid == identity::SWITCH_LID => *port = 0,
                        None => {}
                    }
                }
                ports
            }
            _ => return Err(status::BAD_ATTRIBUTE),
        })
    }

    /// `NodeInfo` of the switch.
    pub fn switch_node(&self) -> NodeInfo {
        let guid = identity::switch_guid(self.config.node_id);
        NodeInfo::with(|s| {
            s.base_version(BASE_VERSION)
                .class_version(CLASS_VERSION)
                .node_type(SWITCH)
                .num_ports(self.region.functions())
                .system_image_guid(guid)
                .node_guid(guid)
                .port_guid(guid)
                .partition_cap(1)
                .device_id(DEVICE_ID)
                .vendor_id(smp::VENDOR)
        })
    }

    /// `PortInfo` of a port of the switch: 0 is its own.
    pub fn switch_port(&self, port: u8) -> PortInfo {
        let up = port_fid(port).is_none_or(|fid| self.is_up(fid));
        let mut info = smp::link_of(up);
        if port == 0 {
            info.set()
                .gid_prefix(DEFAULT_PREFIX)
                .lid(identity::SWITCH_LID)
                .master_sm_lid(identity::SWITCH_LID)
                .capability_mask(PORT_CAPABILITIES | IS_SM)
                .guid_cap(1);
        }
        info
    }
}
