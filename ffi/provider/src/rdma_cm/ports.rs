//! The ports that a program may connect from and to: the visible functions with their addresses.

use crate::registration;
use driver::Device;
use node::devices::DeviceInfo;
use node::functions::describe;
use node::gid::{gid_of_ip, ip_of_gid};
use node::place::Place;
use node::{Node, PortAt, Ports};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A function and its only port.
pub struct Port {
    /// The description of its device.
    pub info: DeviceInfo,
    /// Where it is.
    pub place: Place,
    /// The function's node; `None` if it belongs to no node and is exclusive to this program.
    pub node: Option<Arc<Node>>,
    /// The port numbers in use there.
    pub ports: &'static Ports,
    /// True if the program may open its device: a container's `/dev` may lack devices that sysfs shows.
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
    /// True if it is on Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.info.link_layer == devmodel::LinkLayer::Ethernet
    }

    /// True if the function is served to a guest: the guest's connection manager listens there.
    pub fn is_served(&self) -> bool {
        let of_ours = |function: &node::FunctionStatus| function.fid == self.info.fid && function.served;
        let status = self.node.as_ref().and_then(|node| node.status().ok());
        status.is_some_and(|status| status.functions.iter().any(of_ours))
    }

    /// Index of the GID for the port's address `ip`. On InfiniBand all addresses use the port's own GID.
    fn gid_of(&self, ip: IpAddr) -> Option<u8> {
        if !self.is_ethernet() {
            return (self.info.ip == ip).then_some(0);
        }
        let wanted = gid_of_ip(ip);
        self.info.gids.iter().position(|gid| *gid == wanted).map(|index| index as u8)
    }

    /// The source GID for packets to `ip`, and its address: the link-local one for link-local addresses, another one of the same family for
    /// others. `None` if there is no such address.
    pub fn towards(&self, ip: IpAddr) -> Option<(u8, IpAddr)> {
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.segments()[0] & 0xffc0 == 0xfe80);
        let any = ip.is_unspecified() || link_local;
        if link_local || !self.is_ethernet() {
            return (any || self.info.ip.is_ipv4() == ip.is_ipv4()).then_some((0, self.info.ip));
        }
        let addresses = self.info.gids.iter().map(ip_of_gid).enumerate().skip(1);
        let mut fitting = addresses.filter(|(_, own)| any || own.is_ipv4() == ip.is_ipv4());
        fitting.next().map(|(index, own)| (index as u8, own))
    }

    /// The address of GID `index`; on InfiniBand the function's address.
    pub fn address(&self, index: u8) -> IpAddr {
        if self.is_ethernet() { ip_of_gid(&self.gid(index)) } else { self.info.ip }
    }

    /// Entry `index` of its GID table.
    pub fn gid(&self, index: u8) -> [u8; 16] {
        self.info.gids.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// The address number for claims of a port number at GID `gid`.
    pub fn address_number(&self, gid: u8) -> u8 {
        PortAt::address_of(self.info.fid, gid)
    }

    /// The lock of something that belongs to the function as a whole.
    pub fn whole(&self, port: u16) -> PortAt {
        PortAt::of_function(self.info.fid, port)
    }
}

/// All ports, in the order of the program's device list. Ports of functions that belong to no node are taken from `known`, if present.
pub fn visible(known: &[Port]) -> Vec<Port> {
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
        let usable = Path::new("/dev/infiniband").join(&name).exists();
        let port = match &place {
            Place::Node { dir, fid } => of_node(&mut nodes, dir, *fid, &place),
            _ => alone(number as u8, &place, usable, known),
        };
        found.extend(port.map(|port| (number, Port { usable, ..port })));
    }
    found.into_values().collect()
}

/// A function of the adapter in `dir`.
fn of_node(nodes: &mut BTreeMap<PathBuf, Arc<Node>>, dir: &Path, fid: u8, place: &Place) -> Option<Port> {
    let node = match nodes.get(dir) {
        Some(node) => Arc::clone(node),
        None => match Node::open(dir) {
            Ok(node) => Arc::clone(nodes.entry(dir.into()).or_insert(node)),
            Err(error) => {
                eprintln!("ironverbs: {error}");
                return None;
            }
        },
    };
    let info = node.devices().into_iter().find(|device| device.fid == fid)?;
    let ports = Ports::open(dir).ok()?;
    Some(Port { info, place: place.clone(), node: Some(node), ports, usable: true })
}

/// A function that belongs to no node. It serves one process at a time: this one, if the program may open it.
fn alone(number: u8, place: &Place, usable: bool, known: &[Port]) -> Option<Port> {
    if !usable {
        return None;
    }
    let info = match known.iter().find(|port| port.place == *place) {
        Some(port) => port.info.clone(),
        None => describe(number, place).inspect_err(|error| eprintln!("ironverbs: {error}")).ok()?,
    };
    Some(Port { info, place: place.clone(), node: None, ports: Ports::private().ok()?, usable: true })
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

/// Path MTU code of an open device: 1 to 5 for 256 to 4096 bytes.
pub fn mtu_code(device: &Device) -> u8 {
    let mtu = device.port().map_or(1024, |port| port.active_mtu);
    (mtu.max(256).ilog2() - 7).min(5) as u8
}

/// The number of a function's only port.
pub const PORT: u8 = 1;
