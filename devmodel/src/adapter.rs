//! The chip: all its state, and how it behaves. Its operations are in the other modules.

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
    /// An adapter that another party powered on, or that was restored.
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

    /// See [`Region::functions_there`].
    pub(crate) fn functions(&self) -> Range<u8> {
        self.region.functions_there()
    }

    /// True if `fid` is a function that is there.
    pub(crate) fn is_there(&self, fid: u8) -> bool {
        fid < self.region.functions() && self.region.is_present(fid)
    }

    /// Counts a frame that found no room.
    pub(crate) fn count_ring_full(&self, fid: u8) {
        self.region.sync(fid, Sync::RxFull).fetch_add(1, Relaxed);
    }
}
