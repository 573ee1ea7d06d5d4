//! Converts the driver's completions to `ibv_wc`. On the hot path.

use crate::abi::public::ibv_wc;
use driver::{Completion, CompletionSlot, WcFlags};
use std::mem::MaybeUninit;

/// Room for a completion in an array of the program's.
#[repr(transparent)]
struct Room(MaybeUninit<ibv_wc>);

impl CompletionSlot for Room {
    #[inline(always)]
    fn put(&mut self, completion: Completion) {
        self.0.write(ibv_wc {
            wr_id: completion.wr_id,
            status: completion.status as u32,
            opcode: completion.opcode as u32,
            vendor_err: completion.vendor_err,
            byte_len: completion.byte_len,
            imm_data: imm_or_key(&completion),
            qp_num: completion.qpn,
            src_qp: completion.src_qp,
            wc_flags: completion.flags.bits(),
            pkey_index: 0,
            slid: completion.slid,
            sl: completion.sl,
            dlid_path_bits: completion.path_bits,
        });
    }
}

/// Takes up to `count` completions.
///
/// # Safety
/// `wc` has room for `count`, of which there is at least one.
#[inline(always)]
pub unsafe fn take(cq: &driver::Cq, count: usize, wc: *mut ibv_wc) -> usize {
    // SAFETY: the caller's promise. `Room` is laid out as what it holds, and any bytes are one.
    cq.poll(unsafe { std::slice::from_raw_parts_mut(wc.cast::<Room>(), count) })
}

/// Immediate data as it lies in memory (network order), an invalidated rkey in host order.
#[inline(always)]
pub fn imm_or_key(completion: &Completion) -> u32 {
    if completion.flags.contains(WcFlags::WITH_IMM) {
        completion.imm_or_inv.to_be()
    } else {
        completion.imm_or_inv
    }
}
