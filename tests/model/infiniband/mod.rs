//! InfiniBand: ports, management agents, the subnet administrator, and packets routed by LID, held to the InfiniBand
//! architecture specification section by section.

mod administrator;
mod common;
mod directed;
mod groups;
mod ports;
mod traffic;
mod virtual_ports;
