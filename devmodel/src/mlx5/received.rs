//! A received packet, and the checks common to all packets of connected QPs, in the order of IBTA 9.6.

use super::work::Work;
use crate::{region::SlotPayload, state::Counters};
use hwspec::{
    context::QpState,
    wire::{BthOpcode, Headers, Icrc},
};

/// A received packet.
pub(crate) struct Packet<'p> {
    pub headers: Headers<'p>,
    /// Payload, pad excluded.
    pub data: SlotPayload<'p>,
    pub len: u32,
    /// Number of packets of a train, with consecutive PSNs from that of the headers; otherwise 1.
    pub packets: u32,
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    pub padded: bool,
}

/// Builds a packet received with pad and ICRC, after checking the ICRC.
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
    Ok(Packet { headers, data: SlotPayload::Bytes(data), len: data.len() as u32, packets: 1, padded: whole })
}

/// False if [`refusal`] finds a reason to drop the packet silently.
#[inline(always)]
pub(crate) fn check(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> bool {
    match refusal(w, packet) {
        None => true,
        Some(counter) => dropped(w, counter),
    }
}

/// The counter of a packet to drop: its QP has another transport or is in the wrong state, it is not from the address the QP is
/// connected to, or its partition does not match (IBTA 9.6.1).
#[inline(always)]
pub(crate) fn refusal(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> Option<Counters> {
    let bth = packet.headers.bth();
    let opcode = bth.opcode();
    let state = matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr);
    // The upper three bits give the transport even for undefined opcodes.
    let transport = bth.opcode().transport() == w.q.transport();
    if !state || !transport && opcode != BthOpcode::Cnp {
        return Some(Counters::RxDroppedQp);
    }
    if !w.is_from_peer(packet) {
        return Some(Counters::RxDroppedQp);
    }
    (!w.takes_partition(bth.pkey())).then_some(Counters::RxDroppedPkey)
}

/// Counts a dropped packet.
#[cold]
fn dropped(w: &mut Work<'_, '_, '_>, counter: Counters) -> bool {
    w.count(counter);
    false
}
