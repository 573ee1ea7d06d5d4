//! The ports a program may connect from and to: the functions of nodes that it sees, with their addresses.

use crate::registration;
use driver::Device;
use node::devices::DeviceInfo;
use node::gid::gid_of_ip;
use node::place::Place;
use node::{Node, PortAt, Ports};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One function of a node, which has one port.
pub struct Port {
    /// What it is.
    pub info: DeviceInfo,
    /// Where it is.
    pub place: Place,
    /// The node it is on.
    pub node: Arc<Node>,
    /// Which ports are taken there.
    pub ports: &'static Ports,
    /// The program may open its device: a container's view of `/dev` may leave devices out that sysfs shows.
    pub usable: bool,
}

/// A port and one of its GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Number of the port among those of this process.
    pub port: usize,
    /// Index of the GID.
    pub gid: u8,
}

impl Port {
    /// Whether it is on Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.info.link_layer == devmodel::LinkLayer::Ethernet
    }

    /// Whether a guest has the function: its own manager listens there.
    pub fn is_served(&self) -> bool {
        let of_ours = |function: &node::FunctionStatus| function.fid == self.info.fid && function.served;
        self.node.status().is_ok_and(|status| status.functions.iter().any(of_ours))
    }

    /// Index of the GID that `ip` of this port goes by. On InfiniBand all go by the port's own.
    fn gid_of(&self, ip: IpAddr) -> Option<u8> {
        if !self.is_ethernet() {
            return (self.info.ip == ip).then_some(0);
        }
        let wanted = gid_of_ip(ip);
        self.info.gids.iter().position(|gid| *gid == wanted).map(|index| index as u8)
    }

    /// Entry `index` of its GID table.
    pub fn gid(&self, index: u8) -> [u8; 16] {
        self.info.gids.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// Where claims of a port number at GID `gid` are noted: two addresses are told apart.
    pub fn address_number(&self, gid: u8) -> u8 {
        (self.info.fid & 0x7f) << 1 | u8::from(gid != 0)
    }

    /// The binding of something that is the function's as a whole.
    pub fn whole(&self, port: u16) -> PortAt {
        PortAt { space: 0, port, address: Some(self.info.fid) }
    }
}

/// All of them, in the order in which the program sees its devices.
pub fn visible() -> Vec<Port> {
    let Some(sysfs) = registration::sysfs() else { return Vec::new() };
    let class = Path::new(&sysfs).join("class/infiniband_verbs");
    let mut nodes: BTreeMap<PathBuf, Arc<Node>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(class).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("uverbs")?.parse::<u32>().ok());
        let marker = std::fs::read(entry.path().join("ironverbs"));
        let (Some(number), Ok(marker)) = (number, marker) else { continue };
        let Ok(place) = Place::parse(&marker) else { continue };
        // A function that is no node's has one opener at a time, which is the program itself.
        let Place::Node { dir, fid } = &place else { continue };
        let node = match nodes.get(dir) {
            Some(node) => Arc::clone(node),
            None => match Node::open(dir) {
                Ok(node) => Arc::clone(nodes.entry(dir.clone()).or_insert(node)),
                Err(error) => {
                    eprintln!("ironverbs: {error}");
                    continue;
                }
            },
        };
        let info = node.devices().into_iter().find(|device| device.fid == *fid);
        let (Some(info), Ok(ports)) = (info, Ports::open(dir)) else { continue };
        let usable = Path::new("/dev/infiniband").join(&name).exists();
        found.insert(number, Port { info, place, node, ports, usable });
    }
    found.into_values().collect()
}

/// The port that has the IP address `ip`.
pub fn with_ip(ports: &[Port], ip: IpAddr) -> Option<At> {
    let at = |(port, gid)| At { port, gid };
    ports.iter().enumerate().find_map(|(index, port)| Some(at((index, port.gid_of(ip)?))))
}

/// The port that has the GID `gid`.
pub fn with_gid(ports: &[Port], gid: &[u8; 16]) -> Option<At> {
    ports.iter().enumerate().find_map(|(index, port)| {
        let position = port.info.gids.iter().position(|own| own == gid)?;
        Some(At { port: index, gid: position as u8 })
    })
}

/// Code of the path MTU of an open device: 1 to 5 for 256 to 4096 bytes.
pub fn mtu_code(device: &Device) -> u8 {
    let mtu = device.port().map_or(1024, |port| port.active_mtu);
    (mtu.max(256).ilog2() - 7).min(5) as u8
}

/// The number of a function's only port.
pub const PORT: u8 = 1;
