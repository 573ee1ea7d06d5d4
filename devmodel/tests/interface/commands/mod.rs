//! The device as a driver meets it: configuration space, BAR0, command queue. Everything goes through registers and
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
mod strict;
mod table;
mod umem;
