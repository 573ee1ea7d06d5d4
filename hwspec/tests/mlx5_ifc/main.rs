//! Layouts and codes against the public headers of the Linux kernel, and the properties every layout has.
//!
//! The headers come with Debian's `linux-headers-*-common`; every version installed judges.

mod c;
mod cases;
mod codes;
mod headers;
mod ifc;
mod layouts;
mod lexer;
mod pci;
mod rows;
mod segments;
