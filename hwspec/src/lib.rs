//! What the chip says: the mlx5 programming interface and the RoCEv2 wire, as data.
//!
//! No I/O, no state, no behaviour. Driver and device model both speak through these types and share nothing else.
//! Field names are the ones of the public header `mlx5_ifc.h`, which a test holds every layout against.
#![no_std]
#![forbid(unsafe_code)]

pub mod layout;

pub mod cmd;
pub mod context;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod handle;
pub mod init_segment;
pub mod pcie;
pub mod wire;
pub mod wqe;
