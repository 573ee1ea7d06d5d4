//! Functions that belong to no node: those of a physical adapter bound to vfio-pci, or behind a vfio-user socket. The attributes that
//! programs see are queried from the functions.

use crate::devices::DeviceInfo;
use crate::gid::ip_of_gid;
use crate::opening::PlaceError;
use crate::place::{Neighbour, Place};
use devmodel::LinkLayer;
use std::{net::IpAddr, path::PathBuf};

/// PCI bus under which functions behind sockets appear, since they have no PCI address.
const SOCKETS: &str = "0000:c2";

/// Queries the functions at `places` one after the other, and names them in that order. Each is brought up and closed again. Functions of
/// one list know each other's addresses.
pub fn functions(mut places: Vec<Place>) -> Result<Vec<DeviceInfo>, PlaceError> {
    let mut all = Vec::new();
    for (number, place) in places.iter().enumerate() {
        all.push(describe(number as u8, place)?);
    }
    let known: Vec<Neighbour> =
        all.iter().flat_map(|d| d.gids.iter().skip(1).map(|gid| peer(gid, d.mac))).collect();
    for (info, place) in all.iter_mut().zip(&mut places) {
        if let Some(addresses) = place.addresses_mut() {
            let new = known.iter().filter(|n| addresses.neighbours.iter().all(|known| known.ip != n.ip));
            let new: Vec<_> = new.copied().collect();
            addresses.neighbours.extend(new);
        }
        info.place = place.clone();
    }
    Ok(all)
}

fn peer(gid: &[u8; 16], mac: [u8; 6]) -> Neighbour {
    Neighbour { ip: ip_of_gid(gid), mac }
}

/// Queries one function, which appears as `iron<number>`. Opens it for that, unless this process already has it open.
pub fn describe(number: u8, place: &Place) -> Result<DeviceInfo, PlaceError> {
    let device = place.open_silently()?;
    let failed = |source| PlaceError::Device { place: place.to_string(), source };
    let port = device.port().map_err(failed)?;
    let attr = device.attr().clone();
    let ips = place.addresses().map(|a| a.ips.clone()).unwrap_or_default();
    let link_layer = match port.link_layer {
        driver::LinkLayer::Ethernet => LinkLayer::Ethernet,
        driver::LinkLayer::InfiniBand => LinkLayer::Infiniband,
    };
    let mut gids = Vec::new();
    for index in 0..port.gid_tbl_len.min(1 + ips.len() as u32) {
        gids.push(device.gid(index as u16).map_err(failed)?);
    }
    let (bdf, host) = match place {
        Place::Vfio(address, _) => {
            let dir = PathBuf::from(format!("/sys/bus/pci/devices/{address}"));
            (address.to_string(), std::fs::canonicalize(dir).ok())
        }
        _ => (format!("{SOCKETS}:{:02x}.{:x}", number >> 3, number & 7), None),
    };
    let numa = host.as_ref().and_then(|dir| std::fs::read_to_string(dir.join("numa_node")).ok());
    let info = DeviceInfo {
        name: format!("iron{number}"),
        fid: number,
        uverbs: number.into(),
        bdf,
        mac: port.mac,
        guid: attr.node_guid,
        link_layer,
        system_guid: attr.sys_image_guid,
        ip: ips.first().copied().unwrap_or(IpAddr::from([0; 4])),
        gids,
        gid_table: port.gid_tbl_len as usize,
        device_id: attr.vendor_part_id as u16,
        firmware: {
            let (major, minor, sub) = attr.fw_ver;
            format!("{major}.{minor}.{sub:04}")
        },
        lid: port.lid,
        active: port.active,
        place: place.clone(),
        host,
        // A value of -1 means no node.
        numa: numa.and_then(|text| text.trim().parse().ok()),
    };
    device.close().map_err(failed)?;
    Ok(info)
}
