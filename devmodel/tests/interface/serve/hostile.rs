//! Hostile clients: their own session ends, without any effect on others.

use super::client::{BASE, MEMORY, SOON, Served, eventfd, raw};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng},
};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};
use vfio_user_proto::{zerocopy::IntoBytes, *};

/// The same random bytes in every run.
fn random(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

#[test]
fn garbage_instead_of_messages_ends_that_session_alone() {
    let served = Served::new();
    let mut other = served.guest(2);
    let mut rng = random(1);
    for round in 0..40 {
        let mut bytes = vec![0; 16 + round * 7];
        rng.fill_bytes(&mut bytes);
        if round % 2 == 0 {
            // A header with the correct length.
            let size = bytes.len();
            let header = Header::request(1, Command(bytes[0].into()), size - 16);
            bytes[..16].copy_from_slice(header.as_bytes());
        }
        drop(raw(&served.path(1), &bytes));
        other.works();
    }
    served.guest(1).works();
}

#[test]
fn garbage_after_the_handshake_is_refused() {
    let served = Served::new();
    let mut other = served.guest(2);
    let mut rng = random(2);
    let mut c = served.guest(1);
    for round in 0..2000u32 {
        let command = Command((rng.next_u32() % 18) as u16);
        if command == Command::VERSION {
            continue;
        }
        let mut payload = vec![0; (rng.next_u32() % 80) as usize];
        rng.fill_bytes(&mut payload);
        // Nearly valid numbers get further.
        for word in payload.chunks_exact_mut(4) {
            if rng.next_u32() % 2 == 0 {
                word.copy_from_slice(&(rng.next_u32() % 64).to_ne_bytes());
            }
        }
        let (event, memory) = (eventfd(), testkit::memfd(0x1000));
        let fds: &[&File] = match round % 4 {
            0 => &[&event],
            1 => &[&memory],
            2 => &[&memory, &event, &memory],
            _ => &[],
        };
        let _ = c.errno(command, &payload, fds);
        if round % 100 == 0 {
            other.works();
        }
    }
    drop(c);
    served.guest(1).works();
}

#[test]
fn a_session_must_begin_with_a_version() {
    let served = Served::new();
    let header = Header::request(1, Command::DEVICE_RESET, 0);
    let mut stream = raw(&served.path(1), header.as_bytes());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the end of the session");
    assert_eq!(u32::from_ne_bytes([answer[12], answer[13], answer[14], answer[15]]), libc::EPROTO as u32);
    let ours = Version::ours();
    let wrong = Version { major: 9, ..ours }.encode();
    let message = [Header::request(1, Command::VERSION, wrong.len()).as_bytes(), &wrong].concat();
    let mut stream = raw(&served.path(1), &message);
    answer.clear();
    stream.read_to_end(&mut answer).expect("the end of the session");
    served.guest(1).works();
}

#[test]
fn closing_in_the_middle_of_a_message_frees_the_function() {
    let served = Served::new();
    let version = Version::ours().encode();
    let message = [Header::request(1, Command::VERSION, version.len()).as_bytes(), &version].concat();
    for cut in [1, 15, 16, 17, message.len() - 1] {
        drop(raw(&served.path(1), &message[..cut]));
    }
    served.guest(1).works();
}

#[test]
fn a_client_that_never_reads_is_thrown_out_and_others_go_on() {
    let served = Served::new();
    let mut other = served.guest(2);
    let version = Version::ours().encode();
    let mut bytes = [Header::request(1, Command::VERSION, version.len()).as_bytes(), &version].concat();
    let read = RegionAccess { offset: 0, region: REGION_BAR0, count: MAX_TRANSFER as u32 };
    let request = [Header::request(2, Command::REGION_READ, 16).as_bytes(), read.as_bytes()].concat();
    bytes.extend(request.repeat(64));
    let _deaf = raw(&served.path(1), &bytes);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let before = Instant::now();
        other.works();
        assert!(before.elapsed() < Duration::from_secs(2), "held up for {:?}", before.elapsed());
    }
    // The client is disconnected, or still within the server's timeout: the next client can connect in either
    // case.
    let mut next = loop {
        match Connection::connect(&served.path(1), SOON) {
            Ok((next, _)) => break next,
            Err(e) => assert!(begun.elapsed() < 3 * SOON, "{e}"),
        }
    };
    assert!(next.call(Command::DEVICE_RESET, &[], &[], SOON).is_ok());
}

#[test]
fn garbage_registers_queues_and_addresses_leave_others_alone() {
    let served = Served::new();
    let mut other = served.guest(2);
    let mut c = served.guest(1);
    c.init();
    let mut rng = random(3);
    let mut junk = vec![0; MEMORY as usize];
    for round in 0..30u64 {
        rng.fill_bytes(&mut junk[..0x8000]);
        for slot in 0..32 {
            // Random entries that look valid.
            let at = 0x1000 + slot * 64;
            junk[at] = 7;
            junk[at + 0x3f] |= 1;
            junk[at + 4..at + 7].fill(0);
        }
        c.poke(0, &junk[..0x8000]);
        c.write(REGION_CONFIG, 4, &6u16.to_le_bytes()).expect("the command register");
        c.set_queue(if round % 3 == 0 { rng.next_u64() } else { BASE + 0x1000 });
        c.set_register(0x18, rng.next_u32());
        for _ in 0..100 {
            let mut data = [0; 64];
            rng.fill_bytes(&mut data);
            let (at, len) = (rng.next_u64() % (32 << 20), 1 << (rng.next_u32() % 7));
            let at = if rng.next_u32() % 2 == 0 { at % 0x1_0000 } else { at };
            let _ = c.write(REGION_BAR0, at & !(len - 1), &data[..len as usize]);
            let _ = c.write(REGION_CONFIG, rng.next_u64() % 4096, &data[..1]);
        }
        other.works();
    }
    assert_eq!(c.errno(Command::DEVICE_RESET, &[], &[]), 0);
    c.enable();
    c.works();
}

#[test]
fn accesses_beyond_a_region_are_refused() {
    let (_served, mut c) = Served::with_client();
    for (region, offset, count) in [
        (0, 32 << 20, 4),
        (0, u64::MAX, 4),
        (0, (32 << 20) - 2, 4),
        (7, 4096, 1),
        (7, u64::MAX - 1, 4),
        (1, 0, 4),
        (8, 0, 1),
        (9, 0, 4),
        (u32::MAX, 0, 4),
        (0, 0, MAX_TRANSFER as u32 + 1),
        (0, 0, u32::MAX),
    ] {
        let access = RegionAccess { offset, region, count };
        assert_ne!(c.errno(Command::REGION_READ, access.as_bytes(), &[]), 0, "read {access:?}");
        let data = vec![0; (count as usize).min(64)];
        let message = [access.as_bytes(), &data].concat();
        assert_ne!(c.errno(Command::REGION_WRITE, &message, &[]), 0, "write {access:?}");
    }
    // More data announced than sent.
    let access = RegionAccess { offset: 0, region: 7, count: 64 };
    assert_eq!(c.errno(Command::REGION_WRITE, access.as_bytes(), &[]), libc::EINVAL);
    assert_eq!(c.errno(Command::REGION_WRITE, &[0; 3], &[]), libc::EINVAL);
}

#[test]
fn interrupts_are_set_up_within_bounds_and_with_eventfds_alone() {
    let (_served, mut c) = Served::with_client();
    let (event, file) = (eventfd(), testkit::memfd(0x1000));
    let with = IRQ_SET_DATA_EVENTFD | IRQ_SET_TRIGGER;
    let none = IRQ_SET_DATA_NONE | IRQ_SET_TRIGGER;
    let cases: [(u32, u32, u32, u32, &[&File]); 9] = [
        (IRQ_MSIX, with, 64, 1, &[&event]),
        (IRQ_MSIX, with, u32::MAX, 2, &[&event]),
        (IRQ_MSIX, with, 0, 3, &[&event, &event]),
        (IRQ_MSIX, with, 0, 1, &[&file]),
        (IRQ_MSIX, IRQ_SET_DATA_EVENTFD | IRQ_SET_MASK, 0, 1, &[&event]),
        (IRQ_MSIX, IRQ_SET_DATA_BOOL | IRQ_SET_TRIGGER, 0, 64, &[]),
        (IRQ_INTX, with, 0, 1, &[&event]),
        (77, none, 0, 0, &[]),
        (IRQ_MSIX, u32::MAX, 0, 1, &[]),
    ];
    for (index, flags, start, count, fds) in cases {
        let set = IrqSet { argsz: 20, flags, index, start, count };
        assert_ne!(c.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), fds), 0, "{set:?}");
    }
    let set = IrqSet { argsz: 20, flags: with, index: IRQ_MSIX, start: 0, count: 1 };
    // A full counter, which would block.
    let mut full = &event;
    full.write_all(&(u64::MAX - 1).to_ne_bytes()).expect("a counter");
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[&event]), 0);
    c.guest_triggers(0);
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, IrqSet { flags: none, count: 0, ..set }.as_bytes(), &[]), 0);
}

#[test]
fn a_second_client_waits_its_turn() {
    let (served, mut first) = Served::with_guest();
    let waiting = Connection::connect(&served.path(1), Duration::from_millis(100));
    assert!(matches!(waiting, Err(Error::Silent(..))), "one at a time");
    first.works();
    drop(first);
    served.guest(1).works();
}

#[test]
fn a_stuck_queue_of_commands_does_not_hold_the_reply() {
    let (_served, mut c) = Served::with_guest();
    // Mailboxes that point to themselves, and an input of maximum length.
    let at = c.post_query(16);
    let mut entry = c.peek(at, 64);
    entry[4..8].copy_from_slice(&(16u32 << 20).to_be_bytes());
    c.poke(at, &entry);
    let begun = Instant::now();
    c.ring();
    assert!(begun.elapsed() < Duration::from_secs(2));
    c.works();
    let _ = c.memory.as_fd();
}
