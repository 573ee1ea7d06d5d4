//! Options for functions of a card, and for those behind a socket.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use driver::pci::Address;
use node::place::{Addresses, Neighbour, Place, parse_mac};

use super::NodeDir;
use crate::pod::Pod;

/// Functions of no simulated adapter. The program sees them, in this order, as iron0, iron1...
#[derive(Args)]
pub struct Functions {
    /// Use a PCI function bound to vfio-pci, such as 0000:c1:00.2; may be repeated
    #[arg(long, alias = "bdf", value_name = "PCI ADDRESS", conflicts_with = "vfs")]
    pub vfio: Vec<Address>,
    /// Use a function behind a vfio-user socket; may be repeated
    #[arg(long, value_name = "SOCKET", conflicts_with = "vfs")]
    pub vfio_user: Vec<PathBuf>,
    /// IP address of a function (RoCE uses one besides the link-local address): the first applies to the first function, and so on
    /// [default: the addresses that the pod was given, see docs/vfio.md]
    #[arg(long, value_name = "IP[/BITS]")]
    pub address: Vec<String>,
    /// IP address and MAC of a peer that answers neither ARP nor neighbour discovery, such as 10.0.0.1=02:1b:56:00:00:01
    #[arg(long, value_name = "IP=MAC")]
    pub neighbour: Vec<Neighbour>,
}

impl Functions {
    /// The functions' places; empty for the adapter's functions. Functions and addresses of `pod` apply where the command line names none.
    /// `no_pod` is true if an adapter was named, or a program is on one.
    pub fn places(&self, pod: &Pod, no_pod: bool) -> Result<Vec<Place>, String> {
        let given = |address, ips| Place::Vfio(address, Addresses { ips, ..Addresses::default() });
        let mut places = Vec::new();
        for address in &self.vfio {
            let ips = if self.address.is_empty() { pod.addresses(*address)? } else { Vec::new() };
            places.push(given(*address, ips));
        }
        if self.vfio.is_empty() && self.vfio_user.is_empty() && !no_pod {
            places.extend(pod.functions()?.into_iter().map(|function| given(function.address, function.ips)));
        }
        for socket in &self.vfio_user {
            let socket = std::path::absolute(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
            places.push(Place::VfioUser(socket, Addresses::default()));
        }
        let (asked, there) = (self.address.len(), places.len());
        if asked > there || there == 0 && !self.neighbour.is_empty() {
            return Err(format!(
                "--address and --neighbour go with --vfio or --vfio-user: {there} functions, {asked} addresses"
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
    /// Create virtual functions of a physical function, and print their addresses
    Create {
        /// The physical function, such as 0000:c1:00.0
        pf: Address,
        /// Number of virtual functions it has then
        count: u16,
        /// Let the kernel's drivers bind to them at once
        #[arg(long)]
        probe: bool,
        /// MAC address of the first virtual function; repeat for the next ones
        #[arg(long, value_parser = mac)]
        mac: Vec<[u8; 6]>,
        /// VLAN for all their frames; 0: none
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4094))]
        vlan: Option<u16>,
        /// Trust them with operations of the physical function: receive all frames, change MAC addresses
        #[arg(long)]
        trust: bool,
    },
    /// Delete the virtual functions of a physical function
    Delete {
        /// The physical function, such as 0000:c1:00.0
        pf: Address,
    },
    /// Bind a function to a driver
    Bind {
        /// The function, such as 0000:c1:00.2
        address: Address,
        /// The driver
        #[arg(default_value = "vfio-pci")]
        driver: String,
        /// Proceed even if the machine uses it: a net device of it is up, the default route goes through it, or it has virtual functions
        #[arg(long)]
        force: bool,
    },
    /// Unbind a function from its driver
    Unbind {
        /// The function, such as 0000:c1:00.2
        address: Address,
        /// Proceed even if the machine uses it
        #[arg(long)]
        force: bool,
    },
    /// List network functions, virtual functions and functions bound to VFIO
    List {
        /// List all PCI functions
        #[arg(long)]
        all: bool,
    },
}

/// Parses a unicast MAC address.
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
    /// Run the steps that write, too: the function is reset, brought up, used and torn down. Its current users lose it
    #[arg(long)]
    pub write: bool,
    /// Proceed even if the function is in use: a net device of it is up, or it has virtual functions
    #[arg(long)]
    pub force: bool,
    /// Own IP address, for a frame from outside: with --peer a request is sent, and a reply has to arrive
    #[arg(long, value_name = "IP", requires = "peer")]
    pub address: Option<IpAddr>,
    /// IP address of a host on the same network that will reply
    #[arg(long, value_name = "IP", requires = "address")]
    pub peer: Option<IpAddr>,
    /// Seconds to wait for one command, completion or interrupt, and for the firmware to be initialized. Otherwise 60 for a command, 120
    /// for the firmware and 5 for the others
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: Option<u64>,
    /// Record registers, commands and work requests sent to the function in this file (see `ironverbs trace`)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The function to use.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// A PCI function bound to vfio-pci, such as 0000:c1:00.2
    #[arg(long, alias = "bdf", value_name = "PCI ADDRESS")]
    pub vfio: Option<Address>,
    /// A function behind this vfio-user socket
    #[arg(long, value_name = "SOCKET")]
    pub vfio_user: Option<PathBuf>,
    /// Function of a simulated adapter: 0 is the PF, 1 and up are its VFs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=127))]
    pub function: Option<u8>,
}
