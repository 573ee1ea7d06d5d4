//! Reception of frames other than RDMA: through the flow tables to a receive queue, into the buffers of its oldest WQE, with a
//! CQE that reports the results of steering and checks.

use super::{
    ERROR, READY,
    frame::{self, Cast, Parts, TAG, TCP, UDP},
    steer,
};
use crate::{
    LinkLayer,
    mlx5::{
        Failure, Step, completion, eswitch, event,
        flush::{BATCH, FIRST_LOOK_US, FLUSHED, LAST_LOOK_US, PS_PER_US},
        lists,
        step::Buffers,
    },
    region::{Func, GROUP_ETHERNET, Piece, SlotPayload, Sync, TimerKind},
    state::{Counters, FunctionRow, RqRow, RqtRow, TirRow},
    translate::{Domain, User},
};
use hwspec::{
    context::tir::DIRECT,
    cqe::{Cqe64, CqeOpcode, CqeSyndrome, eth},
    doorbell::RCV_DBR,
    eqe::{EventType, QueueKind},
    handle::Qpn,
    wire::{ROCE_PORT, eth::EtherType},
};
use std::sync::atomic::Ordering::Relaxed;

/// Number of bytes of a frame that are searched for headers.
const HEAD: usize = 256;
/// Size of the frame check sequence, which counts towards the MTU of the port and is not present here.
const FCS: usize = 4;

/// Takes the waiting frame if it is for the Ethernet side; otherwise leaves it to the queue pairs.
#[cold]
pub(crate) fn arrive(func: &mut Func<'_>, step: &mut Step<'_>) -> bool {
    let Some((slot, SlotPayload::Bytes(rest))) = func.front() else { return false };
    if let ([], [vport]) = (slot.headers(), rest) {
        let vport = *vport;
        func.take_front();
        eswitch::noted(func, step.config, vport);
        return true;
    }
    if step.config.link_layer != LinkLayer::Ethernet {
        return false;
    }
    let len = slot.headers().len() + rest.len();
    // All headers of a RoCE packet are in the first part.
    if Parts::of(slot.headers(), len).is_some_and(|parts| is_rdma(func, slot.headers(), &parts)) {
        return false;
    }
    let start = step.stage(slot.headers());
    step.stage(rest);
    let (head, seen) = head_of(step, start, len);
    let head = &head[..seen];
    let Some(parts) = Parts::of(head, len).filter(|parts| !is_rdma(func, head, parts)) else {
        step.buffers.staged.truncate(start as usize);
        return false;
    };
    func.take_front();
    take(func, step, (start, len), head, &parts, None);
    true
}

/// Loops back a multicast frame that the function itself sent through an interface of transport domain `td`: interfaces of
/// other domains receive it, unless the vport blocks the loopback. The IP stack of a net device would mistake its own neighbour
/// discovery for that of another device with its address.
pub(super) fn come_back(func: &mut Func<'_>, step: &mut Step<'_>, (start, len): (u32, u32), td: u32) {
    let takes = func.region().sync(func.fid(), Sync::Group).load(Relaxed);
    if takes & GROUP_ETHERNET == 0 || func.function().local_block & FunctionRow::BLOCK_MULTICAST != 0 {
        return;
    }
    let (head, seen) = head_of(step, start, len as usize);
    let head = &head[..seen];
    if head.first().is_none_or(|first| first & 1 == 0) {
        return;
    }
    let Some(parts) = Parts::of(head, len as usize).filter(|parts| !is_rdma(func, head, parts)) else {
        return;
    };
    take(func, step, (start, len as usize), head, &parts, Some(td));
    // A stopped party misses the frame, as with a full queue: the sender does not wait for it.
    step.blocked = None;
}

/// The beginning of a staged frame, and the length of that.
fn head_of(step: &Step<'_>, start: u32, len: usize) -> ([u8; HEAD], usize) {
    let (mut head, seen) = ([0; HEAD], len.min(HEAD));
    head[..seen].copy_from_slice(&step.staged(start, len as u32)[..seen]);
    (head, seen)
}

/// True if the frame goes to the queue pairs: RoCE v2, if the function has it enabled.
fn is_rdma(func: &Func<'_>, head: &[u8], parts: &Parts) -> bool {
    let f = func.function();
    let to_roce = parts.whole
        && parts.protocol == UDP
        && parts.ports(head).is_some_and(|(_, dport)| dport == ROCE_PORT);
    to_roce && (f.roce_enabled != 0 || f.flow_root[0] == 0)
}

/// Counts a frame and delivers it to all its destinations. `own` is the sending transport domain of a frame that is looped
/// back.
fn take(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    (start, len): (u32, usize),
    head: &[u8],
    parts: &Parts,
    own: Option<u32>,
) {
    if func.function().vport_state == 0 {
        return;
    }
    if len + FCS > usize::from(func.function().mtu) {
        return func.count(Counters::EthRxTooLong, 1);
    }
    let steered = steer::steer(func, &parts.key(head), len);
    if steered.tirs().is_empty() {
        return func.count(Counters::EthRxUnmatched, 1);
    }
    let [packets, bytes] = match Cast::of(head) {
        Cast::Broadcast => [Counters::EthRxBroadcastPackets, Counters::EthRxBroadcastBytes],
        Cast::Multicast => [Counters::EthRxMulticastPackets, Counters::EthRxMulticastBytes],
        Cast::Unicast => [Counters::EthRxUnicastPackets, Counters::EthRxUnicastBytes],
    };
    func.count(packets, 1);
    func.count(bytes, len as u64);
    let frame = Received { start, len, parts: *parts, tag: steered.tag };
    for tirn in steered.tirs() {
        let Some(tir) = func.row::<TirRow>(*tirn).copied() else { continue };
        if own == Some(tir.td) && tir.self_loopback & TirRow::MULTICAST == 0 {
            continue;
        }
        deliver(func, step, &tir, head, &frame);
        if step.blocked.is_some() {
            return;
        }
    }
}

/// A frame on its way to a queue: its place in the staging buffer, and its properties.
struct Received {
    start: u32,
    len: usize,
    parts: Parts,
    /// Tag of the flow table entry that matched.
    tag: u32,
}

/// Delivers a frame to the queue selected by an interface.
fn deliver(func: &mut Func<'_>, step: &mut Step<'_>, tir: &TirRow, head: &[u8], frame: &Received) {
    let (hash, hash_type) = steer::hash(tir, head, &frame.parts);
    let rqn = if tir.disp == u32::from(DIRECT) {
        Some(tir.rqn)
    } else {
        func.row::<RqtRow>(tir.rqt).filter(|rqt| rqt.actual != 0).map(|rqt| {
            // Drivers that want all hash bits to count equally make the table's size a power of two.
            func.mtt(rqt.mtt + hash % rqt.actual) as u32
        })
    };
    let Some(index) = rqn.and_then(|rqn| func.index::<RqRow>(rqn)) else {
        return func.count(Counters::EthRxDiscards, 1);
    };
    let Some(mut rq) = func.row::<RqRow>(index).copied().filter(|rq| rq.state == READY) else {
        return func.count(Counters::EthRxDiscards, 1);
    };
    if !step.reaches(rq.head.party) {
        return;
    }
    if rq.pi == rq.ci {
        refresh(func, step, &mut rq);
    }
    if rq.pi == rq.ci {
        func.count(Counters::EthRxDiscards, 1);
        func.count(Counters::OutOfBuffer, 1);
        if rq.counter_set != 0 {
            func.count_in_set(rq.counter_set, Counters::OutOfBuffer, 1);
        }
        return;
    }
    let cqe = match scatter(func, step, &rq, frame) {
        Ok(mut cqe) => {
            cqe.set()
                .rx_hash_result(hash)
                .rx_hash_type(hash_type)
                .srqn_uidx(rq.user_index)
                .wqe_counter(rq.ci as u16);
            cqe
        }
        Err(syndrome) => {
            rq.state = ERROR;
            func.count(Counters::RespCqeError, 1);
            failed(func, index, &rq, Failure::new(syndrome, 0))
        }
    };
    rq.ci = (rq.ci + 1) & 0xffff;
    if !completion::append(func, step, rq.cqn, cqe, false) {
        rq.state = ERROR;
        // No completion could report it.
        let number = func.number::<RqRow>(index);
        event::queue(func, rq.head.uid, EventType::WqCatasError, (QueueKind::Rq, number));
    }
    if let Some(row) = func.row_mut::<RqRow>(index) {
        (row.pi, row.ci, row.state) = (rq.pi, rq.ci, rq.state);
    }
    if rq.state == ERROR {
        flush_receives(func, step.now, index);
    }
}

/// The error CQE of the oldest WQE.
fn failed(func: &Func<'_>, index: u32, rq: &RqRow, failure: Failure) -> Cqe64 {
    let number = func.number::<RqRow>(index);
    completion::error(CqeOpcode::RespErr, failure, (number, rq.user_index), rq.ci as u16, 0)
}

/// Reads the receive counter of the doorbell record.
fn refresh(func: &Func<'_>, step: &mut Step<'_>, rq: &mut RqRow) {
    rq.pi = rq.wq().posted(func, step.host, RCV_DBR).map_or(rq.pi, u32::from);
}

/// Writes a frame to the buffers of the oldest WQE and builds its CQE.
fn scatter(func: &Func<'_>, step: &mut Step<'_>, rq: &RqRow, frame: &Received) -> Result<Cqe64, CqeSyndrome> {
    let (rid, wq) = (func.rid(), rq.wq());
    step.buffers.receive.clear();
    step.buffers.receive.resize(1 << wq.log_stride, 0);
    wq.read(func, step.host, wq.ci, &mut step.buffers.receive).ok_or(CqeSyndrome::LocalQpOpErr)?;

    let strip =
        frame.parts.tag.filter(|tag| tag.0 == EtherType::VLAN.raw() && rq.flags & RqRow::KEEP_VLAN == 0);
    let cqe = describe(step, frame, strip.map(|tag| tag.1));
    let domain = Domain { user: User { pd: rq.pd, qpn: 0 }, rlky: rq.flags & RqRow::RLKY != 0 };
    let len = (frame.len - if strip.is_some() { TAG } else { 0 }) as u32;
    let Buffers { receive, pieces, .. } = &mut *step.buffers;
    lists::resolve(func, domain, receive, 0, len, lists::SCATTER, pieces)
        .map_err(|fault| fault.failure().syndrome)?;
    let mut from = frame.start;
    if strip.is_some() {
        // The frame once more, without its tag.
        let (at, staged) = (frame.start as usize, &mut step.buffers.staged);
        from = staged.len() as u32;
        staged.extend_from_within(at..at + 12);
        staged.extend_from_within(at + 12 + TAG..at + frame.len);
    }
    for i in 0..step.buffers.pieces.len() {
        let Piece { at, len, .. } = step.buffers.pieces[i];
        step.write_staged((rid, at), from, len).or(Err(CqeSyndrome::LocalProtErr))?;
        from += len;
    }
    Ok(cqe)
}

/// The CQE of a frame; `stripped` is the tag that was removed.
fn describe(step: &Step<'_>, frame: &Received, stripped: Option<u16>) -> Cqe64 {
    let bytes = step.staged(frame.start, frame.len as u32);
    let parts = &frame.parts;
    let good = frame::verify(bytes, parts);
    // Covers all bytes after the Ethernet header that the driver sees.
    let from = 14 + if stripped.is_some() { TAG } else { 0 };
    let sum = frame::add(0, bytes.get(from..).unwrap_or_default());
    let l3 = match parts.version {
        4 => eth::L3_IPV4,
        6 => eth::L3_IPV6,
        _ => 0,
    };
    let l4 = match parts.protocol {
        _ if !parts.has_ports(bytes) => 0,
        TCP => {
            let ack = bytes.get(parts.l4 + 13).is_some_and(|flags| flags & 0x10 != 0);
            let data = parts.data(bytes).is_some_and(|at| at < parts.end);
            match (ack, data) {
                (false, _) => eth::L4_TCP,
                (true, false) => eth::L4_TCP_ACK,
                (true, true) => eth::L4_TCP_ACK_DATA,
            }
        }
        UDP => eth::L4_UDP,
        _ => 0,
    };
    let ok = eth::L2_OK | if good.l3 { eth::L3_OK } else { 0 } | if good.l4 { eth::L4_OK } else { 0 };
    let len = frame.len - if stripped.is_some() { TAG } else { 0 };
    let mut cqe = Cqe64::zeroed();
    cqe.set()
        .check_sum(sum as u16)
        .hds_ip_ext(ok)
        .l3_hdr_type(l3)
        .l4_hdr_type(l4)
        .ip_frag(parts.fragment)
        .cv(stripped.is_some())
        .vlan_info(stripped.unwrap_or(0))
        .byte_cnt(len as u32)
        .timestamp(completion::timestamp(step.now))
        // With flow tables, this field is the tag of the entry.
        .qpn(Qpn(frame.tag))
        .opcode(CqeOpcode::RespSend);
    cqe
}

// Receive queues in error: posted WQEs complete as flushed, in order (IBTA 10.3.1; PRM: `rqc.flush_in_error_en`).

/// Starts the flush of queue `index` in the error state, from `now` on, if it is configured to flush.
#[cold]
pub(crate) fn flush_receives(func: &mut Func<'_>, now: u64, index: u32) {
    let Some(rq) = func.row_mut::<RqRow>(index) else { return };
    if rq.state == ERROR && rq.flags & RqRow::FLUSH != 0 {
        rq.flush_wait = 0;
        func.forget_timer(index, TimerKind::Rq);
        func.arm_timer(index, TimerKind::Rq, now);
    }
}

/// Completes a batch of the WQEs posted to queue `index`. Receives are posted without a doorbell, so an empty queue is
/// checked again, with the interval doubled each time.
#[cold]
pub(crate) fn flush(func: &mut Func<'_>, step: &mut Step<'_>, index: u32) {
    let Some(mut rq) = func.row::<RqRow>(index).copied() else { return };
    if rq.state != ERROR {
        return;
    }
    if !step.reaches(rq.head.party) {
        return;
    }
    refresh(func, step, &mut rq);
    let mut left = BATCH;
    while rq.pi != rq.ci && left != 0 {
        left -= 1;
        func.count(Counters::RespCqeError, 1);
        func.count(Counters::RespCqeFlushError, 1);
        let cqe = failed(func, index, &rq, FLUSHED);
        rq.ci = (rq.ci + 1) & 0xffff;
        if !completion::append(func, step, rq.cqn, cqe, true) {
            rq.ci = rq.pi;
        }
    }
    let wait = match left {
        0 => Some(0),
        BATCH if rq.flush_wait >= LAST_LOOK_US => None,
        BATCH if rq.flush_wait != 0 => Some(rq.flush_wait * 2),
        _ => Some(FIRST_LOOK_US),
    };
    if let Some(row) = func.row_mut::<RqRow>(index) {
        (row.pi, row.ci, row.flush_wait) = (rq.pi, rq.ci, wait.unwrap_or(rq.flush_wait));
    }
    if let Some(wait) = wait {
        func.arm_timer(index, TimerKind::Rq, step.now + u64::from(wait) * PS_PER_US);
    }
}
