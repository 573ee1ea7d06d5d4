//! Send WQEs: read by DMA, checked and decoded (PRM: send WQE construction).

use super::{
    lists,
    step::Step,
    work::{Failure, QpStage},
};
use crate::{region::Func, state::WorkQueue, translate::RESERVED_LKEY, transport::LOG_MAX_MESSAGE};
use hwspec::{
    context::ServiceType,
    cqe::{CqeSyndrome, vendor_err},
    decode::{self, Value, wqe::Queue},
    doorbell::SND_DBR,
    layout::Layout,
    wqe::{
        AtomicSeg, AvSeg, CtrlSeg, DataSeg, FenceMode, InlineSeg, MAX_DS, RaddrSeg, WQE_BB, WQE_DS,
        WqeOpcode, XrcSeg,
    },
};

/// Vendor error of a malformed WQE.
pub(super) const BAD_WQE: u8 = 0x68;
/// A decoded send WQE. Its bytes stay in the step's buffer.
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
    /// Range of the data segments or inline data in the step's buffer: first byte and end.
    pub data: [u16; 2],
    pub inline: bool,
    /// The list has inline data between its segments, which [`from_ring`] turned into segments of the reserved key.
    pub mixed: bool,
    pub length: u32,
    /// XRC: the SRQ at the target.
    pub xrc_srqn: u32,
}

impl Wqe {
    /// A WQE without an operation.
    pub(crate) const NONE: Self = Self {
        opcode: WqeOpcode::Nop,
        ds: 0,
        fence: FenceMode::from_raw(0),
        signaled: false,
        solicited: false,
        imm: 0,
        raddr: 0,
        rkey: 0,
        operands: [0; 2],
        data: [0; 2],
        inline: false,
        mixed: false,
        length: 0,
        xrc_srqn: 0,
    };

    /// The list of data segments, in the step's buffer.
    #[inline(always)]
    pub(crate) fn list<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        &buffer[usize::from(self.data[0])..usize::from(self.data[1])]
    }

    /// The WQE described by its control segment.
    #[inline(always)]
    fn of(ctrl: &CtrlSeg) -> Self {
        Self {
            opcode: ctrl.opcode(),
            ds: ctrl.ds(),
            fence: ctrl.fm(),
            signaled: ctrl.ce().raw() & 2 != 0,
            solicited: ctrl.se(),
            imm: ctrl.imm(),
            ..Self::NONE
        }
    }
}

/// Number of basic blocks of a WQE with `ds` segments.
pub(crate) const fn blocks(ds: u8) -> u16 {
    (ds as u16).div_ceil((WQE_BB / WQE_DS) as u16)
}

/// The failure of a WQE that cannot be executed.
pub(crate) fn refuse(syndrome: CqeSyndrome) -> Failure {
    Failure::new(syndrome, BAD_WQE)
}

/// Reads the send counter of the doorbell record.
pub(crate) fn refresh(w: &mut QpStage<'_, '_, '_>) -> Option<()> {
    let counter = w.q.sq().posted(w.func, w.step.host, SND_DBR)?;
    w.q.sq_pi = match w.step.posted.take() {
        // Threads ring independently: a later post of another thread may have been processed before.
        Some(posted) if (posted.wrapping_sub(w.q.sq_pi) as i16) < 0 => w.q.sq_pi,
        Some(posted) => posted,
        None => counter,
    };
    Some(())
}

/// Number of segments of the WQE at `index`, from its control segment; at least 1, so that a walk advances.
pub(crate) fn segments(w: &mut QpStage<'_, '_, '_>, index: u16) -> u8 {
    match w.q.sq().read(w.func, w.step.host, index, &mut w.step.buffers.wqe[..WQE_BB]) {
        Some(()) => CtrlSeg::read(&w.step.buffers.wqe).ds().max(1),
        None => 1,
    }
}

/// Fetches and checks the WQE at `index` and decodes it into `out`. A refusal includes the number of segments that it
/// seems to have.
#[inline(always)]
pub(crate) fn wqe(w: &mut QpStage<'_, '_, '_>, index: u16, out: &mut Wqe) -> Result<(), (u8, Failure)> {
    let ctrl = read(w, index)?;
    let ds = ctrl.ds();
    let bytes = &w.step.buffers.wqe[..usize::from(ds) * WQE_DS];
    let done = match w.is(ServiceType::Rc) {
        true => take_apart(bytes, &ctrl, WQE_DS, out),
        false => unlike_rc(bytes, &ctrl, ServiceType::from_raw(w.q.service), out),
    };
    done.and_then(|()| if out.mixed { from_ring(w, index, out) } else { Ok(()) })
        .map_err(|failure| (ds, failure))
}

/// Turns the inline data of a list into data segments that point into the queue's ring, which programs leave as it is until the request
/// completes.
#[cold]
fn from_ring(w: &mut QpStage<'_, '_, '_>, index: u16, wqe: &mut Wqe) -> Result<(), Failure> {
    let bad = refuse(CqeSyndrome::LocalQpOpErr);
    let [mut at, end] = wqe.data.map(usize::from);
    let mut list = Vec::new();
    while at < end {
        let bytes = &w.step.buffers.wqe[at..end];
        let inline = InlineSeg::read(bytes);
        if !inline.inline_data() {
            // Only its queue pair's right lets a program name memory by the reserved key.
            if DataSeg::read(bytes).lkey() == RESERVED_LKEY && !w.domain().rlky {
                return Err(Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY));
            }
            list.extend_from_slice(&bytes[..WQE_DS]);
            at += WQE_DS;
            continue;
        }
        let data = at + InlineSeg::SIZE..at + InlineSeg::SIZE + usize::from(inline.byte_count());
        at = data.end.next_multiple_of(WQE_DS);
        if at > end {
            return Err(bad);
        }
        let mut from = data.start;
        while from < data.end {
            let to = data.end.min((from + 1).next_multiple_of(WQE_BB));
            let block = index.wrapping_add((from / WQE_BB) as u16);
            let addr = w.q.sq().entry(w.func, block, from % WQE_BB).ok_or(bad)?;
            let seg = DataSeg::with(|s| s.byte_count((to - from) as u32).lkey(RESERVED_LKEY).addr(addr));
            list.extend_from_slice(seg.as_bytes());
            from = to;
        }
    }
    let start = usize::from(wqe.data[0]);
    w.step.buffers.wqe[start..start + list.len()].copy_from_slice(&list);
    wqe.data[1] = (start + list.len()) as u16;
    wqe.length = message(&list)?;
    Ok(())
}

/// The length of a message with these data segments.
#[inline]
fn message(list: &[u8]) -> Result<u32, Failure> {
    match lists::capacity(list) {
        length if length <= 1 << LOG_MAX_MESSAGE => Ok(length as u32),
        _ => Err(refuse(CqeSyndrome::LocalLengthErr)),
    }
}

/// Decodes a WQE of another connected service: XRC has an additional segment, UC fewer operations.
#[cold]
fn unlike_rc(bytes: &[u8], ctrl: &CtrlSeg, service: ServiceType, out: &mut Wqe) -> Result<(), Failure> {
    if service == ServiceType::Xrc && !matches!(ctrl.opcode(), WqeOpcode::Nop | WqeOpcode::Umr) {
        let xrc = XrcSeg::read(bytes.get(WQE_DS..).unwrap_or_default());
        take_apart(bytes, ctrl, 2 * WQE_DS, out)?;
        out.xrc_srqn = xrc.xrc_srqn().0;
        return Ok(());
    }
    take_apart(bytes, ctrl, WQE_DS, out)?;
    let reads = out.opcode == WqeOpcode::RdmaRead || out.opcode.is_atomic();
    match service == ServiceType::Uc && (reads || out.opcode == WqeOpcode::SendInval) {
        true => Err(refuse(CqeSyndrome::LocalQpOpErr)),
        false => Ok(()),
    }
}

/// Like [`wqe`] for a datagram QP: an address vector precedes the data.
pub(crate) fn datagram(w: &mut QpStage<'_, '_, '_>, index: u16) -> Result<(Wqe, AvSeg), (u8, Failure)> {
    let ctrl = read(w, index)?;
    let ds = ctrl.ds();
    let bytes = &w.step.buffers.wqe[..usize::from(ds) * WQE_DS];
    let mut wqe = Wqe::of(&ctrl);
    match wqe.opcode {
        WqeOpcode::Nop => return Ok((wqe, AvSeg::zeroed())),
        WqeOpcode::Send | WqeOpcode::SendImm => {}
        _ => return Err((ds, refuse(CqeSyndrome::LocalQpOpErr))),
    }
    let mut av = AvSeg::read(bytes.get(WQE_DS..).unwrap_or_default());
    let size = if av.ext() { AvSeg::SIZE } else { AvSeg::BASE_SIZE };
    if !av.ext() {
        av = AvSeg::read(&av.as_bytes()[..AvSeg::BASE_SIZE]);
    }
    let list = bytes.get(WQE_DS + size..).ok_or((ds, refuse(CqeSyndrome::LocalQpOpErr)))?;
    data(&mut wqe, list, WQE_DS + size).map_err(|failure| (ds, failure))?;
    if wqe.mixed {
        from_ring(w, index, &mut wqe).map_err(|failure| (ds, failure))?;
    }
    Ok((wqe, av))
}

/// Reads the WQE at `index` into the step's buffer and makes the checks common to all services.
#[inline(always)]
fn read(w: &mut QpStage<'_, '_, '_>, index: u16) -> Result<CtrlSeg, (u8, Failure)> {
    let (number, service) = (w.qpn(), ServiceType::from_raw(w.q.service));
    control(w.func, w.step, &w.q.sq(), (number, index), service)
        .map_err(|ds| (ds, refuse(CqeSyndrome::LocalQpOpErr)))
}

/// Reads the WQE at `index` of send queue `number` into the step's buffer and returns its control segment, if that is valid; otherwise the
/// number of segments that the WQE seems to have.
#[inline(always)]
pub(super) fn control(
    func: &Func<'_>,
    step: &mut Step<'_>,
    sq: &WorkQueue,
    (number, index): (u32, u16),
    service: ServiceType,
) -> Result<CtrlSeg, u8> {
    sq.read(func, step.host, index, &mut step.buffers.wqe[..WQE_BB]).ok_or(1)?;
    let ctrl = CtrlSeg::read(&step.buffers.wqe);
    let ds = ctrl.ds();
    // The posted WQE must be complete and belong to this index.
    if ds == 0
        || usize::from(ds) > MAX_DS
        || blocks(ds) > sq.pi.wrapping_sub(index)
        || service != ServiceType::RawEth && !ctrl.is_clean()
        || ctrl.wqe_idx() != index
        || ctrl.qpn().0 != number
    {
        return Err(ds.max(1));
    }
    match blocks(ds) {
        1 => {}
        blocks => rest(func, step, *sq, index, blocks).ok_or(ds)?,
    }
    if step.config.strict.reserved && has_reserved(&step.buffers.wqe, ds, service) {
        return Err(ds);
    }
    Ok(ctrl)
}

/// True if a bit outside of all fields is set in the WQE of `ds` segments at the start of `buffer`.
#[cold]
fn has_reserved(buffer: &[u8], ds: u8, service: ServiceType) -> bool {
    let whole = buffer.get(..usize::from(ds) * WQE_DS).unwrap_or_default();
    let mut found = false;
    decode::wqe::walk(Queue::Send(service), whole, &mut |path, value| {
        if let Value::Reserved { at, bits } = value {
            tracing::debug!(%path, at, bits = format_args!("{bits:#x}"), "reserved bits are set in a WQE");
            found = true;
        }
    });
    found
}

/// Reads the blocks of a WQE after the first.
#[inline(never)]
fn rest(func: &Func<'_>, step: &mut Step<'_>, sq: WorkQueue, index: u16, blocks: u16) -> Option<()> {
    let mut into = step.buffers.wqe.chunks_exact_mut(WQE_BB).skip(1);
    (1..blocks).try_for_each(|at| sq.read(func, step.host, index.wrapping_add(at), into.next()?))
}

/// Decodes the bytes of a WQE; the segments specific to its opcode begin at `at`.
#[inline(always)]
fn take_apart(bytes: &[u8], ctrl: &CtrlSeg, mut at: usize, wqe: &mut Wqe) -> Result<(), Failure> {
    let bad = refuse(CqeSyndrome::LocalQpOpErr);
    *wqe = Wqe::of(ctrl);
    let opcode = wqe.opcode;
    match opcode {
        WqeOpcode::Nop | WqeOpcode::LocalInval => return Ok(()),
        WqeOpcode::Umr => {
            wqe.data = [at as u16, bytes.len() as u16];
            return Ok(());
        }
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInval => {}
        WqeOpcode::RdmaWrite
        | WqeOpcode::RdmaWriteImm
        | WqeOpcode::RdmaRead
        | WqeOpcode::AtomicCs
        | WqeOpcode::AtomicFa => {
            let raddr = RaddrSeg::read(bytes.get(at..at + WQE_DS).ok_or(bad)?);
            if !raddr.is_clean() {
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
    let list = bytes.get(at..).ok_or(bad)?;
    data(wqe, list, at)
}

/// Decodes inline data or data segments, from byte `at` of the WQE to its end.
#[inline]
fn data(wqe: &mut Wqe, list: &[u8], at: usize) -> Result<(), Failure> {
    let bad = refuse(CqeSyndrome::LocalQpOpErr);
    let opcode = wqe.opcode;
    let reads = opcode == WqeOpcode::RdmaRead || opcode.is_atomic();
    let first = InlineSeg::read(list);
    if !list.is_empty() && first.inline_data() {
        let len = usize::from(first.byte_count());
        if reads || InlineSeg::SIZE + len > list.len() {
            return Err(bad);
        }
        // UCX puts a header inline before the segments of its payload.
        if list.len() >= (InlineSeg::SIZE + len).next_multiple_of(WQE_DS) + WQE_DS {
            wqe.mixed = true;
            wqe.data = [at as u16, (at + list.len()) as u16];
            return Ok(());
        }
        let start = at + InlineSeg::SIZE;
        wqe.inline = true;
        wqe.data = [start as u16, (start + len) as u16];
        wqe.length = len as u32;
        return Ok(());
    }
    // Inline data may only come first.
    if list.chunks_exact(WQE_DS).any(|seg| seg[0] & 0x80 != 0) {
        return Err(bad);
    }
    wqe.data = [at as u16, (at + list.len()) as u16];
    wqe.length = message(list)?;
    if opcode.is_atomic() && wqe.length != 8 {
        return Err(refuse(CqeSyndrome::LocalLengthErr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hwspec::handle::Qpn;

    #[test]
    fn bits_of_a_request_that_no_field_owns_are_found() {
        let mut wqe = [0; WQE_BB];
        let ctrl = CtrlSeg::with(|s| s.opcode(WqeOpcode::Send).qpn(Qpn(5)).ds(4));
        wqe[..WQE_DS].copy_from_slice(ctrl.as_bytes());
        assert!(!has_reserved(&wqe, 4, ServiceType::Ud));
        // After the Q_Key of the address vector, which WQEs of connected queue pairs do not have.
        wqe[WQE_DS + 5] = 1;
        assert!(has_reserved(&wqe, 4, ServiceType::Ud));
        assert!(!has_reserved(&wqe, 4, ServiceType::Rc));
        assert!(!has_reserved(&wqe, 1, ServiceType::Ud), "behind its end");
    }
}
