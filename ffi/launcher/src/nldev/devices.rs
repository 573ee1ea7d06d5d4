//! Devices, their ports and device files, and the system as a whole.

use super::call::{Call, Done, PORT, Refused, handle};
use super::codes::{attr, cmd};
use super::message::Attributes;
use devmodel::LinkLayer;
use node::devices::DeviceInfo;

/// `RDMA_NODE_IB_CA`.
const NODE_IB_CA: u8 = 1;
/// `IBV_PORT_DOWN`, `IBV_PORT_ACTIVE`; physical: disabled, link up.
const DOWN: (u8, u8) = (1, 3);
const ACTIVE: (u8, u8) = (4, 5);
/// `device_cap_flags` of every device here: port active event, system image GUID, RC RNR NAK.
const DEVICE_CAPS: u64 = 1 << 10 | 1 << 11 | 1 << 12;
/// Version of the interface of mlx5's user contexts.
const UVERBS_ABI: u64 = 1;
/// 1:3, `/dev/null`, in the kernel's 64-bit form: twelve bits of major number above eight of the minor.
const NULL_DEVICE: u64 = 1 << 8 | 3;
/// The net device of every port. Addresses belong to the loopback network, as in sysfs.
const NET_DEVICE: (u32, &str) = (1, "lo");
/// `RDMA_NLDEV_SYS_ATTR_NETNS_MODE`: devices are seen in all network namespaces.
const SHARED: u8 = 1;

pub fn get(call: &mut Call<'_>) -> Done {
    let (index, device) = call.device()?;
    let info = info(index, device);
    call.reply(&info);
    Ok(())
}

pub fn dump(call: &mut Call<'_>) -> Done {
    let inventory = call.inventory;
    inventory.indexed().for_each(|(index, device)| call.part(&info(index, device)));
    Ok(())
}

fn info(index: u32, d: &DeviceInfo) -> Attributes {
    let mut out = Attributes::default();
    handle(&mut out, index, d);
    out.u32(attr::PORT_INDEX, PORT)
        .u64(attr::CAP_FLAGS, DEVICE_CAPS)
        .text(attr::FW_VERSION, &d.firmware)
        .u64(attr::NODE_GUID, u64::from_be_bytes(d.guid))
        .u64(attr::SYS_IMAGE_GUID, u64::from_be_bytes(d.system_guid))
        .u8(attr::DEV_NODE_TYPE, NODE_IB_CA)
        .u8(attr::DEV_DIM, 0)
        .text(
            attr::DEV_PROTOCOL,
            match d.link_layer {
                LinkLayer::Ethernet => "roce",
                LinkLayer::Infiniband => "ib",
            },
        );
    out
}

pub fn get_port(call: &mut Call<'_>) -> Done {
    let (index, device) = call.port()?;
    let port = port(call, index, device);
    // The kernel answers with this command's number.
    call.reply_as(cmd::GET, &port);
    Ok(())
}

pub fn dump_ports(call: &mut Call<'_>) -> Done {
    let (index, device) = call.device()?;
    let port = port(call, index, device);
    call.part(&port);
    Ok(())
}

fn port(call: &Call<'_>, index: u32, d: &DeviceInfo) -> Attributes {
    let mut out = Attributes::default();
    let seen = call.inventory.on_node(d).and_then(|(observer, fid)| observer.port(fid));
    handle(&mut out, index, d);
    out.u32(attr::PORT_INDEX, PORT);
    if d.link_layer == LinkLayer::Infiniband {
        let prefix = seen.map_or([0xfe, 0x80, 0, 0, 0, 0, 0, 0], |p| p.gid_prefix);
        out.u64(attr::CAP_FLAGS, d.port_capabilities().into())
            .u64(attr::SUBNET_PREFIX, u64::from_be_bytes(prefix))
            .u32(attr::LID, d.lid.into())
            .u32(attr::SM_LID, d.sm_lid().into())
            .u8(attr::LMC, 0);
    }
    let (state, physical) = if seen.map_or(d.active, |p| p.up) { ACTIVE } else { DOWN };
    out.u8(attr::PORT_STATE, state).u8(attr::PORT_PHYS_STATE, physical);
    if d.link_layer == LinkLayer::Ethernet {
        out.u32(attr::NDEV_INDEX, NET_DEVICE.0).text(attr::NDEV_NAME, NET_DEVICE.1);
    }
    out
}

/// The device file of a device. Only uverbs has one here; others are where sysfs says, or missing.
pub fn get_chardev(call: &mut Call<'_>) -> Done {
    let kind = call.request.text(attr::CHARDEV_TYPE)?.ok_or(Refused::INVALID)?;
    if !call.request.has(attr::DEV_INDEX) {
        return Err(if call.request.has(attr::PORT_INDEX) { Refused::INVALID } else { NO_CLIENT });
    }
    let (_, device) = call.device()?;
    if call.request.u32(attr::PORT_INDEX)?.is_some_and(|port| port != PORT) {
        return Err(Refused::INVALID);
    }
    if kind != "uverbs" {
        return Err(NO_CLIENT);
    }
    let mut out = Attributes::default();
    // Without a driver ID, because the stock mlx5 driver would claim the device by it, as by PCI IDs.
    out.u64(attr::CHARDEV, NULL_DEVICE)
        .u64(attr::CHARDEV_ABI, UVERBS_ABI)
        .text(attr::CHARDEV_NAME, &format!("uverbs{}", device.uverbs));
    call.reply(&out);
    Ok(())
}

/// The kernel has no client of that name.
const NO_CLIENT: Refused = Refused(libc::EOPNOTSUPP, None);

pub fn get_system(call: &mut Call<'_>) -> Done {
    let mut out = Attributes::default();
    // Memory is accessed by its owner's addresses, so copy-on-fork does not matter.
    out.u8(attr::SYS_NETNS_MODE, SHARED).u8(attr::SYS_PRIVILEGED_QKEY_MODE, 0).u8(attr::SYS_COPY_ON_FORK, 1);
    call.reply(&out);
    Ok(())
}

/// Requests to rename, move, create and remove devices, and to change the system's mode.
pub fn change(call: &Call<'_>, command: u16) -> Done {
    match command {
        cmd::SYS_SET if !call.request.has(attr::SYS_NETNS_MODE) => Err(Refused::INVALID),
        cmd::SYS_SET => Err(Refused::UNSUPPORTED),
        cmd::SET => call.device().and(Err(Refused::UNSUPPORTED)),
        // Users cannot remove hardware devices, and no kind of link creates one of ours.
        cmd::DELLINK => {
            call.device().and(Err(Refused(libc::EINVAL, Some("a device of hardware cannot be removed"))))
        }
        _ => Err(Refused(libc::EINVAL, Some("no such type of link"))),
    }
}
