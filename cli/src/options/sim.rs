//! `ironverbs sim`.

use clap::{Args, Subcommand};
use devmodel::engine::timing::BUILT_IN;
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
    /// Compare the model with what was measured on cards
    Calibrate {
        /// Profiles of this folder instead of those that come with the model
        #[arg(long, value_name = "DIR")]
        profiles: Option<PathBuf>,
    },
}

/// What everything costs.
#[derive(Args)]
pub struct SimProfile {
    #[arg(id = "profile", long = "profile", default_value = BUILT_IN[0], value_name = "NAME or FILE",
        help = format!("Card, slot, wire and hosts: a file, or one of {}", BUILT_IN.join(", ")))]
    pub name: String,
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
}

/// perftest's options, and what time is made of.
#[derive(Args)]
pub struct SimPlan {
    #[command(flatten)]
    pub look: SimLook,
    #[command(flatten)]
    pub profile: SimProfile,
    /// Bytes of a message [default: 2 for latencies, 65536 for bandwidths, 8 for atomics]
    #[arg(short, long)]
    pub size: Option<u32>,
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
    #[arg(short = 'I', long)]
    pub inline_size: Option<u32>,
    /// CMP_SWAP instead of FETCH_ADD, of atomics
    #[arg(long)]
    pub cmp_and_swap: bool,
    /// Programs' times vary as this number decides
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bandwidths in Gb/s instead of MiB/s
    #[arg(long)]
    pub report_gbits: bool,
}
