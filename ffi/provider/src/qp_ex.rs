//! The extended post interface (`ibv_wr_start` to `ibv_wr_complete`), on top of the driver's batches.
//!
//! An operation (`wr_send`, `wr_rdma_write`, ...) opens a work request and its data setter closes it; a request without data is closed by
//! the next call. The first failure is kept: `wr_complete` reports it and posts nothing.

use crate::abi::memory::{ibv_mw, ibv_mw_bind_info};
use crate::abi::public::{self as abi, ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge};
use crate::ah::IronAh;
use crate::guard::guard;
use crate::mw;
use crate::ours::Ours;
use crate::posting::{MAX_INLINE_PIECES, Posting};
use crate::qp::IronQp;
use driver::{SendBatch, SendFlags, SendOp, Service, Sge, Target};
use libc::{c_int, c_void, size_t};

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

/// Calls `body` with the collection of the thread that called `ibv_wr_start`; does nothing without that call.
///
/// # Safety
/// `qp` belongs to this provider. The batch in it holds the send queue's lock, so there is no second such thread.
#[inline(always)]
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Posting)) {
    guard((), || {
        // SAFETY: guaranteed by the caller: V1 and V2, and no other thread is between `ibv_wr_start` and `ibv_wr_complete`.
        let posting = unsafe { &mut *IronQp::of(qp.cast()).posting.get() };
        if posting.is_started() {
            body(posting);
        }
    });
}

#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: called by programs between start and complete; they set the two members before the call.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        with(qp, |posting| posting.begin(wr_id, flags, op));
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    guard((), || {
        // SAFETY: called by programs with a QP of this provider. The batch does not outlive the driver's QP: it ends at complete or abort,
        // before the program may destroy the QP.
        unsafe {
            let ours = IronQp::of(qp.cast());
            if ours.birth.check().is_err() {
                return;
            }
            let batch = std::mem::transmute::<SendBatch<'_>, SendBatch<'static>>(ours.inner.begin());
            (*ours.posting.get()).start(batch);
        }
    });
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: as in `with`.
        unsafe { &mut *IronQp::of(qp.cast()).posting.get() }.complete()
    })
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    guard((), || {
        // SAFETY: as in `with`.
        unsafe { &mut *IronQp::of(qp.cast()).posting.get() }.abort();
    });
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::Send) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::SendImm(u32::from_be(imm))) }
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::SendInv(rkey)) }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, raddr: u64) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::Write { raddr, rkey }) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, raddr: u64, imm: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::WriteImm { raddr, rkey, imm: u32::from_be(imm) }) }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, raddr: u64) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::Read { raddr, rkey }) }
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, raddr: u64, compare: u64, swap: u64) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::CmpSwap { raddr, rkey, compare, swap }) }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, raddr: u64, add: u64) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::FetchAdd { raddr, rkey, add }) }
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { begin(qp, SendOp::LocalInv(rkey)) }
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: called by programs between start and complete; the program keeps its address handle until the work request is complete.
    unsafe {
        with(qp, |posting| {
            if ah.is_null() {
                return posting.fail(libc::EINVAL);
            }
            let ah: &'static driver::Ah = &IronAh::of(ah).inner;
            posting.aim(Target::Datagram { ah, qpn, qkey });
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { with(qp, |posting| posting.aim(Target::Srq(srqn))) }
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: called by programs between start and complete, with a window and an MR of this provider.
    unsafe {
        match mw::binding(mw, rkey, &*info) {
            Ok(op) => begin(qp, op),
            Err(errno) => with(qp, |posting| posting.fail(errno)),
        }
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { with(qp, |posting| posting.piece(lkey, addr, length)) }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    // SAFETY: called by programs between start and complete; the program's list has `count` SGEs, in the driver's layout.
    unsafe {
        let pieces: &[Sge] = if count == 0 { &[] } else { std::slice::from_raw_parts(list.cast(), count) };
        with(qp, |posting| posting.data(pieces, SendFlags::empty()));
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t) {
    // SAFETY: called by programs between start and complete; the data is copied before this returns.
    unsafe {
        with(qp, |posting| match u32::try_from(length) {
            Ok(length) => posting.data(&[Sge { addr: addr as u64, length, lkey: 0 }], SendFlags::INLINE),
            Err(_) => posting.fail(libc::EINVAL),
        });
    }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_data_buf) {
    // SAFETY: called by programs between start and complete; the program's list has `count` buffers.
    unsafe {
        with(qp, |posting| {
            let buffers: &[ibv_data_buf] =
                if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
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
}
