//! Messages between two ends of a socket, complete and damaged.

use ironverbs_vfio_user::{zerocopy::IntoBytes, *};
use proptest::prelude::*;
use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    path::PathBuf,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(5);

fn pair() -> (Connection, Connection) {
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    (Connection::new(a).expect("an end"), Connection::new(b).expect("an end"))
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("vfio-user-{}-{name}", std::process::id()))
}

#[test]
fn descriptors_stay_with_their_message_when_messages_are_read_together() {
    let (a, mut b) = pair();
    let file = |text: &str| {
        let (read, mut write) = UnixStream::pair().expect("a pair");
        write.write_all(text.as_bytes()).expect("room in a socket");
        read
    };
    let send = |id, fds: &[&UnixStream]| {
        let fds: Vec<_> = fds.iter().map(|f| f.as_fd()).collect();
        a.sender.send(&Header::request(id, Command::DMA_MAP, 3), &[b"abc"], &fds).expect("sent");
    };
    send(1, &[]);
    send(2, &[&file("two"), &file("too")]);
    send(3, &[]);
    send(4, &[&file("four")]);
    for (id, texts) in [(1, vec![]), (2, vec!["two", "too"]), (3, vec![]), (4, vec!["four"])] {
        let message = b.receiver.receive(Some(SOON)).expect("a message");
        assert_eq!((message.header.id, message.payload), (id, &b"abc"[..]));
        let found: Vec<String> = message
            .fds
            .into_iter()
            .map(|fd| {
                let mut text = String::new();
                File::from(fd).read_to_string(&mut text).expect("its text");
                text
            })
            .collect();
        assert_eq!(found, texts, "message {id}");
    }
}

#[test]
fn a_refusal_keeps_its_errno() {
    let (mut a, mut b) = pair();
    let server = std::thread::spawn(move || {
        let header = b.receiver.receive(Some(SOON)).expect("a request").header;
        b.sender.refuse(&header, libc::EEXIST).expect("sent");
    });
    let refused = a.call(Command::DMA_MAP, &[DmaMap::default().as_bytes()], &[], SOON);
    assert!(matches!(refused, Err(Error::Refused { command: Command::DMA_MAP, errno: libc::EEXIST })));
    server.join().expect("the server");
}

#[test]
fn a_message_that_never_ends_is_given_up() {
    let (a, mut b) = pair();
    b.receiver.set_patience(Duration::from_millis(50));
    let header = Header::request(1, Command::REGION_WRITE, 100);
    a.sender.send(&header, &[&[0; 10]], &[]).expect("sent");
    let begun = Instant::now();
    assert!(matches!(b.receiver.receive(None), Err(Error::Silent(..))));
    assert!(begun.elapsed() < SOON);
}

#[test]
fn time_between_messages_does_not_count_against_the_next() {
    let (a, mut b) = pair();
    b.receiver.set_patience(Duration::from_millis(100));
    let slow = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        a.sender.send(&Header::request(1, Command::REGION_WRITE, 2), &[b"x"], &[]).expect("sent");
        a.sender.send(&Header::request(1, Command::REGION_WRITE, 2), &[], &[]).expect("sent");
        a
    });
    // The second header's first byte ends the first message.
    assert!(b.receiver.receive(None).is_ok());
    drop(slow.join());
}

#[test]
fn a_size_no_message_has_ends_the_session() {
    for size in [0, 15, MAX_MESSAGE as u32 + 1, u32::MAX] {
        let (a, mut b) = pair();
        let header = Header { size, ..Header::request(1, Command::VERSION, 0) };
        a.sender.send(&header, &[], &[]).expect("sent");
        assert!(matches!(b.receiver.receive(Some(SOON)), Err(Error::Malformed(_))), "size {size}");
    }
}

#[test]
fn closing_between_messages_is_the_end_and_within_one_is_an_error() {
    let (a, mut b) = pair();
    assert!(!b.sender.is_closed());
    drop(a);
    assert!(b.sender.is_closed());
    assert!(matches!(b.receiver.receive(Some(SOON)), Err(Error::Closed)));
    let (a, mut b) = pair();
    a.sender.send(&Header::request(1, Command::REGION_WRITE, 8), &[], &[]).expect("sent");
    drop(a);
    assert!(matches!(b.receiver.receive(Some(SOON)), Err(Error::Malformed(_))));
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let path = path("stale");
    let listener = Listener::bind(&path).expect("a socket");
    assert!(Listener::bind(&path).is_err(), "somebody listens there");
    assert!(path.exists());
    std::mem::forget(listener);
    // Left behind by a killed server: a socket without a listener.
    let gone = self::path("gone");
    drop(std::os::unix::net::UnixListener::bind(&gone).expect("a socket"));
    let again = Listener::bind(&gone).expect("the name is free");
    drop(again);
    assert!(!gone.exists(), "the socket's file goes with the server");
    std::fs::remove_file(path).expect("our file");
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = path("file");
    std::fs::write(&path, "precious").expect("a file");
    assert!(Listener::bind(&path).is_err());
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "precious");
    std::fs::remove_file(path).expect("our file");
}

#[test]
fn both_ends_agree_on_a_version() {
    let path = path("version");
    let listener = Listener::bind(&path).expect("a socket");
    let server = std::thread::spawn(move || {
        let mut c = Connection::new(listener.accept().expect("a client")).expect("a connection");
        let (header, answer) = {
            let m = c.receiver.receive(Some(SOON)).expect("a proposal");
            (m.header, Version::decode(m.payload).and_then(|v| v.answer()).expect("a version"))
        };
        c.sender.reply(&header, &[&answer.encode()], &[]).expect("sent");
    });
    let (_, version) = Connection::connect(&path, SOON).expect("a session");
    assert_eq!(version, Version::ours());
    server.join().expect("the server");
}

#[test]
fn qemu_proposes_capabilities_we_do_not_know() {
    let json = br#"{"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1048576, "pgsizes": 4096,
        "max_dma_maps": 65535, "migration": {"pgsize": 4096}, "write_multiple": true}}"#;
    let payload = [&[0, 0, 1, 0][..], json, &[0]].concat();
    let version = Version::decode(&payload).expect("a version");
    assert_eq!((version.major, version.minor, version.capabilities.max_msg_fds), (0, 1, 8));
    assert!(version.answer().expect("0.1").capabilities.write_multiple);
    assert_eq!(Version::decode(&[0, 0, 0, 0]).expect("no JSON").capabilities, Capabilities::default());
}

#[test]
fn areas_of_a_region_are_found_again() {
    let info =
        RegionInfo { flags: REGION_FLAG_READ | REGION_FLAG_MMAP, size: 32 << 20, ..Default::default() };
    let areas = [SparseArea { offset: 0x10000, size: 0x1000 }, SparseArea { offset: 0x20000, size: 0x2000 }];
    let (found, parts) = RegionInfo::decode(&info.encode(&areas)).expect("a reply");
    assert_eq!((found.size, found.argsz as usize), (info.size, info.encode(&areas).len()));
    assert_eq!(parts, areas);
    assert!(RegionInfo::decode(&info.encode(&[])).expect("a reply").1.is_empty());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Version::decode(&bytes);
        let _ = RegionInfo::decode(&bytes);
        let _ = SmallWrite::decode(&bytes);
        let _ = read::<IrqSet>(&bytes);
        let (a, b) = UnixStream::pair().expect("a pair");
        let mut end = Connection::new(b).expect("an end");
        end.receiver.set_patience(Duration::from_millis(1));
        let mut a = a;
        a.write_all(&bytes).expect("room in a socket");
        drop(a);
        while end.receiver.receive(Some(SOON)).is_ok() {}
    }

    #[test]
    fn messages_cut_anywhere_arrive_whole(cut in 1usize..60, len in 0usize..40) {
        let (mut a, b) = UnixStream::pair().expect("a pair");
        let mut end = Connection::new(b).expect("an end");
        let payload: Vec<u8> = (0..len as u8).collect();
        let mut bytes = Header::request(7, Command::REGION_WRITE, len).as_bytes().to_vec();
        bytes.extend(&payload);
        let all = bytes.repeat(2);
        let writer = std::thread::spawn(move || {
            for part in all.chunks(cut) {
                a.write_all(part).expect("room in a socket");
            }
        });
        for _ in 0..2 {
            let message = end.receiver.receive(Some(SOON)).expect("a message");
            prop_assert_eq!(message.payload, &payload[..]);
        }
        writer.join().expect("the writer");
    }
}
