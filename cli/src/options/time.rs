//! Real or virtual time for programs.

use super::sim::SimProfile;
use clap::Args;
use std::path::PathBuf;

/// The clock of a program.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClockKind {
    /// This machine's
    Real,
    /// That of a simulated card, slot, wire and hosts: virtual, and the same in every run
    Timed,
}

/// Selects the programs' time.
#[derive(Args)]
pub struct Time {
    /// Run programs in this machine's time, or in a card's virtual time
    #[arg(long, value_enum, default_value = "real")]
    pub clock: ClockKind,
    #[command(flatten)]
    pub rules: TimeRules,
}

/// Parameters of virtual time.
#[derive(Args)]
pub struct TimeRules {
    #[command(flatten)]
    pub profile: SimProfile,
    /// Seed for the variation of programs' times
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write the faults, the frames that they hit, their consequences, and all frames, as JSON
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
}
