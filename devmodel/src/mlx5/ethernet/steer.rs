//! Flow steering: starting at the root table, the first matching entry determines the packet's destinations.

use crate::{
    region::Func,
    state::{FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, MATCH},
};
use hwspec::context::flow::MatchHeaders;

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
