//! By which clock programs live.

use super::sim::{SimProfile, Trial};
use clap::Args;

/// By which clock a program lives.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClockKind {
    /// This machine's
    Real,
    /// That of a card, a slot, a wire and hosts: virtual, and the same at every run
    Timed,
}

/// Says which time programs live in.
#[derive(Args)]
pub struct Time {
    /// Whether programs live in this machine's time, or in that of a card
    #[arg(long, value_enum, default_value = "real")]
    pub clock: ClockKind,
    #[command(flatten)]
    pub rules: TimeRules,
}

/// Says what virtual time goes by.
#[derive(Args)]
pub struct TimeRules {
    #[command(flatten)]
    pub profile: SimProfile,
    /// Programs' times vary as this number decides
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub trial: Trial,
}
