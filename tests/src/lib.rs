//! Tests of driver and model together, and the tools that they share.
//!
//! [`bed`] drives the device model alone, in logical time, through the registers, rings and records that a driver would use;
//! `ironverbs::sim` connects driver and model. [`end`] is one end of a connection, made of the driver's verbs on a node;
//! [`manager`] runs communication management on queue pair 1. [`torture`] checks all traffic between two programs. [`linux`] starts Linux
//! nodes. [`stock`] runs Debian's programs and our C programs; [`workload`] runs many of them at once, beside a [`bystander`] that must not
//! be affected.
//!
//! ```
//! use hwspec::wire::BthOpcode;
//! use ironverbs_tests::bed::{Access, Bed, Path, Wr};
//!
//! let mut bed = Bed::cx5();
//! let (a, _) = bed.pair(Path::default());
//! let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
//! bed.fill(from, b"over the wire");
//! bed.post(a, &Wr::write(from.sge(), to));
//!
//! assert!(bed.one(a.send_cq).is_ok());
//! assert_eq!(bed.bytes(to), bed.bytes(from));
//! let frames: Vec<_> = bed.take_frames().iter().map(|frame| frame.opcode()).collect();
//! assert_eq!(frames, [BthOpcode::RcWriteOnly, BthOpcode::RcAck]);
//! ```
#![deny(unsafe_code)]

/// Defines a test for each line: its name, and the expression that it evaluates.
#[macro_export]
macro_rules! each {
    ($($name:ident: $run:expr;)+) => { $( #[test] fn $name() { $run; } )+ };
}

pub mod bed;
pub mod bystander;
pub mod cost;
pub mod end;
pub mod linux;
pub mod manager;
pub mod program;
pub mod stock;
pub mod torture;
pub mod workload;
