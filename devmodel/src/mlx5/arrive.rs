//! A frame is there: what holds for all packets is checked in the order of IBTA 9.6, then requests go to the responder
//! and answers to the requester.

use super::{
    Step, acks, cnp,
    datagram::{self, MULTICAST_QPN},
    ethernet, infiniband, responses, service,
    work::Work,
};
use crate::{
    LinkLayer, Profile,
    region::{Func, Piece, SlotPayload},
    state::{Counters, QpFlags, QpRow},
    transport,
};
use hwspec::{
    context::{QpState, ServiceType},
    eqe::EventType,
    wire::{BthOpcode, Headers, ICRC_SIZE, Icrc, eth::ip_offset, pad},
};

/// A packet that arrived.
pub(crate) struct Packet<'p> {
    pub headers: Headers<'p>,
    /// Payload, pad excluded.
    pub data: SlotPayload<'p>,
    pub len: u32,
    /// Whether payload and pad together are whole words, as they must be (IBTA 9.2.4).
    pub padded: bool,
}

/// Takes the oldest frame of the ring, and gives it to the QP it is for.
#[inline(always)]
pub(crate) fn take(func: &mut Func<'_>, step: &mut Step<'_>) {
    let Some((slot, payload)) = func.front() else { return };
    // Whole frames may be the net device's.
    if slot.is_sealed() && ethernet::arrive(func, step) {
        return;
    }
    func.take_front();
    accept(func, step, slot.headers(), payload, slot.is_sealed());
}

/// Opens a frame, and gives it to the QP it is for.
// The packet is not returned: one that is copied right after it was put together waits until its parts have been stored.
#[inline(always)]
pub(crate) fn accept(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    headers: &[u8],
    payload: SlotPayload<'_>,
    sealed: bool,
) {
    func.count(Counters::RxPackets, 1);
    let routed = step.config.link_layer == LinkLayer::Infiniband;
    if routed || sealed {
        return accept_seldom(func, step, (headers, payload, sealed), routed);
    }
    let len = match payload {
        SlotPayload::Bytes(body) => body.len(),
        SlotPayload::Pieces(_, pieces) => Piece::sum(pieces),
    };
    let whole = headers.len() + len + pad(len) + ICRC_SIZE;
    let Ok(headers) = Headers::of_built(headers, whole) else {
        return func.count(Counters::RxMalformed, 1);
    };
    let packet = Packet { headers, data: payload, len: len as u32, padded: true };
    func.count(Counters::RxBytes, whole as u64);
    if let Some(qp) = destination(func, &packet) {
        deliver(func, step, qp, &packet);
    }
}

/// The QP a packet is for. IBTA 9.6.1.2: it exists, is of this transport and in a state that takes packets.
#[inline(always)]
fn destination(func: &mut Func<'_>, packet: &Packet<'_>) -> Option<u32> {
    let bth = packet.headers.bth();
    let qp = func.index::<QpRow>(bth.dest_qp().0).filter(|qp| bth.tver() == 0 && func.exists::<QpRow>(*qp));
    qp.or_else(|| without_row(func, packet))
}

/// Gives a packet to what [`destination`] says it is for.
#[inline(never)]
fn deliver(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32, packet: &Packet<'_>) {
    if qp >= GENERAL {
        return datagram::deliver(func, step, packet, qp);
    }
    super::with(func, step, qp, |w| route(w, packet));
}

/// [`accept`], of a frame that came whole, or on InfiniBand.
#[inline(never)]
fn accept_seldom(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    frame: (&[u8], SlotPayload<'_>, bool),
    routed: bool,
) {
    if let Ok((qp, packet)) = open_seldom(func, step, frame, routed) {
        deliver(func, step, qp, &packet);
    }
}

/// Opens a frame that came whole, or on InfiniBand, and says what it is for.
fn open_seldom<'p>(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    (headers, payload, sealed): (&'p [u8], SlotPayload<'p>, bool),
    routed: bool,
) -> Result<(u32, Packet<'p>), ()> {
    let opened = match (routed, payload) {
        (true, _) => infiniband::open(headers, payload, sealed),
        (_, SlotPayload::Bytes(body)) => open_whole(headers, body),
        _ => Err(Counters::RxMalformed),
    };
    let packet = opened.map_err(|counter| func.count(counter, 1))?;
    func.count(Counters::RxBytes, packet.headers.frame_len() as u64);
    if routed && !infiniband::accept(func, step, &packet) {
        return Err(());
    }
    let qp = destination(func, &packet).ok_or(())?;
    Ok((qp, packet))
}

/// What [`destination`] says of a packet for the QPs of a multicast group.
pub(crate) const GROUP: u32 = u32::MAX;
/// What [`destination`] says of a packet for all QP1s of a function that has several.
pub(crate) const GENERAL: u32 = u32::MAX - 1;

/// Destinations that are no number of a QP: the special QPs and multicast (IBTA 9.6.1.1).
#[cold]
fn without_row(func: &mut Func<'_>, packet: &Packet<'_>) -> Option<u32> {
    let bth = packet.headers.bth();
    let qp = match bth.dest_qp().0 {
        _ if bth.tver() != 0 => None,
        0 => func.function().special_qp[0].checked_sub(1),
        1 => {
            let first = func.function().special_qp[1].checked_sub(1);
            let several = |qp| func.row::<QpRow>(qp).is_some_and(|row| row.special_next != 0);
            if first.is_some_and(several) { Some(GENERAL) } else { first }
        }
        MULTICAST_QPN => Some(GROUP),
        _ => None,
    };
    if qp.is_none() {
        func.count(Counters::RxDroppedQp, 1);
    }
    qp
}

/// A whole frame: its headers make sense and its ICRC is right (IBTA 7.8.1).
fn open_whole<'p>(bytes: &'p [u8], body: &'p [u8]) -> Result<Packet<'p>, Counters> {
    let headers = Headers::parse_head(bytes, bytes.len() + body.len()).map_err(|_| Counters::RxMalformed)?;
    let padded = headers.padded_range().len();
    let (data, icrc) = (body.get(..padded), body.get(padded..padded + ICRC_SIZE));
    let (Some(data), Some(icrc)) = (data, icrc) else { return Err(Counters::RxMalformed) };
    let sum = Icrc::new(bytes.get(ip_offset(bytes)..).unwrap_or_default());
    checked(headers, sum, data, icrc)
}

/// A packet that came with pad and ICRC.
pub(super) fn checked<'p>(
    headers: Headers<'p>,
    mut sum: Icrc,
    data: &'p [u8],
    icrc: &[u8],
) -> Result<Packet<'p>, Counters> {
    sum.update(data);
    if sum.finish() != icrc {
        return Err(Counters::RxIcrcErrors);
    }
    let pad = usize::from(headers.bth().pad_count());
    let whole = data.len() % 4 == 0 && pad <= data.len();
    let data = &data[..data.len().saturating_sub(pad)];
    Ok(Packet { headers, data: SlotPayload::Bytes(data), len: data.len() as u32, padded: whole })
}

/// What is dropped in silence: packets for a QP of another transport or state, from an address the QP is not connected
/// to, or of a foreign partition (IBTA 9.6.1).
#[inline(always)]
pub(crate) fn check(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> bool {
    let bth = packet.headers.bth();
    let opcode = bth.opcode();
    let state = matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr);
    // The upper three bits name the transport also of opcodes that mean nothing.
    let transport = bth.opcode().transport() == service::transport(w.q.service);
    if !state || !transport && opcode != BthOpcode::Cnp {
        return dropped(w, Counters::RxDroppedQp);
    }
    if !w.is_from_peer(packet) {
        return dropped(w, Counters::RxDroppedQp);
    }
    w.takes_partition(bth.pkey()) || dropped(w, Counters::RxDroppedPkey)
}

/// The packet is not looked at any further.
#[cold]
fn dropped(w: &mut Work<'_, '_, '_>, counter: Counters) -> bool {
    w.count(counter);
    false
}

/// Sends the packet to the responder or the requester, and what they owe on its way.
#[inline(always)]
fn route(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if w.q.service != ServiceType::Rc.raw() {
        return service::arrive(w, packet);
    }
    connected(w, packet);
}

/// [`route`] of a reliable connection.
#[inline(always)]
fn connected(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if check(w, packet) {
        sort(w, packet);
    }
    respond(w);
}

/// Sees to it that responses the QP owes are sent.
#[inline(always)]
fn respond(w: &mut Work<'_, '_, '_>) {
    if responses::waiting(w) {
        // Behind more frames an acknowledgement may cover those as well (IBTA 9.7.5.1.1: coalescing).
        if w.step.more_in_hand || w.func.has_frame() {
            w.ready = true;
        } else {
            w.execute = true;
        }
    }
}

/// A packet of a reliable connection that passed [`check`].
pub(crate) fn checked_in(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    sort(w, packet);
    respond(w);
}

/// IBTA 11.6.3.1: communication established, before the program has made the QP ready to send.
#[cold]
fn established(w: &mut Work<'_, '_, '_>) {
    w.q.set(QpFlags::COMM_EST, true);
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    super::event::queue(w.func, uid, EventType::CommEst, qpn);
}

#[inline]
fn sort(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let opcode = packet.headers.bth().opcode();
    if opcode == BthOpcode::Cnp {
        return w.count(Counters::RpCnpHandled);
    }
    if packet.headers.is_ce_marked() {
        cnp::notify(w);
    }
    if w.state() == QpState::Rtr && !w.q.has(QpFlags::COMM_EST) {
        established(w);
    }
    if opcode.is_response() {
        acks::answer(w, packet);
    } else if opcode.is_known() || w.profile() == Profile::Cx5 {
        transport::request(w, packet);
    } else {
        // A reserved opcode: neither executed nor answered.
        w.count(Counters::RxDroppedQp);
    }
}
