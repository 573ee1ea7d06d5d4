//! Arrival of a frame: it is parsed and delivered to its QP.

use super::{
    connected, ethernet, infiniband,
    multicast::{self, GENERAL, GROUP},
    packet::{Packet, checked},
    step::{Frame, Payload, Step},
    turn,
};
use crate::{
    LinkLayer,
    host::Rid,
    region::{Func, SlotPayload},
    state::{Counters, QpRow},
};
use hwspec::{
    context::ServiceType,
    wire::{Headers, ICRC_SIZE, Icrc, eth::ip_offset, lrh::MULTICAST_QPN, pad},
};

/// Takes the oldest frame of the ring and delivers it to its QP.
#[inline(never)]
pub(crate) fn arrive(func: &mut Func<'_>, step: &mut Step<'_>) {
    let Some((slot, payload)) = func.front() else { return };
    // Complete frames may be for the net device.
    if slot.is_sealed() && ethernet::arrive(func, step) {
        return;
    }
    func.take_front();
    accept(func, step, slot.headers(), payload, slot.is_sealed());
}

/// Handles a frame that did not come through the ring: headers, followed by the payload.
#[inline(never)]
pub(crate) fn arrive_inline(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    headers: &[u8],
    payload: SlotPayload<'_>,
) {
    accept(func, step, headers, payload, false);
}

/// Handles a [train](Frame::packets) that did not come through the ring. Unless it is exactly what its QP expects, its
/// packets are handled one by one.
#[inline(never)]
pub(crate) fn arrive_in_train(func: &mut Func<'_>, step: &mut Step<'_>, from: u8, train: &Frame) {
    let Payload::Pieces(n, pieces) = &train.payload else { return };
    let payload = SlotPayload::Pieces(Rid(from), &pieces[..usize::from(*n)]);
    if accept_train(func, step, train, payload) {
        return;
    }
    let more = step.more_inline;
    for (i, one) in (1..).zip(train.of_train()) {
        let Payload::Pieces(n, pieces) = &one.payload else { return };
        step.more_inline = more || i < train.packets;
        let payload = SlotPayload::Pieces(Rid(from), &pieces[..usize::from(*n)]);
        accept(func, step, one.head(), payload, false);
        if step.refused || step.blocked.is_some() {
            return;
        }
    }
}

/// Delivers a train to its QP. False, without any effect, if its packets must be handled one by one.
fn accept_train(func: &mut Func<'_>, step: &mut Step<'_>, train: &Frame, payload: SlotPayload<'_>) -> bool {
    let (headers, packets) = (train.head(), u32::from(train.packets));
    let len = train.payload.len();
    let bytes = usize::from(train.packets) * (headers.len() + ICRC_SIZE) + len;
    let Ok(headers) = Headers::of_built(headers, bytes) else { return false };
    let packet = Packet { headers, data: payload, len: len as u32, packets, padded: true };
    let Some(qp) = numbered(func, &packet) else { return false };
    let mut taken = false;
    turn::with(func, step, qp, |w| {
        taken = w.is(ServiceType::Rc) && connected::arrive_in_train(w, &packet);
    });
    if taken {
        func.count(Counters::RxPackets, packets.into());
        func.count(Counters::RxBytes, bytes as u64);
    }
    taken
}

/// Parses a frame and delivers it to its QP.
// The packet is not returned: a copy right after it was assembled would stall until its parts have been stored.
#[inline(always)]
fn accept(func: &mut Func<'_>, step: &mut Step<'_>, headers: &[u8], payload: SlotPayload<'_>, sealed: bool) {
    func.count(Counters::RxPackets, 1);
    let routed = step.config.link_layer == LinkLayer::Infiniband;
    if routed || sealed {
        return accept_sealed(func, step, (headers, payload, sealed), routed);
    }
    let len = payload.size();
    let whole = headers.len() + len + pad(len) + ICRC_SIZE;
    let Ok(headers) = Headers::of_built(headers, whole) else {
        return func.count(Counters::RxMalformed, 1);
    };
    let packet = Packet { headers, data: payload, len: len as u32, packets: 1, padded: true };
    func.count(Counters::RxBytes, whole as u64);
    if let Some(qp) = destination(func, &packet) {
        deliver(func, step, qp, &packet);
    }
}

/// The destination QP of a packet. IBTA 9.6.1.2: it exists, has this transport and is in a state that accepts packets.
#[inline(always)]
fn destination(func: &mut Func<'_>, packet: &Packet<'_>) -> Option<u32> {
    numbered(func, packet).or_else(|| special_destination(func, packet))
}

/// The QP with the destination's number.
#[inline(always)]
fn numbered(func: &Func<'_>, packet: &Packet<'_>) -> Option<u32> {
    let bth = packet.headers.bth();
    func.index::<QpRow>(bth.dest_qp().0).filter(|qp| bth.tver() == 0 && func.exists::<QpRow>(*qp))
}

/// Delivers a packet to its [`destination`].
#[inline(never)]
fn deliver(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32, packet: &Packet<'_>) {
    if qp >= GENERAL {
        return multicast::deliver(func, step, packet, qp);
    }
    turn::with(func, step, qp, |w| match w.is(ServiceType::Rc) {
        true => connected::arrive(w, packet),
        false => connected::arrive_unlike_rc(w, packet),
    });
}

/// [`accept`] for a complete frame, or on InfiniBand.
#[inline(never)]
fn accept_sealed(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    (headers, payload, sealed): (&[u8], SlotPayload<'_>, bool),
    routed: bool,
) {
    let opened = match (routed, payload) {
        (true, _) => infiniband::open(headers, payload, sealed),
        (_, SlotPayload::Bytes(body)) => open_ethernet(headers, body),
        _ => Err(Counters::RxMalformed),
    };
    let packet = match opened {
        Ok(packet) => packet,
        Err(counter) => return func.count(counter, 1),
    };
    func.count(Counters::RxBytes, packet.headers.frame_len() as u64);
    if routed && !infiniband::accept(func, step, &packet) {
        return;
    }
    if let Some(qp) = destination(func, &packet) {
        deliver(func, step, qp, &packet);
    }
}

/// Destinations other than a QP's number: the special QPs and multicast (IBTA 9.6.1.1).
#[cold]
fn special_destination(func: &mut Func<'_>, packet: &Packet<'_>) -> Option<u32> {
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

/// Parses a complete frame; fails unless its headers are valid and its ICRC is correct (IBTA 7.8.1).
fn open_ethernet<'p>(bytes: &'p [u8], body: &'p [u8]) -> Result<Packet<'p>, Counters> {
    let headers = Headers::parse_head(bytes, bytes.len() + body.len()).map_err(|_| Counters::RxMalformed)?;
    checked(headers, Icrc::new(bytes.get(ip_offset(bytes)..).unwrap_or_default()), body)
}
