//! Memory that programs register, share in parts, re-register and deregister: the driver's verbs over a node.

use driver::{
    AccessFlags, Dm, Error, Mr, Mw, MwBind, MwType, Pd, RecvWr, SendFlags, SendOp, Sge, WcOpcode, WcStatus,
    next_variant,
};
use ironverbs_tests::{
    end::{End, Words, pair, register},
    program::Scratch,
};
const LEN: usize = 1 << 16;
const WINDOWED: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// Two ends, and memory of the second that peers may access only through windows.
struct Stage {
    a: End,
    b: End,
    words: Words,
    mr: Mr,
    _scratch: Scratch,
}

fn stage() -> Stage {
    let (scratch, node) = Scratch::with_node(2);
    let (a, b) = pair(&node, 1, 2, LEN);
    let words = Words::new(4096);
    let mr = register(&b.pd, &words, WINDOWED).expect("MR");
    Stage { a, b, words, mr, _scratch: scratch }
}

#[track_caller]
fn status(end: &End) -> (WcStatus, WcOpcode) {
    let wc = end.wait();
    (wc.status, wc.opcode)
}

fn errno<T>(result: Result<T, Error>) -> Option<i32> {
    result.map_err(|e| e.errno()).err()
}

impl Stage {
    fn part(&self, at: u64, len: u64) -> MwBind<'_> {
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        MwBind { mr: Some(&self.mr), addr: self.words.addr() + at, len, access }
    }

    /// WRITEs eight bytes from the first end.
    #[track_caller]
    fn write(&self, raddr: u64, rkey: u32) -> WcStatus {
        self.a.post(1, SendOp::Write { raddr, rkey }, &[self.a.sge(0, 8)]);
        status(&self.a).0
    }

    /// SENDs as many bytes as `sge` of the second end has, from the beginning of the first one's memory.
    #[track_caller]
    fn send_into(&self, sge: Sge) {
        self.b.qp.post_recv([RecvWr { wr_id: 0, sge: &[sge] }]).expect("post");
        self.a.post(1, SendOp::Send, &[self.a.sge(0, sge.length as usize)]);
        assert_eq!((status(&self.a).0, status(&self.b).0), (WcStatus::Success, WcStatus::Success));
    }

    /// SENDs `sge` of the second end to the first one's memory at `at`.
    #[track_caller]
    fn send_from(&self, sge: Sge, at: usize) {
        self.a.receive(2, at, 8192);
        self.b.post(3, SendOp::Send, &[sge]);
        assert_eq!((status(&self.b).0, status(&self.a).0), (WcStatus::Success, WcStatus::Success));
    }

    /// Binds a type 2 window on the second end.
    #[track_caller]
    fn bind(&self, mw: &Mw, rkey: u32, part: &MwBind<'_>) {
        let op = mw.binding(rkey, part).expect("a binding");
        self.b.post(2, op, &[]);
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
        s.b.good(WcOpcode::BindMw);
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
    s.b.good(WcOpcode::BindMw);
    assert_eq!(s.write(s.words.addr() + 512, old), WcStatus::RemAccessErr);
}

#[test]
fn a_window_of_a_parent_domain_is_bound_with_what_its_domain_has() {
    let s = stage();
    let mw = Mw::alloc(&Pd::face(&s.b.pd, None), MwType::One).expect("a window");
    mw.bind(&s.b.qp, 5, SendFlags::SIGNALED, &s.part(64, 8)).expect("bind");
    s.b.good(WcOpcode::BindMw);
    assert_eq!(s.write(s.words.addr() + 64, mw.rkey()), WcStatus::Success);
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
            s.b.receive(3, 0, 64);
            s.a.post(4, SendOp::SendInv(rkey), &[]);
            s.a.good(WcOpcode::Send);
            let wc = s.b.wait();
            assert_eq!((wc.imm_or_inv, wc.opcode), (rkey, WcOpcode::Recv));
        } else {
            s.b.post(4, SendOp::LocalInv(rkey), &[]);
            s.b.good(WcOpcode::LocalInv);
        }
        // It can be bound again, with another key.
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
    assert_eq!(errno(s.mr.try_deregister()), Some(libc::EBUSY));
    let pd = Pd::alloc(&s.b.device).expect("PD");
    assert_eq!(errno(s.mr.change(Some(&pd), None)), Some(libc::EBUSY));
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
    assert_eq!(errno(s.mr.change(None, Some(wrong))), Some(libc::EINVAL));
    assert_eq!(s.write(at, key), WcStatus::Success, "as it was");
    let pd = Pd::alloc(&s.b.device).expect("PD");
    s.mr.change(Some(&pd), None).expect("another domain");
    assert_eq!(s.write(at, key), WcStatus::RemAccessErr);
    assert_eq!(errno(pd.dealloc()), Some(libc::EBUSY), "the region is in it");
}

#[test]
fn a_zero_based_region_is_addressed_from_zero_wherever_it_begins() {
    let s = stage();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED;
    for skip in [0, 8, 1024] {
        let words = Words::new(16384);
        let at = (words.addr().next_multiple_of(4096) - words.addr()) as usize + skip;
        // SAFETY: the memory consists of atomics and outlives the region.
        #[allow(unsafe_code)]
        let mr = unsafe { Mr::register(&s.b.pd, (words.addr() + at as u64) as *mut u8, 5000, 77, access) };
        let mr = mr.expect("MR");
        s.a.words.set_word(0, skip as u64 + 1);
        assert_eq!(s.write(4096, mr.rkey()), WcStatus::Success);
        assert_eq!(words.word(at + 4096), skip as u64 + 1);
        // Small messages are delivered in the CQE, and also reach the right address.
        s.send_into(Sge { addr: 16, length: 8, lkey: mr.lkey() });
        assert_eq!(words.word(at + 16), skip as u64 + 1);
        mr.deregister().expect("deregister");
    }
    let words = Words::new(4096);
    // SAFETY: `words` outlives the region, and the bytes are accessed only as atomics meanwhile.
    #[allow(unsafe_code)]
    let mr = unsafe { Mr::register(&s.b.pd, (words.addr() + 8) as *mut u8, 100, 0, access) }.expect("MR");
    assert_eq!(s.write(100 - 7, mr.rkey()), WcStatus::RemAccessErr, "behind its end");
}

#[test]
fn peers_reach_device_memory_and_its_owner_sees_it_through_registers() {
    let s = stage();
    let dm = Dm::alloc(&s.b.device, 8192, 3).expect("device memory");
    let mut words = [0; 16];
    dm.read(4096, &mut words).expect("read");
    assert_eq!(words, [0; 16], "nothing of who had it before");
    let rights = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::ZERO_BASED;
    let mut mr = Mr::of_device(&s.b.pd, &dm, 4096, 4096, rights).expect("MR");
    // WRITE, READ and an atomic by the peer; the addresses of the key begin at 0.
    s.a.words.set_word(0, 0x0102_0304_0506_0708);
    assert_eq!(s.write(8, mr.rkey()), WcStatus::Success);
    dm.read(4096, &mut words).expect("read");
    assert_eq!(words[8..], 0x0102_0304_0506_0708u64.to_ne_bytes());
    s.a.post(1, SendOp::FetchAdd { raddr: 8, rkey: mr.rkey(), add: 1 }, &[s.a.sge(64, 8)]);
    s.a.good(WcOpcode::FetchAdd);
    assert_eq!(s.a.words.word(64), 0x0102_0304_0506_0708, "what it was");
    s.a.post(1, SendOp::Read { raddr: 8, rkey: mr.rkey() }, &[s.a.sge(128, 8)]);
    s.a.good(WcOpcode::RdmaRead);
    assert_eq!(s.a.words.word(128), 0x0102_0304_0506_0709);
    // Sent from and received into the region, in the CQE and by the device, at all lengths.
    for len in [4, 31, 64, 4000] {
        let sge = Sge { addr: 4, length: len, lkey: mr.lkey() };
        let sent: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
        s.a.words.put(0, &sent);
        s.send_into(sge);
        let mut found = vec![0; (len as usize).next_multiple_of(4)];
        dm.read(4100, &mut found).expect("read");
        assert_eq!(found[..len as usize], sent, "{len} bytes received");
        s.send_from(sge, 8192);
        assert_eq!(s.a.words.bytes(8192, len as usize), sent, "{len} bytes sent");
    }
    assert_eq!(errno(dm.clone().free()), Some(libc::EBUSY), "a region lies on it");
    mr.change(None, Some(rights - AccessFlags::REMOTE_ATOMIC)).expect("other rights under the same keys");
    assert_eq!(s.write(4096 - 8, mr.rkey()), WcStatus::Success);
    assert_eq!(s.write(4096 - 7, mr.rkey()), WcStatus::RemAccessErr, "behind the region");
    mr.deregister().expect("deregister");
    dm.free().expect("free");
}

#[test]
fn device_memory_keeps_to_words_and_bounds() {
    let s = stage();
    let most = s.b.device.attr().max_dm_size;
    assert!(most > 0);
    assert_eq!(errno(Dm::alloc(&s.b.device, most + 1, 0)), Some(libc::EINVAL));
    assert_eq!(errno(Dm::alloc(&s.b.device, 0, 0)), Some(libc::EINVAL));
    Dm::alloc(&s.b.device, 8, 12).expect("at a page").free().expect("given back");
    assert_eq!(errno(Dm::alloc(&s.b.device, 8, 13)), Some(libc::EINVAL));
    let all = Dm::alloc(&s.b.device, most, 0).expect("all of it");
    assert_eq!(errno(Dm::alloc(&s.b.device, 4, 0)), Some(libc::ENOMEM));
    drop(all);
    let dm = Dm::alloc(&s.b.device, 100, 0).expect("some of it");
    let mut four = [0; 4];
    assert_eq!(dm.read(1, &mut four), Err(libc::EINVAL));
    assert_eq!(dm.write(0, &four[..3]), Err(libc::EINVAL));
    assert_eq!(dm.read(100, &mut four), Err(libc::EFAULT));
    assert_eq!(dm.write(u64::MAX - 3, &four), Err(libc::EFAULT));
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED;
    let register = |offset, len, access| errno(Mr::of_device(&s.b.pd, &dm, offset, len, access));
    assert_eq!(register(0, 100, rights), None);
    assert_eq!(register(0, 104, rights), Some(libc::EINVAL));
    assert_eq!(register(u64::MAX, 4, rights), Some(libc::EINVAL));
    assert_eq!(register(0, 100, AccessFlags::LOCAL_WRITE), Some(libc::EINVAL), "not zero-based");
    assert_eq!(register(0, 100, rights | AccessFlags::MW_BIND), Some(libc::EOPNOTSUPP));
    let pd = Pd::alloc(&s.a.device).expect("PD");
    assert!(Mr::of_device(&pd, &dm, 0, 100, rights).is_err(), "another device's domain");
}

#[test]
fn the_null_key_takes_everything_and_gives_zeros() {
    let s = stage();
    let lkey = s.b.device.null_key().expect("a null key");
    for len in [8, 64, 5000] {
        let sge = Sge { addr: 0x1234, length: len, lkey };
        s.a.words.put(0, &vec![7; len as usize]);
        s.send_into(sge);
        s.send_from(sge, 0);
        assert_eq!(s.a.words.bytes(0, len as usize), vec![0; len as usize]);
    }
    assert_eq!(s.write(0, lkey), WcStatus::RemAccessErr, "it is no peer's");
}

#[test]
#[allow(unsafe_code)]
fn pages_come_when_they_are_touched_and_missing_ones_are_an_error() {
    const PAGE: usize = 4096;
    let s = stage();
    assert!(s.b.device.attr().on_demand, "a node resolves page faults");
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let paged = access | AccessFlags::ON_DEMAND;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping of our own; its last page is unmapped again.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let (at, base) = (at as u64, at.cast::<u8>());
    // SAFETY: the last page of that mapping, which is not in use.
    assert_eq!(unsafe { libc::munmap(base.wrapping_add(3 * PAGE).cast(), PAGE) }, 0);
    // SAFETY: access to an unmapped page is an error of the work request, which this test is about.
    let register = |base, len, access| unsafe { Mr::register(&s.b.pd, base, len, base as u64, access) };
    assert!(register(base, 4 * PAGE, access).is_err(), "not all of it is there to be pinned");
    let part = register(base, 4 * PAGE, paged).expect("a part of memory");
    let whole = register(std::ptr::null_mut(), usize::MAX, paged).expect("all of memory");
    s.a.words.set_word(0, 77);
    for mr in [&part, &whole] {
        assert_eq!(
            s.write(at + 2 * PAGE as u64 - 4, mr.rkey()),
            WcStatus::Success,
            "two pages nobody touched"
        );
        // SAFETY: memory of our own mapping.
        let found = unsafe { base.add(2 * PAGE - 4).cast::<u64>().read_unaligned() };
        assert_eq!(found, 77);
        s.a.words.set_word(0, 77);
    }
    assert_eq!(part.prefetch(at, 2 * PAGE as u32, true, true), Ok(()));
    assert_eq!(
        part.prefetch(at + 2 * PAGE as u64, 2 * PAGE as u32, false, true),
        Err(libc::EFAULT),
        "not there"
    );
    assert_eq!(part.prefetch(at + 3 * PAGE as u64, 8, false, false), Ok(()), "nothing is brought in");
    assert_eq!(part.prefetch(at, 4 * PAGE as u32 + 1, false, true), Err(libc::EFAULT), "too long");
    assert_eq!(s.mr.prefetch(s.words.addr(), 8, false, true), Err(libc::EINVAL), "pinned");
    assert_eq!(s.write(at + 3 * PAGE as u64, whole.rkey()), WcStatus::RemAccessErr, "nothing is there");
    drop((part, whole));
    // SAFETY: the mapping is no longer in use.
    unsafe { libc::munmap(base.cast(), 3 * PAGE) };
}
