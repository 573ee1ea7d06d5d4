//! The Ethernet side of the model, in logical time: the behaviour that a net device's driver relies on.

mod eswitch;
mod legacy;
mod manager;
mod packets;
mod receive;
mod steering;
mod transmit;
mod vf_settings;
mod vport;
