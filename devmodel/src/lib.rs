//! The behaviour of the chip: a ConnectX-class SR-IOV adapter, as one flat region of state and a pipeline that works on it.
//!
//! [`Adapter`] is the chip: a [`region::Region`] and a [`Config`]. [`engine::Runner`] drives it on behalf of one thread,
//! through a [`host::Host`] that represents the machine it is plugged into. The model has no clock and no thread of its own:
//! time is an argument.
//!
//! ```
//! use ironverbs_devmodel::engine::{sim::{self, Measure, Operation, Plan}, timing::TimingProfile};
//! use ironverbs_devmodel::{Adapter, Config, host::*, region::{Geometry, Region}};
//!
//! let mut machine = FlatMachine::default();
//! let adapter = Adapter::power_on(Region::private(Geometry::SMALL), Config::default(), &mut machine);
//! // Configuration space of function 0, the PF: device 1017 of vendor 15b3.
//! assert_eq!(adapter.config_read(&mut machine, 0, 0, 4), 0x1017_15b3);
//! assert!(!adapter.region().is_present(1), "a VF is there once the PF enables it");
//!
//! // A whole adapter with two connected queue pairs, in virtual time: perftest's figures, the same at every run.
//! let mut plan = Plan::new(Operation::Write, Measure::Latency, TimingProfile::load("direct-x16")?);
//! (plan.bytes, plan.iters) = (64, 100);
//! assert_eq!(sim::run(&plan)?.samples.len(), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod adapter;
pub mod cmd;
mod config;
pub mod engine;
pub mod guarded;
pub mod host;
pub mod identity;
pub mod missing;
pub mod mlx5;
mod named;
pub mod pcie;
pub mod region;
pub mod serve;
pub mod state;
pub mod strict;
mod subnet;
pub mod translate;
pub mod transport;
pub mod wire;

pub use adapter::Adapter;
pub use config::{Config, Conformance, LinkLayer};
pub use subnet::{Announcement, PORT_CAPABILITIES};
pub use sync::laboratory;
