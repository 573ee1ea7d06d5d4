//! What the chip does: a ConnectX-class SR-IOV adapter as one flat region of state and a pipeline that works on it.
//!
//! [`Adapter`] is the chip: a [`region::Region`] and a [`Config`]. [`engine::Runner`] drives it on behalf of one thread,
//! through a [`host::Host`] that stands for the machine around it.
#![deny(unsafe_code)]

pub mod cmd;
mod config;
pub mod engine;
pub mod host;
pub mod identity;
pub mod missing;
pub mod pcie;
pub mod pipe;
pub mod region;
pub mod serve;
pub mod state;
mod subnet;
pub mod translate;
pub mod wire;

pub use config::{Config, LinkLayer, Profile};
pub use subnet::PORT_CAPABILITIES;
pub use sync::laboratory;

use region::{Func, Region, Sync};

/// The chip.
pub struct Adapter {
    region: Region,
    config: Config,
}

impl Adapter {
    /// An adapter in its power-on state: only the PF is there.
    pub fn power_on(region: Region, config: Config, host: &mut dyn host::Host) -> Self {
        let adapter = Self { region, config };
        adapter.region.set_key(host.entropy());
        // A VF is reset when it is enabled.
        let mut pf = Func::lock(&adapter.region, 0, host);
        pcie::power_on(&mut pf, &adapter.config);
        pf.commit(host);
        drop(pf);
        adapter
    }

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

    /// Counts a frame that found no room.
    fn count_ring_full(&self, fid: u8) {
        self.region.sync(fid, Sync::RxFull).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
