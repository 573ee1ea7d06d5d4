//! Completion queues: size, timestamps, events, memory.

use super::*;
use driver::{Completion, RawCompletion, WcStatus, dma::Buffers};
use std::{
    alloc::Layout,
    os::fd::AsRawFd,
    ptr::NonNull,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};
use testkit::until;

fn take(cq: &Cq) -> Option<Completion> {
    let mut out = [Completion::default()];
    (cq.poll(&mut out) == 1).then_some(out[0])
}

#[test]
fn completions_come_once_and_in_order_while_the_size_changes() {
    let (_scratch, a, b) = pair(entries(100));
    let (stop, resized) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let _stop = testkit::Stop(&stop);
        scope.spawn(|| {
            for round in (0..).take_while(|_| !stop.load(Relaxed)) {
                let size = [200, 70, 1000, 100, 64][round % 5];
                a.cq.resize(size).expect("at most 60 wait");
                assert!(a.cq.entries() >= size);
                resized.fetch_add(1, Relaxed);
            }
        });
        let (begin, mut posted, mut seen) = (Instant::now(), 0u64, 0);
        // On a busy machine the other thread may start late.
        while seen < 20_000 || resized.load(Relaxed) < 3 {
            assert!(begin.elapsed() < 6 * SOON, "{} sizes, {seen} completions", resized.load(Relaxed));
            while posted < seen + 50 {
                write(&a, posted, &b);
                posted += 1;
            }
            let wc = wait(&a.cq);
            assert_eq!((wc.wr_id, wc.status), (seen, WcStatus::Success));
            seen += 1;
        }
    });
}

#[test]
fn an_event_means_that_the_next_poll_finds_a_completion_while_the_size_changes() {
    let (_scratch, a, b) = pair(entries(10));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = testkit::Stop(&stop);
        scope.spawn(|| {
            for round in (0..).take_while(|_| !stop.load(Relaxed)) {
                a.cq.resize([100, 10][round % 2]).expect("one waits");
            }
        });
        for i in 0..2000 {
            a.drain();
            a.cq.arm(false);
            write(&a, i, &b);
            assert!(matches!(a.event(SOON), Some(Event::Cq { .. })), "{i}");
            assert_eq!(take(&a.cq).map(|wc| wc.wr_id), Some(i));
        }
    });
}

#[test]
#[allow(unsafe_code)] // waits for a descriptor
fn the_events_of_a_queue_come_with_its_completion_vector_alone() {
    let (_scratch, a, b) = pair(CqInit { vector: 1, ..entries(64) });
    let vectors = a.device.attr().num_comp_vectors;
    assert_eq!(vectors as usize, std::thread::available_parallelism().map_or(1, usize::from).min(63));
    let refused = Cq::create_with(&a.device, &CqInit { vector: vectors, ..entries(64) }, None);
    assert_eq!(refused.err().expect("there is no such vector").errno(), libc::EINVAL);
    let second = a.device.completion_vector(1).expect("a vector").expect("with an interrupt of its own");
    let drained = || {
        let mut all = Vec::new();
        while second.drain(|event| all.push(event)) {}
        all
    };
    let readable = |limit: Duration| {
        let mut entry = libc::pollfd { fd: second.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry that lives across the call.
        unsafe { libc::poll(&mut entry, 1, limit.as_millis() as i32) == 1 }
    };
    a.drain();
    for i in 0..100 {
        assert_eq!(drained(), [], "armed, and nothing has come");
        a.cq.arm(false);
        write(&a, i, &b);
        assert!(readable(SOON));
        let events = drained();
        assert!(matches!(events[..], [Event::Cq { cookie: COOKIE, .. }]), "{events:?}");
        assert_eq!(wait(&a.cq).wr_id, i);
    }
    assert_eq!(a.event(Duration::ZERO), None, "with vector 0 there came nothing");
}

#[test]
fn openers_that_find_no_interrupt_of_their_own_share_those_of_completions() {
    let (_scratch, node) = Scratch::with_node(2);
    let init = CqInit { vector: 1, ..entries(64) };
    // More devices and CQs than the function has vectors.
    let others: Vec<_> = (0..40)
        .map(|_| {
            let device = open_device_of(&node, 1).expect("a device");
            Cq::create_with(&device, &init, None).expect("a CQ with the second vector")
        })
        .collect();
    let open = |fid| End::on(&open_device_of(&node, fid).expect("a device"), &make(Service::Rc, init));
    let (a, b) = (open(1), open(2));
    a.join(&b);
    let events = a.device.completion_vector(1).expect("a vector").expect("a node's openers share interrupts");
    while events.drain(|_| ()) {}
    a.cq.arm(false);
    write(&a, 1, &b);
    let mut found = Vec::new();
    until("an event", SOON, || {
        events.drain(|event| found.push(event));
        !found.is_empty()
    });
    assert!(matches!(found[..], [Event::Cq { cookie: COOKIE, .. }]), "{found:?}");
    drop(others);
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    let (_scratch, a, b) = pair(entries(7));
    for i in 0..5 {
        write(&a, i, &b);
    }
    // When a sixth, on the other queue, has arrived, so have all five.
    b.qp.post_recv([driver::RecvWr { wr_id: 1, sge: &[] }]).expect("post");
    let wr = SendWr { wr_id: 5, op: SendOp::Send, sge: &[], flags: SendFlags::empty() };
    a.qp.post_send([wr]).expect("post");
    assert_eq!(wait(&b.receives).wr_id, 1);
    let begin = Instant::now();
    while a.cq.resize(3).is_ok() {
        assert!(begin.elapsed() < SOON);
        a.cq.resize(7).expect("larger");
        a.device.transport().idle();
    }
    for size in [0, 1, 3, a.device.attr().max_cqe + 1] {
        assert_eq!(a.cq.resize(size).expect_err("refused").errno(), libc::EINVAL, "{size}");
    }
    assert_eq!(a.cq.entries(), 7);
    a.cq.resize(5).expect("it is as large already");
    a.cq.resize(20).expect("larger");
    assert_eq!((0..5).map(|_| wait(&a.cq).wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    a.cq.resize(1).expect("empty");
    assert_eq!(a.cq.entries(), 1);
    write(&a, 9, &b);
    assert_eq!(wait(&a.cq).wr_id, 9);
}

#[test]
fn entries_bear_the_time_of_the_device() {
    let (_scratch, a, b) = pair(entries(16));
    let khz = u64::from(a.device.attr().clock_khz);
    assert!(khz > 0);
    let (mut wc, mut raw) = (Completion::default(), RawCompletion::zeroed());
    let mut last = 0;
    for i in 0..5 {
        let before = a.device.clock().expect("a clock");
        write(&a, i, &b);
        until("a completion", SOON, || a.cq.poll_raw(&mut wc, &mut raw));
        let after = a.device.clock().expect("a clock");
        assert_eq!(wc.wr_id, i);
        assert!((before..=after).contains(&raw.timestamp()) && raw.timestamp() > last);
        last = raw.timestamp();
    }
    let (begin, counts) = (Instant::now(), a.device.clock().expect("a clock"));
    std::thread::sleep(Duration::from_millis(50));
    let passed = (a.device.clock().expect("a clock") - counts) * 1000 / khz;
    let real = begin.elapsed().as_micros() as u64;
    // The two clocks may differ by a few parts in ten thousand.
    assert!((49_900..=real + real / 1000).contains(&passed), "{passed} us by the device, {real} us here");
}

#[test]
fn moderated_events_wait_for_company_or_time() {
    const PERIOD: Duration = Duration::from_micros(4000);
    let (_scratch, a, b) = pair(entries(64));
    a.cq.moderate(8, PERIOD.as_micros() as u16).expect("moderation");
    a.drain();
    let is_told = |limit| match a.event(limit) {
        Some(Event::Cq { cookie, .. }) => cookie == COOKIE,
        _ => false,
    };
    a.cq.arm(false);
    let begin = Instant::now();
    write(&a, 0, &b);
    assert!(is_told(SOON), "one, when its time has come");
    assert!(begin.elapsed() >= PERIOD, "{:?}", begin.elapsed());
    assert_eq!(wait(&a.cq).wr_id, 0);
    a.cq.moderate(8, a.device.attr().max_cq_period).expect("moderation");
    a.cq.arm(false);
    for i in 0..8 {
        write(&a, i, &b);
    }
    assert!(is_told(SOON), "eight");
    (0..8).for_each(|i| assert_eq!(wait(&a.cq).wr_id, i));
    a.cq.moderate(0, 0).expect("none");
    a.cq.arm(false);
    write(&a, 1, &b);
    assert!(is_told(SOON), "at once");
    let period = a.device.attr().max_cq_period + 1;
    assert_eq!(a.cq.moderate(8, period).expect_err("refused").errno(), libc::EINVAL);
}

#[test]
fn an_overrun_fails_the_queue_pair_unless_it_is_ignored() {
    for ignore_overrun in [false, true] {
        let (_scratch, a, b) = pair(CqInit { ignore_overrun, ..entries(3) });
        a.drain();
        for i in 0..10 {
            write(&a, i, &b);
        }
        let limit = if ignore_overrun { Duration::from_millis(300) } else { SOON };
        let found = a.event(limit);
        let state = a.qp.query().expect("a state").qp_state;
        match ignore_overrun {
            true => assert_eq!((found, state), (None, driver::QpState::Rts)),
            false => {
                assert!(matches!(found, Some(Event::CqError { cookie: COOKIE, .. })), "{found:?}");
                assert_eq!(state, driver::QpState::Err);
            }
        }
    }
}

/// Memory of this process that counts its allocations.
#[derive(Default)]
struct Own {
    blocks: Mutex<Vec<(usize, Layout)>>,
    given: AtomicUsize,
}

#[allow(unsafe_code)] // memory for a device comes from the allocator
// SAFETY: the memory is allocated for this call, and no other code has its address.
unsafe impl Buffers for Own {
    fn obtain(&self, len: usize, align: usize) -> Result<Option<NonNull<u8>>, driver::Error> {
        let layout = Layout::from_size_align(len, align).expect("a layout");
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("memory");
        self.blocks.lock().expect("a lock").push((ptr.as_ptr() as usize, layout));
        self.given.fetch_add(1, Relaxed);
        Ok(Some(ptr))
    }

    fn give_back(&self, ptr: NonNull<u8>) {
        let mut blocks = self.blocks.lock().expect("a lock");
        let at = blocks.iter().position(|(at, _)| *at == ptr.as_ptr() as usize).expect("one of ours");
        let (_, layout) = blocks.swap_remove(at);
        // SAFETY: allocated above with this layout.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) }
    }
}

#[test]
fn queues_may_lie_in_memory_of_the_program() {
    let (_scratch, node) = Scratch::with_node(2);
    let own = Arc::new(Own::default());
    let end = |fid| {
        let device = open_device_of(&node, fid).expect("a device");
        let domain = Pd::face(&Pd::alloc(&device).expect("a PD"), Some(own.clone() as Arc<dyn Buffers>));
        End::of(&domain, &make(Service::Rc, entries(16))).expect("an end")
    };
    {
        let (a, b) = (end(1), end(2));
        assert_eq!(own.given.load(Relaxed), 6, "two CQs and a QP, twice");
        a.join(&b);
        for i in 0..100 {
            a.words.set_word(0, i);
            write(&a, i, &b);
            assert_eq!((wait(&a.cq).wr_id, b.words.word(0)), (i, i));
        }
        a.cq.resize(100).expect("a larger one");
        assert_eq!(own.given.load(Relaxed), 7);
        write(&a, 5, &b);
        assert_eq!(wait(&a.cq).wr_id, 5);
        assert!(take(&b.receives).is_none());
    }
    assert!(own.blocks.lock().expect("a lock").is_empty(), "all came back");
}
