//! The extended post interface (`ibv_wr_start` ... `ibv_wr_complete`), on the driver's batches.
//!
//! An operation (`wr_send`, `wr_rdma_write`, ...) opens a work request, its data setter closes it; one that gets no data
//! is closed by whatever comes next. The first failure is kept and `wr_complete` reports it, posting nothing.

use crate::abi::memory::{ibv_mw, ibv_mw_bind_info};
use crate::abi::public::{self as abi, ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge};
use crate::ah::IronAh;
use crate::guard::guard;
use crate::mw;
use crate::post::common_flags;
use crate::qp::IronQp;
use driver::{SendBatch, SendFlags, SendOp, SendWr, Service, Sge, Target};
use libc::{c_int, c_void, size_t};

/// `send_ops_flags` a QP of this kind can be created with.
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

/// Pieces of one inline work request; more than the device's largest inline data has bytes would be no use.
const MAX_INLINE_PIECES: usize = 32;

/// What has been collected since `ibv_wr_start`.
pub struct Posting {
    batch: SendBatch<'static>,
    /// Whether work requests say whom they are for: then both setters must come before one is closed.
    addressed: bool,
    /// Whether they are raw packets.
    raw: bool,
    open: Option<(u64, SendOp, SendFlags)>,
    /// Whom the open work request is for.
    target: Option<Target<'static>>,
    /// Data that came before the address.
    early: Option<Early>,
    failed: Option<c_int>,
}

/// Data of a work request whose address is not known yet.
enum Early {
    Pieces(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Posting {
    #[inline]
    fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        self.finish();
        if self.addressed {
            (self.target, self.early) = (None, None);
        }
        match common_flags(flags).or_else(|| self.rare_flags(flags)) {
            Some(flags) => self.open = Some((wr_id, op, flags - SendFlags::INLINE)),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Flags that raw packets alone have.
    #[cold]
    fn rare_flags(&self, flags: u32) -> Option<SendFlags> {
        SendFlags::from_bits(flags).filter(|_| self.raw)
    }

    /// The data of the open work request.
    #[inline]
    fn data(&mut self, sge: &[Sge], more: SendFlags) {
        match self.addressed {
            false => self.push(sge, more),
            true if self.target.is_some() => self.push(sge, more),
            true => self.keep(sge, more.contains(SendFlags::INLINE)),
        }
    }

    /// Keeps data until the address comes; inline data are the program's to change from now on.
    #[cold]
    fn keep(&mut self, sge: &[Sge], inline: bool) {
        self.early = Some(match inline {
            false => Early::Pieces(sge.to_vec()),
            true => Early::Inline(sge.iter().flat_map(bytes_of).copied().collect()),
        });
    }

    /// Whom the open work request is for.
    fn aim(&mut self, target: Target<'static>) {
        self.target = Some(target);
        if self.early.is_some() {
            self.finish();
        }
    }

    /// Closes the open work request with what it has.
    #[inline]
    fn finish(&mut self) {
        if self.open.is_none() {
            return;
        }
        match self.early.take() {
            None => self.push(&[], SendFlags::empty()),
            Some(Early::Pieces(list)) => self.push(&list, SendFlags::empty()),
            Some(Early::Inline(bytes)) => {
                let all = Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
                self.push(&[all], SendFlags::INLINE);
            }
        }
    }

    #[inline]
    fn push(&mut self, sge: &[Sge], more: SendFlags) {
        let Some((wr_id, op, flags)) = self.open.take() else { return };
        if self.failed.is_some() {
            return;
        }
        let wr = SendWr { wr_id, op, sge, flags: flags | more };
        let pushed = match self.addressed {
            false => self.batch.push(&wr),
            true => self.batch.push_to(&wr, &self.target.take().unwrap_or_default()),
        };
        if let Err(errno) = pushed {
            self.fail(errno);
        }
    }

    fn fail(&mut self, errno: c_int) {
        self.failed.get_or_insert(errno);
    }
}

/// A collection that is over when this is dropped: what was not rung for is forgotten.
struct Ending<'a>(&'a mut Option<Posting>);

impl Drop for Ending<'_> {
    #[inline]
    fn drop(&mut self) {
        // Empty before the lock is let go of, which goes with the collection.
        drop(self.0.take());
    }
}

/// The bytes a piece of inline data names.
fn bytes_of(piece: &Sge) -> &[u8] {
    match piece.length {
        0 => &[],
        // SAFETY: inline data are the program's own memory at this address, valid during the call that names them.
        length => unsafe { std::slice::from_raw_parts(piece.addr as *const u8, length as usize) },
    }
}

/// Sets the functions of an extended QP.
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

/// The collection of the thread that called `ibv_wr_start`; nothing when it did not.
///
/// # Safety
/// `qp` is ours; the batch within holds the send queue's lock, so there is no second such thread.
#[inline(always)]
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut Posting)) {
    guard((), || {
        // SAFETY: by contract.
        if let Some(posting) = unsafe { &mut *IronQp::of(qp.cast()).posting.get() } {
            body(posting);
        }
    });
}

#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: called by programs between start and complete; the two members are theirs to set before.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        with(qp, |posting| posting.begin(wr_id, flags, op));
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    guard((), || {
        // SAFETY: called by programs with a QP of ours. The batch does not outlive the driver's QP: it ends at complete
        // or abort, before the program may destroy the QP.
        unsafe {
            let ours = IronQp::of(qp.cast());
            if ours.check_birth().is_err() {
                return;
            }
            let addressed = matches!(ours.service, Service::Ud | Service::XrcIni);
            let batch = std::mem::transmute::<SendBatch<'_>, SendBatch<'static>>(ours.inner.begin());
            let raw = ours.service == Service::RawPacket;
            *ours.posting.get() =
                Some(Posting { batch, addressed, raw, open: None, target: None, early: None, failed: None });
        }
    });
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: as in `with`.
        let ending = Ending(unsafe { &mut *IronQp::of(qp.cast()).posting.get() });
        let Some(posting) = &mut *ending.0 else { return libc::EIO };
        posting.finish();
        match posting.failed {
            None => {
                posting.batch.flush();
                0
            }
            Some(errno) => errno,
        }
    })
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    guard((), || {
        // SAFETY: as in `with`.
        if let Some(posting) = unsafe { (*IronQp::of(qp.cast()).posting.get()).take() } {
            posting.batch.abort();
        }
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
    // SAFETY: called by programs between start and complete, with a window and a region of ours.
    unsafe {
        match mw::binding(mw, rkey, &*info) {
            Ok(op) => begin(qp, op),
            Err(errno) => with(qp, |posting| posting.fail(errno)),
        }
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called by programs between start and complete.
    unsafe { with(qp, |posting| posting.data(&[Sge { addr, length, lkey }], SendFlags::empty())) }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: size_t, list: *const ibv_sge) {
    // SAFETY: called by programs between start and complete; the program's list of `count` pieces, laid out as the driver's.
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
    // SAFETY: called by programs between start and complete; the program's list of `count` buffers.
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
