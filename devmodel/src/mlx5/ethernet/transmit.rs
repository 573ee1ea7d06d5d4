//! Send queues without a queue pair: transmission of WQEs as frames (PRM: Ethernet send WQEs).

use super::{
    ERROR, READY,
    frame::{self, Cast, Parts, SERVICE_TAG, TCP},
    receive,
};
use crate::{
    host::Abort,
    mlx5::{
        self, Step, completion,
        fetch::{self, BAD_WQE},
        lists, rates,
    },
    region::{Func, MAX_FRAME},
    state::{Counters, SqRow, TisRow},
    translate::{Domain, User},
};
use hwspec::{
    context::ServiceType,
    cqe::{Cqe64, CqeOpcode, CqeSyndrome},
    doorbell::SND_DBR,
    handle::Qpn,
    layout::Layout,
    wire::eth::{EtherType, Ethernet},
    wqe::{CqeMode, CtrlSeg, DataSeg, EthSeg, InlineSeg, WQE_DS, WqeOpcode},
};

/// Maximum number of WQEs that a queue sends at once.
const BATCH: usize = 64;
/// Number of staged bytes that ends a queue's turn.
const STAGED: usize = 256 << 10;
/// Maximum data of one large send.
const MAX_LSO: u64 = 256 << 10;
/// Minimum size of a frame after padding, frame check sequence excluded (IEEE 802.3, 4.2.3.3).
const MIN_FRAME: usize = 60;

/// The reason why a WQE stops the queue.
type Failure = CqeSyndrome;

/// Handles a send doorbell of queue number `sqn`.
pub(crate) fn ring(func: &mut Func<'_>, step: &mut Step<'_>, sqn: u32, uar: u32) {
    let index = func.index::<SqRow>(sqn);
    // A doorbell is valid only through the UAR page of the queue.
    let good =
        index.and_then(|i| func.row::<SqRow>(i)).is_some_and(|sq| sq.uar == uar) && func.function().rings();
    match index.filter(|_| good) {
        Some(index) => run(func, step, index),
        None => func.count(Counters::BadDoorbells, 1),
    }
}

/// Runs the turn of queue `index` to send.
pub(crate) fn run(func: &mut Func<'_>, step: &mut Step<'_>, index: u32) {
    let Some(mut sq) = func.row::<SqRow>(index).copied() else { return };
    if !step.reaches(sq.head.party) {
        return;
    }
    if step.region.is_switched() && !rates::may_send(func, step) {
        func.make_sq_ready(index);
        return;
    }
    if sq.state != READY && (sq.state != ERROR || sq.flags & SqRow::FLUSH == 0) {
        return;
    }
    let Some(posted) = sq.wq().posted(func, step.host, SND_DBR) else {
        return func.count(Counters::BadDoorbells, 1);
    };
    sq.pi = posted.into();
    let mut left = BATCH;
    while sq.pi != sq.ci && left != 0 && step.buffers.staged.len() < STAGED {
        left -= 1;
        let first = step.buffers.raw.len();
        one(func, step, index, &mut sq);
        come_back(func, step, &sq, first);
    }
    let more = sq.pi != sq.ci;
    if let Some(row) = func.row_mut::<SqRow>(index) {
        (row.pi, row.ci, row.state) = (sq.pi, sq.ci, sq.state);
    }
    if more {
        func.make_sq_ready(index);
        step.yielded = true;
    }
}

/// Loops back the frames that the function just sent, from raw frame `first` of the step on.
fn come_back(func: &mut Func<'_>, step: &mut Step<'_>, sq: &SqRow, first: usize) {
    let Some(td) = func.row::<TisRow>(sq.tis).map(|tis| tis.td) else { return };
    for i in first..step.buffers.raw.len() {
        receive::come_back(func, step, step.buffers.raw[i], td);
    }
}

/// Executes the oldest WQE.
fn one(func: &mut Func<'_>, step: &mut Step<'_>, index: u32, sq: &mut SqRow) {
    let (wq, number) = (sq.wq(), func.number::<SqRow>(index));
    let at = wq.ci;
    let ctrl = fetch::control(func, step, &wq, (number, at), ServiceType::RawEth).ok();
    let ds = ctrl.as_ref().map_or(1, CtrlSeg::ds);
    // An incomplete WQE is the last one.
    sq.ci = at.wrapping_add(fetch::blocks(ds).clamp(1, wq.waiting().max(1))).into();
    let outcome = match ctrl {
        _ if sq.state == ERROR => Err(CqeSyndrome::WrFlushErr),
        None => Err(CqeSyndrome::LocalQpOpErr),
        Some(ctrl) => execute(func, step, sq, &ctrl),
    };
    let opcode = ctrl.map_or(0, |ctrl| ctrl.opcode().raw());
    let signaled = matches!(ctrl.map(|c| c.ce()), Some(CqeMode::Always | CqeMode::AlwaysAndEqe));
    let cqe = match outcome {
        Ok(()) if !signaled => return,
        Ok(()) => {
            let mut cqe = Cqe64::zeroed();
            cqe.set()
                .srqn_uidx(sq.user_index)
                .timestamp(completion::timestamp(step.now))
                .sop(opcode)
                .qpn(Qpn(number))
                .wqe_counter(at)
                .opcode(CqeOpcode::Req);
            cqe
        }
        Err(syndrome) => {
            sq.state = ERROR;
            func.count(Counters::ReqCqeError, 1);
            let failure = mlx5::Failure::new(syndrome, BAD_WQE);
            completion::error(CqeOpcode::ReqErr, failure, (number, sq.user_index), at, opcode)
        }
    };
    if !completion::append(func, step, sq.cqn, cqe, false) {
        sq.state = ERROR;
    }
}

fn execute(func: &mut Func<'_>, step: &mut Step<'_>, sq: &SqRow, ctrl: &CtrlSeg) -> Result<(), Failure> {
    let large = match ctrl.opcode() {
        WqeOpcode::Nop => return Ok(()),
        WqeOpcode::Send => false,
        WqeOpcode::Lso => true,
        _ => return Err(CqeSyndrome::LocalQpOpErr),
    };
    if sq.flags & SqRow::HAS_TIS == 0 {
        return Err(CqeSyndrome::LocalQpOpErr);
    }
    let len = usize::from(ctrl.ds()) * WQE_DS;
    let wqe = step.buffers.wqe;
    let wqe = wqe.get(..len).ok_or(CqeSyndrome::LocalQpOpErr)?;
    let mut at = CtrlSeg::SIZE + EthSeg::SIZE;
    let eth = EthSeg::read(wqe.get(CtrlSeg::SIZE..at).ok_or(CqeSyndrome::LocalQpOpErr)?);
    let inline = if eth.insert_vlan() { 0 } else { usize::from(eth.inline_hdr_sz()) };
    let start = CtrlSeg::SIZE + EthSeg::INLINE_START;
    let inline = wqe.get(start..start + inline).ok_or(CqeSyndrome::LocalQpOpErr)?;
    at += inline.len().saturating_sub(EthSeg::SIZE - EthSeg::INLINE_START).next_multiple_of(WQE_DS);
    let list = wqe.get(at..).ok_or(CqeSyndrome::LocalQpOpErr)?;

    let frames = step.buffers.raw.len();
    if func.function().vport_state == 0 {
        // The port is down: the frame is lost, and its WQE completes.
        return Ok(());
    }
    if large {
        let data = gather(func, step, sq, &[], list, MAX_LSO)?;
        if !cut(step, inline, data, eth.mss().into()) {
            return Err(CqeSyndrome::LocalQpOpErr);
        }
        for i in frames..step.buffers.raw.len() {
            account(func, step, i);
        }
        return Ok(());
    }
    let (at, len) = gather(func, step, sq, inline, list, MAX_FRAME as u64)?;
    if (len as usize) < Ethernet::SIZE {
        return Err(CqeSyndrome::LocalLengthErr);
    }
    if eth.insert_vlan() {
        let kind = if eth.is_svlan() { SERVICE_TAG } else { EtherType::VLAN.raw() };
        insert_tag(&mut step.buffers.staged, at as usize, kind, eth.vlan_tci());
    }
    let staged = &mut step.buffers.staged;
    if staged.len() - (at as usize) < MIN_FRAME {
        staged.resize(at as usize + MIN_FRAME, 0);
    }
    if eth.l3_csum() || eth.l4_csum() {
        if let Some(frame) = staged.get_mut(at as usize..) {
            if let Some(parts) = Parts::of(frame, frame.len()) {
                if eth.l3_csum() {
                    frame::fill_ip(frame, &parts);
                }
                if eth.l4_csum() {
                    frame::fill_transport(frame, &parts);
                }
            }
        }
    }
    step.send_raw(at);
    account(func, step, frames);
    Ok(())
}

/// Inserts a tag between the addresses and the type of the frame at `at`.
fn insert_tag(staged: &mut Vec<u8>, at: usize, kind: u16, tci: u16) {
    let behind = at + 12;
    let [a, b] = kind.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    staged.splice(behind..behind, [a, b, c, d]);
}

/// Stages inline bytes, followed by the data of the data segments; returns offset and length.
fn gather(
    func: &Func<'_>,
    step: &mut Step<'_>,
    sq: &SqRow,
    inline: &[u8],
    list: &[u8],
    max: u64,
) -> Result<(u32, u32), Failure> {
    let start = step.stage(inline);
    let domain = Domain { user: User { pd: sq.pd, qpn: 0 }, rlky: sq.flags & SqRow::RLKY != 0 };
    let mut at = 0;
    while let Some(segment) = list.get(at..at + WQE_DS) {
        let head = InlineSeg::read(segment);
        if head.inline_data() {
            let from = at + InlineSeg::SIZE;
            let data = list.get(from..from + usize::from(head.byte_count()));
            step.stage(data.ok_or(CqeSyndrome::LocalQpOpErr)?);
            at += InlineSeg::span(head.byte_count().into());
        } else {
            pointed(func, step, domain, DataSeg::read(segment), max)?;
            at += WQE_DS;
        }
        let len = step.buffers.staged.len() as u64 - u64::from(start);
        if len > max + inline.len() as u64 {
            return Err(CqeSyndrome::LocalLengthErr);
        }
    }
    Ok((start, step.buffers.staged.len() as u32 - start))
}

/// Stages the data of one data segment.
fn pointed(
    func: &Func<'_>,
    step: &mut Step<'_>,
    domain: Domain,
    segment: DataSeg,
    max: u64,
) -> Result<(), Failure> {
    let len = segment.byte_count();
    if u64::from(len) > max {
        return Err(CqeSyndrome::LocalLengthErr);
    }
    let pieces = &mut step.buffers.pieces;
    lists::resolve(func, domain, segment.as_bytes(), 0, len, lists::GATHER, pieces)
        .map_err(|fault| fault.failure().syndrome)?;
    match lists::by_value(step, func.rid()) {
        Ok(_) | Err(Abort::Gone) => Ok(()),
        Err(_) => Err(CqeSyndrome::LocalProtErr),
    }
}

/// Counts raw frame `i` of the step as sent.
fn account(func: &mut Func<'_>, step: &Step<'_>, i: usize) {
    let Some(&(at, len)) = step.buffers.raw.get(i) else { return };
    let [packets, bytes] = match Cast::of(step.staged(at, 6)) {
        Cast::Broadcast => [Counters::EthTxBroadcastPackets, Counters::EthTxBroadcastBytes],
        Cast::Multicast => [Counters::EthTxMulticastPackets, Counters::EthTxMulticastBytes],
        Cast::Unicast => [Counters::EthTxUnicastPackets, Counters::EthTxUnicastBytes],
    };
    func.count(packets, 1);
    func.count(bytes, len.into());
}

// Large sends: headers with more data than fits in a frame are segmented into frames, each with its own lengths, sequence number and
// checksums (LSO, also called TSO and USO).

/// TCP flags that only the last segment carries: FIN and PSH.
const LAST_ONLY: u8 = 0x09;
/// TCP flag that only the first segment carries: CWR (RFC 3168).
const FIRST_ONLY: u8 = 0x80;
/// Maximum number of segments of one send.
const SEGMENTS: usize = 1024;

/// Segments the data staged at `data`, which follows the headers `template`, into frames with at most `mss` bytes of data
/// each. False if the headers cannot be segmented.
fn cut(step: &mut Step<'_>, template: &[u8], data: (u32, u32), mss: usize) -> bool {
    let (data_at, data_len) = (data.0 as usize, data.1 as usize);
    let Some(parts) = Parts::of(template, template.len() + data_len) else { return false };
    // The lengths in the template are those of the whole send, or absent.
    let parts = Parts { end: template.len() + data_len, ..parts };
    let good = mss != 0 && parts.data(template) == Some(template.len()) && data_len.div_ceil(mss) <= SEGMENTS;
    if !good {
        return false;
    }
    let mut done = 0;
    let mut number = 0u16;
    while done < data_len || number == 0 {
        let len = mss.min(data_len - done);
        let at = step.stage(template) as usize;
        step.buffers.staged.extend_from_within(data_at + done..data_at + done + len);
        let last = done + len == data_len;
        if let Some(frame) = step.buffers.staged.get_mut(at..) {
            let parts = Parts { end: template.len() + len, ..parts };
            finish(frame, &parts, number, done as u32, number == 0, last);
        }
        step.send_raw(at as u32);
        done += len;
        number = number.wrapping_add(1);
    }
    true
}

/// Turns a copy of the template into the headers of one segment.
fn finish(frame: &mut [u8], parts: &Parts, number: u16, offset: u32, first: bool, last: bool) {
    let (l3, l4) = (parts.l3, parts.l4);
    let put = |frame: &mut [u8], at: usize, value: u16| {
        if let Some(place) = frame.get_mut(at..at + 2) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    };
    let get = |frame: &[u8], at: usize| frame.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    if parts.version == 4 {
        put(frame, l3 + 2, (parts.end - l3) as u16);
        let identification = get(frame, l3 + 4).wrapping_add(number);
        put(frame, l3 + 4, identification);
        frame::fill_ip(frame, parts);
    } else {
        put(frame, l3 + 4, (parts.end - l3).saturating_sub(40) as u16);
    }
    if parts.protocol == TCP {
        let sequence = u32::from(get(frame, l4 + 4)) << 16 | u32::from(get(frame, l4 + 6));
        let sequence = sequence.wrapping_add(offset);
        put(frame, l4 + 4, (sequence >> 16) as u16);
        put(frame, l4 + 6, sequence as u16);
        if let Some(flags) = frame.get_mut(l4 + 13) {
            *flags &= if first { !0 } else { !FIRST_ONLY };
            *flags &= if last { !0 } else { !LAST_ONLY };
        }
    } else {
        put(frame, l4 + 4, (parts.end - l4) as u16);
    }
    frame::fill_transport(frame, parts);
}
