//! `ironverbs sim`.

use clap::{Args, Subcommand, ValueEnum};
use devmodel::{
    LinkLayer,
    engine::timing::{BUILT_IN, Profile, ProfileError},
};
use std::path::PathBuf;

/// perftest's programs, by their names.
#[derive(Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Sim {
    /// SENDs to and fro
    SendLat(SimPlan),
    /// WRITEs to and fro
    WriteLat(SimPlan),
    /// READs, one at a time
    ReadLat(SimPlan),
    /// Atomics, one at a time
    AtomicLat(SimPlan),
    /// SENDs, many under way
    SendBw(SimPlan),
    /// WRITEs, many under way
    WriteBw(SimPlan),
    /// READs, many under way
    ReadBw(SimPlan),
    /// Atomics, many under way
    AtomicBw(SimPlan),
    /// Write a page for browsers: latencies, bandwidths, where the time goes, how busy units are
    Report {
        #[command(flatten)]
        profile: SimProfile,
        /// The file to write, in HTML
        file: PathBuf,
    },
    /// Move bytes between many hosts: how long that takes, how long the queues of switches get, who is paused
    Network(SimNetwork),
    /// Measure how fast the simulation is on this machine
    Speed,
    /// Compare the model with what was measured on cards
    Calibrate {
        /// Profiles of this folder instead of those that come with the model
        #[arg(long, value_name = "DIR")]
        profiles: Option<PathBuf>,
    },
}

/// Names the profile that says what everything costs.
#[derive(Args)]
pub struct SimProfile {
    #[arg(id = "profile", long = "profile", value_name = "NAME or FILE",
        help = format!("Card, slot, wire and hosts: a file, or one of {} [default: {}; on InfiniBand {}]", BUILT_IN.join(", "),
            Profile::usual(LinkLayer::Ethernet), Profile::usual(LinkLayer::Infiniband)))]
    name: Option<String>,
}

impl SimProfile {
    /// The profile's name or file, of ports that speak `link_layer` if nobody said one.
    pub fn name(&self, link_layer: LinkLayer) -> &str {
        self.name.as_deref().unwrap_or(Profile::usual(link_layer))
    }

    /// The profile.
    ///
    /// # Errors
    /// There is none, or a line of it is not as expected.
    pub fn load(&self) -> Result<Profile, ProfileError> {
        Profile::load(self.name(LinkLayer::Ethernet))
    }
}

/// Files and tables about a run of one size.
#[derive(Args)]
#[group(id = "look")]
pub struct SimLook {
    /// Show what the time of this message was made of, 1 is the first
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub waterfall: Option<usize>,
    /// Show how busy the units of both cards were, how long packets waited for them, and what the functions counted
    #[arg(long, conflicts_with = "all")]
    pub counters: bool,
    /// Write what each unit did, and the way of each message, to a file for ui.perfetto.dev
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub trace: Option<PathBuf>,
    /// Write the frames to a file in pcap format, in virtual time
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub pcap: Option<PathBuf>,
    #[command(flatten)]
    pub trial: Trial,
}

/// Faults, and what comes of them.
#[derive(Args)]
#[group(id = "trial")]
pub struct Trial {
    /// Let faults befall frames, as this plan says (TOML)
    #[arg(long, value_name = "PLAN")]
    pub faults: Option<PathBuf>,
    /// Write what befell which frame and what followed, and all frames, as JSON
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
}

/// A number of bytes: 65536, 64K or 64KiB.
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

/// perftest's options, and what time is made of.
#[derive(Args)]
pub struct SimPlan {
    #[command(flatten)]
    pub look: SimLook,
    #[command(flatten)]
    pub profile: SimProfile,
    /// Bytes of a message [default: 2 for latencies, 65536 for bandwidths, 8 for atomics]
    #[arg(short, long, value_parser = bytes)]
    pub size: Option<u64>,
    /// All sizes from 2 bytes to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Messages [default: 1000 for latencies, 5000 for bandwidths]
    #[arg(short = 'n', long)]
    pub iters: Option<u32>,
    /// Messages of a queue pair under way
    #[arg(short = 't', long, default_value_t = 128)]
    pub tx_depth: u32,
    /// Messages from one that asks for a completion to the next
    #[arg(short = 'Q', long, default_value_t = 100)]
    pub cq_mod: u32,
    /// Queue pairs
    #[arg(short, long, default_value_t = 1)]
    pub qp: u32,
    /// Functions of the card that have such a program each, 1 or 2
    #[arg(long, default_value_t = 1)]
    pub functions: u32,
    /// Bytes of a packet's payload [default: the profile's]
    #[arg(short, long)]
    pub mtu: Option<u16>,
    /// Bytes of the longest message that is in its work request [default: 236 for latencies, 0 for bandwidths]
    #[arg(short = 'I', long = "inline_size", alias = "inline-size")]
    pub inline_size: Option<u32>,
    /// CMP_SWAP instead of FETCH_ADD, of atomics
    #[arg(long)]
    pub cmp_and_swap: bool,
    /// Programs' times vary as this number decides
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bandwidths in Gb/s instead of MiB/s
    #[arg(long = "report_gbits", alias = "report-gbits")]
    pub report_gbits: bool,
}

/// Says who writes to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// All hosts to the last one
    Incast,
    /// Each host to each other
    AllToAll,
    /// Each host to one other, by chance
    Permutation,
}

/// How senders react to notifications of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reaction {
    /// With the parameters of DCQCN's paper
    Paper,
    /// With those that the vendor's drivers begin with
    Driver,
}

/// Hosts, switches, flows, and what is wanted of the outcome.
#[derive(Args)]
pub struct SimNetwork {
    #[command(flatten)]
    pub profile: SimProfile,
    /// Hosts at one switch
    #[arg(long, value_name = "N", default_value_t = 9, conflicts_with_all = ["racks", "topology"])]
    pub hosts: usize,
    /// Racks of hosts, each with a switch, and switches that join those, such as 4x8x2
    #[arg(long, value_name = "RACKSxHOSTSxSPINES", conflicts_with = "topology")]
    pub racks: Option<String>,
    /// Nodes and links from a topology file of HPCC's simulator
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Gb/s of a link [default: the profile's]
    #[arg(long, value_name = "GBPS", conflicts_with = "topology")]
    pub rate: Option<f64>,
    /// Nanoseconds from end to end of a link
    #[arg(long, value_name = "NS", default_value_t = 500, conflicts_with = "topology")]
    pub delay: u64,
    /// Who writes to whom
    #[arg(long, default_value = "incast")]
    pub pattern: Pattern,
    /// Bytes of a flow; with --time the flows do not end [default: 1000000]
    #[arg(short, long, value_name = "BYTES", value_parser = bytes)]
    pub size: Option<u64>,
    /// Flows from a flow file of HPCC's simulator
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size", "matrix"])]
    pub flows: Option<PathBuf>,
    /// Flows from a connection matrix of htsim
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "size"])]
    pub matrix: Option<PathBuf>,
    /// End after so many milliseconds of virtual time
    #[arg(long, value_name = "MS")]
    pub time: Option<f64>,
    /// Switches pause who sends before their buffer is full (PFC)
    #[arg(long)]
    pub pfc: bool,
    /// Switches mark packets, and senders react to that (ECN, DCQCN) [default if given alone: paper]
    #[arg(long, num_args = 0..=1, default_missing_value = "paper", value_name = "PARAMETERS")]
    pub dcqcn: Option<Reaction>,
    /// Bytes of a switch's buffer
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub buffer: u64,
    /// Bytes of a message at most; a flow has four under way
    #[arg(long, value_name = "BYTES")]
    pub message: Option<u64>,
    /// Bytes of a packet's payload [default: the profile's]
    #[arg(short, long)]
    pub mtu: Option<u16>,
    /// Chance goes by this number
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Microseconds from one look at queues and rates to the next
    #[arg(long, value_name = "US", default_value_t = 10)]
    pub sample: u64,
    /// Write how long flows took, as HPCC's simulator does
    #[arg(long, value_name = "FILE")]
    pub fct: Option<PathBuf>,
    /// Write who was paused and when, as HPCC's simulator does
    #[arg(long, value_name = "FILE")]
    pub pauses: Option<PathBuf>,
    /// Write how long queues were how often, as HPCC's simulator does
    #[arg(long, value_name = "FILE")]
    pub qlen: Option<PathBuf>,
    /// Write queues and rates over time as a table for other programs
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all of it as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw a page for browsers: the same flows without anything, with pauses, with DCQCN, with both
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pfc", "dcqcn"])]
    pub report: Option<PathBuf>,
}
