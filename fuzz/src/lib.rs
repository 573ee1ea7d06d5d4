//! What hostile input may do to the model: nothing but what the interface defines.
//!
//! Each target takes any bytes, turns them into commands, work requests, packets or vfio-user messages for function 1, lets the chip work and
//! some time pass, and then asserts that functions 2 and 3 still serve each other as before. A panic anywhere is a
//! finding by itself. The targets start from one state, restored for every input, so an input always does the same.
#![deny(unsafe_code)]

mod bytes;
mod command;
mod ethernet;
mod packet;
mod routed;
mod stage;
mod vfio_user;
mod wqe;

pub use command::command_mailbox;
pub use ethernet::ethernet;
pub use packet::packet;
pub use routed::routed;
pub use vfio_user::vfio_user;
pub use wqe::wqe;
