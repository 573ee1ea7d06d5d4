//! Send WQEs: read by DMA, checked, taken apart (PRM: send WQE construction).

use super::{
    lists,
    work::{Failure, Work},
};
use crate::translate;
use hwspec::{
    cqe::CqeSyndrome,
    layout::Layout,
    wqe::{
        AtomicSeg, CtrlSeg, FenceMode, InlineSeg, MAX_DS, RaddrSeg, WQE_BB, WQE_BB_SHIFT, WQE_DS, WqeOpcode,
    },
};

/// Vendor error of a WQE that makes no sense.
const BAD_WQE: u8 = 0x68;
/// Largest message (IBTA 9.3.3.1).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// A send WQE taken apart. Its bytes stay in the step's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub opcode: WqeOpcode,
    pub ds: u8,
    pub fence: FenceMode,
    pub signaled: bool,
    pub solicited: bool,
    pub imm: u32,
    pub raddr: u64,
    pub rkey: u32,
    /// Operands: swap or add, compare.
    pub operands: [u64; 2],
    /// Data segments or inline data in the step's buffer: first byte and behind the last.
    pub data: [u16; 2],
    pub inline: bool,
    pub length: u32,
}

/// Basic blocks a WQE of `ds` segments takes.
pub(crate) const fn blocks(ds: u8) -> u16 {
    (ds as u16).div_ceil((WQE_BB / WQE_DS) as u16)
}

/// A WQE that cannot be carried out.
pub(crate) fn refuse(syndrome: CqeSyndrome) -> Failure {
    Failure::new(syndrome, BAD_WQE)
}

/// Reads basic block `index` into the front of the step's WQE buffer, `at` blocks from its start.
#[inline]
fn block(w: &mut Work<'_, '_, '_>, index: u16, at: usize) -> Option<()> {
    let slot = u32::from(index) & ((1u32 << w.q.log_sq) - 1);
    let from = translate::queue(w.func, &w.q.memory, w.q.sq_offset + (slot << WQE_BB_SHIFT))?;
    let rid = w.func.rid();
    let into = &mut w.step.buffers.wqe[at * WQE_BB..][..WQE_BB];
    w.step.host.read(rid, from, into).ok()
}

/// Segments of the WQE at `index`, as its control segment says; at least 1 so that a walk gets on.
pub(crate) fn segments(w: &mut Work<'_, '_, '_>, index: u16) -> u8 {
    match block(w, index, 0) {
        Some(()) => CtrlSeg::read(&w.step.buffers.wqe).ds().max(1),
        None => 1,
    }
}

/// Fetches and checks the WQE at `index`. On a refusal also says how many segments it seems to have.
pub(crate) fn wqe(w: &mut Work<'_, '_, '_>, index: u16) -> Result<Wqe, (u8, Failure)> {
    block(w, index, 0).ok_or((1, refuse(CqeSyndrome::LocalQpOpErr)))?;
    let ctrl = CtrlSeg::read(&w.step.buffers.wqe);
    let ds = ctrl.ds();
    let bad = (ds.max(1), refuse(CqeSyndrome::LocalQpOpErr));
    // What was posted must be all there, and be the WQE that belongs here.
    let posted = w.q.sq_pi.wrapping_sub(index);
    if ds == 0
        || usize::from(ds) > MAX_DS
        || blocks(ds) > posted
        || ctrl.reserved_set().is_some()
        || ctrl.wqe_idx() != index
        || ctrl.qpn().0 != w.qpn()
    {
        return Err(bad);
    }
    for at in 1..blocks(ds) {
        block(w, index.wrapping_add(at), at.into()).ok_or(bad)?;
    }
    take_apart(&w.step.buffers.wqe[..usize::from(ds) * WQE_DS], &ctrl).map_err(|failure| (ds, failure))
}

/// The meaning of a WQE's bytes.
fn take_apart(bytes: &[u8], ctrl: &CtrlSeg) -> Result<Wqe, Failure> {
    let bad = refuse(CqeSyndrome::LocalQpOpErr);
    let opcode = ctrl.opcode();
    let ce = ctrl.ce().raw();
    let mut wqe = Wqe {
        opcode,
        ds: ctrl.ds(),
        fence: ctrl.fm(),
        signaled: ce & 2 != 0,
        solicited: ctrl.se(),
        imm: ctrl.imm(),
        raddr: 0,
        rkey: 0,
        operands: [0; 2],
        data: [0; 2],
        inline: false,
        length: 0,
    };
    let mut at = WQE_DS;
    match opcode {
        WqeOpcode::Nop | WqeOpcode::LocalInval => return Ok(wqe),
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInval => {}
        WqeOpcode::RdmaWrite
        | WqeOpcode::RdmaWriteImm
        | WqeOpcode::RdmaRead
        | WqeOpcode::AtomicCs
        | WqeOpcode::AtomicFa => {
            let raddr = RaddrSeg::read(bytes.get(at..at + WQE_DS).ok_or(bad)?);
            if raddr.reserved_set().is_some() {
                return Err(bad);
            }
            (wqe.raddr, wqe.rkey) = (raddr.raddr(), raddr.rkey());
            at += WQE_DS;
            if opcode.is_atomic() {
                let atomic = AtomicSeg::read(bytes.get(at..at + WQE_DS).ok_or(bad)?);
                wqe.operands = [atomic.swap_add(), atomic.compare()];
                at += WQE_DS;
            }
        }
        _ => return Err(bad),
    }
    let list = &bytes[at..];
    let first = InlineSeg::read(list);
    if !list.is_empty() && first.inline_data() {
        let len = usize::from(first.byte_count());
        let reads = opcode == WqeOpcode::RdmaRead || opcode.is_atomic();
        if reads || InlineSeg::SIZE + len > list.len() {
            return Err(bad);
        }
        let start = at + InlineSeg::SIZE;
        wqe.inline = true;
        wqe.data = [start as u16, (start + len) as u16];
        wqe.length = len as u32;
        return Ok(wqe);
    }
    // Inline data only come first and alone.
    if list.chunks_exact(WQE_DS).any(|seg| seg[0] & 0x80 != 0) {
        return Err(bad);
    }
    let length = lists::capacity(list);
    if opcode.is_atomic() && length != 8 {
        return Err(refuse(CqeSyndrome::LocalLengthErr));
    }
    if length > MAX_MESSAGE {
        return Err(refuse(CqeSyndrome::LocalLengthErr));
    }
    wqe.data = [at as u16, bytes.len() as u16];
    wqe.length = length as u32;
    Ok(wqe)
}
