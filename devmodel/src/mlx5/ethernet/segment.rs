//! Large sends: headers with more data than fits in a frame are segmented into frames, each with its own lengths, sequence
//! number and checksums (LSO, also called TSO and USO).

use super::{
    checksum,
    frame::{Parts, TCP},
};
use crate::mlx5::Step;

/// TCP flags that only the last segment carries: FIN and PSH.
const LAST_ONLY: u8 = 0x09;
/// TCP flag that only the first segment carries: CWR (RFC 3168).
const FIRST_ONLY: u8 = 0x80;
/// Maximum number of segments of one send.
const SEGMENTS: usize = 1024;

/// Segments the data staged at `data`, which follows the headers `template`, into frames with at most `mss` bytes of data
/// each. False if the headers cannot be segmented.
pub(super) fn cut(step: &mut Step<'_>, template: &[u8], data: (u32, u32), mss: usize) -> bool {
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
        checksum::fill_ip(frame, parts);
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
    checksum::fill_transport(frame, parts);
}
