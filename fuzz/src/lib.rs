//! Hostile input must have no effect beyond what the interface defines.
//!
//! Most targets turn arbitrary bytes into commands, work requests, packets or vfio-user messages for function 1, let the chip work and some
//! time pass, and then assert that functions 2 and 3 still serve each other as before. Two targets test the node: arbitrary bytes in its
//! file, and arbitrary requests of a launched program to its supervisor. One tests the driver alone, on a device that lies. A panic
//! anywhere is a finding by itself. Targets start from one state, restored for every input. Targets for the chip are deterministic for an
//! input; those for the node may depend on the system's timing.
//!
//! A target is a function that takes bytes. `scripts/fuzz.sh` runs it under libFuzzer; a direct call reproduces a finding for debugging:
//!
//! ```
//! // Two work requests that make no sense, and packets that do not either: the other functions notice nothing.
//! ironverbs_fuzz::wqe(&[0xff; 64]);
//! ironverbs_fuzz::packet(b"neither headers nor payload");
//! ```
#![deny(unsafe_code)]

mod bytes;
mod command;
mod ethernet;
mod launched;
mod lies;
mod node_file;
mod packet;
mod routed;
mod scratch;
mod stage;
mod vfio_user;
mod wqe;

pub use command::command_mailbox;
pub use ethernet::ethernet;
pub use launched::launched;
pub use lies::lies;
pub use node_file::node_file;
pub use packet::packet;
pub use routed::routed;
pub use vfio_user::vfio_user;
pub use wqe::wqe;
