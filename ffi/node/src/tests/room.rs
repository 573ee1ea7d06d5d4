//! What a program sees when the node's file has no page where it touches one.

use super::bed::{OnNode, Scratch};
use crate::{NodeTransport, file::REGION_AT};
use driver::transport::{Bar, Transport, Width};
use std::fs::OpenOptions;

#[test]
fn a_node_whose_pages_are_gone_ends_in_errors() {
    let scratch = Scratch::new();
    let node = scratch.node();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let Bar::Trapped(registers) = transport.bar(0).unwrap() else { panic!("a node traps its registers") };
    assert!(!transport.is_gone());
    assert_ne!(transport.config_read(0, Width::B4).unwrap(), 0);
    let file = OpenOptions::new().write(true).open(scratch.0.join("adapter")).unwrap();
    file.set_len(REGION_AT as u64).unwrap();
    // Whatever it says, it comes back.
    let _ = transport.config_read(0, Width::B4);
    assert!(transport.is_gone());
    let refused = transport.config_read(0, Width::B4).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(registers.read32(0), u32::MAX, "as of a device that does not answer");
    registers.write64(0x800, 1);
    (0..1000).for_each(|_| transport.idle());
}
