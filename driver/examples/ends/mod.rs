//! Setup shared by the examples: a private node, and a reliable connection between two of its functions.
//!
//! Verbs objects are created in order of dependency: device, protection domain, completion queue, memory region, queue
//! pair. The queue pair then goes through its states (IBTA 10.3.1) until it is connected.
#![allow(dead_code)] // each example uses only part of this

use ironverbs_driver::{
    AccessFlags, AddressHandle, Completion, Cq, Device, Error, Mr, Pd, Qp, QpAttr, QpInit, QpState,
    SendFlags, SendOp, SendWr, Service, Sge, dma::DmaMem, transport::Scope,
};
use node::{Node, NodeOptions, open_device_of};
use std::{
    error::Error as StdError,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// The result of an example, with any error type.
pub type Outcome<T = ()> = Result<T, Box<dyn StdError>>;
/// Timeout of every wait in the examples.
pub const SOON: Duration = Duration::from_secs(10);
/// GID table index: 0 is the link-local address, 1 the one with the device's IPv4 address.
const GID: u8 = 1;

/// A node private to the example, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a node with two virtual functions and opens both.
    pub fn devices() -> Outcome<(Self, [Arc<Device>; 2])> {
        let scratch = Self(format!("/dev/shm/ironverbs-example-{}", std::process::id()).into());
        let options = NodeOptions { vfs: Some(2), ..NodeOptions::default() };
        let node = Node::open_or_create(&scratch.0, &options)?;
        // On a card the same `Device` runs over `ironverbs_driver::transport::vfio::VfioTransport`; `node::place` opens either.
        let devices = [open_device_of(&node, 1)?, open_device_of(&node, 2)?];
        Ok((scratch, devices))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One end of a connection. Each object keeps the objects that it was created with alive.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Mr,
    pub memory: Arc<DmaMem>,
    pub device: Arc<Device>,
}

impl End {
    /// Creates an unconnected end with one page of memory that its peer may write to.
    pub fn new(device: Arc<Device>) -> Result<Self, Error> {
        let pd = Pd::alloc(&device)?;
        let cq = Cq::create(&device, 16, 0)?;
        // Driver memory can be registered without `unsafe`. For the program's own memory, the caller of `Mr::register`
        // has to guarantee its lifetime.
        let memory = Arc::new(DmaMem::alloc(device.transport(), 4096, Scope::Opener)?);
        let mr = Mr::over(&pd, &memory, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        let sizes = QpInit::new(Service::Rc, &cq, &cq);
        let init = QpInit { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, ..sizes };
        Ok(Self { qp: Qp::create(&pd, &init)?, cq, mr, memory, device })
    }

    /// Connects through its own GID `sgid_index` to queue pair `qpn` of the port with `gid`: RESET to INIT, RTR (ready
    /// to receive) and RTS (ready to send).
    pub fn connect(&self, sgid_index: u8, gid: [u8; 16], qpn: u32) -> Result<(), Error> {
        let way = AddressHandle { dgid: gid, sgid_index, hop_limit: 64, ..AddressHandle::default() };
        let attr = QpAttr {
            qp_access_flags: AccessFlags::REMOTE_WRITE,
            ah: AddressHandle { is_global: true, port_num: 1, ..way },
            port_num: 1,
            path_mtu: 4096,
            dest_qp_num: qpn,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.qp.advance_to(QpState::Rts, &attr)
    }

    /// Returns a scatter/gather entry for `len` bytes of this end's memory at `offset`.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.memory.iova() + offset, length: len, lkey: self.mr.lkey() }
    }

    /// Posts one signaled work request.
    pub fn post(&self, wr_id: u64, op: SendOp, sge: Sge) -> Outcome {
        Ok(self.qp.post_send([SendWr { wr_id, op, sge: &[sge], flags: SendFlags::SIGNALED }])?)
    }

    /// Polls for the next completion. [`Events`](ironverbs_driver::Events) can sleep until there is one.
    pub fn completion(&self) -> Outcome<Completion> {
        let (begin, mut found) = (Instant::now(), [Completion::default()]);
        while self.cq.poll(&mut found) == 0 {
            if begin.elapsed() > SOON {
                return Err(format!("no completion within {SOON:?}").into());
            }
            std::thread::yield_now();
        }
        Ok(found[0])
    }
}

/// Connects one end on each device. Separate programs would exchange GID and queue pair number by other means: a
/// socket, or rdma_cm.
pub fn connected(devices: [Arc<Device>; 2]) -> Result<[End; 2], Error> {
    connected_by(GID, devices)
}

/// Like [`connected`], with GID table index `index`.
pub fn connected_by(index: u8, [a, b]: [Arc<Device>; 2]) -> Result<[End; 2], Error> {
    let ends = [End::new(a)?, End::new(b)?];
    for (this, peer) in [(0, 1), (1, 0)] {
        let gid = ends[peer].device.gid(index.into())?;
        ends[this].connect(index, gid, ends[peer].qp.qpn())?;
    }
    Ok(ends)
}
