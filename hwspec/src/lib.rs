//! The specification of the chip: the mlx5 programming interface and the RoCEv2 wire, as data.
//!
//! No I/O, no state, no behaviour. Driver and device model both use these types and share nothing else. Field names are
//! those of the public header `mlx5_ifc.h`; a test checks every layout against it. [`hw_layout!`] generates a structure
//! from a table of its fields. [`cmd`], [`context`], [`wqe`], [`cqe`] and [`eqe`] are the programming interface,
//! [`wire`] the packets.
//!
//! ```
//! use ironverbs_hwspec::{handle::{Psn, Qpn}, wire::{BthOpcode, Envelope, Headers, IpPair, Packet, write_frame}};
//!
//! let addresses = IpPair::V4 { src: [127, 0, 0, 2], dst: [127, 0, 0, 3] };
//! let mut packet = Packet::default();
//! packet.bth.set().opcode(BthOpcode::RcSendOnly).dest_qp(Qpn(0x11)).psn(Psn::new(7));
//! let mut frame = [0; 128];
//! let len = write_frame(&mut frame, &Envelope::new([2; 6], [4; 6], addresses), &packet, b"hello").ok_or("no room")?;
//!
//! let headers = Headers::parse(&frame[..len])?;
//! assert_eq!((headers.bth().dest_qp(), headers.bth().pad_count()), (Qpn(0x11), 3));
//! assert_eq!(headers.payload(), Some(&b"hello"[..]));
//! assert!(headers.icrc_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

pub mod layout;

pub mod cmd;
pub mod context;
pub mod cqe;
pub mod decode;
pub mod doorbell;
pub mod eqe;
pub mod handle;
pub mod init_segment;
pub mod pcie;
pub mod wire;
pub mod wqe;
