//! The extended polling interface: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the readers between them.

use crate::abi::public::{self as abi, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex};
use crate::cq::IronCq;
use crate::guard::{guard, guard_ptr};
use crate::poll::imm_or_key;
use driver::Completion;
use libc::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// `ibv_create_cq_ex`.
///
/// # Safety
/// Called by libibverbs with an open context of ours.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard_ptr(|| {
        // SAFETY: by contract.
        let attr = unsafe { &*attr };
        if attr.wc_flags & !abi::IBV_WC_STANDARD_FLAGS != 0
            || attr.comp_mask & !abi::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: by contract; nobody else knows the new CQ.
        let cq = unsafe {
            let cq = IronCq::create(context, i64::from(attr.cqe), attr.channel, i64::from(attr.comp_vector))?;
            &mut *cq
        };
        let public = &mut cq.public;
        public.start_poll = Some(start_poll);
        public.next_poll = Some(next_poll);
        public.end_poll = Some(end_poll);
        public.read_opcode = Some(read_opcode);
        public.read_vendor_err = Some(read_vendor_err);
        public.read_byte_len = Some(read_byte_len);
        public.read_imm_data = Some(read_imm_data);
        public.read_qp_num = Some(read_qp_num);
        public.read_src_qp = Some(read_src_qp);
        public.read_wc_flags = Some(read_wc_flags);
        public.read_slid = Some(read_slid);
        public.read_sl = Some(read_sl);
        public.read_dlid_path_bits = Some(read_dlid_path_bits);
        Ok(&raw mut *public)
    })
}

/// The next completion becomes the current one; ENOENT when there is none.
///
/// # Safety
/// The caller holds `polling`.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: our CQ; `current` and the two public members belong to the holder of `polling`.
    unsafe {
        let ours = IronCq::of(cq.cast());
        let current = &mut *ours.current.get();
        let taken = ours.inner.poll(std::slice::from_mut(current));
        if taken == 0 {
            return libc::ENOENT;
        }
        (*cq).wr_id = current.wr_id;
        (*cq).status = current.status as c_uint;
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut u32) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: called by programs with a CQ of ours and an attribute structure that begins with its mask.
        let (ours, mask) = unsafe { (IronCq::of(cq.cast()), if attr.is_null() { 0 } else { *attr }) };
        if mask != 0 {
            return libc::EINVAL;
        }
        while ours.polling.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: just taken.
        let result = unsafe { advance(cq) };
        if result != 0 {
            ours.polling.store(false, Ordering::Release);
        }
        result
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: between start and end, so this thread holds `polling`.
    guard(libc::EIO, || unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a CQ of ours.
    unsafe { IronCq::of(cq.cast()) }.polling.store(false, Ordering::Release);
}

/// # Safety
/// `cq` is ours and being polled by this thread.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Completion {
    // SAFETY: by contract.
    unsafe { &*IronCq::of(cq.cast()).current.get() }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: called between start and end of polling.
    unsafe { current(cq) }.opcode as c_uint
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.byte_len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    imm_or_key(unsafe { current(cq) })
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.qpn
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: as above.
    unsafe { current(cq) }.flags.bits()
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.slid.into()
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    unsafe { current(cq) }.sl
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: as above.
    unsafe { current(cq) }.path_bits
}
