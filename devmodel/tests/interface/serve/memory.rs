//! A client's memory: windows, and accesses outside of them.

use super::client::{BASE, CMDQ, FREE, MEMORY, Served, eventually};
use hwspec::{
    cmd::{DeliveryStatus, Opcode, queue::CmdQueueEntry},
    layout::prefix,
};
use ironverbs_devmodel::serve::{GuestMemory, transfer};
use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};
use vfio_user_proto::{zerocopy::IntoBytes, *};

#[test]
fn windows_do_not_overlap_and_lie_within_their_file() {
    let (_served, mut c) = Served::with_client();
    let file = testkit::memfd(0x10_000);
    assert_eq!(c.map(0x1000, 0x2000, 0, Some(&file)), 0);
    for (at, len) in [(0x1000, 0x2000), (0, 0x1001), (0x2fff, 1), (0, 0x10_000), (0x1800, 0x10)] {
        assert_eq!(c.map(at, len, 0, Some(&file)), libc::EEXIST, "{at:#x}+{len:#x}");
    }
    assert_eq!(c.map(0x3000, 0x1000, 0, Some(&file)), 0, "neighbours may touch");
    assert_eq!(c.map(u64::MAX - 0xfff, 0x1000, 0, Some(&file)), 0, "the last page");
    for (at, len, offset) in
        [(0x8000, 0, 0), (u64::MAX, 2, 0), (0x8000, 0x1000, 0xf001), (0x8000, 0x1000, u64::MAX)]
    {
        assert_eq!(c.map(at, len, offset, Some(&file)), libc::EINVAL, "{at:#x}+{len:#x} of {offset:#x}");
    }
}

#[test]
fn ranges_never_mapped_can_be_unmapped_and_rom_needs_no_descriptor() {
    let (_served, mut c) = Served::with_guest();
    assert_eq!(c.unmap(0xdead_0000, 0x1000), 0);
    assert_eq!(c.map(0xc_0000, 0x2000, 0, None), 0);
    // The memory cannot be reached, and the server survives that.
    c.set_queue(0xc_0000);
    c.ring();
    assert_eq!(c.unmap(0xc_0000, 0x2000), 0);
    c.set_queue(BASE + CMDQ);
    c.works();
}

#[test]
fn after_an_unmap_nothing_is_written_there() {
    let (_served, mut c) = Served::with_guest();
    let at = c.post_query(16);
    let before = c.peek(at, 64);
    assert_eq!(c.unmap(BASE, MEMORY), 0);
    c.ring();
    assert_eq!(c.config(0), 0x1018_15b3);
    assert_eq!(c.peek(at, 64), before, "the entry is still the device's");
    c.map_all();
    c.ring();
    c.completes(at);
}

#[test]
fn a_hole_cut_into_a_window_is_closed_and_the_rest_stays() {
    let (_served, mut c) = Served::with_guest();
    // The page with the output mailbox.
    let at = c.post_query(600);
    assert_eq!(c.unmap(BASE + 0x2_0000, 0x1000), 0);
    c.ring();
    c.completes(at);
    let entry = CmdQueueEntry::from_bytes(prefix(&c.peek(at, 64)));
    assert_eq!(DeliveryStatus::from_raw(entry.status()), DeliveryStatus::BadOutputPointer);
    c.works();
}

#[test]
fn memory_in_many_windows_is_one_memory() {
    let (_served, mut c) = Served::with_client();
    let file = c.memory.try_clone().expect("a descriptor");
    for page in (0..MEMORY).step_by(4096) {
        assert_eq!(c.map(BASE + page, 4096, page, Some(&file)), 0);
    }
    c.enable();
    c.init();
    c.works();
}

#[test]
fn a_window_that_may_not_be_written_is_only_read() {
    let (_served, mut c) = Served::with_client();
    let file = c.memory.try_clone().expect("a descriptor");
    let map = DmaMap { argsz: 32, flags: 1, offset: 0, address: BASE, size: MEMORY };
    assert_eq!(c.errno(Command::DMA_MAP, map.as_bytes(), &[&file]), 0);
    c.write(REGION_CONFIG, 4, &6u16.to_le_bytes()).expect("the command register");
    c.set_queue(BASE + 0x1000);
    let at = c.post(Opcode::EnableHca, 0, &[0; 16], 16);
    let before = c.peek(at, 64);
    c.ring();
    assert_eq!(c.peek(at, 64), before);
    // A file opened read-only cannot be mapped for writing.
    let other = testkit::memfd(0x1000);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&other));
    let read_only = File::open(path).expect("the same file");
    assert_eq!(c.map(0, 0x1000, 0, Some(&read_only)), libc::EACCES);
}

#[test]
fn memory_cut_short_ends_in_an_abort() {
    let served = Served::new();
    let (mut c, mut other) = (served.guest(1), served.guest(2));
    let at = c.post_query(16);
    let before = c.peek(at, 64);
    c.memory.set_len(0x1000).expect("a length");
    c.ring();
    assert_eq!(c.config(0), 0x1018_15b3, "the server lives");
    other.works();
    c.memory.set_len(MEMORY).expect("a length");
    c.poke(at, &before);
    // Memory that was found truncated is not accessed again until it is mapped anew.
    c.ring();
    assert_eq!(c.peek(at, 64), before);
    assert_eq!(c.unmap(BASE, MEMORY), 0);
    c.map_all();
    c.ring();
    c.completes(at);
    other.works();
}

#[test]
fn only_files_in_memory_or_on_disk_are_mapped() {
    let (_served, mut c) = Served::with_client();
    for path in ["/dev/zero", "/proc/self/mem", "/proc/version", "/sys/kernel/uevent_seqnum"] {
        let Ok(file) = File::open(path) else { continue };
        assert_ne!(c.map(FREE, 0x1000, 0, Some(&file)), 0, "{path}");
    }
    let (end, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0, size: 0x1000 };
    let refused = c.link.call(Command::DMA_MAP, &[map.as_bytes()], &[end.as_fd()], super::client::SOON);
    assert!(matches!(refused, Err(Error::Refused { .. })));
    c.map_all();
    c.enable();
}

fn map_file(memory: &GuestMemory, file: &File, len: u64) {
    let fd = OwnedFd::from(file.try_clone().expect("a descriptor"));
    memory.map(BASE, len, 3, Some((fd, 0))).expect("a window");
}

#[test]
fn when_an_unmap_returns_writers_in_other_threads_are_done() {
    const LEN: u64 = 1 << 20;
    let (memory, file) = (GuestMemory::default(), testkit::memfd(LEN));
    let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = testkit::Stop(&over);
        for fill in [1, 2] {
            let (memory, over, written) = (&memory, &over, &written);
            scope.spawn(move || {
                let data = vec![fill; LEN as usize];
                while !over.load(Relaxed) {
                    written.fetch_add(memory.write(BASE, &data).is_ok().into(), Relaxed);
                }
            });
        }
        for _ in 0..50 {
            map_file(&memory, &file, LEN);
            let before = written.load(Relaxed);
            eventually("somebody writes", || written.load(Relaxed) > before);
            memory.unmap(BASE, LEN).expect("the window");
            file.write_all_at(&vec![0; LEN as usize], 0).expect("memory");
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(1) {
                std::hint::spin_loop();
            }
            let mut found = vec![9; LEN as usize];
            file.read_exact_at(&mut found, 0).expect("memory");
            assert!(found.iter().all(|b| *b == 0), "written after the unmap had returned");
        }
    });
}

#[test]
fn copies_both_ways_and_windows_that_come_and_go_do_not_wait_for_each_other() {
    const LEN: u64 = 64 << 10;
    let (a, b) = (GuestMemory::default(), GuestMemory::default());
    let files = [LEN; 2].map(testkit::memfd);
    let (over, copied) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = testkit::Stop(&over);
        // As functions 1 and 2: the lower number is locked first, in either direction of the copy.
        for (from, to, swapped) in [(&a, &b, false), (&b, &a, true), (&a, &a, false)] {
            let (over, copied) = (&over, &copied);
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    let done = transfer((from, BASE), (to, BASE), LEN, swapped).is_ok();
                    copied.fetch_add(done.into(), Relaxed);
                }
            });
        }
        for _ in 0..200 {
            for (memory, file) in [(&a, &files[0]), (&b, &files[1])] {
                map_file(memory, file, LEN);
            }
            let before = copied.load(Relaxed);
            eventually("somebody copies", || copied.load(Relaxed) > before);
            for memory in [&b, &a] {
                memory.unmap(BASE, LEN).expect("the window");
            }
        }
    });
}
