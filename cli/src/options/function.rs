//! Options about functions that are no node's: those of a card, and those behind a socket.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use driver::pci::Address;
use node::place::{Addresses, Neighbour, Place, parse_mac};

use super::NodeDir;
use crate::pod::Pod;

/// Functions that are no node's. The program sees them, in this order, as iron0, iron1...
#[derive(Args)]
pub struct Functions {
    /// A PCI function bound to vfio-pci, as 0000:c1:00.2, instead of a node's; may be given again for more
    #[arg(long, value_name = "ADDRESS", conflicts_with = "vfs")]
    pub bdf: Vec<Address>,
    /// A function behind a vfio-user socket, instead of a node's; may be given again for more
    #[arg(long, value_name = "SOCKET", conflicts_with = "vfs")]
    pub vfio_user: Vec<PathBuf>,
    /// IP address of the function (RoCE has one besides the link-local): the first for the first function, and so on
    /// [default: what the pod was given, see docs/vfio.md]
    #[arg(long, value_name = "IP[/BITS]")]
    pub address: Vec<String>,
    /// A peer's IP address and MAC, as 10.0.0.1=02:1b:56:00:00:01, for one that answers neither ARP nor neighbour discovery
    #[arg(long, value_name = "IP=MAC")]
    pub neighbour: Vec<Neighbour>,
}

impl Functions {
    /// Where they are; none: the node's functions are meant. What `pod` was given counts where the command line names no
    /// function, and where it names no addresses; `no_pod`: a node was named, or a program is on one.
    pub fn places(&self, pod: &Pod, no_pod: bool) -> Result<Vec<Place>, String> {
        let given = |address, ips| Place::Vfio(address, Addresses { ips, ..Addresses::default() });
        let mut places = Vec::new();
        for address in &self.bdf {
            let ips = if self.address.is_empty() { pod.addresses(*address)? } else { Vec::new() };
            places.push(given(*address, ips));
        }
        if self.bdf.is_empty() && self.vfio_user.is_empty() && !no_pod {
            places.extend(pod.functions()?.into_iter().map(|function| given(function.address, function.ips)));
        }
        for socket in &self.vfio_user {
            let socket = std::path::absolute(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
            places.push(Place::VfioUser(socket, Addresses::default()));
        }
        let (asked, there) = (self.address.len(), places.len());
        if asked > there || there == 0 && !self.neighbour.is_empty() {
            return Err(format!(
                "--address and --neighbour go with --bdf or --vfio-user: {there} functions, {asked} addresses"
            ));
        }
        for (number, place) in places.iter_mut().enumerate() {
            let Some(addresses) = place.addresses_mut() else { continue };
            addresses.neighbours.clone_from(&self.neighbour);
            if let Some(text) = self.address.get(number) {
                let ip = text.split_once('/').map_or(text.as_str(), |(ip, _)| ip);
                let ip = ip.parse().map_err(|_| format!("expected an IP address, found {text:?}"))?;
                addresses.ips = vec![ip];
            }
        }
        Ok(places)
    }
}

#[derive(Subcommand)]
pub enum Vf {
    /// Make virtual functions of a physical function, and print their addresses; 0 removes them
    Create {
        /// The physical function, as 0000:c1:00.0
        pf: Address,
        /// How many
        count: u16,
        /// Let the kernel's drivers take them at once
        #[arg(long)]
        probe: bool,
        /// MAC address of the first, and given again of the next
        #[arg(long, value_parser = mac)]
        mac: Vec<[u8; 6]>,
        /// VLAN that all their frames are put into; 0: none
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4094))]
        vlan: Option<u16>,
        /// Let them do what the physical function may: hear all frames, take other MAC addresses
        #[arg(long)]
        trust: bool,
    },
    /// Give a function to a driver
    Bind {
        /// The function, as 0000:c1:00.2
        address: Address,
        /// The driver
        #[arg(default_value = "vfio-pci")]
        driver: String,
        /// Even if the machine uses it: a net device of it is up, the default route goes through it, it has virtual functions
        #[arg(long)]
        force: bool,
    },
    /// Take a function from its driver, and give it to none
    Unbind {
        /// The function, as 0000:c1:00.2
        address: Address,
        /// Even if the machine uses it
        #[arg(long)]
        force: bool,
    },
    /// List network functions, virtual functions and those that belong to VFIO
    List {
        /// All PCI functions
        #[arg(long)]
        all: bool,
    },
}

/// A MAC address of a station.
fn mac(text: &str) -> Result<[u8; 6], String> {
    parse_mac(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]).ok_or_else(|| {
        format!("expected the MAC address of a station like 02:1b:56:00:00:01, found {text:?}")
    })
}

#[derive(Args)]
pub struct Bringup {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub node: NodeDir,
    /// Run the steps that write too: the function is reset, brought up, used and torn down. Whoever uses it loses it
    #[arg(long)]
    pub write: bool,
    /// Even if the function is in use: a net device of it is up, or it has virtual functions
    #[arg(long)]
    pub force: bool,
    /// Our IP address, for a frame from outside: with --peer a question goes out, and an answer has to come in
    #[arg(long, value_name = "IP", requires = "peer")]
    pub address: Option<IpAddr>,
    /// The address of a host on the same network, which will answer
    #[arg(long, value_name = "IP", requires = "address")]
    pub peer: Option<IpAddr>,
    /// Seconds to wait for one command, completion or interrupt, and for the firmware to be initialized. Else 60 for a
    /// command, 120 for the firmware and 5 for the others
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: Option<u64>,
    /// Record what is sent to the function in this file: registers, commands, work requests (see `ironverbs stream`)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write the report to this file too
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Which function.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// A PCI function bound to vfio-pci, as 0000:c1:00.2
    #[arg(long)]
    pub bdf: Option<Address>,
    /// A function on this vfio-user socket
    #[arg(long, value_name = "SOCKET")]
    pub vfio_user: Option<PathBuf>,
    /// Function of a simulated node: 0 is the PF, 1 and on its VFs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=127))]
    pub function: Option<u8>,
}
