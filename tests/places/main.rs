//! Places outside the process that a node's devices reach: guests, Linux nodes, clusters of them, the Debian package; and the scripts that
//! make them.

mod guest;
mod kubernetes;
mod linux;
mod package;
mod pages;
mod scripts;
