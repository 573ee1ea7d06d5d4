//! The InfiniBand subnet of an adapter: every function's port is connected to one switch, whose administrator knows all ports. Links join
//! the switches of several adapters to one subnet: each administrator answers for all of it, because the link reports the ports and groups
//! of the others (`others`), and a border (`border`) drops the frames that no other adapter may send.
//!
//! There is no subnet manager: ports come up active, with the LIDs of [`identity`](crate::identity). The port attributes that a manager
//! could change (`smp`) and read (`pma`) exist nevertheless, through `MAD_IFC` and by packets. The administrator (`sa`, `paths`, `groups`)
//! answers queries sent to the switch's LID, and splits tables into segments (`rmpp`); the PF's state holds its records, and the process
//! that runs the PF runs it (`agent`).

use crate::{Config, region::Region};
use hwspec::{layout::Layout, wire::mad::sa::SaMad};

mod agent;
mod border;
mod groups;
mod local;
mod mad;
mod others;
mod partitions;
mod paths;
mod pma;
mod records;
mod rmpp;
mod sa;
mod smp;
mod switch;
mod view;

pub(crate) use agent::arrive;
pub(crate) use groups::{group_port_gone, is_in_a_group};
pub(crate) use local::local;
pub use mad::PORT_CAPABILITIES;
pub(crate) use mad::{SOFT_CAPABILITIES, port};
pub use others::Announcement;
pub(crate) use others::{REREGISTER, learn};
pub(crate) use pma::port_counters;
pub(crate) use rmpp::expire;
pub(crate) use smp::set_link;

/// The subnet of an adapter with behaviour `config`.
#[derive(Clone, Copy)]
struct Subnet<'a> {
    region: &'a Region,
    config: &'a Config,
}

/// A query of the administrator for records that equal `want` in the components named by `mask`.
struct Asked<T> {
    /// LID of the port that asks.
    from: u16,
    mask: u64,
    want: T,
}

impl<T: Layout> Asked<T> {
    fn read(from: u16, query: &SaMad) -> Self {
        Self { from, mask: query.component_mask(), want: T::read(&query.data()) }
    }

    /// True if the query names one of the components `bits`.
    fn has(&self, bits: u64) -> bool {
        self.mask & bits != 0
    }
}
