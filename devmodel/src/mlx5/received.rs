//! A packet that arrived, and what holds for every packet of a connected QP, in the order of IBTA 9.6.

use super::work::Work;
use crate::{region::SlotPayload, state::Counters};
use hwspec::{
    context::QpState,
    wire::{BthOpcode, Headers, Icrc},
};

/// A packet that arrived.
pub(crate) struct Packet<'p> {
    pub headers: Headers<'p>,
    /// Payload, pad excluded.
    pub data: SlotPayload<'p>,
    pub len: u32,
    /// Packets of a train, whose PSNs begin with that of the headers; 1 of any other.
    pub packets: u32,
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    pub padded: bool,
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
    Ok(Packet { headers, data: SlotPayload::Bytes(data), len: data.len() as u32, packets: 1, padded: whole })
}

/// False if the packet is dropped in silence: see [`refusal`].
#[inline(always)]
pub(crate) fn check(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> bool {
    match refusal(w, packet) {
        None => true,
        Some(counter) => dropped(w, counter),
    }
}

/// The counter of a packet that is dropped: one for a QP of another transport or state, from an address the QP is not connected
/// to, or of a foreign partition (IBTA 9.6.1).
#[inline(always)]
pub(crate) fn refusal(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> Option<Counters> {
    let bth = packet.headers.bth();
    let opcode = bth.opcode();
    let state = matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr);
    // The upper three bits name the transport also of opcodes that mean nothing.
    let transport = bth.opcode().transport() == w.q.transport();
    if !state || !transport && opcode != BthOpcode::Cnp {
        return Some(Counters::RxDroppedQp);
    }
    if !w.is_from_peer(packet) {
        return Some(Counters::RxDroppedQp);
    }
    (!w.takes_partition(bth.pkey())).then_some(Counters::RxDroppedPkey)
}

/// The packet is not looked at any further.
#[cold]
fn dropped(w: &mut Work<'_, '_, '_>, counter: Counters) -> bool {
    w.count(counter);
    false
}
