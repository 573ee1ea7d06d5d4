//! Functions on vhost-user sockets: a client like user-mode Linux, and hostile ones.

use super::client::{BASE, Client, Link, MEMORY, SOON, eventually};
use hwspec::pcie::{EXPRESS_CAP, MSIX_CAP, MSIX_TABLE, SRIOV_CAP};
use ironverbs_devmodel::{
    Config,
    region::Geometry,
    serve::{Function, Plug, Standalone, vhost::Sriov},
};
use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm, TestRng},
};
use std::{
    fs::File,
    io::{Read, Write},
    os::{fd::AsFd, unix::fs::FileExt, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use testkit::Scratch;
use vfio_user_proto::{PATIENCE, REGION_BAR0, REGION_CONFIG, Result, sys};

/// Requests, with their vhost-user names.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const VRING_KICK: u32 = 35;

/// Addresses of the queues on the client's bus, and in its own address space.
const QUEUES: u64 = 0x2_0000_0000;
const OWN: u64 = 0x5000_0000;
/// Size of the memory for queues, half for each.
const ROOM: u64 = 0x4_0000;
const HALF: u64 = ROOM / 2;
const ENTRIES: u16 = 16;
/// Offsets within a half: descriptors at 0, rings, buffers.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;
/// Size of a buffer of the interrupt queue.
const MESSAGE: u64 = 20;

/// A PF and two VFs on sockets.
struct Served {
    _plugs: Vec<Plug>,
    dir: Scratch,
}

impl Served {
    fn new() -> Self {
        let standalone = Standalone::new(Geometry::SMALL, Config::default());
        let function = |fid| -> Arc<dyn Function> { Arc::new(standalone.function(fid)) };
        let functions: Vec<_> = (0..3).map(function).collect();
        let sriov = Sriov::new(&*functions[0], functions[1..].to_vec());
        let dir = Scratch::made();
        let plug = |(fid, function): (usize, &Arc<dyn Function>)| {
            let place = (fid as u8, Some(sriov.clone()));
            Plug::virtio(&dir.0.join(format!("f{fid}")), function.clone(), place, || {}).expect("a plug")
        };
        let plugs = functions.iter().enumerate().map(plug).collect();
        Self { _plugs: plugs, dir }
    }

    fn path(&self, fid: u8) -> PathBuf {
        self.dir.0.join(format!("f{fid}"))
    }

    fn client(&self, fid: u8) -> Client<Frontend> {
        let memory = testkit::memfd(MEMORY);
        Client { link: Frontend::new(&self.path(fid), &memory), memory }
    }

    /// A client of the PF, with `vfs` VFs enabled.
    fn pf(&self, vfs: u16) -> Client<Frontend> {
        let mut pf = self.client(0);
        pf.write(REGION_CONFIG, SRIOV_CAP as u64 + 0x10, &vfs.to_le_bytes()).expect("NumVFs");
        pf.write(REGION_CONFIG, SRIOV_CAP as u64 + 0x08, &9u16.to_le_bytes()).expect("VF enable");
        pf
    }
}

/// The client's side of the protocol.
struct Frontend {
    socket: UnixStream,
    /// The socket on which the server calls the client.
    calls: UnixStream,
    queues: File,
    /// Numbers of commands made available, and of interrupts taken.
    sent: u16,
    taken: u16,
}

fn message(request: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    [request, 1, 8 * words.len() as u32].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

/// Two 4-byte numbers as one word of a message.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Frontend {
    fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).expect("a connection");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let (calls, _) = UnixStream::pair().expect("a pair");
        Self { socket, calls, queues: testkit::memfd(ROOM), sent: 0, taken: 0 }
    }

    fn new(path: &Path, memory: &File) -> Self {
        let mut one = Self::connect(path);
        one.tell(SET_OWNER, &[], &[]);
        assert_eq!(one.ask(GET_FEATURES), 1 << 32 | 1 << 30);
        assert_eq!(one.ask(GET_PROTOCOL_FEATURES), 1 << 14 | 1 << 5 | 1);
        one.tell(SET_PROTOCOL_FEATURES, &[1 << 14 | 1 << 5 | 1], &[]);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        one.calls = ours;
        one.calls.set_nonblocking(true).expect("a socket");
        let bytes = message(SET_BACKEND_REQ_FD, &[]);
        sys::send(one.socket.as_fd(), &[&bytes], &[theirs.as_fd()], false).expect("sent");
        assert_eq!(one.ask(GET_QUEUE_NUM), 2);
        one.tell(SET_FEATURES, &[1 << 32 | 1 << 30], &[]);
        let table = [2, BASE, MEMORY, BASE, 0, QUEUES, ROOM, OWN, 0];
        let queues = one.queues.try_clone().expect("a descriptor");
        one.tell(SET_MEM_TABLE, &table, &[memory, &queues]);
        for index in 0..2u32 {
            let own = OWN + HALF * u64::from(index);
            one.tell(SET_VRING_NUM, &[pair(index, ENTRIES.into())], &[]);
            one.tell(SET_VRING_BASE, &[pair(index, 0)], &[]);
            one.tell(SET_VRING_ADDR, &[index.into(), own, own + USED, own + AVAILABLE, 0], &[]);
            one.tell(SET_VRING_ENABLE, &[pair(index, 1)], &[]);
        }
        (0..ENTRIES).for_each(|slot| one.give_message(slot, slot + 1));
        one
    }

    fn tell(&mut self, request: u32, words: &[u64], files: &[&File]) {
        let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let bytes = message(request, words);
        // The server may already have closed the connection.
        let _ = sys::send(self.socket.as_fd(), &[&bytes], &fds, false);
    }

    fn ask(&mut self, request: u32) -> u64 {
        self.tell(request, &[], &[]);
        let mut answer = [0; 20];
        self.socket.read_exact(&mut answer).expect("an answer");
        assert_eq!(
            answer[..12],
            message(request, &[0])[..12].iter().enumerate().map(reply).collect::<Vec<_>>()
        );
        u64::from_ne_bytes(answer[12..].try_into().expect("8 bytes"))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.queues.write_all_at(bytes, at).expect("memory");
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.queues.read_exact_at(&mut bytes, at).expect("memory");
        bytes
    }

    /// Writes descriptor `slot` of the queue at `half`.
    fn describe(&self, half: u64, slot: u16, (at, len): (u64, u32), flags: u16, next: u16) {
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&at.to_le_bytes());
        entry[8..12].copy_from_slice(&len.to_le_bytes());
        entry[12..14].copy_from_slice(&flags.to_le_bytes());
        entry[14..].copy_from_slice(&next.to_le_bytes());
        self.put(half + 16 * u64::from(slot), &entry);
    }

    /// Makes buffer `slot` available for an interrupt, as the `count`th.
    fn give_message(&mut self, slot: u16, count: u16) {
        let at = HALF + BUFFERS + MESSAGE * u64::from(slot);
        self.describe(HALF, slot, (QUEUES + at, MESSAGE as u32), 2, 0);
        self.put(HALF + AVAILABLE + 4 + 2 * u64::from((count - 1) % ENTRIES), &slot.to_le_bytes());
        self.put(HALF + AVAILABLE + 2, &count.to_le_bytes());
        self.tell(VRING_KICK, &[pair(1, 0)], &[]);
    }

    /// Takes the interrupts that arrived and returns their data.
    fn interrupts(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        while u16::from_le_bytes(self.get(HALF + USED + 2)) != self.taken {
            let used = HALF + USED + 4 + 8 * u64::from(self.taken % ENTRIES);
            let [slot, length] = [0, 4].map(|skip| u32::from_le_bytes(self.get(used + skip)));
            assert_eq!(u64::from(length), MESSAGE);
            let bytes: [u8; 20] = self.get(HALF + BUFFERS + MESSAGE * u64::from(slot));
            assert_eq!(bytes[..16], [7, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            all.push(u32::from_le_bytes(bytes[16..].try_into().expect("4 bytes")));
            self.taken += 1;
            self.give_message(slot as u16, self.taken + ENTRIES);
        }
        all
    }

    /// Makes `count` buffers in all available for commands.
    fn offer(&mut self, count: u16) {
        self.put(AVAILABLE + 2, &count.to_le_bytes());
        self.tell(VRING_KICK, &[pair(0, 0)], &[]);
    }

    /// Sends a command and returns its response of up to `room` bytes.
    fn command(&mut self, header: (u8, u8, u32, u64), data: &[u8], room: u32) -> Vec<u8> {
        let (operation, bar, size, address) = header;
        let mut bytes = vec![operation, bar, 0, 0];
        bytes.extend(size.to_ne_bytes());
        bytes.extend(address.to_ne_bytes());
        bytes.extend(data);
        self.put(BUFFERS, &bytes);
        let answer = BUFFERS + 0x1000;
        let next = if room == 0 { 0 } else { 1 };
        self.describe(0, 0, (QUEUES + BUFFERS, bytes.len() as u32), next, 1);
        self.describe(0, 1, (QUEUES + answer, room), 2, 0);
        self.put(AVAILABLE + 4 + 2 * u64::from(self.sent % ENTRIES), &0u16.to_le_bytes());
        self.sent += 1;
        self.offer(self.sent);
        eventually("the command is done", || u16::from_le_bytes(self.get(USED + 2)) == self.sent);
        let written = u32::from_le_bytes(self.get(USED + 4 + 8 * u64::from((self.sent - 1) % ENTRIES) + 4));
        let mut out = vec![0; written as usize];
        self.queues.read_exact_at(&mut out, answer).expect("memory");
        out
    }

    /// Waits for the end of the session.
    fn ends(mut self) {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "the session goes on"),
        }
    }
}

/// A byte of a request's header as expected in the reply.
fn reply((at, byte): (usize, &u8)) -> u8 {
    if at == 4 { 5 } else { *byte }
}

impl Link for Frontend {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>> {
        let operation = if region == REGION_CONFIG { 1 } else { 3 };
        Ok(self.command((operation, 0, count, offset), &[], count))
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let operation = if region == REGION_CONFIG { 2 } else { 4 };
        self.command((operation, 0, data.len() as u32, offset), data, 0);
        Ok(())
    }
}

/// Programs `vector` in the table in BAR0 and enables MSI-X.
fn program(c: &mut Client<Frontend>, vector: u64, data: u32) {
    let entry = MSIX_TABLE as u64 + 16 * vector;
    c.write(REGION_BAR0, entry + 8, &data.to_le_bytes()).expect("data");
    c.write(REGION_BAR0, entry + 12, &0u32.to_le_bytes()).expect("control");
    c.write(REGION_CONFIG, MSIX_CAP as u64 + 2, &0x8000u16.to_le_bytes()).expect("MSI-X control");
}

#[test]
fn a_vf_works_once_its_pf_enables_it() {
    let served = Served::new();
    let mut vf = served.client(1);
    assert_eq!(vf.config(4), u32::MAX, "not enabled");
    vf.set_queue(BASE);
    assert_eq!(vf.register(0), u32::MAX);
    let mut pf = served.pf(1);
    assert_eq!(vf.config(0), u32::MAX, "vendor and device are the PF's to tell");
    assert_eq!(vf.config(4) & 6, 0);
    vf.enable();
    let uar = vf.init();
    program(&mut vf, 3, 0x4711);
    let eqn = vf.create_eq(uar, 3);
    assert!(vf.link.interrupts().is_empty());
    vf.works();
    let mut came = Vec::new();
    eventually("the command's event", || {
        came.extend(vf.link.interrupts());
        came == [0x4711]
    });
    let mut call = [0; 20];
    eventually("a call", || (&vf.link.calls).read(&mut call).is_ok());
    assert_eq!(call[..], message(4, &[1]));
    vf.arm(uar, eqn, 1);
    vf.works();
    eventually("the next event", || vf.link.interrupts() == [0x4711]);
    // The PF removes the VF and recreates it in its reset state.
    pf.write(REGION_CONFIG, SRIOV_CAP as u64 + 8, &0u16.to_le_bytes()).expect("VF enable");
    assert_eq!(vf.config(4), u32::MAX);
    pf.write(REGION_CONFIG, SRIOV_CAP as u64 + 8, &9u16.to_le_bytes()).expect("VF enable");
    assert_eq!(vf.config(4) & 6, 0, "memory space and bus mastering are off");
    vf.enable();
    assert_eq!(vf.init(), uar, "as at first");
}

#[test]
fn the_capability_shows_the_vfs_behind_their_pf() {
    let served = Served::new();
    let mut pf = served.client(0);
    let at = SRIOV_CAP as u64;
    assert_eq!(pf.config(0) & 0xffff, 0x15b3);
    assert_eq!(pf.config(at) & 0xffff, 0x10);
    assert_eq!(pf.config(at + 0x08), 0, "the node's VFs are enabled, this client's are not");
    assert_eq!(pf.config(at + 0x0c), 2 << 16 | 2, "as many as have sockets");
    assert_eq!(pf.config(at + 0x14), 1 << 16 | 1, "first offset and stride");
    // The size of VF BAR0: 32 MiB, 64 bits, prefetchable.
    pf.write(REGION_CONFIG, at + 0x24, &[0xff; 8]).expect("VF BAR0");
    assert_eq!([pf.config(at + 0x24), pf.config(at + 0x28)], [0xfe00_000c, u32::MAX]);
    for byte in [0x10, 0x11] {
        pf.write(REGION_CONFIG, at + byte, &[2 - 2 * (byte as u8 & 1)]).expect("NumVFs, in halves");
    }
    pf.write(REGION_CONFIG, at + 0x08, &[1]).expect("VF enable");
    pf.write(REGION_CONFIG, at + 0x10, &[1]).expect("NumVFs");
    assert_eq!(pf.config(at + 0x10) & 0xffff, 2, "fixed while VFs are enabled");
    let mut second = served.client(2);
    assert_eq!(second.config(4) & 6, 0);
    // A reset of the PF removes its VFs.
    pf.write(REGION_CONFIG, EXPRESS_CAP as u64 + 8, &0x8000u16.to_le_bytes()).expect("FLR");
    assert_eq!(pf.config(at + 0x08), 0);
    assert_eq!(second.config(4), u32::MAX);
}

#[test]
fn vfs_go_with_the_client_of_their_pf() {
    let served = Served::new();
    let mut vf = served.client(1);
    let pf = served.pf(2);
    vf.enable();
    drop(pf);
    eventually("the VF is gone", || vf.config(4) == u32::MAX);
    let _pf = served.pf(2);
    assert_eq!(vf.config(4) & 6, 0);
    drop(vf);
    let mut next = served.client(1);
    next.enable();
    next.works();
}

#[test]
fn what_is_not_there_reads_as_ones() {
    let served = Served::new();
    let mut pf = served.client(0);
    assert_eq!(pf.link.command((3, 2, 4, 0), &[], 4), [0xff; 4], "BAR 2");
    assert_eq!(pf.link.command((3, 0, 4, 32 << 20), &[], 4), [0xff; 4], "behind BAR 0");
    assert_eq!(pf.link.command((3, 0, 8, u64::MAX - 3), &[], 8), [0xff; 8]);
    assert_eq!(pf.link.command((1, 0, 8, 0xffc), &[], 8), [0xff; 8], "behind configuration space");
    assert_eq!(pf.link.command((1, 0, 8, 0), &[], 2), [0xb3, 0x15], "no more than there is room for");
    pf.link.command((4, 3, 4, 0), &[0; 4], 0);
    // A memset of a register, the command queue's address.
    pf.enable();
    pf.link.command((5, 0, 8, 0x10), &[0], 0);
    assert_eq!(pf.read(REGION_BAR0, 0x10, 4).expect("a register"), [0; 4]);
}

#[test]
fn what_breaks_the_protocol_ends_that_session_alone() {
    let served = Served::new();
    let _pf = served.pf(2);
    let mut other = served.client(2);
    other.enable();
    let memory = testkit::memfd(MEMORY);
    type Harm = fn(&mut Frontend);
    let harms: &[(&str, Harm)] = &[
        ("an unknown request", |f| f.tell(99, &[], &[])),
        ("features nobody offered", |f| f.tell(SET_FEATURES, &[1], &[])),
        ("eventfds", |f| f.tell(SET_PROTOCOL_FEATURES, &[1], &[])),
        ("a third queue", |f| f.tell(VRING_KICK, &[pair(2, 0)], &[])),
        ("a queue of 3", |f| f.tell(SET_VRING_NUM, &[pair(0, 3)], &[])),
        ("a queue nowhere", |f| f.tell(SET_VRING_ADDR, &[0, 8, 8, 8, 0], &[])),
        ("a table without files", |f| f.tell(SET_MEM_TABLE, &[1, BASE, 4096, BASE, 0], &[])),
        ("a table beyond its file", |f| {
            let file = testkit::memfd(4096);
            f.tell(SET_MEM_TABLE, &[1, BASE, 8192, BASE, 0], &[&file]);
        }),
        ("a table of a device", |f| {
            let file = File::open("/dev/zero").expect("a device");
            f.tell(SET_MEM_TABLE, &[1, BASE, 4096, BASE, 0], &[&file]);
        }),
        ("a short message", |f| f.tell(SET_VRING_ADDR, &[0], &[])),
        ("a long message", |f| f.tell(SET_VRING_ADDR, &[0; 64], &[])),
        ("more than a queue holds", |f| f.offer(100)),
        ("a descriptor behind the last", |f| {
            f.put(AVAILABLE + 4, &ENTRIES.to_le_bytes());
            f.offer(1);
        }),
        ("a chain in a circle", |f| {
            f.describe(0, 0, (QUEUES + BUFFERS, 16), 1, 0);
            f.offer(1);
        }),
        ("a buffer outside of memory", |f| {
            f.describe(0, 0, (0x10, 16), 0, 0);
            f.offer(1);
        }),
        ("a command of 4 GiB", |f| {
            f.describe(0, 0, (QUEUES, u32::MAX), 0, 0);
            f.offer(1);
        }),
        ("a command without a header", |f| {
            f.describe(0, 0, (QUEUES, 15), 0, 0);
            f.offer(1);
        }),
        ("a command about more than it has", |f| {
            f.put(BUFFERS, &[4, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            f.describe(0, 0, (QUEUES + BUFFERS, 16), 0, 0);
            f.offer(1);
        }),
    ];
    for (name, harm) in harms {
        println!("{name}");
        let mut one = Frontend::new(&served.path(1), &memory);
        harm(&mut one);
        one.ends();
        other.works();
    }
    let mut vf = served.client(1);
    vf.enable();
    vf.works();
}

#[test]
fn garbage_is_no_harm() {
    let served = Served::new();
    let _pf = served.pf(2);
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let memory = testkit::memfd(MEMORY);
    for round in 0..200 {
        let mut one = Frontend::new(&served.path(1), &memory);
        if round % 2 == 0 {
            // Queues with random contents.
            let mut bytes = vec![0; 0x3000];
            rng.fill_bytes(&mut bytes);
            bytes[AVAILABLE as usize + 2..AVAILABLE as usize + 4].copy_from_slice(&ENTRIES.to_le_bytes());
            one.put(0, &bytes);
            one.tell(VRING_KICK, &[0], &[]);
        } else {
            let words: Vec<u64> = (0..round % 6).map(|_| rng.next_u64() % 64).collect();
            one.tell(rng.next_u32() % 40, &words, &[]);
            let mut bytes = vec![0; 40];
            rng.fill_bytes(&mut bytes);
            let _ = one.socket.write_all(&bytes);
        }
    }
    let mut vf = served.client(1);
    vf.enable();
    vf.works();
}

#[test]
fn who_stops_in_the_middle_is_thrown_out() {
    let served = Served::new();
    for (name, bytes) in [("says nothing", &[][..]), ("half a header", &[1, 0, 0, 0, 1, 0])] {
        let begun = Instant::now();
        let mut one = Frontend::connect(&served.path(1));
        one.socket.write_all(bytes).expect("sent");
        one.ends();
        let took = begun.elapsed();
        assert!((PATIENCE..PATIENCE + Duration::from_secs(3)).contains(&took), "{name}: {took:?}");
    }
}
