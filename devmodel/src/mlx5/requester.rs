//! The requester: turns work requests into packets (IBTA 9.7.3, 9.7.7).
//!
//! Outstanding requests are kept as send records. After an error on the path, the requester goes back to the oldest
//! unacknowledged PSN and retransmits the same packets; payload and operands are read from the WQE again.

use super::{
    acks,
    fetch::{self, Wqe},
    lists::{self, ListFault},
    step::Payload,
    umr,
    work::{Failure, QpStage},
};
use crate::{
    state::{QpFlags, SendRecord},
    translate,
    transport::{self, Kind, Order, Outgoing, Request, Requests},
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::{CqeSyndrome, vendor_err},
    handle::Srqn,
    wire::{AtomicEth, Packet, Reth},
    wqe::{FenceMode, WqeOpcode},
};

/// The operation that a WQE requests from the peer; `None` if it sends nothing. Other opcodes were refused when it was fetched.
#[inline(always)]
fn kind_of(opcode: WqeOpcode) -> Option<Kind> {
    match opcode {
        WqeOpcode::Send => Some(Kind::Send),
        WqeOpcode::SendImm => Some(Kind::SendImm),
        WqeOpcode::SendInval => Some(Kind::SendInvalidate),
        WqeOpcode::RdmaWrite => Some(Kind::Write),
        WqeOpcode::RdmaWriteImm => Some(Kind::WriteImm),
        WqeOpcode::RdmaRead => Some(Kind::Read),
        WqeOpcode::AtomicCs => Some(Kind::CompareSwap),
        WqeOpcode::AtomicFa => Some(Kind::FetchAdd),
        _ => None,
    }
}

/// The earlier requests that a WQE must wait for.
#[inline(always)]
fn order_of(fence: FenceMode) -> Order {
    match fence {
        FenceMode::Fence | FenceMode::SmallAndFence => Order::Answers,
        FenceMode::StrongOrdering => Order::All,
        // Earlier local operations are already complete.
        _ => Order::None,
    }
}

/// True if there are packets to send.
#[inline(always)]
pub(crate) fn waiting(w: &QpStage<'_, '_, '_>) -> bool {
    w.q.requester.has_unsent() || w.q.sq_next != w.q.sq_pi
}

/// True if requests may be sent now.
#[inline(always)]
fn may_send(w: &QpStage<'_, '_, '_>) -> bool {
    !w.q.requester.waits_rnr() && w.is_sending()
}

/// Sends up to `budget` packets: retransmissions first, then new requests.
pub(crate) fn run(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    if w.q.requester.has_unsent() {
        resume(w, budget);
    }
    let mut wqe = Wqe::NONE;
    while !w.q.requester.has_unsent() && w.q.sq_next != w.q.sq_pi && may_send(w) {
        let at = w.q.requester.tail;
        let Some(record) = admit(w, &mut wqe) else { return };
        if record.request.packets == 0 {
            if !settled(w) {
                return;
            }
        } else if *budget == 0 {
            w.ready = true;
            return;
        } else if let Err(failure) = transmit(w, &record, &wqe, budget) {
            return acks::mark_failed(w, at, failure);
        }
    }
}

/// Finishes a request that sends nothing; it completes when all earlier requests have. False if the job has no room for more.
#[inline(never)]
fn settled(w: &mut QpStage<'_, '_, '_>) -> bool {
    w.q.requester.next_request();
    transport::settle(w, None);
    // There may be any number of them in a row, which neither acknowledgements nor the budget limit.
    let room = w.func.has_room();
    w.ready |= !room;
    room
}

/// Sends accepted requests from the next one on, up to one that failed locally.
#[inline(never)]
fn resume(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    while w.q.requester.has_unsent() && may_send(w) {
        let at = w.q.requester.send;
        let record = *w.func.send_record(w.qp, at);
        if record.request.failed != 0 {
            return;
        }
        if record.request.packets == 0 {
            if !settled(w) {
                return;
            }
            continue;
        }
        if *budget == 0 {
            w.ready = true;
            return;
        }
        let sent = refetch(w, &record).and_then(|wqe| {
            if at == w.q.requester.head && w.q.requester.is_repeating() {
                is_there(w, &record, &wqe)?;
            }
            transmit(w, &record, &wqe, budget)
        });
        if let Err(failure) = sent {
            return acks::mark_failed(w, at, failure);
        }
    }
}

/// Before a retransmission: checks that the payload's memory is still present, since the peer may have been unable to copy
/// memory that the program unmapped.
#[cold]
fn is_there(w: &mut QpStage<'_, '_, '_>, record: &SendRecord, wqe: &Wqe) -> Result<(), Failure> {
    if wqe.inline || kind_of(wqe.opcode).is_none_or(Kind::is_answered) {
        return Ok(());
    }
    let mtu = u32::from(w.q.mtu.max(256));
    let from = w.q.requester.packet * mtu;
    let len = mtu.min(record.request.length.saturating_sub(from));
    // A fault of the list itself is detected when the packet is sent.
    let there =
        w.resolve_send(wqe, from, len, lists::GATHER).is_err() || lists::are_there(w.step, w.func.rid());
    if there { Ok(()) } else { Err(Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY)) }
}

/// Rereads the WQE of an outstanding request; fails if the program has overwritten it.
pub(crate) fn refetch(w: &mut QpStage<'_, '_, '_>, record: &SendRecord) -> Result<Wqe, Failure> {
    let mut wqe = Wqe::NONE;
    fetch::wqe(w, record.wqe_index, &mut wqe).map_err(|(_, failure)| failure)?;
    let same =
        wqe.opcode.raw() == record.opcode && wqe.length == record.request.length && wqe.ds == record.ds;
    if same { Ok(wqe) } else { Err(fetch::refuse(CqeSyndrome::LocalQpOpErr)) }
}

/// Accepts the next WQE into a send record and decodes it into `wqe`. `None` if it has to wait, or failed. The caller has
/// checked that one was posted.
#[inline(always)]
fn admit(w: &mut QpStage<'_, '_, '_>, wqe: &mut Wqe) -> Option<SendRecord> {
    let q = &*w.q;
    if !q.requester.has_room() || q.has(QpFlags::SQ_FAILED) || w.state() != QpState::Rts {
        return None;
    }
    let (index, at, psn) = (q.sq_next, q.requester.tail, q.requester.psn);
    if let Err((ds, failure)) = fetch::wqe(w, index, wqe) {
        fail_malformed(w, index, ds, failure);
        return None;
    }
    let kind = kind_of(wqe.opcode);
    let packets = kind.map_or(0, |kind| kind.packets(wqe.length, w.q.mtu.max(256).into()));
    if !w.q.requester.admits(kind, packets, order_of(wqe.fence)) {
        return None;
    }
    let failure = match kind {
        None => local(w, wqe).err(),
        // A READ's list is checked when its data arrives (row 35 of the conformance table).
        Some(kind) if kind.is_answered() || wqe.inline => None,
        Some(_) => check_list(w, wqe),
    };
    let request = Request {
        psn,
        packets,
        length: wqe.length,
        kind: kind.map_or(0, |kind| kind as u8),
        ..Default::default()
    };
    let record = SendRecord {
        wqe_index: index,
        wqebbs: fetch::blocks(wqe.ds) as u8,
        opcode: wqe.opcode.raw(),
        flags: SendRecord::flags(wqe.signaled, wqe.solicited),
        ds: wqe.ds,
        request,
        imm: wqe.imm,
        raddr: wqe.raddr,
        rkey: wqe.rkey,
        ..Default::default()
    };
    *w.func.send_record_mut(w.qp, at) = record;
    w.q.sq_next = index.wrapping_add(fetch::blocks(wqe.ds));
    w.q.requester.take();
    if let Some(failure) = failure {
        acks::mark_failed(w, at, failure);
        return None;
    }
    w.q.requester.number(&request);
    Some(record)
}

/// The fault in the gather list of a WQE, if any.
#[inline(never)]
pub(crate) fn check_list(w: &QpStage<'_, '_, '_>, wqe: &Wqe) -> Option<Failure> {
    lists::check(w.func, w.sender(wqe), wqe.list(&w.step.buffers.wqe), lists::GATHER)
        .err()
        .map(ListFault::failure)
}

/// Records a malformed WQE as a failed request.
#[cold]
fn fail_malformed(w: &mut QpStage<'_, '_, '_>, index: u16, ds: u8, failure: Failure) {
    let (at, psn) = (w.q.requester.tail, w.q.requester.psn);
    let wqebbs = fetch::blocks(ds);
    let request = Request { psn, ..Default::default() };
    *w.func.send_record_mut(w.qp, at) =
        SendRecord { wqe_index: index, ds, wqebbs: wqebbs as u8, request, ..Default::default() };
    w.q.sq_next = index.wrapping_add(wqebbs);
    w.q.requester.take();
    acks::mark_failed(w, at, failure);
}

/// Executes a request that sends nothing.
#[cold]
fn local(w: &mut QpStage<'_, '_, '_>, wqe: &Wqe) -> Result<(), Failure> {
    match wqe.opcode {
        WqeOpcode::LocalInval => {
            translate::invalidate(w.func, w.user(), wqe.imm, false).map_err(|_| umr::REFUSED)
        }
        WqeOpcode::Umr => umr::carry_out(w, wqe),
        _ => Ok(()),
    }
}

/// Sends the packets of one request from its current position.
#[inline(always)]
fn transmit(
    w: &mut QpStage<'_, '_, '_>,
    record: &SendRecord,
    wqe: &Wqe,
    budget: &mut u32,
) -> Result<(), Failure> {
    let mtu = u32::from(w.q.mtu.max(256));
    let (request, kind) = (&record.request, record.request.kind());
    if kind.is_answered() {
        ask(w, record, kind, wqe, mtu);
        *budget -= 1;
        return Ok(());
    }
    let ask_every = (!w.is(ServiceType::Uc)).then_some(w.step.config.ack_every);
    let mut alike = false;
    while *budget > 0 {
        if alike && w.step.trains {
            if let Some((train, payload)) = gather_train(w, request, wqe, mtu, *budget) {
                w.send_alike(train.psn, train.ask, train.packets, payload);
                *budget -= u32::from(train.packets);
                // The timer has been running since the previous packet.
                w.q.requester.sent(&train);
                continue;
            }
        }
        let one = w.q.requester.next_packet(request, mtu, ask_every);
        let payload = match one.len {
            0 => Payload::Empty,
            len => gather(w, wqe, one.from, len)?,
        };
        let psn = one.psn.get();
        // With XRC, another header follows the BTH.
        let middle = !one.first && !one.last && !w.is(ServiceType::Xrc);
        if middle && alike {
            w.send_alike(one.psn, one.ask, one.packets, payload);
        } else {
            let solicits = one.last && record.flags & SendRecord::SOLICITED != 0;
            let bth = w.bth_with(kind.opcode(one.first, one.last), psn, one.ask, solicits);
            let mut packet = Packet { bth, imm: record.imm, ieth: record.imm, ..Packet::default() };
            if kind.is_write() {
                packet.reth.set().va(record.raddr).rkey(record.rkey).dma_len(request.length);
            }
            if w.is(ServiceType::Xrc) {
                packet.xrceth.set().srqn(Srqn(wqe.xrc_srqn));
            }
            alike = w.send(&packet, &payload) && middle;
        }
        *budget -= 1;
        if w.q.requester.sent(&one) {
            transport::start_timer(w);
        }
        if one.last {
            return Ok(());
        }
    }
    w.ready = true;
    Ok(())
}

/// Sends a READ or atomic request; a READ resumes at its current position.
#[inline(never)]
fn ask(w: &mut QpStage<'_, '_, '_>, record: &SendRecord, kind: Kind, wqe: &Wqe, mtu: u32) {
    let (psn, skip) = w.q.requester.next_request_packet(&record.request, mtu);
    let packet = request_packet(w, record, kind, wqe, psn.get(), skip);
    w.send(&packet, &Payload::Empty);
    if w.q.requester.asked(&record.request) {
        transport::start_timer(w);
    }
}

/// Builds a READ or atomic request (IBTA 9.4.3, 9.4.5); a READ starts at byte `skip`.
fn request_packet(
    w: &QpStage<'_, '_, '_>,
    record: &SendRecord,
    kind: Kind,
    wqe: &Wqe,
    psn: u32,
    skip: u32,
) -> Packet {
    let bth = w.bth_with(kind.opcode(true, true), psn, true, false);
    let (mut reth, mut atomic) = (Reth::zeroed(), AtomicEth::zeroed());
    let left = record.request.length - skip;
    reth.set().va(record.raddr.wrapping_add(skip.into())).rkey(record.rkey).dma_len(left);
    atomic.set().va(record.raddr).rkey(record.rkey).swap_add(wqe.operands[0]).compare(wqe.operands[1]);
    let mut packet = Packet { bth, reth, atomic, ..Packet::default() };
    packet.xrceth.set().srqn(Srqn(wqe.xrc_srqn));
    packet
}

/// Payload of one packet: inline bytes, or the memory of a list.
#[inline]
pub(crate) fn gather(
    w: &mut QpStage<'_, '_, '_>,
    wqe: &Wqe,
    from: u32,
    len: u32,
) -> Result<Payload, Failure> {
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

/// The next packets of `request` as one train: as many as fit in one payload by reference from one gather list. `None` if there
/// are fewer than two; list errors are detected when they are sent one by one.
#[inline(never)]
fn gather_train(
    w: &mut QpStage<'_, '_, '_>,
    request: &Request,
    wqe: &Wqe,
    mtu: u32,
    budget: u32,
) -> Option<(Outgoing, Payload)> {
    let most =
        w.q.requester.alike_ahead(request, w.step.config.ack_every).min(budget).min(lists::LONGEST_TRAIN);
    if most < 2 || wqe.inline || !w.is(ServiceType::Rc) {
        return None;
    }
    let from = w.q.requester.packet * mtu;
    w.resolve_send(wqe, from, most * mtu, lists::GATHER).ok()?;
    let (packets, payload) = lists::of_whole(&w.step.buffers.pieces, mtu)?;
    Some((w.q.requester.next_train(request, mtu, packets), payload))
}

/// Payload of one packet from memory: small data by value, larger data by reference.
#[inline(never)]
fn gather_list(w: &mut QpStage<'_, '_, '_>, wqe: &Wqe, from: u32, len: u32) -> Result<Payload, Failure> {
    w.resolve_send(wqe, from, len, lists::GATHER).map_err(ListFault::failure)?;
    let rid = w.func.rid();
    let payload = match w.is(ServiceType::Rc) || w.is(ServiceType::Xrc) {
        true => lists::payload(w.step, rid, true),
        // Unreliable packets are not acknowledged; their buffer belongs to the program again at once.
        false => lists::by_value(w.step, rid),
    };
    payload.map_err(|_| Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY))
}
