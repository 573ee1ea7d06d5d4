//! Converts the driver's completions to `ibv_wc`. Hot path.

use crate::abi::public::ibv_wc;
use driver::{Completion, CompletionSlot, WcFlags};
use std::mem::MaybeUninit;

/// An uninitialized entry of the program's array of completions.
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

/// Polls up to `count` completions.
///
/// # Safety
/// `wc` has room for `count` completions, and `count` is at least 1.
#[inline(always)]
pub unsafe fn take(cq: &driver::Cq, count: usize, wc: *mut ibv_wc) -> usize {
    // SAFETY: guaranteed by the caller. `Room` has the layout of its content, and any bytes are valid for it.
    cq.poll(unsafe { std::slice::from_raw_parts_mut(wc.cast::<Room>(), count) })
}

/// Returns the immediate data in network order, as in memory, or the invalidated rkey in host order.
#[inline(always)]
pub fn imm_or_key(completion: &Completion) -> u32 {
    if completion.flags.contains(WcFlags::WITH_IMM) {
        completion.imm_or_inv.to_be()
    } else {
        completion.imm_or_inv
    }
}
