//! The InfiniBand subnet of an adapter: every function's port hangs on one switch, whose administrator knows them all.
//!
//! There is no subnet manager: ports come up active, with the LIDs of [`identity`](crate::identity). The attributes that a
//! manager could change of a port (`smp`) and read of it (`pma`) are there all the same, through `MAD_IFC` and by packets.
//! The administrator (`sa`, `paths`, `groups`) answers queries that come as packets to the switch's LID; the PF's state
//! holds what it knows, and whoever runs the PF runs it (`agent`).

mod agent;
mod groups;
mod local;
mod mad;
mod partitions;
mod paths;
mod pma;
mod records;
mod sa;
mod smp;
mod switch;
mod view;

pub(crate) use agent::{arrive, group_port_gone};
pub(crate) use groups::is_in_a_group;
pub(crate) use local::local;
pub use mad::PORT_CAPABILITIES;
pub(crate) use mad::{SOFT_CAPABILITIES, port};
pub(crate) use pma::port_counters;
pub(crate) use smp::set_link;
