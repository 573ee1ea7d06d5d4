//! Memory keys changed by work requests (UMR), and keys made from others.

use super::common::*;

/// Raw value of `check_free`.
const MUST_BE_IN_USE: u8 = 2;
const PAGE: u64 = 4096;
/// Readable and writable.
const PRESENT: u64 = 3;
/// Start address of the keys under test.
const VA: u64 = 0x1234_5000;

/// The fields that the stock driver changes when it takes a cached key into use.
fn everything() -> MkeyMask {
    rights() | MkeyMask::LEN | MkeyMask::PAGE_SIZE | MkeyMask::START_ADDR | MkeyMask::KEY | MkeyMask::FREE
}

fn rights() -> MkeyMask {
    MkeyMask::PD | MkeyMask::LR | MkeyMask::LW | MkeyMask::RR | MkeyMask::RW | MkeyMask::A
}

/// A context over `pages` pages from [`VA`] in `pd`, with all access rights.
fn context(pd: u32, pages: u64, variant: u8) -> MkeyContext {
    let mut c = MkeyContext::zeroed();
    c.set().lr(true).lw(true).rr(true).rw(true).a(true).pd(pd).qpn(0xff_ffff).mkey_7_0(variant);
    c.set().start_addr(VA).len(pages * PAGE).log_page_size(12);
    c
}

/// Like [`context`], with 350 bytes.
fn short(pd: u32, variant: u8) -> MkeyContext {
    let mut c = context(pd, 1, variant);
    c.set().len(350);
    c
}

/// The translation entries of a buffer's pages, padded to a multiple of 64 bytes as the driver does.
fn entries(buffer: Buffer) -> Vec<u64> {
    let mut list: Vec<u64> =
        (0..buffer.len as u64 / PAGE).map(|i| (buffer.at + i * PAGE) | PRESENT).collect();
    list.resize(list.len().next_multiple_of(8), 0);
    list
}

struct Stage {
    bed: Bed,
    umr: Qp,
    /// Connected QPs of functions 1 and 2; the key belongs to function 2.
    pair: (Qp, Qp),
    key: u32,
    pd: u32,
    buffer: Buffer,
    from: Mr,
}

/// Returns a free key with room for `octowords` on function 2, and a buffer of `pages` pages.
fn stage(octowords: u32, pages: u64) -> Stage {
    let mut bed = Bed::cx5();
    // The second QP is a kernel's: it may use the reserved key, and so refer to pages.
    let kernel = QpSpec { rlky: true, ..QpSpec::default() };
    let pair = bed.pair_of([QpSpec::default(), kernel], path());
    let umr = bed.umr_qp(2);
    let pd = bed.state(2).pd;
    let key = bed.free_key(2, AccessMode::Mtt, octowords, pd);
    let buffer = bed.buffer(2, (pages * PAGE) as usize);
    let from = bed.mr(1, 64, Access::ALL);
    bed.fill(from, &[0x5a; 64]);
    Stage { bed, umr, pair, key, pd, buffer, from }
}

impl Stage {
    fn enable(&self) -> Umr {
        Umr {
            key: self.key,
            check: MUST_BE_FREE,
            mask: everything(),
            context: context(self.pd, self.buffer.len as u64 / PAGE, self.key as u8),
            inline: entries(self.buffer),
            ..Umr::default()
        }
    }

    fn post(&mut self, umr: &Umr) -> Wc {
        self.bed.umr(self.umr, umr)
    }

    /// WRITEs the source's 64 bytes to `va`.
    fn write(&mut self, va: u64, rkey: u32) -> Wc {
        self.bed.execute(self.pair.0, &Wr::new(Op::Write { va, rkey }, &[self.from.sge()]))
    }
}

/// Row 61: a free key refers to no memory; a UMR makes it refer to the pages in the request; freed again it refers to none.
#[test]
fn row_61_key_is_put_to_use_and_revoked() {
    let mut s = stage(2, 3);
    let enable = s.enable();
    let wc = s.post(&enable);
    assert_eq!((wc.opcode, wc.error), (CqeOpcode::Req, None));
    let key = s.key;
    assert!(s.write(VA + 2 * PAGE - 10, key).is_ok());
    let across = s.buffer.at + 2 * PAGE - 10;
    assert_eq!(s.bed.memory.get(across, 64), [0x5a; 64]);
    // A key already in use is not enabled again.
    let wc = s.post(&enable);
    assert_eq!(wc.error, Some(CqeSyndrome::MwBindErr));
    assert_eq!(s.bed.qp_state(s.umr), QpState::Err);
    let umr = s.umr;
    s.bed.to_reset(umr).expect("2RST_QP");
    s.bed.ready(umr, &Path { mtu: 4096, ..Path::default() });
    let free = MkeyContext::with(|s| s.free(true).mkey_7_0(key as u8));
    let revoke = Umr { key, mask: MkeyMask::FREE, context: free, ..Umr::default() };
    assert!(s.post(&revoke).is_ok());
    let wc = s.write(VA, key);
    assert_eq!(wc.error, Some(CqeSyndrome::RemoteAccessErr));
}

/// Row 25: a key enabled by UMR reaches no byte outside its range, and no page that was not in the request.
#[test]
fn row_25_a_key_by_umr_has_bounds() {
    for (va, good) in [(VA, true), (VA + 3 * PAGE - 64, true), (VA + 3 * PAGE - 63, false), (VA - 1, false)] {
        let mut s = stage(2, 3);
        let enable = s.enable();
        assert!(s.post(&enable).is_ok());
        let key = s.key;
        assert_eq!(s.write(va, key).is_ok(), good, "{va:#x}");
    }
    // A length that the list does not cover.
    let mut s = stage(4, 3);
    let long = Umr { context: context(s.pd, 8, s.key as u8), ..s.enable() };
    assert!(s.post(&long).is_ok());
    let key = s.key;
    assert!(s.write(VA, key).is_ok());
    assert_eq!(s.write(VA + 3 * PAGE, key).error, Some(CqeSyndrome::RemoteAccessErr));
}

/// Row 61: translations may be in memory that the WQE points to, and may be split over several requests with an offset.
#[test]
fn row_61_translations_by_pointer_and_in_parts() {
    // The reserved lkey, or a key of the QP's own domain as set on the way to INIT.
    for lkey in [Some(0x200), None] {
        by_pointer(lkey);
    }
}

fn by_pointer(physical: Option<u32>) {
    let mut s = stage(64, 100);
    let list = entries(s.buffer);
    let bytes: Vec<u8> = list.iter().flat_map(|e| e.to_be_bytes()).collect();
    let pd = s.pd;
    let at = s.bed.mr_with(2, bytes.len(), Access::LOCAL_READ, pd, None);
    s.bed.memory.put(at.at, &bytes);
    let part = |from: usize, octowords: u16| {
        let sge = at.part(from as u64 * 16, u32::from(octowords) * 16);
        let sge = physical.map_or(sge, |lkey| Sge { va: sge.va - Mr::VA, lkey, ..sge });
        (Some((sge, octowords)), (from > 0).then_some(from as u16))
    };
    let (list, offset) = part(0, 32);
    let first =
        Umr { list, offset, check: MUST_BE_FREE, mask: MkeyMask::empty(), inline: vec![], ..s.enable() };
    assert!(s.post(&first).is_ok());
    let (list, offset) = part(32, 20);
    let second = Umr { list, offset, inline: vec![], ..s.enable() };
    assert!(s.post(&second).is_ok());
    let key = s.key;
    for page in [0u64, 63, 64, 99] {
        assert!(s.write(VA + page * PAGE, key).is_ok());
        let at = s.buffer.at + page * PAGE;
        assert_eq!(s.bed.memory.get(at, 64), [0x5a; 64], "page {page}");
    }
}

/// Row 61: a request that does not fit the key changes nothing.
#[test]
fn row_61_a_refused_umr_changes_nothing() {
    type Change = fn(&mut Umr);
    let cases: [(&str, Change); 9] = [
        ("more entries than there is room for", |u| u.inline.resize(16, PRESENT)),
        ("an offset behind the room", |u| u.offset = Some(100)),
        ("a key in use is expected", |u| u.check = MUST_BE_IN_USE),
        ("another variant without changing it", |u| (u.key, u.mask) = (u.key ^ 1, u.mask - MkeyMask::KEY)),
        ("no such key", |u| u.key ^= 0x0100_0000),
        ("a domain that is not there", |u| {
            u.context.set().pd(0xffff);
        }),
        ("pages too small", |u| {
            u.context.set().log_page_size(11);
        }),
        ("a range behind the end of the address space", |u| {
            u.context.set().start_addr(u64::MAX - 100);
        }),
        ("signatures", |u| {
            u.mask |= MkeyMask::BSF_EN;
            u.context.set().bsf_en(true);
        }),
    ];
    for (text, change) in cases {
        let mut s = stage(2, 3);
        let mut umr = s.enable();
        change(&mut umr);
        assert!(!s.post(&umr).is_ok(), "{text}");
        let query = s.bed.query_mkey(2, s.key);
        assert!(query.free() && query.pd() == s.pd && query.len() == 0, "{text}: {query:?}");
    }
}

/// Row 61: rights and domain may change while the key is in use; the domains count their users.
#[test]
fn row_61_rights_and_domain_of_a_key_in_use() {
    let mut s = stage(2, 1);
    let enable = s.enable();
    assert!(s.post(&enable).is_ok());
    let key = s.key;
    let mut read_only = context(s.pd, 1, key as u8);
    read_only.set().rw(false);
    let change = Umr { key, check: MUST_BE_IN_USE, mask: rights(), context: read_only, ..Umr::default() };
    assert!(s.post(&change).is_ok());
    let read = Wr::new(Op::Read { va: VA, rkey: key }, &[s.from.sge()]);
    s.bed.done(s.pair.0, &read);
    assert_eq!(s.write(VA, key).error, Some(CqeSyndrome::RemoteAccessErr));
    let other = s.bed.pd(2);
    let moved = Umr { context: context(other, 1, key as u8), ..change };
    assert!(s.post(&moved).is_ok());
    assert_eq!(s.bed.query_mkey(2, key).pd(), other);
    assert!(s.bed.dealloc_pd(2, other).is_err(), "the key is in it");
}

/// Row 51: a connected QP registers and invalidates only keys of its own domain, in the order of its requests.
#[test]
fn row_51_fast_registration_on_a_connected_qp() {
    let mut s = stage(2, 2);
    let (b, key) = (s.pair.1, s.key);
    let fast = |s: &Stage, variant: u8| Umr {
        key: key & !0xff | u32::from(variant),
        mask: everything() - MkeyMask::PD,
        context: context(0, 2, variant),
        ..s.enable()
    };
    let one = fast(&s, 0x77);
    assert!(s.bed.umr(b, &one).is_ok());
    let named = key & !0xff | 0x77;
    assert!(s.write(VA, named).is_ok());
    s.bed.done(b, &Wr::new(Op::LocalInval(named), &[]));
    let two = fast(&s, 0x78);
    assert!(s.bed.umr(b, &two).is_ok(), "free again");
    assert_eq!(s.write(VA, named).error, Some(CqeSyndrome::RemoteAccessErr), "the former name");
    // A QP of another domain.
    let pd = s.bed.pd(2);
    let stranger = s.bed.qp_with(2, QpSpec { pd: Some(pd), ..QpSpec::default() }).expect("CREATE_QP");
    s.bed.foreign_of(stranger, path());
    let umr = fast(&s, 0x79);
    assert_eq!(s.bed.umr(stranger, &Umr { check: 0, ..umr }).error, Some(CqeSyndrome::MwBindErr));
    // A program's QP of the same domain. It may not refer to pages, because they could belong to any process.
    let program = s.bed.qp(2);
    s.bed.foreign_of(program, path());
    let umr = fast(&s, 0x7a);
    assert_eq!(s.bed.umr(program, &Umr { check: 0, ..umr }).error, Some(CqeSyndrome::MwBindErr));
}

/// Row 25: a key made of parts of others translates to them, with its own bounds and rights. It cannot be made of keys of its own kind.
#[test]
fn row_25_a_key_made_of_others() {
    let mut s = stage(2, 1);
    let parts = [s.bed.mr(2, 5000, Access::LOCAL), s.bed.mr(2, 300, Access::LOCAL)];
    let (pd, umr) = (s.pd, s.umr);
    let klm = |mr: Mr, from: u64, len: u64| [len << 32 | u64::from(mr.key), mr.va + from];
    let list = [klm(parts[0], 4000, 100), klm(parts[1], 0, 50), klm(parts[0], 0, 200), [0, 0]].concat();
    let make = |key: u32, inline: Vec<u64>| Umr {
        key,
        check: MUST_BE_FREE,
        mask: everything(),
        context: short(pd, key as u8),
        inline,
        ..Umr::default()
    };
    let key = s.bed.free_key(2, AccessMode::Klm, 4, pd);
    assert!(s.bed.umr(umr, &make(key, list)).is_ok());
    assert!(s.write(VA + 96, key).is_ok());
    assert_eq!(s.bed.bytes(parts[0])[4090..4106], [[0u8; 6].as_slice(), &[0x5a; 4], &[0; 6]].concat());
    assert_eq!(s.bed.bytes(parts[1])[..50], [0x5a; 50]);
    assert_eq!(s.bed.bytes(parts[0])[..11], [[0x5a; 10].as_slice(), &[0]].concat());
    assert_eq!(s.write(VA + 300, key).error, Some(CqeSyndrome::RemoteAccessErr), "behind its end");
    // A key made of such a key translates to nothing.
    let mut s2 = stage(2, 1);
    let inner = s2.bed.free_key(2, AccessMode::Klm, 4, s2.pd);
    let outer = s2.bed.free_key(2, AccessMode::Klm, 4, s2.pd);
    let mr = s2.bed.mr(2, 300, Access::LOCAL);
    let umr = s2.umr;
    assert!(s2.bed.umr(umr, &make(inner, klm(mr, 0, 300).to_vec())).is_ok());
    assert!(s2.bed.umr(umr, &make(outer, vec![300 << 32 | u64::from(inner), VA])).is_ok());
    assert!(s2.write(VA, inner).is_ok());
    assert_eq!(s2.write(VA, outer).error, Some(CqeSyndrome::RemoteAccessErr));
}

/// Row 25: in a repeat block (mlx5dv: an interleaved layout) each round takes bytes from every part, a stride further in each.
#[test]
fn row_25_a_key_of_repeated_parts() {
    let mut s = stage(2, 1);
    let [first, second] = [(); 2].map(|()| s.bed.mr(2, 300, Access::LOCAL));
    let key = s.bed.free_key(2, AccessMode::Klm, 4, s.pd);
    let entry = |stride: u64, bytes: u64, mr: Mr| [stride << 48 | bytes << 32 | u64::from(mr.key), mr.va];
    // Five rounds of 8 + 6 bytes.
    let inline = [[14 << 32 | 0x400, 5 << 32 | 2], entry(10, 8, first), entry(6, 6, second), [0, 0]].concat();
    let context = short(s.pd, key as u8);
    let umr = Umr { key, check: MUST_BE_FREE, mask: everything(), context, inline, ..Umr::default() };
    assert!(s.post(&umr).is_ok());
    assert!(s.write(VA + 3, key).is_ok());
    let round = [[0x5a; 8].as_slice(), &[0; 2]].concat();
    let expected = [[0; 3].as_slice(), &round[3..], &round, &round, &round, &round].concat();
    assert_eq!(s.bed.bytes(first)[..50], expected);
    assert_eq!(s.bed.bytes(second)[..30], [[0x5a; 27].as_slice(), &[0; 3]].concat());
    assert_eq!(s.write(VA + 7, key).error, Some(CqeSyndrome::RemoteAccessErr), "behind the last round");
}
