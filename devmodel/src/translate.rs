//! Translation of keys and queues to bus addresses (IBTA 10.6; PRM: memory key context, translation table).

use crate::{
    host::{Host, Iova},
    region::{Func, Lookup, Piece, memic},
    state::{MkeyRow, WorkQueue, WqMemory},
};
use hwspec::{
    context::{AccessMode, mkey::ANY_QP},
    doorbell::RECORD_SIZE,
};

/// Access bits of an mkey row, and those that an operation requires.
pub mod access {
    /// Gather from here.
    pub const LOCAL_READ: u8 = 1;
    /// Scatter to here.
    pub const LOCAL_WRITE: u8 = 2;
    /// RDMA READ from here.
    pub const REMOTE_READ: u8 = 4;
    /// RDMA WRITE to here.
    pub const REMOTE_WRITE: u8 = 8;
    /// Atomics here.
    pub const ATOMIC: u8 = 16;
    /// The key is free: it is invalid until it is set up again.
    pub const FREE: u8 = 32;
    /// The key covers all addresses.
    pub const LENGTH64: u8 = 64;
    /// Work requests may modify the key.
    pub const UMR: u8 = 128;
}

/// The key for physical memory, on queue pairs that may use it (`rlky`).
pub const RESERVED_LKEY: u32 = 0x200;
/// The null key: reads at any of its addresses return zeros and writes are discarded (`null_mkey`).
pub const NULL_KEY: u32 = 0x300;

/// The value in place of a key that makes an entry of an indirect key the head of a repeat block: bytes of a round, this, number of rounds,
/// 16 reserved bits, number of entries. No key has this number. Each entry that follows has stride and bytes (16 bits each), key, and address.
pub const REPEAT: u32 = 0x400;

/// Bits of a translation entry with a page: readable, writable.
pub(crate) const PRESENT: u64 = 3;

/// The reason why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No such key, or the key is free.
    Key,
    /// The key belongs to another protection domain.
    Domain,
    /// The access leaves the key's range.
    Bounds,
    /// The key does not allow this.
    Permission,
}

/// `MkeyRow::flags`: a peer may invalidate the key.
pub(crate) const REMOTE_INVALIDATE: u8 = 1;

/// The user of a key: a queue pair in its protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Protection domain number.
    pub pd: u32,
    /// Queue pair number; 0 is none, and may use any key that is bound to no queue pair.
    pub qpn: u32,
}

/// The protection domain and user for the keys of a list.
#[derive(Clone, Copy)]
pub(crate) struct Domain {
    pub user: User,
    /// True if the reserved lkey is usable.
    pub rlky: bool,
}

/// The mkey of `key`, if `user` may use it with the access rights `need`.
#[inline]
pub fn key<'f>(func: &'f Func<'_>, user: User, key: u32, need: u8) -> Result<&'f MkeyRow, Fault> {
    let row = func.get::<MkeyRow>(key >> 8).filter(|row| row.variant == key as u8).ok_or(Fault::Key)?;
    if row.access & access::FREE != 0 || !func.looks_up(Lookup::Key(key >> 8)) {
        return Err(Fault::Key);
    }
    // IBTA 10.6.7.2.2: a type 2B window belongs to one queue pair of its domain.
    if row.pd != user.pd || row.qpn != ANY_QP && row.qpn != user.qpn {
        return Err(Fault::Domain);
    }
    if row.access & need != need {
        return Err(Fault::Permission);
    }
    Ok(row)
}

/// Offset of `va` in the key's range, if the range contains the `len` bytes from there.
#[inline]
fn offset(row: &MkeyRow, va: u64, len: u64) -> Result<u64, Fault> {
    if row.access & access::LENGTH64 != 0 {
        return va.checked_add(len).map(|_| va.wrapping_sub(row.start)).ok_or(Fault::Bounds);
    }
    let offset = va.checked_sub(row.start).ok_or(Fault::Bounds)?;
    match offset.checked_add(len) {
        Some(end) if end <= row.len => Ok(offset),
        _ => Err(Fault::Bounds),
    }
}

/// Checks that `len` bytes at `va` may be accessed with `need`.
#[inline]
pub fn check(func: &Func<'_>, user: User, lkey: u32, va: u64, len: u64, need: u8) -> Result<(), Fault> {
    match key(func, user, lkey, need) {
        Ok(row) => offset(row, va, len).map(drop),
        Err(fault) => special(lkey, va, len as u32, need, &mut Vec::new()).ok_or(fault),
    }
}

/// The pieces of a key without a row: the null key, for local use.
#[cold]
fn special(key: u32, va: u64, len: u32, need: u8, out: &mut Vec<Piece>) -> Option<()> {
    let local = need & !(access::LOCAL_READ | access::LOCAL_WRITE) == 0;
    if key != NULL_KEY || !local {
        return None;
    }
    push(out, memic::NOTHING | va & 0xffff, len);
    Some(())
}

/// Appends the bus addresses of `len` bytes at `va` to `out`.
#[inline(always)]
pub fn pieces(
    func: &Func<'_>,
    user: User,
    rkey: u32,
    va: u64,
    len: u32,
    need: u8,
    out: &mut Vec<Piece>,
) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let row = match key(func, user, rkey, need) {
        Ok(row) => row,
        Err(fault) => return special(rkey, va, len, need, out).ok_or(fault),
    };
    let offset = offset(row, va, len.into())?;
    if row.mode == AccessMode::Pa.raw() {
        push(out, va, len);
        return Ok(());
    }
    if row.mode != AccessMode::Mtt.raw() || row.mtt == 0 {
        return indirect(func, row, offset, len, need, out);
    }
    let log = row.log_page.clamp(12, 63);
    let page = 1u64 << log;
    // The first entry is the page of the start address.
    let mut at = offset + (row.start & (page - 1));
    let mut left = len;
    let first = at >> log;
    while left > 0 {
        let index = at >> log;
        if index >= u64::from(row.pages) {
            return Err(Fault::Bounds);
        }
        let within = at & (page - 1);
        let here = u64::from(left).min(page - within) as u32;
        let entry = func.mtt(row.mtt + index as u32);
        if entry & PRESENT == 0 {
            return Err(Fault::Bounds);
        }
        push(out, (entry & !0xfff).wrapping_add(within), here);
        at += u64::from(here);
        left -= here;
    }
    // Either all entries exist, or the loop found one missing.
    let pages = ((at - 1) >> log) - first + 1;
    func.looks_up(Lookup::Translations(row.mtt + first as u32, pages as u32));
    Ok(())
}

/// The pieces of an indirect key: each of its entries refers to a part of another key (PRM: KLM). Those keys need local
/// rights only; the indirect key defines the peer's rights.
#[cold]
fn indirect(
    func: &Func<'_>,
    row: &MkeyRow,
    offset: u64,
    len: u32,
    need: u8,
    out: &mut Vec<Piece>,
) -> Result<(), Fault> {
    if row.mode == AccessMode::Memic.raw() {
        push(out, memic::WITHIN + u64::from(row.log_page) + offset, len);
        return Ok(());
    }
    if row.mode != AccessMode::Klm.raw() || row.mtt == 0 {
        return Err(Fault::Key);
    }
    let writes = need & (access::LOCAL_WRITE | access::REMOTE_WRITE | access::ATOMIC) != 0;
    let need = if writes { access::LOCAL_WRITE } else { access::LOCAL_READ };
    let (mut skip, mut left, mut i) = (offset, u64::from(len), 0);
    while left > 0 && i < row.pages / 2 {
        let (head, address) = klm(func, row, i);
        i += 1;
        if head as u32 == REPEAT {
            let block = Block { first: i, entries: address as u16, repeats: address >> 32 };
            i += u32::from(block.entries);
            (skip, left) = block.pieces(func, row, (skip, left), need, out)?;
            continue;
        }
        let here = left.min((head >> 32).saturating_sub(skip));
        part(func, row, (head as u32, address.wrapping_add(skip)), here, need, out)?;
        (skip, left) = (skip.saturating_sub(head >> 32), left - here);
    }
    if left == 0 { Ok(()) } else { Err(Fault::Bounds) }
}

/// Entry `i` of an indirect key.
fn klm(func: &Func<'_>, row: &MkeyRow, i: u32) -> (u64, u64) {
    func.looks_up(Lookup::Translations(row.mtt + 2 * i, 2));
    (func.mtt(row.mtt + 2 * i), func.mtt(row.mtt + 2 * i + 1))
}

/// The pieces of `len` bytes at `va` of `lkey`, which an entry of the indirect key `row` names.
fn part(
    func: &Func<'_>,
    row: &MkeyRow,
    (lkey, va): (u32, u64),
    len: u64,
    need: u8,
    out: &mut Vec<Piece>,
) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    if lkey == RESERVED_LKEY {
        push(out, va, len as u32);
        return Ok(());
    }
    let user = User { pd: row.pd, qpn: 0 };
    // Indirection has one level only.
    if key(func, user, lkey, need)?.mode == AccessMode::Klm.raw() {
        return Err(Fault::Key);
    }
    pieces(func, user, lkey, va, len as u32, need, out)
}

/// A repeat block of an indirect key: in each round every entry gives its bytes, a stride behind those of the round before.
struct Block {
    /// The first entry after the head.
    first: u32,
    /// Number of entries.
    entries: u16,
    /// Number of rounds.
    repeats: u64,
}

impl Block {
    /// Appends the pieces of `left` bytes after the first `skip`, as far as they are in the block. Returns both without the block's bytes.
    fn pieces(
        &self,
        func: &Func<'_>,
        row: &MkeyRow,
        (skip, mut left): (u64, u64),
        need: u8,
        out: &mut Vec<Piece>,
    ) -> Result<(u64, u64), Fault> {
        let list = self.first..self.first + u32::from(self.entries);
        if list.end > row.pages / 2 {
            return Err(Fault::Bounds);
        }
        let bytes = |head: u64| head >> 32 & 0xffff;
        let sizes = || list.clone().map(|i| bytes(klm(func, row, i).0));
        // Every entry gives something, so that the work is bounded by the length.
        if sizes().any(|size| size == 0) {
            return Err(Fault::Bounds);
        }
        let round: u64 = sizes().sum();
        let whole = round * self.repeats;
        if skip >= whole {
            return Ok((skip - whole, left));
        }
        let (rounds, mut skip) = (skip / round..self.repeats, skip % round);
        for (time, i) in rounds.flat_map(|time| list.clone().map(move |i| (time, i))) {
            let (head, address) = klm(func, row, i);
            let here = left.min(bytes(head).saturating_sub(skip));
            let va = address.wrapping_add((head >> 48).wrapping_mul(time)).wrapping_add(skip);
            part(func, row, (head as u32, va), here, need, out)?;
            (skip, left) = (skip.saturating_sub(bytes(head)), left - here);
            if left == 0 {
                break;
            }
        }
        Ok((0, left))
    }
}

/// Appends a piece, or extends the last one if it continues there.
#[inline]
pub(crate) fn push(out: &mut Vec<Piece>, at: Iova, len: u32) {
    if let Some(last) = out.last_mut() {
        if last.at.wrapping_add(last.len.into()) == at {
            if let Some(sum) = last.len.checked_add(len) {
                last.len = sum;
                return;
            }
        }
    }
    out.push(Piece { at, len, reserved: 0 });
}

/// The bus address at byte offset `at` of a queue's ring.
#[inline(always)]
pub fn queue(func: &Func<'_>, memory: &WqMemory, at: u32) -> Option<Iova> {
    let at = u64::from(memory.offset) + u64::from(at);
    let log = memory.log_page.clamp(12, 63);
    let page = at >> log;
    (memory.mtt != 0 && page < memory.pages.into()).then(|| {
        let entry = memory.mtt + page as u32;
        func.looks_up(Lookup::Translations(entry, 1));
        (func.mtt(entry) & !0xfff).wrapping_add(at & ((1u64 << log) - 1))
    })
}

impl WorkQueue {
    /// The bus address of byte `from` of the entry at the free-running `index`.
    #[inline(always)]
    pub(crate) fn entry(&self, func: &Func<'_>, index: u16, from: usize) -> Option<Iova> {
        let slot = u32::from(index) & ((1 << self.log_size) - 1);
        queue(func, &self.memory, (slot << self.log_stride) + from as u32)
    }

    /// Reads the start of the entry at `index`.
    #[inline(always)]
    pub(crate) fn read(
        &self,
        func: &Func<'_>,
        host: &mut dyn Host,
        index: u16,
        into: &mut [u8],
    ) -> Option<()> {
        host.read(func.rid(), self.entry(func, index, 0)?, into).ok()
    }

    /// Reads a counter of the doorbell record, `RCV_DBR` or `SND_DBR`.
    #[inline]
    pub(crate) fn posted(&self, func: &Func<'_>, host: &mut dyn Host, counter: usize) -> Option<u16> {
        let mut word = [0; RECORD_SIZE / 2];
        host.read(func.rid(), self.dbr + 4 * counter as u64, &mut word).ok()?;
        Some(u32::from_be_bytes(word) as u16)
    }
}

/// Frees `rkey`, so that it becomes invalid (IBTA 10.6.5: SEND with invalidate, local invalidate). With `remote`, the key
/// must allow its invalidation by a peer.
#[inline(never)]
pub fn invalidate(func: &mut Func<'_>, user: User, rkey: u32, remote: bool) -> Result<(), Fault> {
    may_invalidate(func, user, rkey, remote)?;
    unbind(func, rkey >> 8);
    if let Some(row) = func.get_mut::<MkeyRow>(rkey >> 8) {
        row.access |= access::FREE;
    }
    Ok(())
}

/// True if [`invalidate`] would succeed. Type 1 windows and ordinary regions end only by other means (IBTA 10.6.7.2.6,
/// 10.6.5): work requests cannot invalidate a key that they cannot modify.
#[inline(never)]
pub fn may_invalidate(func: &Func<'_>, user: User, rkey: u32, remote: bool) -> Result<(), Fault> {
    let row = key(func, user, rkey, 0)?;
    let allowed = match remote {
        true => row.flags & REMOTE_INVALIDATE != 0,
        false => row.access & access::UMR != 0,
    };
    if allowed { Ok(()) } else { Err(Fault::Permission) }
}

/// Unbinds the window of key index `number` from its region, which may then be destroyed.
pub(crate) fn unbind(func: &mut Func<'_>, number: u32) {
    let Some(row) = func.get::<MkeyRow>(number).filter(|row| row.bound != 0) else { return };
    let region = row.bound - 1;
    if let Some(row) = func.get_mut::<MkeyRow>(number) {
        row.bound = 0;
    }
    if let Some(region) = func.get_mut::<MkeyRow>(region) {
        region.head.refs = region.head.refs.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        engine::rig::{Link, Rig},
        host::Party,
    };

    const USER: User = User { pd: 9, qpn: 77 };

    /// Creates a key of four 4 KiB pages, the second and third of them adjacent, that starts `within` its first page.
    fn with_key(within: u64, len: u64, test: impl FnOnce(&mut Func<'_>, u32)) {
        let mut rig = Rig::new(Config::default(), Link::default());
        rig.with(0, |func| {
            let range = func.alloc_mtt(4).expect("entries");
            for (i, page) in [0x10_0000u64, 0x20_0000, 0x20_1000, 0x40_0000].into_iter().enumerate() {
                func.set_mtt(range.first + i as u32, page | 3);
            }
            let index = func.alloc_from::<MkeyRow>(0, Party(1), 16).expect("a key");
            let number = func.number::<MkeyRow>(index) << 8 | 7;
            let row = func.row_mut::<MkeyRow>(index).expect("the key");
            (row.start, row.len, row.mtt, row.pages) = (0x7000_0000 + within, len, range.first, 4);
            (row.variant, row.mode, row.log_page, row.pd) = (7, AccessMode::Mtt.raw(), 12, 9);
            (row.access, row.qpn) = (access::LOCAL_READ | access::REMOTE_READ, ANY_QP);
            test(func, number);
        });
    }

    fn at(func: &Func<'_>, key: u32, va: u64, len: u32) -> Result<Vec<(u64, u32)>, Fault> {
        let mut out = Vec::new();
        pieces(func, USER, key, va, len, access::REMOTE_READ, &mut out)?;
        Ok(out.iter().map(|p| (p.at, p.len)).collect())
    }

    #[test]
    fn adjacent_pages_are_one_piece() {
        with_key(0x100, 0x3f00, |func, key| {
            let start = 0x7000_0100;
            assert_eq!(at(func, key, start, 1), Ok(vec![(0x10_0100, 1)]));
            assert_eq!(
                at(func, key, start, 0x3f00),
                Ok(vec![(0x10_0100, 0xf00), (0x20_0000, 0x2000), (0x40_0000, 0x1000)])
            );
            assert_eq!(at(func, key, start + 0xeff, 2), Ok(vec![(0x10_0fff, 1), (0x20_0000, 1)]));
        });
    }

    #[test]
    fn no_byte_outside_the_range_is_reached() {
        with_key(0x100, 0x3000, |func, key| {
            let (start, end) = (0x7000_0100, 0x7000_3100);
            assert!(at(func, key, end - 1, 1).is_ok());
            for (va, len) in
                [(start - 1, 1), (end - 1, 2), (end, 1), (u64::MAX, 1), (0, 1), (u64::MAX - 3, 100)]
            {
                assert_eq!(at(func, key, va, len), Err(Fault::Bounds), "{va:#x}+{len}");
            }
            assert_eq!(at(func, key, end + 5, 0), Ok(vec![]), "nothing is asked for");
        });
    }

    #[test]
    fn a_key_must_be_the_right_one_for_domain_and_access() {
        with_key(0, 0x4000, |func, key| {
            let va = 0x7000_0000;
            assert_eq!(at(func, key ^ 1, va, 1), Err(Fault::Key));
            assert_eq!(at(func, key ^ 1 << 31, va, 1), Err(Fault::Key));
            assert_eq!(check(func, User { pd: 8, ..USER }, key, va, 1, 0), Err(Fault::Domain));
            assert_eq!(check(func, USER, key, va, 1, access::REMOTE_WRITE), Err(Fault::Permission));
        });
    }

    #[test]
    fn a_key_of_one_queue_pair_is_no_other_queue_pairs() {
        with_key(0, 0x4000, |func, key| {
            func.get_mut::<MkeyRow>(key >> 8).expect("the key").qpn = USER.qpn;
            let at = |qpn| check(func, User { qpn, ..USER }, key, 0x7000_0000, 1, 0);
            assert_eq!((at(77), at(78), at(0)), (Ok(()), Err(Fault::Domain), Err(Fault::Domain)));
        });
    }

    #[test]
    fn a_region_is_nothing_a_work_request_may_end() {
        with_key(0, 0x4000, |func, key| {
            assert_eq!(invalidate(func, USER, key, false), Err(Fault::Permission));
            assert_eq!(invalidate(func, USER, key, true), Err(Fault::Permission));
        });
    }

    #[test]
    fn a_key_that_was_invalidated_names_nothing() {
        let mut rig = Rig::new(Config::default(), Link::default());
        let key = rig.sides[0].key;
        rig.with(0, |func| {
            let pd = func.get::<MkeyRow>(key >> 8).map(|row| row.pd).expect("the key");
            let user = User { pd, qpn: 1 };
            assert!(check(func, user, key, 0, 1, 0).is_ok());
            assert_eq!(invalidate(func, user, key, true), Ok(()));
            assert_eq!(check(func, user, key, 0, 1, 0), Err(Fault::Key));
        });
    }
}
