//! Guarantees of the region: jobs are atomic, locks survive their holders, rings and timers keep their order.

use super::{flat::Header, *};
use crate::{
    host::{Abort, Bus, Host, Iova, Parties, Party, Rid, forward, forward_parties},
    state::{CqRow, EqRow, PdRow, QpFlags, QpRow, SchedulingRow},
};
use std::{collections::HashSet, ptr::NonNull, sync::Arc};

#[derive(Default)]
pub(super) struct Machine {
    me: u16,
    /// Claims that its runner belongs to a single thread.
    pub(super) steady: bool,
    pub(super) dead: HashSet<u16>,
    pub(super) stopped: HashSet<u16>,
    /// Barriers requested.
    pub(super) barriers: usize,
    written: Vec<(Iova, Vec<u8>)>,
    interrupts: Vec<u16>,
}

impl Bus for Machine {
    fn write(&mut self, _: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        self.written.push((at, data.into()));
        Ok(())
    }
    fn msix(&mut self, _: Rid, vector: u16, _: u64, _: u32) {
        self.interrupts.push(vector);
    }
}

impl Parties for Machine {
    fn party(&self) -> Party {
        Party(self.me)
    }
    fn steady(&self) -> Option<Party> {
        self.steady.then_some(Party(self.me))
    }
    fn barrier(&mut self) {
        self.barriers += 1;
        if cfg!(miri) {
            // Miri does not support this call. Tests with threads that need it do not run there.
            return;
        }
        // SAFETY: passes no memory.
        let done = |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
        // `linux/membarrier.h`: register, then a barrier in every thread of this process.
        if !(done(1 << 4) && done(1 << 3)) {
            // As on a node: earlier stores have become visible by then.
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    fn reaches(&mut self, _: Party) -> bool {
        true
    }
    fn wake(&mut self, _: Party) {}
    fn alive(&mut self, party: Party) -> bool {
        !self.dead.contains(&party.0)
    }
    fn relax(&mut self, holder: Party, _: u32) -> bool {
        self.stopped.contains(&holder.0)
    }
}

pub(super) fn machine(me: u16) -> Machine {
    Machine { me, ..Machine::default() }
}

/// Takes a lock and keeps it, as a process that dies with it.
fn seize(lock: &Lock, host: &mut Machine) {
    let _ = lock.acquire::<dyn Host>(host);
}

/// Like [`seize`], for a process that has become the lock's owner.
fn seize_as_owner(lock: &Lock, host: &mut Machine) {
    host.steady = true;
    while !lock.is_of(Party(host.me)) {
        lock.acquire::<dyn Host>(host).0.release();
    }
    assert!(lock.enter::<dyn Host>(host).is_some());
}

/// Leaves the function as a killed holder does: locked, with the job half done.
fn die(func: Func<'_>) {
    std::mem::forget(func);
}

#[test]
fn a_job_that_does_not_commit_leaves_nothing() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 1, &mut host);
    let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
    func.commit(&mut host);
    func.row_mut::<QpRow>(qp).unwrap().requester.psn = 7;
    assert!(func.alloc::<CqRow>(0, Party(1)).is_ok());
    func.make_ready(qp);
    func.arm_timer(qp, TimerKind::Connection(crate::transport::Timer::Ack), 5 << 30);
    assert!(func.effect(Effect::Write { at: 0x1000, data: &[1; 64] }));
    drop(func);
    let mut func = Func::lock(&region, 1, &mut host);
    assert_eq!(func.row::<QpRow>(qp).unwrap().requester.psn, 0);
    assert_eq!(func.used::<CqRow>(), 0);
    assert_eq!(func.take_ready(), None);
    assert_eq!(func.next_timer(), None);
    assert!(!region.timer_due(1, 1 << 40), "the hint for those without the lock is taken back as well");
    func.commit(&mut host);
    assert!(host.written.is_empty());
}

#[test]
fn the_next_holder_takes_back_what_a_dead_one_left_half_done() {
    let (region, mut first, mut second) = (Region::private(Geometry::SMALL), machine(1), machine(2));
    let mut func = Func::lock(&region, 0, &mut first);
    let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
    func.commit(&mut first);
    func.row_mut::<QpRow>(qp).unwrap().requester.psn = 7;
    assert!(func.effect(Effect::Write { at: 0x1000, data: &[1; 64] }));
    die(func);
    assert!(Func::try_lock(&region, 0, &mut second).is_none());
    second.dead.insert(1);
    let func = Func::lock(&region, 0, &mut second);
    assert_eq!(func.row::<QpRow>(qp).unwrap().requester.psn, 0);
    assert!(second.written.is_empty(), "an effect of a job that was not through must not be seen");
}

#[test]
fn a_death_while_repairing_is_repaired_too() {
    let region = Region::private(Geometry::SMALL);
    let (mut first, mut second, mut third) = (machine(1), machine(2), machine(3));
    let mut func = Func::lock(&region, 0, &mut first);
    let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
    func.commit(&mut first);
    func.row_mut::<QpRow>(qp).unwrap().requester.psn = 7;
    die(func);
    // Party 2 took the lock over, and died before doing anything.
    second.dead.insert(1);
    seize(region.function_lock(0), &mut second);
    third.dead.extend([1, 2]);
    let func = Func::lock(&region, 0, &mut third);
    assert_eq!(func.row::<QpRow>(qp).unwrap().requester.psn, 0);
    drop(func);
    assert!(Func::try_lock(&region, 0, &mut first).is_some());
}

#[test]
fn a_filler_that_dies_leaves_its_frame_whole_or_not_at_all() {
    use std::sync::atomic::Ordering::{Acquire, Release};
    // The filler is killed after publishing its last frame but before counting it, or before publishing the next; the lock is
    // taken from it by the next filler or by the cleanup. It had acquired the lock normally or as its owner, or had taken it
    // over from a dead filler of either kind.
    let locks: [fn(&Lock, &mut Machine); 4] = [
        seize,
        seize_as_owner,
        |lock, first| {
            seize(lock, &mut machine(3));
            seize(lock, first);
        },
        |lock, first| {
            seize_as_owner(lock, &mut machine(3));
            seize(lock, first);
        },
    ];
    let deaths = [(0, 1), (600, 1), (510, 1), (600, 2)];
    let cases = locks.iter().flat_map(|lock| deaths.map(|(behind, counted)| (lock, behind, counted)));
    for (cleaned, (lock, behind, counted)) in
        [false, true].into_iter().flat_map(|c| cases.clone().map(move |d| (c, d)))
    {
        let (region, mut first, mut second) = (Region::private(Geometry::SMALL), machine(1), machine(2));
        let ring = WireRing::of(&region, 0);
        let drain = |second: &mut Machine| {
            let mut func = Func::lock(&region, 0, second);
            let mut seen = Vec::new();
            while let Some((slot, _)) = func.front() {
                seen.push(slot.headers()[0]);
                func.take_front();
            }
            func.commit(second);
            seen
        };
        for _ in 0..behind {
            assert!(ring.push(&mut first, &[7; 60], SlotPayload::Bytes(&[]), false));
            drain(&mut first);
        }
        for frame in 0..2u8 {
            assert!(ring.push(&mut first, &[frame; 60], SlotPayload::Bytes(&[]), false));
        }
        region.sync(0, Sync::RxTail).store(behind + counted, Release);
        first.dead.insert(3);
        lock(region.ring_lock(0), &mut first);
        second.dead.extend([1, 3]);
        if cleaned {
            region.free_locks_of(&mut second, Party(1));
            assert_eq!(region.ring_lock(0).holder(), None);
        }
        assert_eq!(drain(&mut second), [0, 1]);
        assert!(ring.push(&mut second, &[9; 60], SlotPayload::Bytes(&[]), false));
        assert_eq!(region.sync(0, Sync::RxTail).load(Acquire), behind + 3);
        assert_eq!(drain(&mut second), [9]);
        assert!(ring.free() > 0);
    }
}

#[test]
fn a_ring_has_room_when_all_is_taken_though_the_last_frame_was_not_counted() {
    use std::sync::atomic::Ordering::Release;
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let ring = WireRing::of(&region, 0);
    for _ in 0..300 {
        assert!(ring.push(&mut host, &[7; 60], SlotPayload::Bytes(&[]), false));
    }
    region.sync(0, Sync::RxTail).store(299, Release);
    let mut func = Func::lock(&region, 0, &mut host);
    while func.front().is_some() {
        func.take_front();
    }
    func.commit(&mut host);
    drop(func);
    assert!(ring.free() > 0);
}

/// A host that is killed in the middle of carrying out effects.
struct Killed<'a>(&'a mut Machine, usize);
impl Bus for Killed<'_> {
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        if self.1 == 0 {
            std::panic::resume_unwind(Box::new("killed"));
        }
        self.1 -= 1;
        self.0.write(rid, at, data)
    }
    forward! { self.0:
        fn msix(&mut self, rid: Rid, vector: u16, address: u64, data: u32);
    }
}
impl Parties for Killed<'_> {
    forward_parties! { self.0 }
}

#[test]
fn the_next_holder_finishes_what_a_dead_one_had_decided() {
    for done in 0..3 {
        let (region, mut first, mut second) = (Region::private(Geometry::SMALL), machine(1), machine(2));
        let mut func = Func::lock(&region, 0, &mut first);
        let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
        func.row_mut::<QpRow>(qp).unwrap().requester.psn = 7;
        for i in 0..3u8 {
            assert!(func.effect(Effect::Write { at: u64::from(i), data: &[i; 64] }));
        }
        assert!(func.effect(Effect::Msix { vector: 5, address: 0, data: 0 }));
        let mut func = std::mem::ManuallyDrop::new(func);
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            func.commit(&mut Killed(&mut first, done));
        }));
        assert!(killed.is_err());
        second.dead.insert(1);
        let func = Func::lock(&region, 0, &mut second);
        assert_eq!(func.row::<QpRow>(qp).unwrap().requester.psn, 7);
        assert_eq!(second.written, (0..3u8).map(|i| (u64::from(i), vec![i; 64])).collect::<Vec<_>>());
        assert_eq!(second.interrupts, [5]);
    }
}

#[test]
fn a_number_comes_back_as_late_as_it_can() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 2, &mut host);
    let rows = func.rows(Table::Pd);
    let all: Vec<_> = (0..rows).map(|_| func.alloc::<PdRow>(0, Party(1)).unwrap()).collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), rows as usize);
    assert_eq!(func.alloc::<PdRow>(0, Party(1)), Err(Shortage::Full));
    func.free::<PdRow>(9);
    func.free::<PdRow>(3);
    assert_eq!(func.alloc::<PdRow>(0, Party(1)), Ok(9));
    assert_eq!(func.alloc::<PdRow>(0, Party(1)), Ok(3));
    assert_eq!(func.alloc::<PdRow>(0, Party(1)), Err(Shortage::Full));
    assert_eq!(func.number::<PdRow>(3), 2 << Geometry::SMALL.log_pd | 3);
    assert_eq!(func.index::<PdRow>(3), None, "the number of another function");
    func.commit(&mut host);
    assert_eq!(func.journal_stats(), JournalStats { overflows: 0, entries: 0 });
}

/// The first 150 QP numbers that an adapter with `key` hands out on function 1.
fn numbers(key: [u64; 2]) -> Vec<u32> {
    let region = Region::private(Geometry::SMALL);
    region.set_key(key);
    let mut machine = machine(1);
    let mut func = Func::lock(&region, 1, &mut machine);
    let rows = (0..150).map(|_| func.alloc_from::<QpRow>(0, Party(1), 2).expect("a row")).collect();
    func.commit(&mut machine);
    rows
}

#[test]
fn numbers_that_peers_know_do_not_tell_the_next() {
    let all = [[1, 2], [1, 3], [9, 2]].map(numbers);
    for rows in &all {
        // All are distinct, none is one of the first two, and all rows of a block are used before the next block is begun.
        let distinct: HashSet<u32> = rows.iter().copied().collect();
        assert_eq!(distinct.len(), rows.len());
        for (n, block) in rows.chunks(64).enumerate() {
            let from = 2 + 64 * n as u32;
            assert!(block.iter().all(|row| (from..from + 64).contains(row)), "{block:?}");
        }
        let successors = rows.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(successors < 20, "{rows:?}");
    }
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    // Each block is shuffled differently.
    let way = |rows: &[u32]| rows.iter().map(|row| (row - 2) % 64).collect::<Vec<_>>();
    assert_ne!(way(&all[0][..64]), way(&all[0][64..128]));
    assert_eq!(numbers([1, 2]), all[0], "the same at every run");
}

#[test]
fn a_snapshot_gives_out_the_numbers_its_original_does() {
    let region = Region::private(Geometry::SMALL);
    region.set_key([5, 6]);
    let mut host = machine(1);
    let some = |region: &Region, machine: &mut Machine| -> Vec<u32> {
        let mut func = Func::lock(region, 1, machine);
        let rows = (0..30).map(|_| func.alloc::<QpRow>(0, Party(1)).expect("a row")).collect();
        func.commit(machine);
        rows
    };
    some(&region, &mut host);
    let copy = Region::restore(&region.snapshot());
    assert_eq!(some(&copy, &mut machine(1)), some(&region, &mut host));
}

#[test]
fn translation_ranges_do_not_overlap_and_come_back() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 0, &mut host);
    let mut held: Vec<MttRange> = Vec::new();
    for round in 0..200u32 {
        let len = 1 + round * 7 % 40;
        match func.alloc_mtt(len) {
            Ok(range) => {
                assert!(range.first > 0 && range.first + len <= func.rows(Table::Mtt));
                for other in &held {
                    assert!(range.first + range.len <= other.first || other.first + other.len <= range.first);
                }
                held.push(range);
            }
            Err(_) => held.drain(..held.len() / 2).for_each(|r| func.free_mtt(r)),
        }
        func.commit(&mut host);
    }
    held.drain(..).for_each(|r| func.free_mtt(r));
    assert_eq!(func.function().mtt_used, 0);
    assert_eq!(func.alloc_mtt(u32::MAX), Err(Shortage::Full));
}

#[test]
fn a_range_taken_and_taken_back_leaves_the_free_list_whole() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 0, &mut host);
    let ranges = [0; 3].map(|_| func.alloc_mtt(4).unwrap());
    ranges.iter().for_each(|r| func.free_mtt(*r));
    func.commit(&mut host);
    // A command that is refused after it wrote its page list.
    let taken = func.alloc_mtt(4).unwrap();
    (0..4).for_each(|i| func.set_mtt(taken.first + i, 0x5555_5000));
    func.rollback();
    let mut again: Vec<u32> = (0..3).map(|_| func.alloc_mtt(4).unwrap().first).collect();
    again.sort_unstable();
    assert_eq!(again, ranges.map(|r| r.first), "all three, and nothing a page list said");
}

#[test]
fn a_freed_row_of_one_table_is_not_allocated_from_another() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 0, &mut host);
    let all = |func: &mut Func<'_>, host: &mut Machine| {
        let next = || func.alloc::<EqRow>(0, Party(1)).ok().inspect(|_| func.commit(host));
        std::iter::from_fn(next).collect::<Vec<u32>>()
    };
    let queues = all(&mut func, &mut host);
    for queue in queues.iter().rev() {
        func.free::<EqRow>(*queue);
        func.commit(&mut host);
    }
    let elements = [0; 4].map(|_| func.alloc::<SchedulingRow>(0, Party(1)).unwrap());
    elements.iter().for_each(|element| func.free::<SchedulingRow>(*element));
    func.commit(&mut host);
    let mut again = all(&mut func, &mut host);
    again.sort_unstable();
    assert!(again == queues, "expected each of {} queues once, found {} of them", queues.len(), again.len());
}

#[test]
fn timers_of_a_qp_that_goes_are_forgotten() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 0, &mut host);
    let qps: Vec<u32> = (0..40).map(|_| func.alloc::<QpRow>(0, Party(1)).unwrap()).collect();
    for (i, qp) in (0..).zip(qps.iter().copied()) {
        func.arm_timer(qp, TimerKind::Connection(crate::transport::Timer::Ack), (i * 7 % 40 + 1) << 30);
        func.arm_timer(qp, TimerKind::Connection(crate::transport::Timer::Rnr), (i * 11 % 40 + 1) << 30);
        func.commit(&mut host);
    }
    let gone: Vec<u32> = qps.iter().copied().step_by(2).collect();
    for qp in gone.iter().copied() {
        func.forget_timers(qp);
        func.commit(&mut host);
        assert!(!func.row::<QpRow>(qp).unwrap().flags().intersects(QpFlags::TIMER_ACK | QpFlags::TIMER_RNR));
    }
    let (mut last, mut left) = (0, 0);
    while let Some(due) = func.next_timer() {
        let (qp, _) = func.take_timer(due).unwrap();
        assert!(due >= last && !gone.contains(&qp), "QP {qp} at {due}");
        (last, left) = (due, left + 1);
        func.commit(&mut host);
    }
    assert_eq!(left, 40);
}

#[test]
fn timers_fire_in_order_and_not_before_their_time() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 0, &mut host);
    let at = |i: u64| (i * 7919 % 100 + 1) << 30;
    for i in 0..100 {
        let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
        func.arm_timer(qp, TimerKind::Connection(crate::transport::Timer::Ack), at(u64::from(qp)));
        func.arm_timer(qp, TimerKind::Connection(crate::transport::Timer::Ack), 1);
        assert!(func.row::<QpRow>(qp).unwrap().has(QpFlags::TIMER_ACK), "{i}");
    }
    let mut last = 0;
    for _ in 0..100 {
        let due = func.next_timer().unwrap();
        assert!(due >= last);
        last = due;
        assert_eq!(func.take_timer(due - 1), None);
        let (qp, kind) = func.take_timer(due).unwrap();
        assert_eq!((at(u64::from(qp)), kind), (due, TimerKind::Connection(crate::transport::Timer::Ack)));
        assert!(!func.row::<QpRow>(qp).unwrap().has(QpFlags::TIMER_ACK));
        func.commit(&mut host);
    }
    assert_eq!(func.next_timer(), None);
    assert!(!region.timer_due(0, 1 << 40));
}

#[test]
fn a_full_ring_refuses_and_a_taken_slot_comes_back_with_the_commit() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let ring = WireRing::of(&region, 1);
    for i in 0..SLOTS {
        assert!(ring.push(&mut host, &[i as u8; 60], SlotPayload::Bytes(&[i as u8; 100]), false));
    }
    assert!(!ring.push(&mut host, &[0; 60], SlotPayload::Bytes(&[]), false));
    let mut func = Func::lock(&region, 1, &mut host);
    for i in 0..3u8 {
        let (slot, payload) = func.front().unwrap();
        assert_eq!(slot.headers(), &[i; 60]);
        assert!(matches!(payload, SlotPayload::Bytes(b) if b == [i; 100]));
        func.take_front();
    }
    assert_eq!(ring.free(), 0);
    func.rollback();
    assert_eq!(func.front().unwrap().0.headers(), &[0; 60], "an undone job has taken nothing");
    func.take_front();
    func.commit(&mut host);
    assert_eq!(ring.free(), 1);
    assert!(!ring.push(&mut host, &[0; 129], SlotPayload::Bytes(&[]), false), "headers longer than a slot");
    assert!(
        !ring.push(&mut host, &[0; 60], SlotPayload::Bytes(&[0; MAX_FRAME + 1]), false),
        "payload longer than a slot"
    );
    assert!(!ring.push(&mut host, &[0; 60], SlotPayload::Pieces(Rid(0), &[Piece::default(); 5]), false));
    assert!(ring.push(
        &mut host,
        &[0; 60],
        SlotPayload::Pieces(Rid(3), &[Piece { at: 5, len: 6, reserved: 0 }]),
        false
    ));
}

#[test]
fn a_snapshot_restores_to_the_same_bytes() {
    let (region, mut host) = (Region::private(Geometry::SMALL), machine(1));
    let mut func = Func::lock(&region, 1, &mut host);
    let qp = func.alloc::<QpRow>(3, Party(1)).unwrap();
    func.commit(&mut host);
    drop(func);
    let snapshot = region.snapshot();
    let again = Region::restore(&snapshot);
    assert!(again.snapshot() == snapshot);
    assert!(snapshot.bytes() < 1 << 20, "{} bytes", snapshot.bytes());
    let func = Func::lock(&again, 1, &mut host);
    assert_eq!(func.live::<QpRow>(), [qp]);
}

#[test]
fn queue_pairs_are_served_in_order_from_as_few_pages_as_hold_them() {
    let geometry = Geometry { log_qp: 12, ..Geometry::SMALL };
    let (region, mut host) = (Region::private(geometry), machine(1));
    let mut func = Func::lock(&region, 1, &mut host);
    let qps: Vec<u32> = (0..4000)
        .map(|_| {
            let qp = func.alloc::<QpRow>(0, Party(1)).unwrap();
            func.commit(&mut host);
            qp
        })
        .collect();
    qps[..10].iter().for_each(|qp| func.make_ready(*qp));
    for n in 0..5005 {
        let qp = func.take_ready().unwrap();
        assert_eq!(qp, qps[n % 10]);
        func.make_ready(qp);
        func.commit(&mut host);
    }
    let beyond =
        |func: &Func<'_>| (1024..8192).filter(|at| *func.plain::<u32>(Table::Ready, *at) != 0).count();
    assert_eq!(beyond(&func), 0, "ten fit a page");
    // The job that doubled the ring is rolled back; the next job that commits doubles it again.
    for qp in &qps[10..] {
        func.make_ready(*qp);
        func.rollback();
        func.make_ready(*qp);
        func.commit(&mut host);
    }
    assert_ne!(beyond(&func), 0);
    let first = (5..10).chain(0..5).chain(10..qps.len()).map(|n| qps[n]);
    assert!(first.eq(std::iter::from_fn(|| {
        let qp = func.take_ready();
        func.commit(&mut host);
        qp
    })));
}

/// No size is computed from impossible values: 1 << 77 would wrap to a small number.
#[test]
fn a_region_of_impossible_tables_is_refused() {
    /// The memory of another region.
    struct There(Arc<Region>);
    // SAFETY: that region's memory keeps the contract and lives as long as it.
    unsafe impl Memory for There {
        fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
            self.0.memory.map(offset, len)
        }
        fn back(&self, _: usize, _: usize) -> bool {
            true
        }
    }
    let region = Arc::new(Region::private(Geometry::SMALL));
    let attach = |geometry: Geometry| {
        let header = region.memory.map(0, size_of::<Header>()).unwrap().cast::<Header>().as_ptr();
        // SAFETY: in bounds and aligned; our memory, without another user.
        unsafe { (&raw mut (*header).geometry).write_volatile(geometry) };
        Region::attach(region.len, Box::new(There(region.clone()))).map(|region| *region.geometry())
    };
    let small = Geometry::SMALL;
    for geometry in [
        Geometry { functions: 0, ..small },
        Geometry { functions: 129, ..small },
        Geometry { log_qp: 77, ..small },
        Geometry { log_cq: 3, ..small },
        Geometry { log_mkey: 64 + small.log_mkey, ..small },
        Geometry { log_mtt: 32 + small.log_mtt, ..small },
        Geometry { log_parties: 9, ..small },
        Geometry { log_uplink: 31, ..small },
    ] {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attach(geometry)));
        assert!(matches!(found, Ok(Err(RegionError::Geometry { .. }))), "{geometry:?}");
    }
    assert_eq!(attach(small).ok(), Some(small));
}
