//! The chip: all its state and its behaviour. Its operations are in the other modules.

use crate::{
    config::Config,
    region::{Region, Sync},
};
use std::{ops::Range, sync::atomic::Ordering::Relaxed};

/// The chip.
pub struct Adapter {
    region: Region,
    config: Config,
}

impl Adapter {
    /// Attaches to an adapter that another party powered on, or that was restored.
    pub fn attach(region: Region, config: Config) -> Self {
        Self { region, config }
    }

    /// All state.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Behaviour.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The functions of [`Region::functions_there`].
    pub(crate) fn functions(&self) -> Range<u8> {
        self.region.functions_there()
    }

    /// True if `fid` is a present function.
    pub(crate) fn is_there(&self, fid: u8) -> bool {
        fid < self.region.functions() && self.region.is_present(fid)
    }

    /// Counts a frame that was dropped because the ring was full.
    pub(crate) fn count_ring_full(&self, fid: u8) {
        self.region.sync(fid, Sync::RxFull).fetch_add(1, Relaxed);
    }
}
