//! The PCI Express side: configuration space, BAR0, interrupts, resets.
//!
//! The actions of a bus on the adapter are methods of [`Adapter`](crate::Adapter): configuration reads and writes, BAR reads and writes,
//! resets. Registers of BAR0 are big-endian; a 32-bit or 64-bit value here is the number that such a register holds.

pub(crate) mod bar;
mod config;
mod config_space;
mod init_segment;
pub(crate) mod msix;
mod reset;
pub(crate) mod slow;
pub(crate) mod sriov;

pub use bar::{doorbell, doorbell_half};
pub(crate) use config::no_answer;
pub(crate) use init_segment::firmware_version;
pub use msix::MsixMessage;
