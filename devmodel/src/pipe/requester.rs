//! The requester: work requests become packets (IBTA 9.7.3, 9.7.7).
//!
//! Requests under way are kept as send records. Whatever goes wrong on the way, the requester goes back to the oldest
//! PSN not acknowledged and sends the same packets again; payload and operands are taken from the WQE again.

use super::{
    Payload,
    fetch::{self, Wqe},
    lists::{self, Domain, ListFault},
    settle, umr,
    work::{Failure, Work},
};
use crate::{
    Profile,
    state::{QpFlags, SendRecord},
    translate,
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::{CqeSyndrome, vendor_err},
    handle::{Psn, Srqn},
    wire::{AtomicEth, BthOpcode, Packet, Reth},
    wqe::{FenceMode, WqeOpcode},
};

/// PSNs that may be under way: less than half the window in which they compare.
const WINDOW: u32 = 1 << 22;

/// Kinds of request by what answers them.
#[inline(always)]
pub(crate) fn is_answered(opcode: u8) -> bool {
    let opcode = WqeOpcode::from_raw(opcode);
    opcode == WqeOpcode::RdmaRead || opcode.is_atomic()
}

/// Whether a request writes to the peer's memory.
#[inline(always)]
fn is_write(opcode: u8) -> bool {
    matches!(WqeOpcode::from_raw(opcode), WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm)
}

/// Whether there is anything to send.
#[inline(always)]
pub(crate) fn waiting(w: &Work<'_, '_, '_>) -> bool {
    w.q.sr_send != w.q.sr_tail || w.q.sq_next != w.q.sq_pi
}

/// Whether requests go out just now.
#[inline(always)]
fn may_send(w: &Work<'_, '_, '_>) -> bool {
    !w.q.has(QpFlags::RNR_WAIT) && matches!(w.state(), QpState::Rts | QpState::SqDrained)
}

/// Sends up to `budget` packets: first what must be sent again, then new requests.
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    if w.q.sr_send != w.q.sr_tail {
        resume(w, budget);
    }
    let mut wqe = Wqe::NONE;
    while w.q.sr_send == w.q.sr_tail && w.q.sq_next != w.q.sq_pi && may_send(w) {
        let at = w.q.sr_tail;
        let Some(record) = admit(w, &mut wqe) else { return };
        if record.packets == 0 {
            if !settled(w) {
                return;
            }
        } else if *budget == 0 {
            w.ready = true;
            return;
        } else if let Err(failure) = transmit(w, &record, &wqe, budget) {
            return condemn(w, at, failure);
        }
    }
}

/// A request that sends nothing is done, and completes when those before it have. False if the job can note no more.
#[inline(never)]
fn settled(w: &mut Work<'_, '_, '_>) -> bool {
    next_record(w);
    settle::settle(w, None);
    // Any number of them follow one another: no acknowledgement and no budget ends the row.
    let room = w.func.has_room();
    w.ready |= !room;
    room
}

/// Sends requests that were taken before, from the one that is next; nothing goes past one that failed here.
#[inline(never)]
fn resume(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    while w.q.sr_send != w.q.sr_tail && may_send(w) {
        let at = w.q.sr_send;
        let record = *w.func.send_record(w.qp, at);
        if record.status != 0 {
            return;
        }
        if record.packets == 0 {
            if !settled(w) {
                return;
            }
            continue;
        }
        if *budget == 0 {
            w.ready = true;
            return;
        }
        if let Err(failure) = again(w, &record).and_then(|wqe| transmit(w, &record, &wqe, budget)) {
            return condemn(w, at, failure);
        }
    }
}

/// Fetches the WQE of a request under way once more. A program that wrote over it meanwhile has broken its word.
pub(crate) fn again(w: &mut Work<'_, '_, '_>, record: &SendRecord) -> Result<Wqe, Failure> {
    let mut wqe = Wqe::NONE;
    fetch::wqe(w, record.wqe_index, &mut wqe).map_err(|(_, failure)| failure)?;
    let same = wqe.opcode.raw() == record.opcode && wqe.length == record.length && wqe.ds == record.ds;
    if same { Ok(wqe) } else { Err(fetch::refuse(CqeSyndrome::LocalQpOpErr)) }
}

fn next_record(w: &mut Work<'_, '_, '_>) {
    w.q.sr_send = w.q.sr_send.wrapping_add(1);
    w.q.sr_packet = 0;
}

/// Marks record `at` as failed here; it completes with that when all before it have completed.
#[cold]
fn condemn(w: &mut Work<'_, '_, '_>, at: u32, failure: Failure) {
    let record = w.func.send_record_mut(w.qp, at);
    record.status = failure.syndrome.raw();
    record.vendor = failure.vendor;
    w.q.set(QpFlags::SQ_FAILED, true);
    settle::settle(w, None);
}

/// Takes the next WQE into a send record, and its meaning into `wqe`. `None` if it has to wait, or has
/// failed. The caller has seen that one was posted.
#[inline(always)]
fn admit(w: &mut Work<'_, '_, '_>, wqe: &mut Wqe) -> Option<SendRecord> {
    let q = &*w.q;
    let full = q.sr_tail.wrapping_sub(q.sr_head) as usize >= SendRecord::PER_QP;
    if full || q.has(QpFlags::SQ_FAILED) || w.state() != QpState::Rts {
        return None;
    }
    let (index, at, psn) = (q.sq_next, q.sr_tail, q.snd_psn);
    if let Err((ds, failure)) = fetch::wqe(w, index, wqe) {
        senseless(w, index, ds, failure);
        return None;
    }
    let answered = is_answered(wqe.opcode.raw());
    // IBTA 10.8.3.3: a fenced request waits for READs and atomics before it.
    let waits = match wqe.fence {
        FenceMode::Fence | FenceMode::SmallAndFence => w.q.sq_reads > 0,
        FenceMode::StrongOrdering => w.q.sr_head != w.q.sr_tail,
        _ => false,
    };
    // IBTA 9.7.3.3.1: no more READs and atomics under way than the peer has resources for.
    if waits || answered && u32::from(w.q.sq_reads) >= 1u32 << (w.q.log_sra_max & 7) {
        return None;
    }
    let mtu = u32::from(w.q.mtu.max(256));
    let packets = match wqe.opcode {
        WqeOpcode::Nop | WqeOpcode::LocalInval | WqeOpcode::Umr => 0,
        _ if wqe.length <= mtu || wqe.opcode.is_atomic() => 1,
        _ => wqe.length.div_ceil(mtu),
    };
    let under_way = Psn::new(psn).ahead_of(Psn::new(w.q.una_psn)) as u32;
    if under_way != 0 && under_way + packets > WINDOW {
        return None;
    }
    let mut failure = None;
    if packets == 0 {
        failure = local(w, wqe).err();
    } else if !answered && !wqe.inline {
        // A READ's list is looked at when its data come (row 35 of the conformance table).
        failure = check_list(w, wqe);
    }
    let record = SendRecord {
        wqe_index: index,
        wqebbs: fetch::blocks(wqe.ds) as u8,
        opcode: wqe.opcode.raw(),
        flags: u8::from(wqe.signaled) | u8::from(wqe.solicited) << 1,
        ds: wqe.ds,
        psn,
        packets,
        length: wqe.length,
        imm: wqe.imm,
        raddr: wqe.raddr,
        rkey: wqe.rkey,
        ..Default::default()
    };
    *w.func.send_record_mut(w.qp, at) = record;
    w.q.sq_next = index.wrapping_add(fetch::blocks(wqe.ds));
    w.q.sr_tail = at.wrapping_add(1);
    if let Some(failure) = failure {
        condemn(w, at, failure);
        return None;
    }
    w.q.sq_reads += u16::from(answered);
    w.q.snd_psn = Psn::new(psn).add(packets).get();
    Some(record)
}

/// What is wrong with the list of a WQE whose data are sent.
#[inline(never)]
fn check_list(w: &Work<'_, '_, '_>, wqe: &Wqe) -> Option<Failure> {
    let list = &w.step.buffers.wqe[usize::from(wqe.data[0])..usize::from(wqe.data[1])];
    lists::check(w.func, domain(w), list, lists::GATHER).err().map(ListFault::failure)
}

/// A WQE that makes no sense becomes a request that has failed.
#[cold]
fn senseless(w: &mut Work<'_, '_, '_>, index: u16, ds: u8, failure: Failure) {
    let (at, psn) = (w.q.sr_tail, w.q.snd_psn);
    let wqebbs = fetch::blocks(ds);
    *w.func.send_record_mut(w.qp, at) =
        SendRecord { wqe_index: index, ds, wqebbs: wqebbs as u8, psn, ..Default::default() };
    w.q.sq_next = index.wrapping_add(wqebbs);
    w.q.sr_tail = at.wrapping_add(1);
    condemn(w, at, failure);
}

/// A request that sends nothing: what it does is done here.
#[cold]
fn local(w: &mut Work<'_, '_, '_>, wqe: &Wqe) -> Result<(), Failure> {
    match wqe.opcode {
        WqeOpcode::LocalInval => {
            translate::invalidate(w.func, w.user(), wqe.imm, false).map_err(|_| umr::REFUSED)
        }
        WqeOpcode::Umr => umr::carry_out(w, wqe),
        _ => Ok(()),
    }
}

#[inline(always)]
pub(crate) fn domain(w: &Work<'_, '_, '_>) -> Domain {
    Domain { user: w.user(), rlky: w.q.has(QpFlags::RESERVED_LKEY) }
}

/// Sends the packets of one request from where it stands.
#[inline(always)]
fn transmit(
    w: &mut Work<'_, '_, '_>,
    record: &SendRecord,
    wqe: &Wqe,
    budget: &mut u32,
) -> Result<(), Failure> {
    let mtu = u32::from(w.q.mtu.max(256));
    if is_answered(record.opcode) {
        ask(w, record, wqe, mtu);
        *budget -= 1;
        return Ok(());
    }
    let reliable = w.q.service != ServiceType::Uc.raw();
    let mut alike = false;
    while *budget > 0 {
        let i = w.q.sr_packet;
        let last = i + 1 == record.packets;
        let from = i * mtu;
        let len = mtu.min(record.length.saturating_sub(from));
        let payload = match len {
            0 => Payload::Empty,
            _ => gather(w, wqe, from, len)?,
        };
        let psn = Psn::new(record.psn).add(i).get();
        w.q.unasked += 1;
        let ask = reliable && (last || w.q.unasked >= w.step.config.ack_every);
        if ask {
            w.q.unasked = 0;
        }
        // Over XRC the BTH does not end the headers.
        let middle = i > 0 && !last && w.q.service != ServiceType::Xrc.raw();
        if middle && alike {
            w.send_alike(psn, ask, payload);
        } else {
            let solicits = last && record.flags & 2 != 0;
            let bth = w.bth_with(opcode(record.opcode, i == 0, last), psn, ask, solicits);
            let mut packet = Packet { bth, imm: record.imm, ieth: record.imm, ..Packet::default() };
            if is_write(record.opcode) {
                packet.reth.set().va(record.raddr).rkey(record.rkey).dma_len(record.length);
            }
            if w.q.service == ServiceType::Xrc.raw() {
                packet.xrceth.set().srqn(Srqn(wqe.xrc_srqn));
            }
            alike = w.send(&packet, &payload) && middle;
        }
        *budget -= 1;
        sent(w, Psn::new(psn).add(1).get());
        if last {
            next_record(w);
            return Ok(());
        }
        w.q.sr_packet = i + 1;
    }
    w.ready = true;
    Ok(())
}

/// Sends a READ or atomic request; a READ from where its answers stand.
#[inline(never)]
fn ask(w: &mut Work<'_, '_, '_>, record: &SendRecord, wqe: &Wqe, mtu: u32) {
    let skip = w.q.sr_packet;
    let psn = Psn::new(record.psn).add(skip).get();
    let packet = question(w, record, wqe, psn, skip * mtu);
    w.send(&packet, &Payload::Empty);
    sent(w, Psn::new(record.psn).add(record.packets).get());
    next_record(w);
}

/// A READ or atomic request (IBTA 9.4.3, 9.4.5); a READ from byte `skip` on.
fn question(w: &Work<'_, '_, '_>, record: &SendRecord, wqe: &Wqe, psn: u32, skip: u32) -> Packet {
    let opcode = match WqeOpcode::from_raw(record.opcode) {
        WqeOpcode::AtomicCs => BthOpcode::RcCompareSwap,
        WqeOpcode::AtomicFa => BthOpcode::RcFetchAdd,
        _ => BthOpcode::RcReadRequest,
    };
    let bth = w.bth_with(opcode, psn, true, false);
    let (mut reth, mut atomic) = (Reth::zeroed(), AtomicEth::zeroed());
    reth.set().va(record.raddr.wrapping_add(skip.into())).rkey(record.rkey).dma_len(record.length - skip);
    atomic.set().va(record.raddr).rkey(record.rkey).swap_add(wqe.operands[0]).compare(wqe.operands[1]);
    let mut packet = Packet { bth, reth, atomic, ..Packet::default() };
    packet.xrceth.set().srqn(Srqn(wqe.xrc_srqn));
    packet
}

/// Payload of one packet: inline bytes, or what a list names.
#[inline]
fn gather(w: &mut Work<'_, '_, '_>, wqe: &Wqe, from: u32, len: u32) -> Result<Payload, Failure> {
    if !wqe.inline {
        return gather_list(w, wqe, from, len);
    }
    let [start, end] = wqe.data.map(usize::from);
    let buffers = &mut *w.step.buffers;
    let at = buffers.staged.len() as u32;
    let bytes = buffers.wqe[..end].get(start + from as usize..).and_then(|rest| rest.get(..len as usize));
    buffers.staged.extend_from_slice(bytes.ok_or(fetch::refuse(CqeSyndrome::LocalQpOpErr))?);
    Ok(Payload::Staged(at, len))
}

/// Payload of one packet from memory: small data by value, larger by reference.
#[inline(never)]
fn gather_list(w: &mut Work<'_, '_, '_>, wqe: &Wqe, from: u32, len: u32) -> Result<Payload, Failure> {
    let [start, end] = wqe.data.map(usize::from);
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    let list = &w.step.buffers.wqe[start..end];
    let found = lists::resolve(w.func, domain(w), list, from, len, lists::GATHER, &mut pieces);
    let rid = w.func.rid();
    let payload = match found {
        // Nobody says when an unreliable packet has been taken; its buffer is the program's again at once.
        Ok(()) if w.q.service == ServiceType::Uc.raw() => lists::by_value(w.step, rid, &pieces)
            .map_err(|_| Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY)),
        Ok(()) => lists::payload(w.step, rid, &pieces, true)
            .map_err(|_| Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY)),
        Err(fault) => Err(fault.failure()),
    };
    w.step.buffers.pieces = pieces;
    payload
}

/// A packet went out: `end` is the PSN behind those it takes.
#[inline]
fn sent(w: &mut Work<'_, '_, '_>, end: u32) {
    if Psn::new(end).ahead_of(Psn::new(w.q.max_psn)) > 0 {
        w.q.max_psn = end;
    }
    if w.q.ack_deadline == 0 {
        start_timer(w);
    }
}

/// Starts the acknowledgement timer anew (IBTA 9.7.6.1.3): 4.096 us x 2^T; T = 0 never runs out. A ConnectX-5 detects
/// after 1.72 times that, and has a least T.
#[inline]
pub(crate) fn start_timer(w: &mut Work<'_, '_, '_>) {
    let t = u32::from(w.q.ack_timeout & 0x1f);
    w.q.ack_deadline = match t {
        0 => 0,
        _ => {
            let (least, factor) = match w.profile() {
                Profile::Cx5 => (u32::from(w.step.config.min_ack_timeout & 0x1f), 172),
                Profile::Ibta => (0, 100),
            };
            w.step.now + (40_960 << t.max(least)) * factor
        }
    };
}

/// Opcode of a SEND or WRITE packet (IBTA 9.2.1).
#[inline]
fn opcode(wqe: u8, first: bool, last: bool) -> BthOpcode {
    use BthOpcode as Bth;
    // In the middle, the last, the first, the only one.
    let of = match WqeOpcode::from_raw(wqe) {
        WqeOpcode::RdmaWrite => [Bth::RcWriteMiddle, Bth::RcWriteLast, Bth::RcWriteFirst, Bth::RcWriteOnly],
        WqeOpcode::RdmaWriteImm => {
            [Bth::RcWriteMiddle, Bth::RcWriteLastImm, Bth::RcWriteFirst, Bth::RcWriteOnlyImm]
        }
        WqeOpcode::SendImm => [Bth::RcSendMiddle, Bth::RcSendLastImm, Bth::RcSendFirst, Bth::RcSendOnlyImm],
        WqeOpcode::SendInval => [Bth::RcSendMiddle, Bth::RcSendLastInv, Bth::RcSendFirst, Bth::RcSendOnlyInv],
        _ => [Bth::RcSendMiddle, Bth::RcSendLast, Bth::RcSendFirst, Bth::RcSendOnly],
    };
    of[usize::from(first) << 1 | usize::from(last)]
}
