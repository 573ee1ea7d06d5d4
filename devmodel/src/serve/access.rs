//! Splits accesses of any width and alignment into those that a function supports.

use super::Function;
use hwspec::pcie::{DEVICE_CONTROL, INITIATE_FLR};

/// Appends `len` bytes from `at` to `out`, read from 4-byte registers.
pub(super) fn read(at: u64, len: usize, out: &mut Vec<u8>, mut register: impl FnMut(u64) -> [u8; 4]) {
    let end = at + len as u64;
    let mut at = at;
    while at < end {
        let first = at & !3;
        let next = end.min(first + 4);
        out.extend_from_slice(&register(first)[(at - first) as usize..(next - first) as usize]);
        at = next;
    }
}

/// Writes registers of BAR0, 8 bytes at a time where possible. Writes narrower than a register have no effect.
pub(super) fn bar_write(function: &dyn Function, mut at: u64, mut data: &[u8]) {
    while !data.is_empty() {
        let n = match (data.first_chunk::<8>(), data.first_chunk::<4>()) {
            (Some(wide), _) if at % 8 == 0 => {
                function.bar_write64(at, u64::from_be_bytes(*wide));
                8
            }
            (_, Some(word)) if at % 4 == 0 => {
                function.bar_write32(at, u32::from_be_bytes(*word));
                4
            }
            _ => data.len().min(4 - (at % 4) as usize),
        };
        data = &data[n..];
        at += n as u64;
    }
}

/// Calls `write` with offset, width and value for each part of a configuration write; no part crosses a dword.
pub(super) fn config_write(mut at: usize, mut data: &[u8], mut write: impl FnMut(usize, usize, u32)) {
    while !data.is_empty() {
        let width = match (at % 4, data.len()) {
            (0, 4..) => 4,
            (0 | 2, 2..) => 2,
            _ => 1,
        };
        let mut bytes = [0; 4];
        bytes[..width].copy_from_slice(&data[..width]);
        write(at, width, u32::from_le_bytes(bytes));
        data = &data[width..];
        at += width;
    }
}

/// True if a configuration write requests a reset of the function.
pub(super) fn resets(at: usize, value: u32) -> bool {
    at & !3 == DEVICE_CONTROL && value << (8 * (at % 4)) & INITIATE_FLR != 0
}
