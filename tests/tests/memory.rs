//! Memory as programs register it, lend parts of it, change what it is and give it up: the driver's verbs over a node.

use driver::{AccessFlags, Mr, Mw, MwBind, MwType, Pd, SendFlags, SendOp, WcOpcode, WcStatus, next_variant};
use ironverbs_tests::{
    end::{End, Words, pair, register},
    program::Scratch,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);
const LEN: usize = 1 << 16;
const WINDOWED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// Two ends, and memory of the second that no peer may touch but through windows.
struct Stage {
    a: End,
    b: End,
    words: Words,
    mr: Mr,
    _scratch: Scratch,
}

fn stage() -> Stage {
    let scratch = Scratch::new();
    let node = scratch.node(2).expect("a node");
    let (a, b) = pair(&node, 1, 2, LEN).expect("two ends");
    let words = Words::new(4096);
    let mr = register(&b.pd, &words, WINDOWED).expect("MR");
    Stage { a, b, words, mr, _scratch: scratch }
}

#[track_caller]
fn status(end: &End) -> (WcStatus, WcOpcode) {
    let wc = end.wait(SOON).expect("a completion");
    (wc.status, wc.opcode)
}

impl Stage {
    fn part(&self, at: u64, len: u64) -> MwBind<'_> {
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        MwBind { mr: Some(&self.mr), addr: self.words.addr() + at, len, access }
    }

    /// The first end writes eight bytes.
    #[track_caller]
    fn write(&self, raddr: u64, rkey: u32) -> WcStatus {
        self.a.post(1, SendOp::Write { raddr, rkey }, &[self.a.sge(0, 8)]).expect("post");
        status(&self.a).0
    }

    /// Binds a window of type 2 on the second end.
    #[track_caller]
    fn bind(&self, mw: &Mw, rkey: u32, part: &MwBind<'_>) {
        let op = mw.binding(rkey, part).expect("a binding");
        self.b.post(2, op, &[]).expect("post");
        assert_eq!(status(&self.b), (WcStatus::Success, WcOpcode::BindMw));
    }
}

#[test]
fn a_window_of_type_1_moves_and_ends() {
    let s = stage();
    let mw = Mw::alloc(&s.b.pd, MwType::One).expect("a window");
    let mut old = mw.rkey();
    for at in [64, 512] {
        mw.bind(&s.b.qp, 5, SendFlags::SIGNALED, &s.part(at, 8)).expect("bind");
        assert_eq!(status(&s.b), (WcStatus::Success, WcOpcode::BindMw));
        assert_ne!(mw.rkey(), old);
        old = mw.rkey();
        s.a.words.set_word(0, at);
        assert_eq!(s.write(s.words.addr() + at, old), WcStatus::Success);
        assert_eq!(s.words.word(at as usize), at);
    }
    let mut refused = s.part(64, 8);
    refused.access |= AccessFlags::ZERO_BASED;
    assert_eq!(mw.bind(&s.b.qp, 5, SendFlags::empty(), &refused), Err(libc::EINVAL), "zero-based");
    assert_eq!(
        mw.bind(&s.a.qp, 5, SendFlags::empty(), &s.part(64, 8)),
        Err(libc::EINVAL),
        "another domain's QP"
    );
    let nothing = MwBind { mr: None, addr: 0, len: 0, access: AccessFlags::empty() };
    mw.bind(&s.b.qp, 5, SendFlags::SIGNALED, &nothing).expect("bind");
    assert_eq!(status(&s.b), (WcStatus::Success, WcOpcode::BindMw));
    assert_eq!(s.write(s.words.addr() + 512, old), WcStatus::RemAccessErr);
}

#[test]
fn a_window_of_type_2_ends_by_an_invalidation_here_or_there() {
    for remote in [false, true] {
        let s = stage();
        let mw = Mw::alloc(&s.b.pd, MwType::Two).expect("a window");
        let rkey = next_variant(mw.rkey());
        s.bind(&mw, rkey, &s.part(64, 8));
        assert_eq!(s.write(s.words.addr() + 64, rkey), WcStatus::Success);
        if remote {
            s.b.receive(3, 0, 64).expect("post");
            s.a.post(4, SendOp::SendInv(rkey), &[]).expect("post");
            assert_eq!(status(&s.a), (WcStatus::Success, WcOpcode::Send));
            let wc = s.b.wait(SOON).expect("a completion");
            assert_eq!((wc.imm_or_inv, wc.opcode), (rkey, WcOpcode::Recv));
        } else {
            s.b.post(4, SendOp::LocalInv(rkey), &[]).expect("post");
            assert_eq!(status(&s.b), (WcStatus::Success, WcOpcode::LocalInv));
        }
        // It can be bound again, by another name.
        let next = next_variant(rkey);
        s.bind(&mw, next, &s.part(128, 8));
        assert_eq!(s.write(s.words.addr() + 128, next), WcStatus::Success);
        assert_eq!(s.write(s.words.addr() + 64, rkey), WcStatus::RemAccessErr);
    }
}

#[test]
fn a_zero_based_window_is_addressed_from_zero() {
    let s = stage();
    let mw = Mw::alloc(&s.b.pd, MwType::Two).expect("a window");
    let rkey = next_variant(mw.rkey());
    let mut part = s.part(64, 16);
    part.access |= AccessFlags::ZERO_BASED;
    s.bind(&mw, rkey, &part);
    s.a.words.set_word(0, 99);
    assert_eq!(s.write(8, rkey), WcStatus::Success);
    assert_eq!(s.words.word(72), 99);
    assert_eq!(s.write(16, rkey), WcStatus::RemAccessErr);
}

#[test]
fn bindings_that_cannot_be_are_refused_before_they_are_posted() {
    let s = stage();
    let mw = Mw::alloc(&s.b.pd, MwType::Two).expect("a window");
    let rkey = mw.rkey();
    let plain = register(&s.b.pd, &s.words, AccessFlags::LOCAL_WRITE).expect("MR");
    let read_only = register(&s.b.pd, &s.words, AccessFlags::MW_BIND).expect("MR");
    let pd = Pd::alloc(&s.b.device).expect("PD");
    let foreign = register(&pd, &s.words, WINDOWED).expect("MR");
    for (what, mr) in [("no window may be", &plain), ("read only", &read_only), ("other domain", &foreign)] {
        let part = MwBind { mr: Some(mr), ..s.part(0, 8) };
        assert_eq!(mw.binding(rkey, &part).err(), Some(libc::EINVAL), "{what}");
    }
    assert_eq!(mw.binding(rkey ^ 0x100, &s.part(0, 8)).err(), Some(libc::EINVAL), "another window's key");
    assert_eq!(mw.binding(rkey, &MwBind { mr: None, ..s.part(0, 8) }).err(), Some(libc::EINVAL), "no region");
    let local = MwBind { access: AccessFlags::ON_DEMAND, ..s.part(0, 8) };
    assert_eq!(mw.binding(rkey, &local).err(), Some(libc::EINVAL), "a right windows do not give");
}

#[test]
fn a_region_with_a_window_is_busy_and_stays_as_it_was() {
    let mut s = stage();
    let mw = Mw::alloc(&s.b.pd, MwType::Two).expect("a window");
    let rkey = next_variant(mw.rkey());
    s.bind(&mw, rkey, &s.part(64, 8));
    assert_eq!(s.mr.try_deregister().map_err(|e| e.errno()), Err(libc::EBUSY));
    let pd = Pd::alloc(&s.b.device).expect("PD");
    assert_eq!(s.mr.change(Some(&pd), None).map_err(|e| e.errno()), Err(libc::EBUSY));
    assert_eq!(s.write(s.words.addr() + 64, rkey), WcStatus::Success);
    mw.dealloc().expect("dealloc");
    s.mr.try_deregister().expect("deregister");
}

#[test]
fn rights_and_domain_of_a_region_change_and_its_keys_stay() {
    let mut s = stage();
    let all = WINDOWED | AccessFlags::REMOTE_WRITE;
    let (at, key) = (s.words.addr(), s.mr.rkey());
    s.mr.change(None, Some(all)).expect("more rights");
    assert_eq!((s.mr.rkey(), s.write(at, key)), (key, WcStatus::Success));
    let wrong = AccessFlags::REMOTE_WRITE;
    assert_eq!(s.mr.change(None, Some(wrong)).map_err(|e| e.errno()), Err(libc::EINVAL));
    assert_eq!(s.write(at, key), WcStatus::Success, "as it was");
    let pd = Pd::alloc(&s.b.device).expect("PD");
    s.mr.change(Some(&pd), None).expect("another domain");
    assert_eq!(s.write(at, key), WcStatus::RemAccessErr);
    assert_eq!(pd.dealloc().map_err(|e| e.errno()), Err(libc::EBUSY), "the region is in it");
}

#[test]
fn a_zero_based_region_is_addressed_from_zero_wherever_it_begins() {
    let s = stage();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
    for skip in [0, 8, 1024] {
        let words = Words::new(16384);
        let at = (words.addr().next_multiple_of(4096) - words.addr()) as usize + skip;
        // SAFETY: memory of atomics, which lives longer than the region.
        #[allow(unsafe_code)]
        let mr = unsafe { Mr::register(&s.b.pd, (words.addr() + at as u64) as *mut u8, 5000, 77, access) };
        let mr = mr.expect("MR");
        s.a.words.set_word(0, skip as u64 + 1);
        assert_eq!(s.write(4096, mr.rkey()), WcStatus::Success);
        assert_eq!(words.word(at + 4096), skip as u64 + 1);
        // Small messages come in the completion and find their place too.
        let sge = driver::Sge { addr: 16, length: 8, lkey: mr.lkey() };
        s.b.qp.post_recv([driver::RecvWr { wr_id: 0, sge: &[sge] }]).expect("post");
        s.a.post(1, SendOp::Send, &[s.a.sge(0, 8)]).expect("post");
        assert_eq!((status(&s.a).0, status(&s.b).0), (WcStatus::Success, WcStatus::Success));
        assert_eq!(words.word(at + 16), skip as u64 + 1);
        mr.deregister().expect("deregister");
    }
    let words = Words::new(4096);
    // SAFETY: as above.
    #[allow(unsafe_code)]
    let mr = unsafe { Mr::register(&s.b.pd, (words.addr() + 8) as *mut u8, 100, 0, access) }.expect("MR");
    assert_eq!(s.write(100 - 7, mr.rkey()), WcStatus::RemAccessErr, "behind its end");
}
