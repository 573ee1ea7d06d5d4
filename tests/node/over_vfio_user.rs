//! The driver over a vfio-user socket: another process could be at the other end, and the kernel is not involved.

use devmodel::{Config, region::Geometry, serve};
use driver::{
    Device, OpenOptions, Pd, QpAttr, QpState, SendOp, Service, Target, WcOpcode, open_resolving,
    transport::{Transport, VfioUserTransport, Width},
};
use ironverbs_tests::{
    end::{End, Patience, SOON, attributes, every_operation, pattern},
    program::Scratch,
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const LEN: usize = 1 << 20;

/// An adapter with two VFs, each with a socket.
struct Served {
    plugs: Vec<serve::Plug>,
    standalone: Arc<serve::Standalone>,
    over: Arc<AtomicBool>,
    scratch: Scratch,
}

impl Served {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        Self::serving(config, None)
    }

    /// Functions that misbehave as `how` says.
    fn misbehaving(how: &str) -> Self {
        Self::serving(Config::default(), Some(how.parse().expect("known")))
    }

    fn serving(config: Config, how: Option<serve::Misbehaviour>) -> Self {
        let scratch = Scratch::made();
        let standalone = serve::Standalone::new(Geometry::SMALL, config);
        let over = Arc::new(AtomicBool::new(false));
        // The serving process has to fire the adapter's timers.
        let (ticks, stop) = (standalone.clone(), over.clone());
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                ticks.run();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut this = Self { scratch, plugs: Vec::new(), standalone, over };
        for fid in [1, 2] {
            let (socket, function) = (this.socket(fid), this.standalone.function(fid));
            let plug = match how {
                None => serve::Plug::new(&socket, Arc::new(function)),
                Some(how) => {
                    serve::Plug::new(&socket, Arc::new(serve::Misbehaving::new(function, vec![how])))
                }
            };
            this.plugs.push(plug.expect("a socket"));
        }
        this
    }

    fn socket(&self, fid: u8) -> PathBuf {
        self.scratch.dir().join(format!("vf{fid}"))
    }

    fn device(&self, fid: u8) -> Arc<Device> {
        open(&self.socket(fid), fid).expect("a device")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

fn gid(fid: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, fid]
}

fn mac(fid: u8) -> [u8; 6] {
    devmodel::identity::mac(0, fid)
}

/// An IPv6 address in addition to the IPv4 one.
fn gid_v6(fid: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, fid]
}

fn open(socket: &Path, fid: u8) -> Result<Arc<Device>, String> {
    let gids = vec![gid(fid), gid_v6(fid)];
    let options = OpenOptions { link_local: true, gids, ..OpenOptions::default() };
    let transport = VfioUserTransport::open(socket).map_err(|e| e.to_string())?;
    open_resolving(transport, options).map_err(|e| e.to_string())
}

fn pair(served: &Served) -> (End, End) {
    let [a, b] = [1, 2].map(|fid| End::new(served.device(fid), LEN).expect("an end"));
    a.join(&b);
    (a, b)
}

#[test]
fn every_operation_between_two_sockets() {
    let served = Served::new();
    let (a, b) = pair(&served);
    every_operation(&a, &b, &[8, 64, 4096, 4104, 100_000]);
}

#[test]
fn an_armed_queue_wakes_a_sleeping_program() {
    let served = Served::new();
    let (a, b) = pair(&served);
    b.cq.arm(false);
    // Drains the events of the bring-up.
    b.drain();
    b.receive(1, 0, LEN);
    assert!(!b.device.events().wait(Some(Duration::from_millis(50))).unwrap(), "nothing has come yet");
    a.post(2, SendOp::Send, &[a.sge(0, 8)]);
    assert!(b.device.events().wait(Some(SOON)).unwrap());
    assert!(matches!(b.device.events().next(), Some(driver::Event::Cq { .. })));
    b.good(WcOpcode::Recv);
}

#[test]
fn a_link_local_gid_needs_no_neighbour() {
    let served = Served::new();
    let device = served.device(1);
    let gid = device.gid(0).unwrap();
    assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    assert_eq!((gid[8] ^ 2, gid[9], gid[15]), (0x02, 0x1b, 1), "made of the MAC");
}

#[test]
fn peers_are_found_by_asking_and_who_is_not_there_is_named() {
    let served = Served::new();
    let (a, b) = (served.device(1), served.device(2));
    for _ in 0..2 {
        for (index, gid) in [(1, gid as fn(u8) -> [u8; 16]), (2, gid_v6)] {
            assert_eq!(a.resolve(index, &gid(2)).unwrap(), mac(2));
            assert_eq!(b.resolve(index, &gid(1)).unwrap(), mac(1));
        }
        assert_eq!(a.resolve(1, &gid(1)).unwrap(), mac(1), "our own address");
    }
    let begin = Instant::now();
    let error = a.resolve(1, &gid(77)).unwrap_err();
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(error.errno(), libc::EHOSTUNREACH);
    let said = error.to_string();
    for word in ["10.0.0.77", "12 ARP requests", "10.0.0.1 ", "3s"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    // A closed device no longer answers.
    drop(b);
    let c = served.device(1);
    assert_eq!(c.resolve(2, &gid_v6(99)).unwrap_err().errno(), libc::EHOSTUNREACH);
}

#[test]
fn a_bringup_hears_a_frame_from_outside_or_says_who_was_silent() {
    use driver::harness::{self, Outcome, Outside, Plan};
    let served = Served::new();
    let _peer = served.device(2);
    let ip = |fid: u8| std::net::IpAddr::from([10, 0, 0, fid]);
    for (peer, heard) in [(2, true), (99, false)] {
        let outside = Some(Outside { own: ip(1), peer: ip(peer) });
        let plan = Plan { write: true, outside, ..Plan::default() };
        let transport: Arc<dyn Transport> = VfioUserTransport::open(&served.socket(1)).expect("a function");
        let report = harness::run(&transport, &plan, &mut |_| ());
        let step = report.steps.iter().find(|step| step.name.name == "frame from outside").unwrap();
        match (&step.outcome, heard) {
            (Outcome::Passed, true) => {
                assert!(step.readings.iter().any(|r| r.found == "02:1b:56:00:00:02"), "{report}");
                assert!(report.failure().is_none(), "{report}");
            }
            (Outcome::Failed(why), false) => assert!(why.contains("10.0.0.99"), "{why}"),
            _ => panic!("{report}"),
        }
    }
}

#[test]
fn a_frame_longer_than_any_of_discovery_stops_nobody_from_being_found() {
    let served = Served::new();
    let (a, b) = (served.device(1), served.device(2));
    let end = End::alone(&a, Service::RawPacket);
    // An ICMPv6 message of 3,000 bytes.
    let mut frame = vec![0; 14 + 40 + 3000];
    frame[..6].copy_from_slice(&mac(2));
    frame[6..12].copy_from_slice(&mac(1));
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&3000u16.to_be_bytes());
    (frame[20], frame[21]) = (58, 255);
    end.words.put(0, &frame);
    for _ in 0..3 {
        end.send_to(1, frame.len(), &Target::Peer);
        end.good(WcOpcode::Send);
    }
    assert_eq!(a.resolve(1, &gid(2)).unwrap(), mac(2));
    assert_eq!(b.resolve(1, &gid(1)).unwrap(), mac(1));
}

#[test]
fn closed_and_opened_again_the_function_is_as_new() {
    let served = Served::new();
    for round in 0..3 {
        let (a, b) = pair(&served);
        a.post(1, b.to_write(0), &[a.sge(0, 64)]);
        a.good(WcOpcode::RdmaWrite);
        drop((a, b));
        let what = format!("round {round}: nobody has the functions any more");
        testkit::until(what, SOON, || !served.plugs.iter().any(serve::Plug::in_use));
    }
}

#[test]
fn one_process_shares_the_socket_and_opens_the_function_twice() {
    let served = Served::new();
    let (first, second) = (served.device(1), served.device(1));
    let [a, b] = [first, second].map(|device| End::new(device, 4096).expect("an end"));
    a.join(&b);
    a.words.set_word(0, 7);
    a.post(1, b.to_write(0), &[a.sge(0, 8)]);
    a.good(WcOpcode::RdmaWrite);
    assert_eq!(b.words.word(0), 7);
}

#[test]
fn a_socket_somebody_else_has_says_so_in_time() {
    let served = Served::new();
    let (_other, _) =
        vfio_user_proto::Connection::connect(&served.socket(1), SOON).expect("the other client");
    let begin = Instant::now();
    let error = VfioUserTransport::open(&served.socket(1)).err().expect("refused");
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    assert!(begin.elapsed() < SOON);
    let error = VfioUserTransport::open(&served.scratch.dir().join("nobody")).err().expect("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_reset_takes_the_function_down_and_it_comes_up_again() {
    let served = Served::new();
    let transport = VfioUserTransport::open(&served.socket(1)).expect("a function");
    assert_eq!(transport.config_read(0, Width::B4).unwrap(), 0x1018_15b3);
    let quick = OpenOptions { command_timeout: Duration::from_millis(500), ..OpenOptions::default() };
    let device = Device::open(transport.clone(), quick).expect("up");
    assert!(device.port().unwrap().active);
    transport.reset().unwrap();
    assert!(device.port().is_err(), "a function that was reset takes no commands");
    drop(device);
    let device = Device::open(transport, OpenOptions::default()).expect("up again");
    assert!(device.port().unwrap().active);
}

#[test]
fn a_server_that_goes_leaves_errors_and_no_hang() {
    let mut served = Served::new();
    let (a, b) = pair(&served);
    served.plugs.clear();
    let begin = Instant::now();
    assert!(a.device.port().is_err());
    drop((a, b));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn on_infiniband_a_lid_is_address_enough() {
    use driver::AddressHandle;
    let served = Served::with(Config { link_layer: devmodel::LinkLayer::Infiniband, ..Config::default() });
    let ends = [1, 2].map(|fid| {
        let transport = VfioUserTransport::open(&served.socket(fid)).expect("a function");
        let device = Device::open(transport, OpenOptions::default()).expect("up");
        let port = device.port().unwrap();
        assert_eq!((port.active, port.lid), (true, u16::from(fid) + 1));
        assert_eq!(port.link_layer, driver::LinkLayer::InfiniBand);
        assert_eq!(device.gid(0).unwrap()[8..], device.attr().node_guid);
        End::new(device, 8192).expect("an end")
    });
    for (me, peer) in [(0, 1), (1, 0)] {
        let dlid = ends[peer].device.port().unwrap().lid;
        let ah = AddressHandle { dlid, port_num: 1, ..AddressHandle::default() };
        let attr = QpAttr {
            ah,
            path_mtu: 2048,
            ..attributes(&ends[me].qp, &ends[peer].card(), Patience::default())
        };
        ends[me].qp.advance_to(QpState::Rts, &attr).expect("RTS");
    }
    let [a, b] = &ends;
    let data = pattern(5000, 3);
    a.words.put(0, &data);
    b.receive(1, 0, 8192);
    a.post(2, SendOp::Send, &[a.sge(0, 5000)]);
    a.good(WcOpcode::Send);
    b.good(WcOpcode::Recv);
    assert!(b.words.bytes(0, 5000) == data);
}

#[test]
fn traffic_goes_on_while_commands_hang_until_the_device_is_given_up() {
    let served = Served::misbehaving("stuck-command@doorbell=100");
    let (a, b) = pair(&served);
    let write = || {
        a.post(1, b.to_write(0), &[a.sge(0, 64)]);
        a.good(WcOpcode::RdmaWrite);
    };
    (0..101).for_each(|_| write());
    let device = a.device.clone();
    let hanging = std::thread::spawn(move || Pd::alloc(&device).map(drop).map_err(|e| e.errno()));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        write();
    }
    assert!(!hanging.is_finished() && !a.cq.is_gone(), "a command has a minute");
    let begin = Instant::now();
    a.device.give_up();
    assert_eq!(hanging.join().expect("no panic"), Err(libc::ENODEV));
    assert_eq!((a.cq.is_gone(), b.cq.is_gone()), (true, false));
    b.device.give_up();
    drop((a, b));
    assert!(begin.elapsed() < SOON, "all was taken apart after {:?}", begin.elapsed());
}
