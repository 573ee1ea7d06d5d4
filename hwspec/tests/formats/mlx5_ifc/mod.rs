//! Layouts and codes, checked against the public headers of the Linux kernel, and properties common to all
//! layouts.

mod cases;
mod codes;
mod layouts;
mod pci;
mod rows;
mod segments;
