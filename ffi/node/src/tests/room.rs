//! The address space and the memory that a node takes, and the errors that a program sees when there is none left.
#![allow(unsafe_code)]

use super::bed::{OnNode, Scratch};
use crate::{Node, NodeError, NodeOptions, NodeTransport, file::REGION_AT, open_device_of};
use driver::{
    Cq, Pd, Qp, QpInit, Service,
    transport::{Bar, Transport, Width},
};
use std::{fs::OpenOptions, os::unix::fs::MetadataExt, sync::Arc};

#[test]
fn a_node_whose_pages_are_gone_ends_in_errors() {
    let (scratch, node) = Scratch::with_node();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let Bar::Trapped(registers) = transport.bar(0).unwrap() else { panic!("a node traps its registers") };
    assert!(!transport.is_gone());
    assert_ne!(transport.config_read(0, Width::B4).unwrap(), 0);
    let file = OpenOptions::new().write(true).open(scratch.0.join("adapter")).unwrap();
    file.set_len(REGION_AT as u64).unwrap();
    // The read returns, with any value.
    let _ = transport.config_read(0, Width::B4);
    assert!(transport.is_gone());
    let refused = transport.config_read(0, Width::B4).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(registers.read32(0), u32::MAX, "as of a device that does not answer");
    registers.write64(0x800, 1);
    (0..1000).for_each(|_| transport.idle());
}

/// Creates and destroys objects on a separate function.
fn use_it(node: &Arc<Node>) {
    let device = open_device_of(node, 1).unwrap();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 256, 0).unwrap();
    let init = QpInit { max_send_wr: 64, max_recv_wr: 64, ..QpInit::new(Service::Rc, &cq, &cq) };
    let all: Vec<_> = (0..100).map(|_| Qp::create(&pd, &init).unwrap()).collect();
    assert_eq!(all.len(), 100);
}

/// The value in KiB of field `name` of this process's `/proc/self/status`.
fn status(name: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

/// Sets a resource limit of this process, in bytes. A macro, because the type of `$which` depends on the C library.
macro_rules! limit {
    ($which:expr, $bytes:expr) => {{
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a local structure.
        unsafe {
            assert_eq!(libc::getrlimit($which, &raw mut limit), 0);
            limit.rlim_cur = $bytes;
            assert_eq!(libc::setrlimit($which, &raw const limit), 0);
        }
    }};
}

#[test]
fn a_program_needs_addresses_for_what_it_uses_alone() {
    testkit::alone!();
    limit!(libc::RLIMIT_AS, (status("VmSize:") << 10) + (64 << 20));
    let scratch = Scratch::new();
    use_it(&scratch.node());
}

#[test]
fn a_program_that_locks_its_memory_does_not_fill_the_machine() {
    testkit::alone!();
    let (scratch, node) = Scratch::with_node();
    // SAFETY: only changes where pages are kept.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        println!("skipped: this user may not lock memory: {}", std::io::Error::last_os_error());
        return;
    }
    use_it(&node);
    // SAFETY: only changes where pages are kept, and takes no pointer.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_CURRENT) }, 0);
    let taken = std::fs::metadata(scratch.0.join("adapter")).unwrap().blocks() >> 1;
    assert!(taken < 48 << 10, "the node takes {taken} KiB");
}

#[test]
fn a_node_that_would_be_too_large_a_file_is_refused_in_words() {
    testkit::alone!();
    limit!(libc::RLIMIT_FSIZE, 1 << 20);
    let scratch = Scratch::new();
    let refused = Node::open_or_create(&scratch.0, &NodeOptions::default());
    let Err(NodeError::FileSize { limit, .. }) = refused else { panic!("expected a limit of file sizes") };
    assert_eq!(limit, 1 << 20);
    assert!(!scratch.0.join("adapter").exists() && !scratch.0.join("adapter.new").exists());
}
