//! Flow steering: starting at the root table, the first matching entry determines the packet's destinations. Receive side scaling: the hash
//! of a packet's addresses and ports.

use super::frame::{Parts, TCP, UDP};
use crate::{
    region::Func,
    state::{FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, MATCH, TirRow},
};
use hwspec::{
    context::{
        flow::MatchHeaders,
        tir::{TOEPLITZ, XOR},
    },
    cqe::eth,
};

/// Maximum number of interfaces that receive a packet.
const TIRS: usize = 8;
/// Maximum number of tables that a packet passes: a path may fork, and an entry that ignores levels may form
/// a loop.
const STEPS: usize = 256;
/// Maximum number of entries that a packet is compared with: holding the function for longer would block
/// others.
const COMPARED: usize = 16384;

/// The destinations of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steered {
    tirs: [u32; TIRS],
    len: usize,
    /// Tag of the last matching entry.
    pub tag: u32,
}

impl Steered {
    /// The interfaces that receive the packet.
    pub(super) fn tirs(&self) -> &[u32] {
        &self.tirs[..self.len]
    }
}

fn matches(mask: &[u8; MATCH], value: &[u8; MATCH], key: &[u8; MATCH]) -> bool {
    mask.iter().zip(value).zip(key).all(|((mask, value), key)| (value ^ key) & mask == 0)
}

/// The first matching entry of `table`.
fn find(func: &Func<'_>, table: &FlowTableRow, key: &[u8; MATCH], left: &mut usize) -> Option<u32> {
    let mut at = table.first;
    let mut group: Option<(u32, &FlowGroupRow)> = None;
    loop {
        let index = at.checked_sub(1)?;
        *left = left.checked_sub(1)?;
        let entry = func.row::<FlowEntryRow>(index)?;
        let mask = match group {
            Some((known, row)) if known == entry.group => row,
            _ => group.insert((entry.group, func.row::<FlowGroupRow>(entry.group)?)).1,
        };
        if matches(&mask.mask, &entry.value, key) {
            return Some(index);
        }
        at = entry.next;
    }
}

/// Steers a packet of `len` bytes through the tables.
pub(super) fn steer(func: &mut Func<'_>, key: &MatchHeaders, len: usize) -> Steered {
    let mut out = Steered::default();
    let mut waiting = [0; TIRS];
    let mut waits = 0;
    let mut next = func.function().flow_root[0].checked_sub(1);
    let mut left = COMPARED;
    for _ in 0..STEPS {
        if left == 0 {
            break;
        }
        let Some(index) = next.take().or_else(|| {
            waits = usize::checked_sub(waits, 1)?;
            Some(waiting[waits])
        }) else {
            break;
        };
        let Some(table) = func.row::<FlowTableRow>(index) else { continue };
        let Some(entry) =
            find(func, table, key.as_bytes(), &mut left).and_then(|i| func.row::<FlowEntryRow>(i).copied())
        else {
            next = (table.miss_action != 0).then_some(table.miss);
            continue;
        };
        if entry.action & FlowEntryRow::COUNT != 0 {
            for counter in entry.counters.iter().take(entry.count[1] as usize) {
                if let Some(row) = func.row_mut::<FlowCounterRow>(*counter) {
                    row.packets = row.packets.wrapping_add(1);
                    row.octets = row.octets.wrapping_add(len as u64);
                }
            }
        }
        if entry.action & FlowEntryRow::DROP != 0 || entry.action & FlowEntryRow::FORWARD == 0 {
            continue;
        }
        out.tag = entry.tag;
        for to in entry.to.iter().take(entry.count[0] as usize) {
            let (list, n) = match to >> 24 == FlowEntryRow::TO_TIR {
                true => (&mut out.tirs, &mut out.len),
                false => (&mut waiting, &mut waits),
            };
            if let Some(place) = list.get_mut(*n) {
                *place = to & 0xff_ffff;
                *n += 1;
            }
        }
    }
    out
}

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
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
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
pub(super) fn hash(tir: &TirRow, frame: &[u8], parts: &Parts) -> (u32, u8) {
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
    let hash = match tir.hash as u8 {
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
