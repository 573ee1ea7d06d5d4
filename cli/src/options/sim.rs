//! `ironverbs sim`.

use clap::{Args, Subcommand, ValueEnum};
use devmodel::{
    LinkLayer,
    engine::timing::{BUILT_IN, ProfileError, TimingProfile},
};
use std::path::PathBuf;

/// perftest's programs, by name.
#[derive(Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Sim {
    /// SENDs back and forth
    SendLat(SimPlan),
    /// WRITEs back and forth
    WriteLat(SimPlan),
    /// READs, one at a time
    ReadLat(SimPlan),
    /// Atomics, one at a time
    AtomicLat(SimPlan),
    /// SENDs, many in flight
    SendBw(SimPlan),
    /// WRITEs, many in flight
    WriteBw(SimPlan),
    /// READs, many in flight
    ReadBw(SimPlan),
    /// Atomics, many in flight
    AtomicBw(SimPlan),
    /// Write a page for browsers: latencies, bandwidths, time breakdowns, and the load of units
    Report {
        #[command(flatten)]
        profile: SimProfile,
        /// File to write, in HTML
        file: PathBuf,
    },
    /// Move data between many hosts, and show how long flows take, how long queues of switches get and which ports are paused
    Network(SimNetwork),
    /// Measure how fast the simulation is on this machine
    Speed,
    /// Compare the model with measurements of cards
    Calibrate {
        /// Use the profiles in this folder instead of the built-in ones
        #[arg(long, value_name = "DIR")]
        profiles: Option<PathBuf>,
    },
}

/// Selects the profile, which states the cost of everything.
#[derive(Args)]
pub struct SimProfile {
    #[arg(id = "profile", long = "profile", value_name = "NAME or FILE",
        help = format!("Card, slot, wire and hosts: a file, or one of {} [default: {}; on InfiniBand {}]", BUILT_IN.join(", "),
            TimingProfile::usual(LinkLayer::Ethernet), TimingProfile::usual(LinkLayer::Infiniband)))]
    name: Option<String>,
}

impl SimProfile {
    /// The profile's name or file; by default that for ports with `link_layer`.
    pub fn name(&self, link_layer: LinkLayer) -> &str {
        self.name.as_deref().unwrap_or(TimingProfile::usual(link_layer))
    }

    /// Loads the profile.
    ///
    /// # Errors
    /// It does not exist, or a line of it is invalid.
    pub fn load(&self) -> Result<TimingProfile, ProfileError> {
        TimingProfile::load(self.name(LinkLayer::Ethernet))
    }
}

/// Files and tables about a run of one size.
#[derive(Args)]
#[group(id = "look")]
pub struct SimLook {
    /// Show the time breakdown of this message; 1 is the first
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub waterfall: Option<usize>,
    /// Show the load of both cards' units, the queueing delay of packets, and the functions' counters
    #[arg(long, conflicts_with = "all")]
    pub counters: bool,
    /// Write the activity of each unit, and the path of each message, to a file for ui.perfetto.dev
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub trace: Option<PathBuf>,
    /// Write the frames to a file in pcap format, in virtual time
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub pcap: Option<PathBuf>,
    #[command(flatten)]
    pub faults: Faults,
}

/// Faults and their results.
#[derive(Args)]
#[group(id = "faults")]
pub struct Faults {
    /// Apply faults to frames, as this plan specifies (TOML)
    #[arg(long, alias = "faults", value_name = "FILE")]
    pub fault: Option<PathBuf>,
    /// Write the faults, the frames that they hit, their consequences, and all frames, as JSON
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
}

/// Parses a number of bytes: 65536, 64K or 64KiB.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..].to_ascii_lowercase()[..] {
        "" | "b" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let value = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    value.ok_or_else(|| "expected bytes, such as 65536, 64K or 1M".into())
}

/// perftest's options, and the profile.
#[derive(Args)]
pub struct SimPlan {
    #[command(flatten)]
    pub look: SimLook,
    #[command(flatten)]
    pub profile: SimProfile,
    /// Message size in bytes [default: 2 for latencies, 65536 for bandwidths, 8 for atomics]
    #[arg(short, long, value_parser = bytes)]
    pub size: Option<u64>,
    /// Run all sizes from 2 bytes to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Number of messages [default: 1000 for latencies, 5000 for bandwidths]
    #[arg(short = 'n', long)]
    pub iters: Option<u32>,
    /// Messages of a queue pair in flight
    #[arg(short = 't', long, default_value_t = 128)]
    pub tx_depth: u32,
    /// Messages per requested completion
    #[arg(short = 'Q', long, default_value_t = 100)]
    pub cq_mod: u32,
    /// Number of queue pairs
    #[arg(short, long, default_value_t = 1)]
    pub qp: u32,
    /// Functions of the card that run such a program each, 1 or 2
    #[arg(long, default_value_t = 1)]
    pub functions: u32,
    /// Payload of a packet in bytes [default: the profile's]
    #[arg(short, long)]
    pub mtu: Option<u16>,
    /// Maximum size in bytes of messages sent inline [default: 236 for latencies, 0 for bandwidths]
    #[arg(short = 'I', long = "inline_size", alias = "inline-size")]
    pub inline_size: Option<u32>,
    /// Use CMP_SWAP instead of FETCH_ADD for atomics
    #[arg(long)]
    pub cmp_and_swap: bool,
    /// Seed for the variation of programs' times
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print bandwidths in Gb/s instead of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,
}

/// Traffic pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// All hosts to the last one
    Incast,
    /// Each host to each other
    AllToAll,
    /// Each host to one random other
    Permutation,
}

/// Reaction of senders to congestion notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reaction {
    /// With the parameters of DCQCN's paper
    Paper,
    /// With the vendor drivers' initial parameters
    Driver,
}

/// Hosts, switches, flows, and outputs.
#[derive(Args)]
pub struct SimNetwork {
    #[command(flatten)]
    pub profile: SimProfile,
    /// Number of hosts at one switch
    #[arg(long, value_name = "N", default_value_t = 9, conflicts_with_all = ["racks", "topology"])]
    pub hosts: usize,
    /// Racks of hosts, each with a switch, and the switches that join them, such as 4x8x2
    #[arg(long, value_name = "RACKSxHOSTSxSPINES", conflicts_with = "topology")]
    pub racks: Option<String>,
    /// Read nodes and links from a topology file of HPCC's simulator
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Link rate in Gb/s [default: the profile's]
    #[arg(long, value_name = "GBPS", conflicts_with = "topology")]
    pub rate: Option<f64>,
    /// Link delay in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 500, conflicts_with = "topology")]
    pub delay: u64,
    /// Traffic pattern
    #[arg(long, default_value = "incast")]
    pub pattern: Pattern,
    /// Flow size in bytes; with --time the flows do not end [default: 1000000]
    #[arg(short, long, value_name = "BYTES", value_parser = bytes)]
    pub size: Option<u64>,
    /// Read flows from a flow file of HPCC's simulator
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size", "matrix"])]
    pub flows: Option<PathBuf>,
    /// Read flows from a connection matrix of htsim
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size"])]
    pub matrix: Option<PathBuf>,
    /// End after so many milliseconds of virtual time
    #[arg(long, value_name = "MS")]
    pub time: Option<f64>,
    /// Switches pause senders before their buffer is full (PFC)
    #[arg(long)]
    pub pfc: bool,
    /// Switches mark packets, and senders react to that (ECN, DCQCN) [default if given alone: paper]
    #[arg(long, num_args = 0..=1, default_missing_value = "paper", value_name = "PARAMETERS")]
    pub dcqcn: Option<Reaction>,
    /// Buffer size of a switch in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub buffer: u64,
    /// Maximum message size in bytes; a flow has four in flight
    #[arg(long, value_name = "BYTES")]
    pub message: Option<u64>,
    /// Payload of a packet in bytes [default: the profile's]
    #[arg(short, long)]
    pub mtu: Option<u16>,
    /// Seed for random decisions
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Sampling interval of queues and rates in microseconds
    #[arg(long, value_name = "US", default_value_t = 10)]
    pub sample: u64,
    /// Write flow completion times, in the format of HPCC's simulator
    #[arg(long, value_name = "FILE")]
    pub fct: Option<PathBuf>,
    /// Write pauses with ports and times, in the format of HPCC's simulator
    #[arg(long, value_name = "FILE")]
    pub pauses: Option<PathBuf>,
    /// Write a histogram of queue lengths, in the format of HPCC's simulator
    #[arg(long, value_name = "FILE")]
    pub qlen: Option<PathBuf>,
    /// Write queues and rates over time as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw a page for browsers: the same flows without congestion control, with pauses, with DCQCN, with both
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pfc", "dcqcn"])]
    pub report: Option<PathBuf>,
}
