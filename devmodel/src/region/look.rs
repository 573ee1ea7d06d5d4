//! Reads a function without its lock, for observers that only display its state.
//!
//! Every word read is a value that was stored, possibly in the middle of a job; words of one row may be from different moments.
//! Reading changes nothing, blocks no other process, and touches no page that was never used.

use super::{Region, Row, Table, queues::READY};
use crate::state::{
    COUNTERS, FreeList, FunctionRow, HcaState, IbPort, MULTICAST_LIST, ROCE_ADDRESSES, RoceAddress,
    UNICAST_LIST, VLAN_LIST,
};
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zerocopy::FromBytes;

/// State of a port, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGlimpse {
    /// The link is up.
    pub up: bool,
    /// InfiniBand: GID prefix.
    pub gid_prefix: [u8; 8],
}

impl Region {
    /// Port counters of `fid` since power-on, indexed by [`Counters`](crate::state::Counters) and kept across resets of the
    /// function; zeros if there is no such function.
    pub fn counters(&self, fid: u8) -> [u64; COUNTERS] {
        let of = |offset| self.look(fid, offset).unwrap_or([0u64; COUNTERS]);
        let (before, now) = (of(offset_of!(FunctionRow, before)), of(offset_of!(FunctionRow, counters)));
        std::array::from_fn(|i| before[i].wrapping_add(now[i]))
    }

    /// The port of `fid`, if there is such a function.
    pub fn port(&self, fid: u8) -> Option<PortGlimpse> {
        let ib = offset_of!(FunctionRow, ib);
        Some(PortGlimpse {
            up: self.look::<u32>(fid, offset_of!(FunctionRow, vport_state))? != 0,
            gid_prefix: self.look(fid, ib + offset_of!(IbPort, gid_prefix))?,
        })
    }

    /// True if a driver has initialized `fid`: the last such command was `INIT_HCA`.
    pub fn is_running(&self, fid: u8) -> bool {
        self.look(fid, offset_of!(FunctionRow, hca_state)) == Some(HcaState::Running.raw())
    }

    /// Like [`counters`](Self::counters), but since the function's last reset.
    pub fn counters_since_reset(&self, fid: u8) -> [u64; COUNTERS] {
        self.look(fid, offset_of!(FunctionRow, counters)).unwrap_or([0; COUNTERS])
    }

    /// The dword at `at` in the configuration space of `fid`; zero if there is none.
    pub(crate) fn config_dword(&self, fid: u8, at: usize) -> u32 {
        self.look(fid, offset_of!(FunctionRow, config) + at).map_or(0, u32::from_le_bytes)
    }

    /// The MAC of `fid`, if `gid` is in its RoCE address table.
    pub fn mac_with_gid(&self, fid: u8, gid: &[u8; 16]) -> Option<[u8; 6]> {
        let table: [RoceAddress; ROCE_ADDRESSES] = self.look(fid, offset_of!(FunctionRow, roce))?;
        table.iter().find(|row| row.valid != 0 && row.gid == *gid).map(|row| row.mac)
    }

    /// Number of objects of one kind that `fid` has.
    pub fn used<R: Row>(&self, fid: u8) -> u32 {
        self.free_list::<R>(fid).map_or(0, |free| free.used)
    }

    fn free_list<R: Row>(&self, fid: u8) -> Option<FreeList> {
        self.look(fid, offset_of!(FunctionRow, free) + R::TABLE as usize * size_of::<FreeList>())
    }

    /// The live objects of one kind that `fid` has: the number by which the driver knows each, and a copy of its row.
    pub fn objects<R: Row + FromBytes>(&self, fid: u8) -> impl Iterator<Item = (u32, R)> + '_ {
        let rows = self.free_list::<R>(fid).map_or(0, |free| free.fresh as usize);
        let first = match R::TABLE.is_global() {
            true => R::TABLE.mark() | u32::from(fid) << self.log_rows(R::TABLE),
            false => 0,
        };
        let block = self.block(fid);
        let rows = if self.reaches_rows::<R>(fid, rows) { rows } else { 0 };
        (0..rows.min(self.rows(R::TABLE)))
            .filter(move |index| !self.is_bare(block, R::TABLE, *index))
            .filter_map(move |index| {
                let row: R = copy(self.row_pointer(block, R::TABLE, index, size_of::<R>()));
                (row.head().live != 0).then_some((first | index as u32, row))
            })
    }

    /// A copy of row `index` of `fid`, if it is live.
    pub(crate) fn peek<R: Row + FromBytes>(&self, fid: u8, index: u32) -> Option<R> {
        let used = self.free_list::<R>(fid)?.fresh.min(self.rows(R::TABLE) as u32);
        if index >= used {
            return None;
        }
        let block = self.block(fid);
        if !self.reaches_rows::<R>(fid, used as usize) || self.is_bare(block, R::TABLE, index as usize) {
            return None;
        }
        let row: R = copy(self.row_pointer(block, R::TABLE, index as usize, size_of::<R>()));
        (row.head().live != 0).then_some(row)
    }

    /// Describes a value (expected and found) in the bookkeeping of `fid` that no adapter writes, if there is one. For callers
    /// that are about to work on a region that may be corrupted.
    pub fn damage(&self, fid: u8) -> Option<String> {
        let row: FunctionRow = self.look(fid, 0)?;
        let rows = |table: Table| self.rows(table) as u32;
        let mut limits = vec![
            ("timers", row.timers, rows(Table::Timer)),
            ("queues that are ready", row.ready[1].wrapping_sub(row.ready[0]), rows(Table::Ready)),
            ("doublings of their ring", row.ready_doubled, (rows(Table::Ready) / READY).max(1).ilog2()),
            ("state", row.hca_state, HcaState::Running.raw()),
            ("translation entries", row.mtt_fresh, rows(Table::Mtt)),
            ("translation entries in use", row.mtt_used, rows(Table::Mtt)),
            ("unicast addresses", row.list_len[0], UNICAST_LIST as u32),
            ("multicast addresses", row.list_len[1], MULTICAST_LIST as u32),
            ("VLANs", row.list_len[2], VLAN_LIST as u32),
            ("pages held", row.pages_held, row.page_list[1]),
            ("end of the list of pages", row.page_list[0].saturating_add(row.page_list[1]), rows(Table::Mtt)),
        ];
        limits.extend(
            row.mtt_free.iter().map(|first| ("free translation entry", *first, rows(Table::Mtt) - 1)),
        );
        limits.extend(row.special_qp.iter().map(|qp| ("special queue pair", *qp, rows(Table::Qp))));
        let tables = Table::ALL.iter().zip(&row.free);
        limits.extend(tables.flat_map(|(table, free)| {
            [free.fresh, free.used, free.head, free.tail]
                .map(|number| ("rows of a table", number, rows(*table)))
                .into_iter()
                .chain([(
                    "rows left of a block",
                    u64::BITS - free.unused_in_block().leading_zeros(),
                    free.fresh,
                )])
        }));
        let wrong = limits.into_iter().find(|(_, found, most)| found > most);
        wrong.map(|(what, found, most)| {
            format!("function {fid}: {what}: expected {most} at most, found {found}")
        })
    }

    /// A copy of the value at `offset` of the function's registers and bookkeeping.
    pub(crate) fn look<T: FromBytes>(&self, fid: u8, offset: usize) -> Option<T> {
        if fid >= self.functions() || offset + size_of::<T>() > size_of::<FunctionRow>() {
            return None;
        }
        if !self.reach(self.block(fid), Table::Function, 0) {
            self.unseen();
            return None;
        }
        let row = self.row_pointer(self.block(fid), Table::Function, 0, size_of::<FunctionRow>());
        // SAFETY: within the row by the check.
        Some(copy(unsafe { row.add(offset) }))
    }

    /// Maps the registers and bookkeeping of every present function for reading. Returns false if no address space is left.
    pub fn reach_books(&self) -> bool {
        self.functions_there().all(|fid| self.reach(self.block(fid), Table::Function, 0))
    }

    /// Maps the first `rows` rows of a table and their links. Returns false if that fails.
    fn reaches_rows<R: Row>(&self, fid: u8, rows: usize) -> bool {
        let (block, rows) = (self.block(fid), rows.min(self.rows(R::TABLE)));
        let Some(last) = rows.checked_sub(1) else { return true };
        let links = self.links[R::TABLE as usize];
        let there = self.reach(block, R::TABLE, last)
            && links.is_none_or(|first| self.reach(block, Table::Link, first + last));
        if !there {
            self.unseen();
        }
        there
    }
}

/// Copies the `T` at `from`, which points to plain data of the region, as whole words in any order.
fn copy<T: FromBytes>(from: *mut u8) -> T {
    let mut to = MaybeUninit::<T>::zeroed();
    if size_of::<T>() % 8 == 0 && from.align_offset(8) == 0 {
        words::<std::sync::atomic::AtomicU64>(from, to.as_mut_ptr().cast(), size_of::<T>() / 8);
    } else if size_of::<T>() % 4 == 0 && from.align_offset(4) == 0 {
        words::<AtomicU32>(from, to.as_mut_ptr().cast(), size_of::<T>() / 4);
    } else {
        words::<std::sync::atomic::AtomicU8>(from, to.as_mut_ptr().cast(), size_of::<T>());
    }
    // SAFETY: every bit pattern is a `T`.
    unsafe { to.assume_init() }
}

/// A word that other processes may change during the read.
trait Word {
    type Value;
    fn value(&self) -> Self::Value;
}

macro_rules! word { ($($A:ident: $v:ty),*) => { $(
    impl Word for std::sync::atomic::$A {
        type Value = $v;
        fn value(&self) -> $v {
            self.load(Relaxed)
        }
    }
)* } }
word!(AtomicU64: u64, AtomicU32: u32, AtomicU8: u8);

fn words<A: Word>(from: *mut u8, to: *mut A::Value, count: usize) {
    for i in 0..count {
        // SAFETY: `copy` passes a source and a target of `count` words; the source is aligned to a word and lives as long
        // as the region; the target need not be aligned.
        unsafe { to.add(i).write_unaligned((*from.cast::<A>().add(i)).value()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{FlatMachine, Party},
        region::{Func, Geometry},
        state::{Counters, PdRow, QpRow},
    };

    #[test]
    fn a_look_finds_what_is_live_by_the_drivers_numbers_while_somebody_holds_the_lock() {
        let region = Region::private(Geometry::SMALL);
        let mut host = FlatMachine::default();
        let mut func = Func::lock(&region, 2, &mut host);
        let (a, b) = (func.alloc::<PdRow>(7, Party(3)).unwrap(), func.alloc::<PdRow>(8, Party(4)).unwrap());
        let numbers = [a, b].map(|index| func.number::<PdRow>(index));
        func.commit(&mut host);
        func.count(Counters::TxPackets, 5);
        *func.function_mut(|f| &mut f.vport_state) = 1;
        func.commit(&mut host);
        let found: Vec<_> =
            region.objects::<PdRow>(2).map(|(n, row)| (n, row.head.uid, row.head.party)).collect();
        assert_eq!(found, [(numbers[0], 7, 3), (numbers[1], 8, 4)]);
        func.free::<PdRow>(a);
        func.commit(&mut host);
        assert_eq!(region.objects::<PdRow>(2).map(|(n, _)| n).collect::<Vec<_>>(), [numbers[1]]);
        assert_eq!(region.counters(2)[Counters::TxPackets as usize], 5);
        assert!(region.port(2).unwrap().up);
        let sent = region.counters_since_reset(2)[Counters::TxPackets as usize];
        assert_eq!((sent, region.used::<PdRow>(2), region.is_running(2)), (5, 1, false));
        *func.function_mut(|f| &mut f.hca_state) = HcaState::Running.raw();
        assert!(region.is_running(2));
        assert_eq!(
            (
                region.objects::<QpRow>(2).count(),
                region.counters(200)[0],
                region.port(200),
                region.used::<QpRow>(200)
            ),
            (0, 0, None, 0)
        );
    }
}
