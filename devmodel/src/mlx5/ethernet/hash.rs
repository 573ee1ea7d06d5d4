//! Receive side scaling: the hash of a packet's addresses and ports.

use super::frame::{Parts, TCP, UDP};
use crate::state::TirRow;
use hwspec::cqe::eth;

/// `rx_hash_fn`.
const XOR: u32 = 1;
const TOEPLITZ: u32 = 2;
/// `selected_fields`.
const SRC_IP: u32 = 1 << 0;
const DST_IP: u32 = 1 << 1;
const SPORT: u32 = 1 << 2;
const DPORT: u32 = 1 << 3;
const SPI: u32 = 1 << 4;
/// Bits of `TirRow::fields` above the selected fields: the protocols of the interface.
const FOR_UDP: u32 = 1 << 30;
const FOR_IPV6: u32 = 1 << 31;
/// Maximum number of hashed bytes: two IPv6 addresses, and two ports or a security parameters index.
const MAX: usize = 36;

/// The hash defined by RSS: for every 1 bit of the input, XORs the 32 bits of the key that start at its position.
pub(super) fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & 0x80 >> bit != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        window |= u64::from(key.get(i + 8).copied().unwrap_or(0));
    }
    hash
}

/// The hash of a packet and the type of the hashed fields, as reported in a receive CQE. The hash is 0 for packets
/// without the fields that the interface hashes.
pub(super) fn packet(tir: &TirRow, frame: &[u8], parts: &Parts) -> (u32, u8) {
    let is_for = match parts.version {
        4 => tir.fields & FOR_IPV6 == 0,
        6 => tir.fields & FOR_IPV6 != 0,
        _ => false,
    };
    let Some((src, dst)) = parts.addresses().filter(|_| is_for && tir.hash != 0) else { return (0, 0) };
    let (Some(src), Some(dst)) = (frame.get(src), frame.get(dst)) else { return (0, 0) };
    let protocol = if tir.fields & FOR_UDP != 0 { UDP } else { TCP };
    let ports = parts.ports(frame).filter(|_| parts.protocol == protocol);
    let (sport, dport) = ports.unwrap_or_default();
    // Both directions of a flow yield the same hash: the lower address, and the lower port, come first.
    let swap = tir.symmetric != 0;
    let (src, dst) = if swap && src > dst { (dst, src) } else { (src, dst) };
    let (sport, dport) = if swap && sport > dport { (dport, sport) } else { (sport, dport) };
    let mut input = [0; MAX];
    let mut len = 0;
    let mut put = |on: u32, bytes: &[u8]| {
        if tir.fields & on != 0 {
            input[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
    };
    put(SRC_IP, src);
    put(DST_IP, dst);
    if ports.is_some() {
        put(SPORT, &sport.to_be_bytes());
        put(DPORT, &dport.to_be_bytes());
    }
    if let Some(spi) = parts.security_index(frame) {
        put(SPI, &spi);
    }
    let input = &input[..len];
    let hash = match tir.hash {
        TOEPLITZ => toeplitz(&tir.key, input),
        XOR => u32::from(!input.iter().fold(0, |sum, byte| sum ^ byte)),
        _ => 0,
    };
    let l3 = if tir.fields & (SRC_IP | DST_IP) == 0 {
        0
    } else if parts.version == 4 {
        eth::HASH_IPV4
    } else {
        eth::HASH_IPV6
    };
    let l4 = match protocol {
        _ if ports.is_none() || tir.fields & (SPORT | DPORT) == 0 => 0,
        TCP => eth::HASH_TCP,
        _ => eth::HASH_UDP,
    };
    (hash, l3 | l4)
}
