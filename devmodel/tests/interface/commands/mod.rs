//! The device from a driver's view: configuration space, BAR0, command queue. All access is through registers and
//! memory.

mod bed;
mod bring_up;
mod functions;
mod mailboxes;
mod memic;
mod objects;
mod ownership;
mod pci;
mod properties;
mod queue_pairs;
mod shown;
mod strict;
mod table;
mod umem;
