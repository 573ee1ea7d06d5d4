//! The devices of a node, and the identities derived from a function's number.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use crate::gid::gid_of_ip;
use crate::naming::Naming;
use crate::place::Place;
use devmodel::identity::{guid, lid, link_local_gid, loopback, mac, node_of_lid, port_gid, switch_lid};
use devmodel::state::ROCE_ADDRESSES;
use devmodel::{Config, LinkLayer};

/// Maximum number of virtual functions of the adapter.
pub const MAX_VFS: u8 = 127;

/// Entries of every port's GID table. Entries after [`DeviceInfo::gids`] are zero until they are set.
pub const GID_TABLE: usize = ROCE_ADDRESSES;

/// Entries of the GID table of an InfiniBand port.
const IB_GID_TABLE: usize = 8;

/// One function of the simulated adapter, as programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Verbs name. By default `iron0` is the PF, `iron<i>` VF i.
    pub name: String,
    /// Function number: 0 the PF, i VF i.
    pub fid: u8,
    /// Number N of its `uverbsN`.
    pub uverbs: u32,
    /// PCI address, `dddd:bb:dd.f`.
    pub bdf: String,
    /// Ethernet address of its port.
    pub mac: [u8; 6],
    /// Node and port GUID: the modified EUI-64 of the MAC, or the GUID that a VF without an assigned one generates.
    pub guid: [u8; 8],
    /// The link layer of its port.
    pub link_layer: LinkLayer,
    /// System image GUID: that of the PF.
    pub system_guid: [u8; 8],
    /// Its IP address: the one that was set, or else 127.x.y.z, derived from the node and the function by [`loopback`].
    pub ip: IpAddr,
    /// Start of the GID table. On Ethernet, all entries are RoCE v2: link-local from the MAC, then the IPv4 address, IPv4-mapped.
    pub gids: Vec<[u8; 16]>,
    /// Entries of the GID table. Entries after [`gids`](Self::gids) are zero until they are set.
    pub gid_table: usize,
    /// PCI device ID.
    pub device_id: u16,
    /// Firmware version.
    pub firmware: String,
    /// LID, on InfiniBand.
    pub lid: u16,
    /// True if the port is up.
    pub active: bool,
    /// The place of the function.
    pub place: Place,
    /// Its directory in the host's sysfs, if it is a function of the host.
    pub host: Option<PathBuf>,
    /// Nearest NUMA node.
    pub numa: Option<u16>,
}

impl DeviceInfo {
    /// The device of function `fid` of the adapter in `dir`, with behaviour `config`.
    pub fn new(dir: &Path, fid: u8, config: &Config) -> Self {
        let id = config.node_id;
        let roce = config.link_layer == LinkLayer::Ethernet;
        let mut gids = vec![if roce { link_local_gid(id, fid) } else { port_gid(id, fid) }];
        if roce {
            gids.push(gid_of_ip(Ipv4Addr::from(loopback(id, fid)).into()));
        }
        let gid_table = if roce { GID_TABLE } else { IB_GID_TABLE };
        let usual = Naming::default();
        Self {
            name: usual.name.of(fid),
            fid,
            uverbs: u32::from(fid),
            bdf: usual.bus.of(fid),
            mac: mac(id, fid),
            guid: guid(id, fid),
            link_layer: config.link_layer,
            system_guid: guid(id, 0),
            ip: Ipv4Addr::from(loopback(id, fid)).into(),
            gids,
            gid_table,
            device_id: config.strict.card.device_id(fid),
            firmware: format!("{}.99.1000", config.strict.card.firmware()),
            lid: if roce { 0 } else { lid(id, fid) },
            active: true,
            place: Place::Node { dir: dir.into(), fid },
            host: None,
            numa: usual.numa,
        }
    }

    /// The device with the names that `naming` assigns.
    #[must_use]
    pub fn called(self, naming: &Naming) -> Self {
        Self { name: naming.name.of(self.fid), bdf: naming.bus.of(self.fid), numa: naming.numa, ..self }
    }

    /// The device with the address `ip`.
    #[must_use]
    pub fn with_address(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        // On InfiniBand, GIDs do not contain IP addresses.
        if let Some(gid) = self.gids.get_mut(1) {
            *gid = gid_of_ip(ip);
        }
        self
    }

    /// Capability mask of its port (IBTA 14.2.5.6): on InfiniBand the port's own, on Ethernet support of IP-based GIDs; plus communication
    /// management, which programs implement.
    pub fn port_capabilities(&self) -> u32 {
        match self.link_layer {
            LinkLayer::Ethernet => 1 << 26 | 1 << 16,
            LinkLayer::Infiniband => devmodel::PORT_CAPABILITIES | 1 << 16,
        }
    }

    /// True if it has a device file for MADs, numbered like its `uverbsN`. Functions of nodes have one.
    pub fn has_umad(&self) -> bool {
        self.node().is_some()
    }

    /// The directory of the function's node; `None` if it does not belong to a node.
    pub fn node(&self) -> Option<&Path> {
        self.place.node()
    }

    /// LID of the subnet administrator; 0 if there is none or it is not known.
    pub fn sm_lid(&self) -> u16 {
        let on_subnet = self.link_layer == LinkLayer::Infiniband && self.node().is_some();
        node_of_lid(self.lid).filter(|_| on_subnet).map_or(0, switch_lid)
    }

    /// True for the physical function of a node.
    pub fn is_pf(&self) -> bool {
        self.node().is_some() && self.fid == 0
    }

    /// True for a virtual function of a node.
    pub fn is_vf(&self) -> bool {
        self.node().is_some() && self.fid != 0
    }
}

/// The PF and `vfs` VFs of the adapter in `dir`, at most [`MAX_VFS`], in order of function number.
pub fn devices(dir: &Path, vfs: u8, config: &Config) -> Vec<DeviceInfo> {
    (0..=vfs.min(MAX_VFS)).map(|fid| DeviceInfo::new(dir, fid, config)).collect()
}

/// Finds the function that `text` refers to among `devices`: by its verbs name, or as `iron3` or `3`, independent of names. `None` if it is
/// neither. A number need not belong to one of the devices.
pub fn function(text: &str, devices: &[DeviceInfo]) -> Option<u8> {
    let called = devices.iter().find(|device| device.name == text).map(|device| device.fid);
    let numbered = || text.strip_prefix("iron").unwrap_or(text).parse().ok();
    called.or_else(numbered).filter(|fid| *fid <= MAX_VFS)
}

/// Formats bytes as sysfs formats GUIDs and GIDs: pairs of bytes in hex, separated by colons.
pub struct Colons<'a>(
    /// The bytes; their number is even.
    pub &'a [u8],
);

impl fmt::Display for Colons<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks(2).enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            for byte in pair {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_follow_from_the_function_number() {
        let all = devices(Path::new("/n"), 8, &Config::default());
        assert_eq!(all.len(), 9);
        let d = &all[2];
        assert_eq!((d.name.as_str(), d.fid, d.uverbs, d.bdf.as_str()), ("iron2", 2, 2, "0000:c1:00.2"));
        assert_eq!(Colons(&d.guid).to_string(), "021b:56ff:fe00:0002");
        assert_eq!(Colons(&d.gids[0]).to_string(), "fe80:0000:0000:0000:001b:56ff:fe00:0002");
        assert_eq!(Colons(&d.gids[1]).to_string(), "0000:0000:0000:0000:0000:ffff:7f00:0003");
    }

    #[test]
    fn a_function_is_meant_by_its_name_and_by_its_number() {
        let naming = Naming { name: "mlx5_4".parse().unwrap(), ..Naming::default() };
        let all: Vec<_> =
            devices(Path::new("/n"), 8, &Config::default()).into_iter().map(|d| d.called(&naming)).collect();
        for (text, fid) in [("mlx5_7", Some(3)), ("iron3", Some(3)), ("3", Some(3)), ("iron9", Some(9))] {
            assert_eq!(function(text, &all), fid, "{text}");
        }
        for text in ["mlx5_3", "mlx5_13", "iron128", "iron", ""] {
            assert_eq!(function(text, &all), None, "{text}");
        }
    }

    #[test]
    fn on_infiniband_a_function_has_a_lid_and_no_gid_of_its_ip_address() {
        let config = Config { link_layer: LinkLayer::Infiniband, ..Config::default() };
        let d = DeviceInfo::new(Path::new("/n"), 2, &config).with_address(Ipv4Addr::new(10, 0, 0, 1).into());
        assert_eq!((d.lid, d.gids.len(), d.gid_table), (lid(0, 2), 1, 8));
        assert_eq!(DeviceInfo::new(Path::new("/n"), 2, &Config::default()).lid, 0);
    }

    #[test]
    fn functions_of_two_nodes_have_different_addresses() {
        let other = Config { node_id: 0x0102, ..Config::default() };
        let (a, b) = (
            DeviceInfo::new(Path::new("/a"), 1, &Config::default()),
            DeviceInfo::new(Path::new("/b"), 1, &other),
        );
        assert_eq!(b.mac, [0x02, 0x1b, 0x56, 1, 2, 1]);
        assert_eq!(Colons(&b.gids[1]).to_string(), "0000:0000:0000:0000:0000:ffff:7f01:0202");
        assert!(a.guid != b.guid && a.gids[0] != b.gids[0]);
    }

    #[test]
    fn names_and_addresses_of_a_full_adapter_are_distinct() {
        let all = devices(Path::new("/n"), 200, &Config::default());
        assert_eq!(all.len(), 128);
        assert_eq!(all[127].bdf, "0000:c1:0f.7");
        let bdfs: std::collections::BTreeSet<_> = all.iter().map(|d| &d.bdf).collect();
        assert_eq!(bdfs.len(), 128);
    }
}
