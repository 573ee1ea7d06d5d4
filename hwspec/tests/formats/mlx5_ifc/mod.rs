//! Layouts and codes against the public headers of the Linux kernel, and the properties every layout has.

mod cases;
mod codes;
mod layouts;
mod pci;
mod rows;
mod segments;
