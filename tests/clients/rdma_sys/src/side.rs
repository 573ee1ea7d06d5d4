//! One device with a queue pair and memory.

use crate::IMMEDIATE;
use rdma_sys::*;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::{CStr, c_int},
    io, mem, ptr,
    time::{Duration, Instant},
};

/// The result of a step; an error is a message.
pub type Try<T> = Result<T, String>;

/// Bytes of memory of a side.
pub const LEN: usize = 256 << 10;
/// Maximum time to wait for a completion.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u8 = 1;
/// On Ethernet ports: RoCE v2 with the IPv4 address.
const GID_INDEX: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`, for which rdma-sys has no type.
const ETHERNET: u8 = 2;
const PSN: u32 = 0xff_fff0;

/// Returns the object that libibverbs made, or the error.
fn made<T>(what: &str, object: *mut T) -> Try<*mut T> {
    if object.is_null() { Err(format!("{what}: {}", io::Error::last_os_error())) } else { Ok(object) }
}

/// Checks a call that returns 0 or an errno.
fn done(what: &str, answer: c_int) -> Try<()> {
    if answer == 0 { Ok(()) } else { Err(format!("{what}: {}", io::Error::from_raw_os_error(answer))) }
}

/// Returns a zeroed structure, as C programs initialize it.
fn zeroed<T: Plain>() -> T {
    // SAFETY: `Plain` promises that all zeros are a valid value.
    unsafe { mem::zeroed() }
}

/// # Safety
/// All fields may be zero: integers, null pointers, `None`.
unsafe trait Plain {}
// SAFETY: integers.
unsafe impl Plain for ibv_port_attr {}
// SAFETY: integers and bytes.
unsafe impl Plain for ibv_gid {}
// SAFETY: integers and pointers.
unsafe impl Plain for ibv_qp_init_attr {}
// SAFETY: integers, and unions of them.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: integers and pointers, and unions of them.
unsafe impl Plain for ibv_send_wr {}
// SAFETY: integers, and a union of them.
unsafe impl Plain for ibv_wc {}

/// An open device with everything that a connection needs.
pub struct Side {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    memory: *mut u8,
    lid: u16,
    /// `None` on InfiniBand.
    gid: Option<ibv_gid>,
}

fn layout() -> Layout {
    Layout::from_size_align(LEN, 4096).expect("pages")
}

impl Side {
    /// Opens the device called `name`, creates its objects, and moves the queue pair to INIT.
    pub fn open(name: &str) -> Try<Self> {
        // SAFETY: each object is made from those above it, which live until `close`; structures live across the calls. The device list is
        // freed once the wanted device is open, as the manual page allows. The memory is as long as the registration.
        unsafe {
            let context = open_device(name)?;
            let mut port: ibv_port_attr = zeroed();
            done("ibv_query_port", ___ibv_query_port(context, PORT, &mut port))?;
            let gid = (port.link_layer == ETHERNET).then(|| {
                let mut gid: ibv_gid = zeroed();
                done("ibv_query_gid", ibv_query_gid(context, PORT, GID_INDEX.into(), &mut gid)).map(|()| gid)
            });
            let pd = made("ibv_alloc_pd", ibv_alloc_pd(context))?;
            let cq = made("ibv_create_cq", ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0))?;
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, ibv_qp_type::IBV_QPT_RC);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
            let qp = made("ibv_create_qp", ibv_create_qp(pd, &mut init))?;
            let memory = made("memory", alloc_zeroed(layout()))?;
            let mr = made("ibv_reg_mr", ibv_reg_mr(pd, memory.cast(), LEN, rights().0 as c_int))?;
            let side = Self { context, pd, cq, qp, mr, memory, lid: port.lid, gid: gid.transpose()? };
            let mut attr: ibv_qp_attr = zeroed();
            (attr.qp_state, attr.port_num) = (ibv_qp_state::IBV_QPS_INIT, PORT);
            attr.qp_access_flags = rights().0;
            type Mask = ibv_qp_attr_mask;
            let mask =
                Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
            side.modify(&mut attr, mask)?;
            Ok(side)
        }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Try<()> {
        // SAFETY: our own queue pair, and a structure that lives across the call.
        done("ibv_modify_qp", unsafe { ibv_modify_qp(self.qp, attr, mask.0 as c_int) })
    }

    /// Connects the queue pair to that of `peer`: RTR, then RTS.
    pub fn connect(&self, peer: &Side) -> Try<()> {
        type Mask = ibv_qp_attr_mask;
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        (attr.path_mtu, attr.dest_qp_num, attr.rq_psn) = (ibv_mtu::IBV_MTU_1024, peer.qp_num(), PSN);
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (4, 12);
        (attr.ah_attr.port_num, attr.ah_attr.dlid) = (PORT, peer.lid);
        if let Some(gid) = peer.gid {
            attr.ah_attr.is_global = 1;
            (attr.ah_attr.grh.dgid, attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit) =
                (gid, GID_INDEX, 64);
        }
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN;
        self.modify(&mut attr, mask | Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER)?;
        (attr.qp_state, attr.sq_psn, attr.max_rd_atomic) = (ibv_qp_state::IBV_QPS_RTS, PSN, 4);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN;
        self.modify(&mut attr, mask | Mask::IBV_QP_MAX_QP_RD_ATOMIC)
    }

    fn state(&self) -> Try<ibv_qp_state::Type> {
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        // SAFETY: our own queue pair, and structures that live across the call.
        done("ibv_query_qp", unsafe { ibv_query_qp(self.qp, &mut attr, mask, &mut init) })?;
        Ok(attr.qp_state)
    }

    /// Returns true if the queue pair may send.
    pub fn is_ready(&self) -> Try<bool> {
        Ok(self.state()? == ibv_qp_state::IBV_QPS_RTS)
    }

    /// Returns true if the queue pair is in error.
    pub fn has_failed(&self) -> Try<bool> {
        Ok(self.state()? == ibv_qp_state::IBV_QPS_ERR)
    }

    /// Returns the queue pair number.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: our own queue pair; its number does not change.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns address and rkey of byte `at`, for the peer.
    pub fn place(&self, at: usize) -> (u64, u32) {
        // SAFETY: our own registration; its keys do not change.
        (self.memory as u64 + at as u64, unsafe { (*self.mr).rkey })
    }

    fn sge(&self, (at, len): (usize, usize)) -> ibv_sge {
        assert!(at + len <= LEN);
        // SAFETY: our own registration; its keys do not change.
        ibv_sge { addr: self.memory as u64 + at as u64, length: len as u32, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Writes `bytes` to the memory at `at`. No transfer may be outstanding there.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: within our memory, to which no references exist.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }

    /// Fills all of the memory with zeros.
    pub fn clear(&self) {
        self.put(0, &vec![0; LEN]);
    }

    /// Reads `len` bytes of the memory at `at`.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= LEN);
        let mut bytes = vec![0; len];
        // SAFETY: within our memory, to which no references exist.
        unsafe { ptr::copy_nonoverlapping(self.memory.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Posts a receive of `len` bytes at `at`.
    pub fn receive(&self, id: u64, at: usize, len: usize) -> Try<()> {
        let mut sge = self.sge((at, len));
        let mut wr = ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        // SAFETY: our own queue pair; the request is read before the call returns, and the memory stays until `close`.
        done("ibv_post_recv", unsafe { ibv_post_recv(self.qp, &mut wr, &mut ptr::null_mut()) })
    }

    /// Posts a request on a range of our memory. All operations but SEND also have an address and a key at the peer.
    pub fn post(
        &self,
        id: u64,
        opcode: ibv_wr_opcode::Type,
        local: (usize, usize),
        remote: Option<(u64, u32)>,
    ) -> Try<()> {
        let (remote_addr, rkey) = remote.unwrap_or_default();
        self.post_wr(id, opcode, local, wr_t { rdma: rdma_t { remote_addr, rkey } })
    }

    /// Posts an atomic on a word of the peer; the old value is written to `at`.
    pub fn post_atomic(
        &self,
        id: u64,
        opcode: ibv_wr_opcode::Type,
        at: usize,
        (remote_addr, rkey): (u64, u32),
        (compare_add, swap): (u64, u64),
    ) -> Try<()> {
        self.post_wr(id, opcode, (at, 8), wr_t { atomic: atomic_t { remote_addr, compare_add, swap, rkey } })
    }

    fn post_wr(&self, id: u64, opcode: ibv_wr_opcode::Type, local: (usize, usize), remote: wr_t) -> Try<()> {
        let mut sge = self.sge(local);
        let mut wr: ibv_send_wr = zeroed();
        (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge, wr.wr) = (id, opcode, &mut sge, 1, remote);
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        wr.imm_data_invalidated_rkey_union.imm_data = IMMEDIATE.to_be();
        // SAFETY: our own queue pair; the request is read before the call returns, and the memory stays until `close`.
        done("ibv_post_send", unsafe { ibv_post_send(self.qp, &mut wr, &mut ptr::null_mut()) })
    }

    /// Waits for the next completion, which must be successful.
    pub fn completion(&self) -> Try<ibv_wc> {
        let wc = self.any_completion()?;
        match wc.status {
            ibv_wc_status::IBV_WC_SUCCESS => Ok(wc),
            status => Err(format!("request {} ended with status {status}", wc.wr_id)),
        }
    }

    /// Waits for the next completion.
    pub fn any_completion(&self) -> Try<ibv_wc> {
        let (mut wc, begin) = (zeroed(), Instant::now());
        while begin.elapsed() < PATIENCE {
            // SAFETY: our own completion queue, and room for one completion.
            match unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } {
                0 => {}
                1 => return Ok(wc),
                other => return Err(format!("ibv_poll_cq: {other}")),
            }
        }
        Err(format!("no completion within {PATIENCE:?}"))
    }

    /// Destroys all objects and frees the memory.
    pub fn close(self) -> Try<()> {
        // SAFETY: all objects are our own and each is destroyed once, referrers before the objects they refer to.
        unsafe {
            done("ibv_destroy_qp", ibv_destroy_qp(self.qp))?;
            done("ibv_dereg_mr", ibv_dereg_mr(self.mr))?;
            done("ibv_destroy_cq", ibv_destroy_cq(self.cq))?;
            done("ibv_dealloc_pd", ibv_dealloc_pd(self.pd))?;
            done("ibv_close_device", ibv_close_device(self.context))?;
            dealloc(self.memory, layout());
        }
        Ok(())
    }
}

fn rights() -> ibv_access_flags {
    type Flags = ibv_access_flags;
    Flags::IBV_ACCESS_LOCAL_WRITE
        | Flags::IBV_ACCESS_REMOTE_WRITE
        | Flags::IBV_ACCESS_REMOTE_READ
        | Flags::IBV_ACCESS_REMOTE_ATOMIC
}

/// # Safety
/// As for all calls of libibverbs: nothing else in the process may close the device.
unsafe fn open_device(name: &str) -> Try<*mut ibv_context> {
    // SAFETY: the list ends with a null pointer, and its devices live until it is freed.
    unsafe {
        let list = made("ibv_get_device_list", ibv_get_device_list(ptr::null_mut()))?;
        let mut at = list;
        while !(*at).is_null() && CStr::from_ptr(ibv_get_device_name(*at)).to_bytes() != name.as_bytes() {
            at = at.add(1);
        }
        let opened = match (*at).is_null() {
            true => Err(format!("no device is called {name}")),
            false => made("ibv_open_device", ibv_open_device(*at)),
        };
        ibv_free_device_list(list);
        opened
    }
}
