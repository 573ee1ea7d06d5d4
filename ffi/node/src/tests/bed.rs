//! Test nodes, and other processes on them.
#![allow(unsafe_code)]

use crate::{Node, NodeOptions};
use driver::{
    AddressHandle, Cq, Device, Pd, Qp, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendFlags, SendOp,
    SendWr, Service,
};
use std::{process::Command, sync::Arc, time::Duration};
pub use testkit::{Other, Scratch, listen, say, until_killed};

/// Opens the node in a test's directory.
pub trait OnNode: Sized {
    /// A new directory with a node of three VFs.
    fn with_node() -> (Self, Arc<Node>);

    /// A node with three VFs.
    fn node(&self) -> Arc<Node> {
        self.node_with(&NodeOptions { vfs: Some(3), ..NodeOptions::default() })
    }

    /// A node with these options.
    fn node_with(&self, options: &NodeOptions) -> Arc<Node>;
}

impl OnNode for Scratch {
    fn with_node() -> (Self, Arc<Node>) {
        let scratch = Self::new();
        let node = scratch.node();
        (scratch, node)
    }

    fn node_with(&self, options: &NodeOptions) -> Arc<Node> {
        Node::open_or_create(&self.0, options).unwrap()
    }
}

/// The command that starts this binary as [`other_process`] in `role`.
pub fn command(scratch: &Scratch, role: &str) -> Command {
    Other::command("tests::bed::other_process", role, &scratch.0)
}

/// Starts this binary in `role`.
pub fn start(scratch: &Scratch, role: &str) -> Other {
    Other::start(&mut command(scratch, role))
}

/// The same, once it has said its first line.
pub fn started(scratch: &Scratch, role: &str) -> Other {
    let mut other = start(scratch, role);
    other.hear();
    other
}

/// Not a test itself: the entry point of the other processes.
#[test]
fn other_process() {
    let Some((role, dir)) = testkit::role() else { return };
    match role.as_str() {
        "arena" => super::death::leaves_blocks_behind(&dir),
        "function-lock" => super::death::dies_with_a_function(&dir),
        "node-lock" => super::death::dies_with_the_node(&dir),
        "memory" => super::copies::lends_memory(&dir),
        "lend" => super::lend::lends(&dir),
        "interrupt" => super::copies::waits_for_an_interrupt(&dir),
        "open" => super::node::opens(&dir),
        "crowd" => super::crowd::opens(&dir),
        "refused" => super::crowd::is_refused(&dir),
        "openers" => super::crowd::opens_many(&dir),
        "holds-lock" => super::damage::holds_the_lock(&dir),
        "holds-function" => super::damage::holds_a_function(&dir),
        "changes-vfs" => super::damage::changes_vfs(&dir),
        "visit" => super::damage::visits(&dir),
        "stay" => super::damage::stays(&dir),
        other => panic!("no role {other}"),
    }
}

/// The objects of every program: a queue pair and the objects it needs.
pub struct Objects {
    _qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    _pd: Arc<Pd>,
}

impl Objects {
    /// Creates a queue pair whose posted request is flushed, which creates a completion and an event.
    pub fn flushed(device: &Arc<Device>) -> Result<Self, Box<dyn std::error::Error>> {
        let (pd, cq) = (Pd::alloc(device)?, Cq::create(device, 16, 77)?);
        let init = QpInit { max_send_wr: 4, max_recv_wr: 4, ..QpInit::new(Service::Rc, &cq, &cq) };
        let qp = Qp::create(&pd, &init)?;
        qp.advance_to(QpState::Init, &QpAttr { port_num: 1, ..QpAttr::default() })?;
        qp.post_recv([RecvWr { wr_id: 1, sge: &[] }])?;
        while device.events().next().is_some() {}
        cq.arm(false);
        qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE)?;
        Ok(Self { _qp: qp, cq, _pd: pd })
    }
}

/// Creates a queue pair that sends to itself and never has a receive, so that its request is repeated for ever.
pub fn is_never_ready(device: &Arc<Device>) -> Result<Arc<Qp>, Box<dyn std::error::Error>> {
    let (pd, cq) = (Pd::alloc(device)?, Cq::create(device, 16, 77)?);
    let init = QpInit { max_send_wr: 4, max_recv_wr: 4, ..QpInit::new(Service::Rc, &cq, &cq) };
    let qp = Qp::create(&pd, &init)?;
    let ah = AddressHandle {
        dgid: device.gid(1)?,
        sgid_index: 1,
        hop_limit: 64,
        is_global: true,
        port_num: 1,
        ..AddressHandle::default()
    };
    let endless = QpAttr {
        port_num: 1,
        ah,
        path_mtu: 1024,
        dest_qp_num: qp.qpn(),
        min_rnr_timer: 1,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    qp.advance_to(QpState::Rts, &endless)?;
    qp.post_send([SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::empty() }])?;
    Ok(qp)
}

/// Waits until `done` returns true, at most five seconds.
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    testkit::until(what, Duration::from_secs(5), done);
}

/// Whole pages of private memory.
pub struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    pub fn new(count: usize) -> Self {
        let len = count * 4096;
        // SAFETY: a new private mapping.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), len }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of this value; tests do not read while others write.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// Unmaps the pages from `first` on.
    pub fn cut(&mut self, first: usize) {
        // SAFETY: a mapping of this value, shortened from here on.
        unsafe { libc::munmap(self.base.add(first * 4096).cast(), self.len - first * 4096) };
        self.len = first * 4096;
    }

    /// Makes the pages read-only.
    pub fn protect(&self) {
        // SAFETY: a mapping of this value.
        unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_READ) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping of this value.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
