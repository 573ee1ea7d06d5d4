//! InfiniBand: ports, management agents, the subnet administrator, and packets routed by LID, checked section by section against the
//! InfiniBand architecture specification.

mod administrator;
mod common;
mod directed;
mod groups;
mod joined;
mod ports;
mod segments;
mod traffic;
mod virtual_ports;
