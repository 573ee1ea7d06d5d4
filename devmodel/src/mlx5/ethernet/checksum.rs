//! Internet checksums (RFC 1071): insertion and verification.

use super::frame::{Parts, TCP};
use hwspec::layout::prefix;

/// Adds `bytes` as 16-bit words to `sum`, in ones' complement; an odd byte is padded with zero.
pub(super) fn add(sum: u32, bytes: &[u8]) -> u32 {
    let mut wide = u64::from(sum);
    let mut chunks = bytes.chunks_exact(4);
    for chunk in &mut chunks {
        wide += u64::from(u32::from_be_bytes(prefix(chunk)));
    }
    let rest: [u8; 4] = prefix(chunks.remainder());
    wide += u64::from(u32::from_be_bytes(rest));
    while wide >> 16 != 0 {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    wide as u32
}

/// The sum over pseudo-header and transport of a packet with TCP or UDP; 0xffff if its checksum is correct.
fn transport(frame: &[u8], parts: &Parts) -> Option<u32> {
    if !parts.has_ports(frame) {
        return None;
    }
    let (src, dst) = parts.addresses()?;
    let segment = frame.get(parts.l4..parts.end)?;
    let sum = add(0, frame.get(src)?);
    let sum = add(sum, frame.get(dst)?);
    let len = segment.len() as u32;
    Some(add(sum + u32::from(parts.protocol) + (len >> 16) + (len & 0xffff), segment))
}

/// Offset of the transport's checksum.
fn place(parts: &Parts) -> usize {
    parts.l4 + if parts.protocol == TCP { 16 } else { 6 }
}

/// Fills in the checksum of TCP or UDP. A frame with neither of them, or a fragment, is left unchanged.
pub(super) fn fill_transport(frame: &mut [u8], parts: &Parts) {
    let at = place(parts);
    if !parts.has_ports(frame) || at + 2 > frame.len() {
        return;
    }
    frame[at..at + 2].fill(0);
    let Some(sum) = transport(frame, parts) else { return };
    // RFC 768: a checksum of zero is sent as ones, because zero means that there is none. For TCP both are
    // equivalent.
    let value = match !(sum as u16) {
        0 => 0xffff,
        value => value,
    };
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Fills in the IPv4 header checksum.
pub(super) fn fill_ip(frame: &mut [u8], parts: &Parts) {
    if parts.version != 4 {
        return;
    }
    let Some(header) = frame.get_mut(parts.l3..parts.l4) else { return };
    header[10..12].fill(0);
    let value = !(add(0, header) as u16);
    header[10..12].copy_from_slice(&value.to_be_bytes());
}

/// The checksum results in a receive CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verified {
    /// The IP header checksum is correct.
    pub l3: bool,
    /// The TCP or UDP checksum is correct.
    pub l4: bool,
}

/// Verifies the checksums of a received frame.
pub(super) fn verify(frame: &[u8], parts: &Parts) -> Verified {
    let l3 = match parts.version {
        _ if !parts.whole => false,
        4 => frame.get(parts.l3..parts.l4).is_some_and(|header| add(0, header) == 0xffff),
        6 => true,
        _ => false,
    };
    let at = place(parts);
    // RFC 768: a UDP packet over IPv4 may have no checksum.
    let none = parts.version == 4 && parts.protocol != TCP && frame.get(at..at + 2) == Some(&[0, 0]);
    let l4 = parts.has_ports(frame) && (none || transport(frame, parts) == Some(0xffff));
    Verified { l3, l4: l3 && l4 }
}
