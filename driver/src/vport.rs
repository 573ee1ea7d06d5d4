//! The function's network configuration: addresses and MTU, and their announcement to the adapter's switch.
//!
//! A frame from the wire or another function reaches this one only if its destination is in the lists of its vport
//! context, which the owner of the physical function's switch reads. A physical function in that role also writes the
//! table that the port uses to give it frames.

use crate::{
    bringup::{Watch, link_local},
    error::Error,
    function::{Function, LAYER_2, Vport},
    port,
    shared_area::FunctionLock,
    transport::Transport,
};
use hwspec::{
    cmd::{CmdOut, Opcode, eswitch::*, vport::*},
    context::vport::{MacAddressLayout, NicVportContext},
    layout::{Layout, prefix},
};
use std::hash::{BuildHasher, RandomState};

/// Index of our address in the physical function's table.
const L2_INDEX: u32 = 0;
/// The default MTU of a vport: Ethernet's.
const USUAL_MTU: u16 = 1500 + LAYER_2;
/// Broadcast, and the all-nodes groups of IPv6 and IPv4.
const EVERYBODY: [[u8; 6]; 3] = [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [0x01, 0x00, 0x5e, 0, 0, 1]];

/// Reads MAC, MTU and GUIDs of an Ethernet vport (`QUERY_NIC_VPORT_CONTEXT`), and chooses values for those that are not
/// set.
pub fn describe(
    function: &mut Function,
    lock: &FunctionLock<'_>,
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    let out: QueryNicVportContextOut =
        function.call(Opcode::QueryNicVportContext, 0, &QueryNicVportContextIn::zeroed())?;
    let context = out.nic_vport_context();
    let given: [u8; 6] = prefix(&context.permanent_address().as_bytes()[2..]);
    // A virtual function without an assigned address leaves the choice to the driver, as in mlx5e, and in systemd for
    // all such devices.
    let own = given == [0; 6] && !function.caps.general.vport_group_manager();
    let draw = || function.options.own_mac.unwrap_or_else(|| draw_mac(&*function.transport));
    let mac = if own { lock.own_mac(draw) } else { given };
    watch.read("MAC", mac.map(|byte| format!("{byte:02x}")).join(":") + if own { ", our own" } else { "" });
    let node_guid = match context.node_guid() {
        0 => guid_of(&mac),
        guid => guid,
    };
    let system_image_guid = match context.system_image_guid() {
        0 => node_guid,
        guid => guid,
    };
    let mtu = match context.mtu() {
        0 => port_mtu(function)?.unwrap_or(USUAL_MTU),
        mtu => mtu,
    };
    watch.read("MTU", mtu.to_string());
    function.vport = Vport { mac, mtu, node_guid, system_image_guid };
    Ok(())
}

/// The port's MTU, `None` if this function may not read it.
fn port_mtu(function: &Function) -> Result<Option<u16>, Error> {
    match port::mtu(function) {
        Ok(0) | Err(Error::Command { .. }) => Ok(None),
        mtu => mtu.map(Some),
    }
}

/// Draws a unicast MAC. If machine and function both have a name, it is the same whenever the function is opened on
/// this machine, since peers cache it, and since `run` opens the function before its program does.
fn draw_mac(transport: &dyn Transport) -> [u8; 6] {
    let machine = std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty());
    let number = match machine.zip(transport.name()) {
        Some((machine, name)) => fnv(machine.trim().bytes().chain(name.bytes())),
        None => RandomState::new().hash_one(()),
    };
    let mut mac: [u8; 6] = prefix(&number.to_be_bytes());
    // Locally administered and unicast (IEEE 802, 8.2).
    mac[0] = mac[0] & !1 | 2;
    mac
}

/// FNV-1a, which gives the same result in every release.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The GUID that Linux derives from a MAC.
fn guid_of(mac: &[u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = *mac;
    u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f])
}

/// Announces our addresses to the switch, raises the MTU to the port's, and enables RoCE. Called by the function's
/// first opener.
pub fn announce(function: &mut Function, gids: &[[u8; 16]], watch: &mut dyn Watch) -> Result<(), Error> {
    raise_mtu(function, watch)?;
    let mac = function.vport.mac;
    tolerate("its unicast address", write_list(function, UNICAST, &[number(&mac)]))?;
    let mut groups: Vec<u64> = EVERYBODY.iter().map(number).collect();
    for gid in gids {
        let group = solicited_node(gid).as_ref().map(number);
        groups.extend(group.filter(|group| !groups.contains(group)));
    }
    groups.truncate(room(function));
    tolerate("its multicast addresses", write_list(function, MULTICAST, &groups))?;
    let caps = &function.caps.general;
    if caps.eswitch_manager() && caps.log_max_l2_table() > 0 {
        let input = SetL2TableEntryIn::with(|s| s.table_index(L2_INDEX).mac_address(layout(&mac)));
        tolerate("its entry of the L2 table", function.order(Opcode::SetL2TableEntry, 0, &input))?;
    }
    if caps.roce() {
        let context = NicVportContext::with(|s| s.roce_en(true));
        modify(function, ROCE_EN, context, &[])?;
    }
    Ok(())
}

/// Logs a refusal, as mlx5e does: the function's switch may not need the setting.
fn tolerate(what: &'static str, result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error @ Error::Command { .. }) => {
            tracing::warn!(%error, "the function could not set {what}: frames to it may not arrive");
            Ok(())
        }
        other => other,
    }
}

/// Allows the vport every frame that the port accepts; the firmware's default is 1522 bytes.
fn raise_mtu(function: &mut Function, watch: &mut dyn Watch) -> Result<(), Error> {
    let wanted = match function.options.mtu {
        Some(mtu) => mtu.saturating_add(LAYER_2),
        None => match port_mtu(function)?.filter(|mtu| *mtu > function.vport.mtu) {
            Some(mtu) => mtu,
            None => return Ok(()),
        },
    };
    let context = NicVportContext::with(|s| s.mtu(wanted));
    match modify(function, MTU, context, &[]) {
        Ok(()) => {
            function.vport.mtu = wanted;
            watch.read("MTU now", wanted.to_string());
            Ok(())
        }
        Err(error @ Error::Command { .. }) if function.options.mtu.is_none() => {
            tracing::warn!(%error, "the MTU of the function stays at {}", function.vport.mtu);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn modify(function: &Function, fields: u32, context: NicVportContext, list: &[u64]) -> Result<(), Error> {
    let mut input = ModifyNicVportContextIn::zeroed();
    input.set().field_select(fields.to_be_bytes()).nic_vport_context(context);
    function.call_with::<_, CmdOut>(Opcode::ModifyNicVportContext, 0, &input, list).map(drop)
}

fn layout(mac: &[u8; 6]) -> MacAddressLayout {
    Layout::read(&number(mac).to_be_bytes())
}

/// A MAC as a list entry.
fn number(mac: &[u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn write_list(function: &Function, kind: u8, list: &[u64]) -> Result<(), Error> {
    let context = NicVportContext::with(|s| s.allowed_list_type(kind).allowed_list_size(list.len() as u16));
    modify(function, ADDRESSES, context, list)
}

/// Maximum number of multicast addresses in the list.
fn room(function: &Function) -> usize {
    1 << function.caps.general.log_max_current_mc_list().min(11)
}

/// The Ethernet group to which neighbours send requests for an IPv6 address (RFC 4291, 2.7.1; RFC 2464, section 7).
/// Requests for IPv4 addresses are broadcast.
fn solicited_node(gid: &[u8; 16]) -> Option<[u8; 6]> {
    let mapped = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    (!mapped && *gid != [0; 16]).then(|| [0x33, 0x33, 0xff, gid[13], gid[14], gid[15]])
}

/// Joins the group for neighbours' requests for `gid`.
pub fn hear_neighbours_of(function: &Function, gid: &[u8; 16]) -> Result<(), Error> {
    match solicited_node(gid) {
        Some(group) => hear(function, &group),
        None => Ok(()),
    }
}

/// Adds `group` to the list of addresses that the switch lets through. It stays until the function goes down, since
/// another opener may have added it too.
pub fn hear(function: &Function, group: &[u8; 6]) -> Result<(), Error> {
    if !function.is_ethernet() {
        return Ok(());
    }
    // The device has a single list, which is always written whole.
    let _lock = function.lock()?;
    let input = QueryNicVportContextIn::with(|s| s.allowed_list_type(MULTICAST));
    let most = room(function);
    let mut output = vec![0; QueryNicVportContextOut::SIZE + 8 * most];
    function.query_list(&input, &mut output)?;
    let count = QueryNicVportContextOut::read(&output).nic_vport_context().allowed_list_size();
    let entries = output[QueryNicVportContextOut::SIZE..].chunks_exact(8).take(count.into());
    let mut list: Vec<u64> =
        entries.map(|entry| u64::from_be_bytes(prefix(entry)) & 0xffff_ffff_ffff).collect();
    let group = number(group);
    if list.contains(&group) {
        return Ok(());
    }
    if list.len() >= most {
        tracing::warn!("the function hears {most} groups already: messages to a further one may not arrive");
        return Ok(());
    }
    list.push(group);
    tolerate("its multicast addresses", write_list(function, MULTICAST, &list))
}

/// The GIDs requested in the options, for a function with a known MAC.
pub fn gids(function: &Function) -> Vec<[u8; 16]> {
    let first = function.options.link_local.then(|| link_local(&function.vport.mac));
    first.into_iter().chain(function.options.gids.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_ask_for_an_address_by_the_group_of_its_end() {
        let gid = "fe80::21b:56ff:fe12:3456".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(solicited_node(&gid), Some([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));
        let mapped = "::ffff:10.0.0.1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!((solicited_node(&mapped), solicited_node(&[0; 16])), (None, None));
    }

    #[test]
    fn guids_are_made_as_linux_makes_them() {
        assert_eq!(guid_of(&[0x02, 0x1b, 0x56, 0x01, 0x02, 0x03]), 0x021b_56ff_fe01_0203);
    }
}
