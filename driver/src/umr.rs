//! Memory keys changed by work requests (PRM: user-mode memory registration): the segments after the control segment.

use crate::verbs::AccessFlags;
use hwspec::{
    context::mkey::{ANY_QP, MkeyContext},
    wqe::*,
};

/// Bytes of the segments for a bind with one entry, padded to a basic block.
const LONGEST: usize = UmrCtrlSeg::SIZE + MkeyContextSeg::SIZE + WQE_BB;

/// Segments after the control segment.
pub(crate) struct Change {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Change {
    /// Maximum number of segments of a change.
    pub const SEGMENTS: usize = LONGEST / WQE_DS;

    fn of(umr: &UmrCtrlSeg, context: &MkeyContext) -> Self {
        let mut bytes = [0; LONGEST];
        bytes[..UmrCtrlSeg::SIZE].copy_from_slice(umr.as_bytes());
        let len = UmrCtrlSeg::SIZE + MkeyContextSeg::SIZE;
        bytes[UmrCtrlSeg::SIZE..len].copy_from_slice(context.as_bytes());
        Self { bytes, len }
    }

    /// Local invalidate of a type 2 window bound on this QP (IBTA 10.6.5). The device refuses any other key.
    pub fn invalidate(key: u32) -> Self {
        let mut umr = UmrCtrlSeg::zeroed();
        umr.set().inline_data(true).check_free(UmrCheck::Free).check_qpn(true);
        umr.set().mkey_mask(MkeyMask::FREE | MkeyMask::QPN);
        let mut context = MkeyContext::zeroed();
        context.set().free(true).qpn(ANY_QP).mkey_7_0(key as u8);
        Self::of(&umr, &context)
    }

    /// The bind of a memory window ([`SendOp::BindMw`](crate::verbs::SendOp::BindMw)), to QP `qpn` if given.
    pub fn bind(variant: u8, qpn: Option<u32>, part: (u32, u64, u64), access: AccessFlags) -> Self {
        let (lkey, addr, len) = part;
        let mut umr = UmrCtrlSeg::with(|s| s.inline_data(true).translation_offset_en(true));
        let mut mask = MkeyMask::FREE | MkeyMask::KEY | MkeyMask::QPN;
        let mut context = MkeyContext::with(|s| s.mkey_7_0(variant).qpn(qpn.unwrap_or(ANY_QP)));
        if len == 0 {
            // A bind of length 0 unbinds the window (IBTA 10.6.7.2.3). A type 2 window must be bound to this QP.
            umr.set().check_qpn(qpn.is_some()).mkey_mask(mask);
            context.set().free(true).qpn(ANY_QP);
            return Self::of(&umr, &context);
        }
        if qpn.is_some() {
            umr.set().check_free(UmrCheck::NotFree);
        }
        let has = |flag| access.contains(flag);
        mask |=
            MkeyMask::LEN | MkeyMask::START_ADDR | MkeyMask::RR | MkeyMask::RW | MkeyMask::A | MkeyMask::LW;
        umr.set().mkey_mask(mask).xlt_octowords((WQE_BB / KlmSeg::SIZE) as u16);
        context
            .set()
            .rr(has(AccessFlags::REMOTE_READ))
            .rw(has(AccessFlags::REMOTE_WRITE))
            .a(has(AccessFlags::REMOTE_ATOMIC))
            .start_addr(if has(AccessFlags::ZERO_BASED) { 0 } else { addr })
            .len(len);
        let klm = KlmSeg::with(|s| s.byte_count(len as u32).mkey(lkey).address(addr));
        let mut change = Self::of(&umr, &context);
        change.bytes[change.len..][..KlmSeg::SIZE].copy_from_slice(klm.as_bytes());
        change.len = LONGEST;
        change
    }

    /// Changes access rights, protection domain or both of a region that keeps its key.
    pub fn context(mask: MkeyMask, context: &MkeyContext) -> Self {
        let umr = UmrCtrlSeg::with(|s| s.inline_data(true).check_free(UmrCheck::Free).mkey_mask(mask));
        Self::of(&umr, context)
    }

    /// The segments.
    pub fn segments(&self) -> impl Iterator<Item = [u8; WQE_DS]> + '_ {
        self.bytes[..self.len].chunks_exact(WQE_DS).map(hwspec::layout::prefix)
    }
}
