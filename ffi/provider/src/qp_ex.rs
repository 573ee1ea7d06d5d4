//! The extended post interface (`ibv_wr_start` to `ibv_wr_complete`), on top of the driver's batches.
//!
//! An operation (`wr_send`, `wr_rdma_write`, ...) opens a work request and its data setter closes it; a request without data is closed by
//! the next call. The first failure is kept: `wr_complete` reports it and posts nothing.

use crate::abi::memory::{ibv_mw, ibv_mw_bind_info};
use crate::abi::public::{self as abi, Posted, ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge};
use crate::guard::guard;
use crate::mw;
use crate::ours::{self, Of};
use crate::posting::{MAX_INLINE_PIECES, Posting};
use driver::{SendBatch, SendFlags, SendOp, Service, Sge, Target};
use libc::{c_int, c_void, size_t};
use std::sync::Arc;

/// The supported `send_ops_flags` of a QP of this service.
pub fn send_ops(service: Service) -> u64 {
    const SENDS: u64 = abi::IBV_QP_EX_WITH_SEND | abi::IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u64 = abi::IBV_QP_EX_WITH_RDMA_WRITE | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const RELIABLE: u64 = abi::IBV_QP_EX_WITH_RDMA_READ
        | abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | abi::IBV_QP_EX_WITH_SEND_WITH_INV;
    const KEYS: u64 = abi::IBV_QP_EX_WITH_LOCAL_INV | abi::IBV_QP_EX_WITH_BIND_MW;
    match service {
        Service::Rc | Service::XrcIni => SENDS | WRITES | RELIABLE | KEYS,
        Service::Uc => SENDS | WRITES | KEYS,
        Service::Ud | Service::Gsi => SENDS,
        Service::RawPacket => abi::IBV_QP_EX_WITH_SEND,
        Service::XrcTgt | Service::Keys => 0,
    }
}

/// Sets the function pointers of an extended QP.
pub fn install(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
}

impl Posted {
    /// Calls `body` with the collection.
    #[inline(always)]
    fn collection<T>(self, on_panic: T, body: impl FnOnce(&mut Posting) -> T) -> T {
        // SAFETY: by the invariant of the type, no other thread uses it.
        guard(on_panic, || body(unsafe { &mut *self.of().posting.get() }))
    }

    /// Calls `body` with the collection; does nothing without a start.
    #[inline(always)]
    fn with(self, body: impl FnOnce(&mut Posting)) {
        self.collection((), |posting| {
            if posting.is_started() {
                body(posting);
            }
        });
    }

    /// Opens a work request.
    #[inline(always)]
    fn begin(self, op: SendOp) {
        let qp = self.of().raw().cast::<ibv_qp_ex>();
        // SAFETY: V1, V2: programs set the two members before the call.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        self.with(|posting| posting.begin(wr_id, flags, op));
    }
}

extern "C" fn start(qp: Posted) {
    let of = qp.of();
    if of.birth.is_here() {
        guard((), || {
            // SAFETY: the batch does not outlive the driver's QP: it ends at complete or abort, before the program may destroy the QP.
            let batch = unsafe { std::mem::transmute::<SendBatch<'_>, SendBatch<'static>>(of.inner.begin()) };
            // SAFETY: by the invariant of the type, and the batch holds the lock now.
            unsafe { (*of.posting.get()).start(batch) };
        });
    }
}

extern "C" fn complete(qp: Posted) -> c_int {
    qp.collection(libc::EIO, Posting::complete)
}

extern "C" fn abort(qp: Posted) {
    qp.collection((), Posting::abort);
}

macro_rules! operations { ($($name:ident($($argument:ident: $t:ty),*) = $op:expr;)*) => { $(
    extern "C" fn $name(qp: Posted $(, $argument: $t)*) {
        qp.begin($op);
    }
)* } }
operations! {
    send() = SendOp::Send;
    send_imm(imm: u32) = SendOp::SendImm(u32::from_be(imm));
    send_inv(rkey: u32) = SendOp::SendInv(rkey);
    rdma_write(rkey: u32, raddr: u64) = SendOp::Write { raddr, rkey };
    rdma_write_imm(rkey: u32, raddr: u64, imm: u32) = SendOp::WriteImm { raddr, rkey, imm: u32::from_be(imm) };
    rdma_read(rkey: u32, raddr: u64) = SendOp::Read { raddr, rkey };
    atomic_cmp_swp(rkey: u32, raddr: u64, compare: u64, swap: u64) = SendOp::CmpSwap { raddr, rkey, compare, swap };
    atomic_fetch_add(rkey: u32, raddr: u64, add: u64) = SendOp::FetchAdd { raddr, rkey, add };
    local_inv(rkey: u32) = SendOp::LocalInv(rkey);
}

extern "C" fn set_ud_addr(qp: Posted, ah: Option<Of<ibv_ah>>, qpn: u32, qkey: u32) {
    qp.with(|posting| {
        let Some(ah) = ah else { return posting.fail(libc::EINVAL) };
        // SAFETY: V1: the program keeps its address handle until the work request is complete.
        let ah: &'static driver::Ah = unsafe { &*Arc::as_ptr(&ah.inner) };
        posting.aim(Target::Datagram { ah, qpn, qkey });
    });
}

extern "C" fn set_xrc_srqn(qp: Posted, srqn: u32) {
    qp.with(|posting| posting.aim(Target::Srq(srqn)));
}

extern "C" fn bind_mw(qp: Posted, mw: Option<Of<ibv_mw>>, rkey: u32, info: &ibv_mw_bind_info) {
    match mw::binding(mw, rkey, info) {
        Ok(op) => qp.begin(op),
        Err(errno) => qp.with(|posting| posting.fail(errno)),
    }
}

extern "C" fn set_sge(qp: Posted, lkey: u32, addr: u64, length: u32) {
    qp.with(|posting| posting.piece(lkey, addr, length));
}

/// # Safety
/// Called by programs with a list of `count` SGEs (V4), which are in the driver's layout.
unsafe extern "C" fn set_sge_list(qp: Posted, count: size_t, list: *const ibv_sge) {
    // SAFETY: guaranteed by the caller.
    let pieces = unsafe { ours::list(list.cast::<Sge>(), count) };
    qp.with(|posting| posting.data(pieces, SendFlags::empty()));
}

/// The data is copied before this returns.
extern "C" fn set_inline_data(qp: Posted, addr: *mut c_void, length: size_t) {
    qp.with(|posting| match u32::try_from(length) {
        Ok(length) => posting.data(&[Sge { addr: addr as u64, length, lkey: 0 }], SendFlags::INLINE),
        Err(_) => posting.fail(libc::EINVAL),
    });
}

/// # Safety
/// Called by programs with a list of `count` buffers (V4).
unsafe extern "C" fn set_inline_data_list(qp: Posted, count: size_t, list: *const ibv_data_buf) {
    // SAFETY: guaranteed by the caller.
    let buffers = unsafe { ours::list(list, count) };
    qp.with(|posting| {
        let mut pieces = [Sge::default(); MAX_INLINE_PIECES];
        if buffers.len() > MAX_INLINE_PIECES || buffers.iter().any(|b| b.length > u32::MAX as usize) {
            return posting.fail(libc::EINVAL);
        }
        for (piece, buffer) in pieces.iter_mut().zip(buffers) {
            *piece = Sge { addr: buffer.addr as u64, length: buffer.length as u32, lkey: 0 };
        }
        posting.data(&pieces[..buffers.len()], SendFlags::INLINE);
    });
}
