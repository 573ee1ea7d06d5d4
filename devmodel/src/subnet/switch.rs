//! The switch all ports hang on: its own management port, and the way of directed-route packets through it (IBTA 14.2.2,
//! 14.2.5.4).

use super::{mad::Answer, smp};
use crate::{Config, identity, region::Region, state::SUBNET_GROUPS};
use hwspec::{
    layout::{Layout, prefix},
    wire::{
        lrh::PERMISSIVE_LID,
        mad::{
            self, MAD_SIZE, Method, MgmtClass, Smp,
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
/// Device id of the switch: not one of a real device.
const DEVICE_ID: u16 = 0x1b56;

/// The way of a subnet management packet that comes to the switch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Back to where it came from, answered.
    Back([u8; MAD_SIZE]),
    /// Out of the port of this function.
    Out(u8, [u8; MAD_SIZE]),
    /// Nowhere.
    Lost,
}

/// The port a function hangs on; 0 is the switch's own.
fn port_of(fid: u8) -> u8 {
    fid + 1
}

/// A subnet management packet from function `from`.
pub(super) fn handle(region: &Region, config: &Config, from: u8, request: &[u8; MAD_SIZE]) -> Way {
    let mut packet = Smp::read(request);
    let mut header = packet.header();
    if header.mgmt_class() != MgmtClass::SubnDirected {
        return answer(region, config, from, request).map_or(Way::Lost, Way::Back);
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
        return out(region, port, &packet);
    }
    let mut path = packet.return_path();
    path[usize::from(pointer)] = port_of(from);
    packet.set().return_path(path);
    if pointer == count {
        return answer(region, config, from, packet.as_bytes()).map_or(Way::Lost, Way::Back);
    }
    // C14-9: one hop on along the initial path.
    header.set().hop_pointer(pointer + 1);
    packet.set().header(header);
    let port = packet.initial_path()[usize::from(pointer) + 1];
    if header.method() == Method::Set && !may_set(from, port_fid(port)) {
        return Way::Lost;
    }
    out(region, port, &packet)
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

fn out(region: &Region, port: u8, packet: &Smp) -> Way {
    match port_fid(port) {
        Some(fid) if is_up(region, fid) => Way::Out(fid, *packet.as_bytes()),
        _ => Way::Lost,
    }
}

/// True if there is such a function.
pub(super) fn is_up(region: &Region, fid: u8) -> bool {
    fid < region.functions() && region.is_present(fid)
}

/// The switch's own answer to a packet from function `from`.
pub(super) fn answer(
    region: &Region,
    config: &Config,
    from: u8,
    request: &[u8; MAD_SIZE],
) -> Option<[u8; MAD_SIZE]> {
    // The attributes of the switch follow from the adapter: nothing can be set.
    smp::answer_get(request, |_, id, modifier| Some(get(region, config, from, id, modifier)))
}

fn get(region: &Region, config: &Config, from: u8, id: u16, modifier: u32) -> Answer<[u8; 64]> {
    Ok(match id {
        attribute::NODE_DESCRIPTION => description(),
        attribute::NODE_INFO => {
            let mut info = node_info(region, config);
            info.set().local_port_num(port_of(from));
            prefix(info.bytes())
        }
        attribute::SWITCH_INFO => prefix(switch_info().bytes()),
        attribute::PORT_INFO => {
            let port = u8::try_from(modifier & 0x7fff_ffff).or(Err(status::BAD_FIELD))?;
            if port > region.functions() {
                return Err(status::BAD_FIELD);
            }
            let mut info = port_info(region, port);
            info.set().local_port_num(port_of(from));
            prefix(info.bytes())
        }
        attribute::GUID_INFO if modifier == 0 => prefix(&identity::switch_guid(config.node_id)),
        attribute::PKEY_TABLE if modifier & 0xffff == 0 => prefix(&super::mad::DEFAULT_PKEY.to_be_bytes()),
        attribute::SL_TO_VL => [0; 64],
        attribute::SM_INFO => {
            let info = SmInfo::with(|s| s.guid(identity::switch_guid(config.node_id)).sm_state(MASTER));
            prefix(info.bytes())
        }
        LINEAR_FORWARDING => {
            let mut ports = [NOWHERE; 64];
            for (i, port) in ports.iter_mut().enumerate() {
                let lid = modifier.saturating_mul(64).saturating_add(i as u32);
                let lid = u16::try_from(lid).or(Err(status::BAD_FIELD))?;
                match identity::fid_of_lid(lid).filter(|fid| is_up(region, *fid)) {
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

/// `NodeDescription` of the switch.
pub(super) fn description() -> [u8; 64] {
    prefix(b"ironverbs switch")
}

/// `NodeInfo` of the switch.
pub(super) fn node_info(region: &Region, config: &Config) -> NodeInfo {
    let guid = identity::switch_guid(config.node_id);
    NodeInfo::with(|s| {
        s.base_version(mad::BASE_VERSION)
            .class_version(CLASS_VERSION)
            .node_type(SWITCH)
            .num_ports(region.functions())
            .system_image_guid(guid)
            .node_guid(guid)
            .port_guid(guid)
            .partition_cap(1)
            .device_id(DEVICE_ID)
            .vendor_id(smp::VENDOR)
    })
}

fn switch_info() -> SwitchInfo {
    SwitchInfo::with(|s| {
        s.linear_fdb_cap(identity::SWITCH_LID + 1)
            .multicast_fdb_cap(SUBNET_GROUPS as u16)
            .linear_fdb_top(identity::SWITCH_LID)
            .life_time_value(super::mad::LIFE_TIME)
    })
}

/// `PortInfo` of a port of the switch: 0 is its own.
pub(super) fn port_info(region: &Region, port: u8) -> PortInfo {
    let up = port.checked_sub(1).is_none_or(|fid| is_up(region, fid));
    let mut info = smp::link_of(up);
    if port == 0 {
        info.set()
            .gid_prefix(crate::state::DEFAULT_PREFIX)
            .lid(identity::SWITCH_LID)
            .master_sm_lid(identity::SWITCH_LID)
            .capability_mask(super::mad::PORT_CAPABILITIES | IS_SM)
            .guid_cap(1);
    }
    info
}

/// `capability_mask`: a subnet manager is here.
const IS_SM: u32 = 1 << 1;
