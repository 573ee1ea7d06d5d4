//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueHint};
use devmodel::wire::Faults;
use devmodel::{LinkLayer, serve::Misbehaviour, strict::Strict};
use driver::pci::Address;
use link::LinkSpec;
use node::dir;
use node::place::{Addresses, Neighbour, Place, parse_mac};
use node::{FunctionAddress, NodeOptions};

use crate::linux::{MOST_VFS, Memory, VfRange};
use crate::pod::Pod;
use crate::say::say;

/// RDMA programs on a simulated ConnectX, without the card.
#[derive(Parser)]
#[command(name = "ironverbs", version = env!("IRONVERBS_VERSION"), about)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a program so that it sees the node's devices: iron0 is the PF, iron1.. are its VFs
    Run(Run),
    /// Show Debian's ib_read_lat running between two VFs
    Demo(Demo),
    /// Say what this host lacks and how to get it
    Doctor(LookOptions),
    /// Serve functions of a node as vfio-user devices, for QEMU's guests
    Serve(Serve),
    /// Start a Linux kernel, as a program of this host, that drives the node's PF and VFs with its own mlx5 driver
    Linux(Linux),
    /// Look at a node, or start it afresh
    #[command(subcommand)]
    Node(Node),
    /// Make virtual functions of a real card, and give functions to VFIO or back
    #[command(subcommand)]
    Vf(Vf),
    /// Go through a function step by step, and say which step fails and what it found
    Bringup(Bringup),
    /// Measure perftest on the node and UCX over shared memory side by side
    Bench(Bench),
    /// Run one of perftest's patterns in virtual time: what a ConnectX-5 would take, the same at every run
    Sim(Sim),
    /// Print what a driver sent to a function, or compare two such recordings
    #[command(subcommand)]
    Stream(Stream),
    /// Let container engines give a node's devices to containers
    #[command(subcommand)]
    Cdi(Cdi),
}

#[derive(Subcommand)]
pub enum Cdi {
    /// Describe the node's devices as podman, containerd, CRI-O and docker read it (Container Device Interface)
    Generate {
        #[command(flatten)]
        node: NodeDir,
        /// The file to write, such as /etc/cdi/ironverbs.json [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show devices in a container that is being made; what `generate` has container runtimes call
    Hook {
        #[command(flatten)]
        node: NodeDir,
        /// A device to show in the container, several times for several
        #[arg(long = "device", value_parser = device, required = true)]
        devices: Vec<u8>,
    },
}

#[derive(Subcommand)]
pub enum Stream {
    /// Print a recording of `serve --record` or `bringup --record` with the names of the data sheet
    Show {
        /// The recording
        file: PathBuf,
        /// Only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Values as they were, not named by order
        #[arg(long, conflicts_with = "compact")]
        raw: bool,
        /// Without doorbells and what differs from run to run, and with repetition collapsed
        #[arg(long)]
        compact: bool,
    },
    /// Compare two recordings, or what `show --compact` printed of them; fails if they differ
    Diff {
        /// The one to compare with
        a: PathBuf,
        /// The other
        b: PathBuf,
        /// Only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Compare which commands, requests and fields there are, and in which order they first come, not line by line
        #[arg(long)]
        words: bool,
        /// As --words, less the differences listed in this file; lines of it that are not needed fail as well
        #[arg(long, value_name = "LIST")]
        allow: Option<PathBuf>,
    },
}

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
pub struct Sim {
    /// The pattern
    #[arg(value_enum)]
    pub test: SimTest,
    /// Bytes of a message [default: 2, or 65536 for write_bw]
    #[arg(long)]
    pub size: Option<u32>,
    /// Messages
    #[arg(long, default_value_t = 1000)]
    pub iters: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SimTest {
    /// READs, one at a time
    ReadLat,
    /// WRITEs to and fro
    WriteLat,
    /// SENDs to and fro
    SendLat,
    /// WRITEs, 128 under way
    WriteBw,
}

#[derive(Args)]
pub struct Demo {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
}

#[derive(Subcommand)]
pub enum Node {
    /// Make a node without running anything on it
    Create(Create),
    /// Give a device an IP address, which becomes its GID 1
    Address(SetAddress),
    /// Write the frames on a node's wire to a file, as long as this runs
    Capture(Capture),
    /// Show the programs on a node, its functions and what they counted
    Status(LookOptions),
    /// Remove a node: the next program makes a new one
    Reset(Reset),
}

/// What a command that only looks shows, and how.
#[derive(Args)]
pub struct LookOptions {
    #[command(flatten)]
    pub node: NodeDir,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct SetAddress {
    #[command(flatten)]
    pub node: NodeDir,
    /// The device, such as iron1
    #[arg(value_parser = device)]
    pub device: u8,
    /// Its address, such as 10.0.0.5/24; none: the one it has by itself
    pub address: Option<FunctionAddress>,
}

#[derive(Args)]
pub struct Capture {
    #[command(flatten)]
    pub node: NodeDir,
    /// End after so many seconds [default: when it is stopped by a signal]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// The file to write, in pcap format; an existing one is written over
    pub file: PathBuf,
}

/// `iron3` or `3`.
fn device(text: &str) -> Result<u8, String> {
    let number = text.strip_prefix("iron").unwrap_or(text).parse::<u8>().ok();
    number
        .filter(|fid| *fid <= node::devices::MAX_VFS)
        .ok_or_else(|| format!("expected iron0 to iron127, found '{text}'"))
}

#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
    /// Virtual functions the node is to have [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    pub vfs: Option<u8>,
    /// Let all users of this group use the node; only root's can be shared
    #[arg(long, value_name = "NAME or NUMBER")]
    pub group: Option<String>,
}

/// What a node is made with and keeps; naming another for a node that is there is an error.
#[derive(Args, Clone, Copy)]
pub struct Identity {
    /// What the ports speak [default: as the node does, ethernet if it is new]
    #[arg(long, value_enum)]
    link_layer: Option<Layer>,
    /// Tells nodes on one wire apart: part of every MAC and GUID [default: as the node has it, 0 if it is new]
    #[arg(long, value_name = "N")]
    node_id: Option<u16>,
    /// What befalls frames between the node's devices, such as drop=1%,duplicate=0.1%,seed=7 [default: as the node has it,
    /// nothing if it is new]
    #[arg(long = "wire-faults", value_name = "FAULTS")]
    wire_faults: Option<Faults>,
    /// As strict as a card, in all that is known or in some: owner=pf, pages=real, events=strict, uid=strict, reserved=zero,
    /// slow=FACTOR, ids=CARD (cx4lx, cx5, cx6, cx6dx, cx7, bf2), with commas between [default: as the node is, none
    /// if it is new]
    #[arg(long, value_name = "SWITCHES", num_args = 0..=1, default_missing_value = "all")]
    strict: Option<Strict>,
}

/// The node a command wants, which it makes if there is none.
#[derive(Args, Clone, Copy)]
pub struct Wanted {
    #[command(flatten)]
    identity: Identity,
    /// Virtual functions the node is to have [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    vfs: Option<u8>,
    /// On a new node, let no program copy to and from another's memory: each one's own thread does it, slower
    #[arg(long)]
    no_direct_copies: bool,
}

impl Wanted {
    /// What was given on the command line.
    pub fn options(self) -> NodeOptions {
        let no_direct_copies = self.no_direct_copies;
        self.identity.over(NodeOptions { vfs: self.vfs, no_direct_copies, ..NodeOptions::default() })
    }

    /// Whether anything was given.
    pub fn is_any(self) -> bool {
        let Identity { link_layer, node_id, wire_faults, strict } = self.identity;
        self.vfs.is_some()
            || self.no_direct_copies
            || link_layer.is_some()
            || node_id.is_some()
            || wire_faults.is_some()
            || strict.is_some()
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Layer {
    /// Ethernet, with RoCE v2
    Ethernet,
    /// InfiniBand
    Infiniband,
}

impl Identity {
    /// The same for another node, whose number is its own.
    pub fn of_another(self) -> Self {
        Self { node_id: None, ..self }
    }

    /// `base` with what was given on the command line.
    pub fn over(self, base: NodeOptions) -> NodeOptions {
        let link_layer = self.link_layer.map(|layer| match layer {
            Layer::Ethernet => LinkLayer::Ethernet,
            Layer::Infiniband => LinkLayer::Infiniband,
        });
        NodeOptions {
            link_layer,
            node_id: self.node_id,
            faults: self.wire_faults,
            strict: self.strict,
            ..base
        }
    }
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub wanted: Wanted,
    /// A function (0 is the PF) and the socket it is to be plugged in at; for several functions, several times
    #[arg(long = "plug", required_unless_present_any = ["links", "virtio"], value_name = "FUNCTION=SOCKET")]
    pub plugs: Vec<PlugAt>,
    /// A function and the vhost-user socket at which user-mode Linux has it on its PCI bus; for several functions, several times.
    /// Beside the PF the others are its VFs there, from 1 on
    #[arg(long = "plug-virtio", value_name = "FUNCTION=SOCKET")]
    pub virtio: Vec<PlugAt>,
    /// Where the node's wire leads, several times for several: dgram:LOCAL,PEER (raw frames on a unix datagram socket),
    /// stream:listen:PATH or stream:connect:PATH, udp:ADDRESS,peer=ADDRESS (RoCE v2 on UDP port 4791; either
    /// address may be left out), node:DIR (another node of this host)
    #[arg(long = "link", value_name = "LINK")]
    pub links: Vec<LinkSpec>,
    /// What befalls frames on the links, both ways, such as drop=1%,reorder=0.5%,delay=20us,seed=7
    #[arg(long, requires = "links", value_name = "FAULTS")]
    pub link_faults: Option<Faults>,
    /// Break the functions on purpose, in one way or, with commas between, several: wrong-health[=fatal], stuck-command[=OPCODE],
    /// lost-interrupt[=VECTOR], power-loss=COMMANDS, power-loss@WHEN, ask-pages=PAGES@WHEN, ask-pages=PAGES@teardown; the
    /// first two and WHEN as in power-loss@1000 (behind so many commands) or power-loss@doorbell=1000
    #[arg(long, value_name = "HOW", value_delimiter = ',')]
    pub misbehave: Vec<Misbehaviour>,
    /// Record what is sent to the functions in this file: registers, commands, work requests (see `ironverbs stream`)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Keep system calls and capabilities that serving does not need, to debug the server
    #[arg(long)]
    pub no_jail: bool,
}

#[derive(Args)]
pub struct Linux {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
    /// VFs that each PF can be told to have there [default: as many as the node has, 7 at most, fewer with many adapters]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=i64::from(MOST_VFS)))]
    pub vfs: Option<u8>,
    /// Another node whose PF and VFs the guest has too; for several, several times
    #[arg(long = "adapter", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub adapters: Vec<PathBuf>,
    /// VFs of the node, such as 4-6, alone: as a virtual machine has them, without a PF
    #[arg(long, value_name = "FIRST-LAST", conflicts_with_all = ["vfs", "adapters"])]
    pub functions: Option<VfRange>,
    /// Folder that the guest has as its root; what it writes is gone at the end
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/")]
    pub root: PathBuf,
    /// Folder that the guest has at the same place, and writes to; for several, several times
    #[arg(long = "share", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub shares: Vec<PathBuf>,
    /// Processors [default: as many as this host has, 8 at most]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    cpus: Option<u8>,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: Memory,
    /// The kernel [default: the last that scripts/linux-kernel.sh made]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Write the kernel's log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The command to run there, whose exit status becomes this program's [default: a shell]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl Linux {
    /// Processors of the guest.
    pub fn cpus(&self) -> u8 {
        let there = || std::thread::available_parallelism().map_or(1, |count| count.get().min(8) as u8);
        self.cpus.unwrap_or_else(there)
    }
}

/// A function and its socket.
#[derive(Clone, Debug)]
pub struct PlugAt {
    pub function: u8,
    pub path: PathBuf,
}

impl FromStr for PlugAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (function, path) = text.split_once('=').unwrap_or((text, ""));
        match function.parse() {
            Ok(function) if !path.is_empty() => Ok(Self { function, path: path.into() }),
            _ => Err(format!("'{text}': expected a function's number and a path, such as 1=/tmp/iron1")),
        }
    }
}

#[derive(Args)]
pub struct Reset {
    #[command(flatten)]
    pub node: NodeDir,
    /// Even while programs are on it; they go on by themselves
    #[arg(long)]
    pub force: bool,
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

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub node: NodeDir,
    /// How often every test is run, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Fail when a floor is missed
    #[arg(long)]
    pub check: bool,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub wanted: Wanted,
    #[command(flatten)]
    pub functions: Functions,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

#[derive(Args)]
pub struct NodeDir {
    /// Directory of the node; all programs run on it share one adapter [default: the one this program runs on, else one
    /// per user, in memory]
    #[arg(long = "node", value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl NodeDir {
    /// Whether a node was named, or this program runs on one.
    pub fn is_named(&self) -> bool {
        self.dir.is_some() || std::env::var_os("IRONVERBS_NODE").is_some()
    }

    /// The directory named, or that of the node we were launched on, or the user's own.
    pub fn path(&self) -> PathBuf {
        let around = || std::env::var_os("IRONVERBS_NODE").map(PathBuf::from).filter(|dir| dir.is_absolute());
        self.dir.clone().or_else(around).unwrap_or_else(dir::default_dir)
    }
}

/// Answers a command line that does not parse: help and version as asked for, help where nothing was asked, else one line.
pub fn refuse(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say!("{e}");
        return ExitCode::SUCCESS;
    }
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
    let why = lines.join(" ");
    crate::say::fail(2, format!("{} (see ironverbs --help)", why.trim_start_matches("error: ")))
}
