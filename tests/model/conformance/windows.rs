//! Memory windows: which binds IBTA 10.6.7 allows, and which peers may use a window.

use super::common::*;
use hwspec::context::mkey::ANY_QP;

/// Bytes of the region under the windows.
const REGION: usize = 4096;

/// Two peers, and a region and a window on the second.
struct Stage {
    bed: Bed,
    a: Qp,
    b: Qp,
    region: Mr,
    window: u32,
    from: Mr,
}

/// The part of a region that a window is bound to.
#[derive(Clone, Copy)]
struct Part {
    region: Mr,
    /// First byte in the region, and number of bytes.
    at: (u64, u64),
    write: bool,
    atomic: bool,
    /// The queue pair of a type 2 window.
    qpn: u32,
    variant: u8,
}

fn stage(access: Access) -> Stage {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    let (region, from) = (bed.mr(2, REGION, access), bed.mr(1, 64, Access::ALL));
    let pd = bed.state(2).pd;
    let window = bed.free_key(2, AccessMode::Klm, 4, pd);
    bed.fill(from, &[0x5a; 64]);
    Stage { bed, a, b, region, window, from }
}

impl Stage {
    /// 256 bytes from byte 512 on, for peers' writes.
    fn part(&self) -> Part {
        Part {
            region: self.region,
            at: (512, 256),
            write: true,
            atomic: false,
            qpn: ANY_QP,
            variant: self.window as u8 + 1,
        }
    }

    fn bind_wr(&self, part: Part) -> Umr {
        let mut context = MkeyContext::zeroed();
        context.set().rr(true).rw(part.write).a(part.atomic).qpn(part.qpn).mkey_7_0(part.variant);
        context.set().start_addr(part.region.va + part.at.0).len(part.at.1);
        Umr {
            key: self.window,
            check: if part.qpn == ANY_QP { 0 } else { MUST_BE_FREE },
            mask: MkeyMask::LEN
                | MkeyMask::START_ADDR
                | MkeyMask::KEY
                | MkeyMask::QPN
                | MkeyMask::FREE
                | MkeyMask::RR
                | MkeyMask::RW
                | MkeyMask::A,
            context,
            inline: vec![part.at.1 << 32 | u64::from(part.region.key), part.region.va + part.at.0],
            ..Umr::default()
        }
    }

    fn end_wr(&self, key: u32, tied: bool) -> Umr {
        let context = MkeyContext::with(|s| s.free(true).qpn(ANY_QP).mkey_7_0(key as u8));
        Umr { key, mask: MkeyMask::FREE | MkeyMask::QPN, context, tied, ..Umr::default() }
    }

    fn bind(&mut self, part: Part) -> Wc {
        let umr = self.bind_wr(part);
        self.bed.umr(self.b, &umr)
    }

    fn key(&self, part: Part) -> u32 {
        self.window & !0xff | u32::from(part.variant)
    }

    /// WRITEs 64 bytes from the first peer.
    fn write(&mut self, va: u64, rkey: u32) -> Wc {
        self.bed.execute(self.a, &Wr::new(Op::Write { va, rkey }, &[self.from.sge()]))
    }
}

const REFUSED: Option<CqeSyndrome> = Some(CqeSyndrome::RemoteAccessErr);
const UNBOUND: Option<CqeSyndrome> = Some(CqeSyndrome::MwBindErr);

/// IBTA 10.6.7.1: a window grants peers rights that the region does not, within its bounds, and does not change the region's rights.
#[test]
fn a_window_grants_a_part_of_a_region_to_peers() {
    let mut s = stage(Access::LOCAL);
    let part = s.part();
    assert!(s.bind(part).is_ok());
    let (start, key) = (s.region.va + 512, s.key(part));
    assert!(s.write(start, key).is_ok());
    assert!(s.write(start + 256 - 64, key).is_ok());
    assert_eq!(s.bed.bytes(s.region)[512..576], [0x5a; 64]);
    assert_eq!(s.write(start + 256 - 63, key).error, REFUSED);
    for (va, key) in [(start - 1, key), (start, s.region.key), (start, s.window)] {
        let mut s = stage(Access::LOCAL);
        assert!(s.bind(part).is_ok());
        assert_eq!(s.write(va, key).error, REFUSED, "{va:#x} by {key:#x}");
    }
}

/// IBTA 10.6.7.2.4: an invalid bind is refused, and the window is unchanged.
#[test]
fn a_bind_keeps_to_its_region() {
    type Change = fn(&mut Stage, &mut Part);
    let cases: [(&str, Access, Change); 5] = [
        ("behind the region", Access::LOCAL, |_, p| p.at = (REGION as u64 - 255, 256)),
        ("peers may write what its owner may not", Access::LOCAL_READ, |_, _| ()),
        ("peers may do atomics where its owner may not write", Access::LOCAL_READ, |_, p| {
            (p.write, p.atomic) = (false, true);
        }),
        ("a region of another domain", Access::LOCAL, |s, p| {
            let pd = s.bed.pd(2);
            p.region = s.bed.mr_with(2, REGION, Access::LOCAL, pd, None);
        }),
        ("no region at all", Access::LOCAL, |_, p| p.region.key ^= 0x10),
    ];
    for (what, access, change) in cases {
        let mut s = stage(access);
        let mut part = s.part();
        change(&mut s, &mut part);
        assert_eq!(s.bind(part).error, UNBOUND, "{what}");
        assert_eq!(s.bed.qp_state(s.b), QpState::Err, "{what}");
        assert!(s.bed.query_mkey(2, s.window).free(), "{what}");
        assert!(s.bed.destroy_mkey(2, s.region.key).is_ok(), "{what}: nothing is bound to the region");
    }
}

/// IBTA 10.6.7.2.2: a type 2B window serves only the queue pair on which it was bound, and no other of its domain.
#[test]
fn a_window_of_type_2_is_of_one_queue_pair() {
    let mut s = stage(Access::LOCAL);
    let part = Part { qpn: s.b.qpn, ..s.part() };
    let (_, d) = s.bed.pair(path());
    let bind = s.bind_wr(part);
    assert_eq!(s.bed.umr(d, &bind).error, UNBOUND, "tied to another than it is posted on");
    assert!(s.bind(part).is_ok());
    let (va, rkey) = (s.region.va + 512, s.key(part));
    assert!(s.write(va, rkey).is_ok());
    let (e, _) = s.bed.pair(path());
    assert_eq!(s.bed.execute(e, &Wr::new(Op::Write { va, rkey }, &[s.from.sge()])).error, REFUSED);
    // Another queue pair cannot invalidate it either.
    let (_, h) = s.bed.pair(path());
    let end = s.end_wr(rkey, true);
    assert_eq!(s.bed.umr(h, &end).error, UNBOUND);
    assert!(s.write(va, rkey).is_ok());
    // It can be bound, invalidated, and bound again.
    assert!(s.bed.umr(s.b, &end).is_ok());
    assert_eq!(s.write(va, rkey).error, REFUSED);
}

/// IBTA 10.6.7.2.3: a bound type 2 window must be invalidated first; a type 1 window can be rebound, which invalidates its old key.
#[test]
fn a_window_of_type_1_moves_and_one_of_type_2_does_not() {
    let mut s = stage(Access::LOCAL);
    let first = s.part();
    let second = Part { at: (2048, 64), variant: first.variant + 1, ..first };
    assert!(s.bind(first).is_ok());
    assert!(s.bind(second).is_ok());
    assert!(s.write(s.region.va + 2048, s.key(second)).is_ok());
    assert_eq!(s.write(s.region.va + 512, s.key(first)).error, REFUSED);
    let mut s = stage(Access::LOCAL);
    let qpn = s.b.qpn;
    assert!(s.bind(Part { qpn, ..first }).is_ok());
    assert_eq!(s.bind(Part { qpn, ..second }).error, UNBOUND);
}

/// IBTA 10.6.7.2.6, 10.6.5.1: a local invalidate of a type 1 window or of a region is refused.
#[test]
fn only_windows_of_type_2_are_invalidated() {
    let mut s = stage(Access::LOCAL);
    let part = s.part();
    assert!(s.bind(part).is_ok());
    let end = s.end_wr(s.key(part), true);
    assert_eq!(s.bed.umr(s.b, &end).error, UNBOUND);
    let mut s = stage(Access::LOCAL);
    let end = s.end_wr(s.region.key, true);
    assert_eq!(s.bed.umr(s.b, &end).error, UNBOUND);
}

/// libmlx5 invalidates a key of several parts (`mlx5dv_wr_mr_list`) as a window of type 2, although no queue pair owns it.
#[test]
fn a_key_of_several_parts_is_invalidated_once() {
    let mut s = stage(Access::LOCAL);
    let mut list = s.bind_wr(s.part());
    list.mask -= MkeyMask::QPN;
    list.inline.extend([64 << 32 | u64::from(s.region.key), s.region.va]);
    assert!(s.bed.umr(s.b, &list).is_ok());
    let (va, key) = (s.region.va + 512, s.key(s.part()));
    assert!(s.write(va, key).is_ok());
    let end = s.end_wr(key, true);
    assert!(s.bed.umr(s.b, &end).is_ok());
    assert!(s.bed.query_mkey(2, key).free());
    assert_eq!(s.bed.umr(s.b, &end).error, UNBOUND);
}

/// IBTA 10.6.7.2.5 and the manual of `ibv_dereg_mr`: a region cannot be deregistered while a window is bound to it.
#[test]
fn a_region_with_windows_stays() {
    type End = fn(&mut Stage, Part);
    let ends: [(&str, End); 3] = [
        ("ended", |s, part| {
            let end = s.end_wr(s.key(part), true);
            assert!(s.bed.umr(s.b, &end).is_ok());
        }),
        ("deallocated", |s, part| {
            let key = s.key(part);
            s.bed.destroy_mkey(2, key).expect("DESTROY_MKEY");
        }),
        ("invalidated by the peer", |s, part| {
            let into = s.bed.mr(2, 64, Access::LOCAL);
            s.bed.post_recv(s.b, &[into.sge()]);
            s.bed.done(s.a, &Wr::new(Op::SendInv(s.key(part)), &[s.from.sge()]));
        }),
    ];
    for (how, end) in ends {
        let mut s = stage(Access::LOCAL);
        let part = Part { qpn: s.b.qpn, ..s.part() };
        let mut umr = s.bind_wr(part);
        umr.mask |= MkeyMask::EN_RINVAL;
        umr.context.set().en_rinval(true);
        assert!(s.bed.umr(s.b, &umr).is_ok());
        assert!(s.bed.destroy_mkey(2, s.region.key).is_err(), "{how}");
        end(&mut s, part);
        assert!(s.bed.destroy_mkey(2, s.region.key).is_ok(), "{how}");
    }
}
