//! Flow tables: from the first table on, the first entry that matches says where a packet goes.

use crate::{
    region::Func,
    state::{FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow, MATCH},
};
use hwspec::context::flow::MatchHeaders;

/// Interfaces a packet may reach.
const TIRS: usize = 8;
/// Tables a packet passes at most: a path may fork, and an entry that ignores levels may lead back.
const STEPS: usize = 256;
/// Entries a packet is compared with at most: whoever holds the function for longer holds up others.
const COMPARED: usize = 16384;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steered {
    tirs: [u32; TIRS],
    len: usize,
    /// Tag of the last entry.
    pub tag: u32,
}

impl Steered {
    /// The interfaces that get it.
    pub(super) fn tirs(&self) -> &[u32] {
        &self.tirs[..self.len]
    }
}

fn matches(mask: &[u8; MATCH], value: &[u8; MATCH], key: &[u8; MATCH]) -> bool {
    mask.iter().zip(value).zip(key).all(|((mask, value), key)| (value ^ key) & mask == 0)
}

/// The first entry of `table` that matches.
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

/// Leads a packet of `len` bytes through the tables.
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
