//! Converts the driver's completions to `ibv_wc`. On the hot path.

use crate::abi::public::ibv_wc;
use driver::{Completion, WcFlags};

/// Completions taken at once; more are taken in turns.
const BATCH: usize = 16;

/// Takes up to `count` completions.
///
/// # Safety
/// `wc` has room for `count`.
#[inline(always)]
pub unsafe fn take(cq: &driver::Cq, count: usize, wc: *mut ibv_wc) -> usize {
    if !cq.is_ready() {
        return 0;
    }
    // SAFETY: the caller's promise: `wc` has room for `count`.
    unsafe { if count == 1 { take_one(cq, wc) } else { take_some(cq, count, wc) } }
}

/// # Safety
/// `wc` is writable.
#[inline(never)]
unsafe fn take_one(cq: &driver::Cq, wc: *mut ibv_wc) -> usize {
    let mut one = Completion::default();
    if !cq.take_one(&mut one) {
        return 0;
    }
    // SAFETY: the caller's promise: `wc` is writable.
    unsafe { put(&one, wc) };
    1
}

/// # Safety
/// `wc` has room for `count`.
#[inline(never)]
unsafe fn take_some(cq: &driver::Cq, count: usize, wc: *mut ibv_wc) -> usize {
    let mut batch = [Completion::default(); BATCH];
    let mut taken = 0;
    while taken < count {
        let wanted = BATCH.min(count - taken);
        let got = cq.take(&mut batch[..wanted]);
        for (index, completion) in batch.iter().take(got).enumerate() {
            // SAFETY: taken + got <= count.
            unsafe { put(completion, wc.add(taken + index)) };
        }
        taken += got;
        if got < wanted {
            break;
        }
    }
    taken
}

/// # Safety
/// `wc` is writable.
#[inline]
unsafe fn put(completion: &Completion, wc: *mut ibv_wc) {
    let value = ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.opcode as u32,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_data: imm_or_key(completion),
        qp_num: completion.qpn,
        src_qp: completion.src_qp,
        wc_flags: completion.flags.bits(),
        pkey_index: 0,
        slid: completion.slid,
        sl: completion.sl,
        dlid_path_bits: completion.path_bits,
    };
    // SAFETY: the caller's promise: `wc` is writable.
    unsafe { wc.write(value) }
}

/// Immediate data as it lies in memory (network order), an invalidated rkey in host order.
#[inline]
pub fn imm_or_key(completion: &Completion) -> u32 {
    if completion.flags.contains(WcFlags::WITH_IMM) {
        completion.imm_or_inv.to_be()
    } else {
        completion.imm_or_inv
    }
}
