//! Debian's programs on our provider on a vfio-user socket: driver and device are in different processes, with the device's own interface
//! between them.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages perftest, ibverbs-utils, ucx-utils, libfabric-bin,
//! openmpi-bin and libopenmpi-dev.

use super::tools::{Row, judge};
use ironverbs_tests::{
    program::{Program, may_send_raw},
    stock::{
        Node, Pair, Running, compiled, compiled_cpp, compiled_mpi, customers, has_all, ironverbs, is_heard,
    },
};
use std::{
    fs,
    path::PathBuf,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};
use testkit::until;

/// A server of two functions; removed, with its sockets, when the test ends.
struct Served {
    server: Running,
    sockets: [PathBuf; 2],
    home: PathBuf,
    node: Node,
}

impl Served {
    fn new(name: &str) -> Self {
        Self::serving(name, &[])
    }

    /// Serves functions that misbehave as `how` says.
    fn misbehaving(name: &str, how: &str) -> Self {
        Self::serving(name, &["--misbehave", how])
    }

    fn serving(name: &str, options: &[&str]) -> Self {
        let node = Node::new(name, 2);
        let home = std::env::temp_dir().join(format!("ironverbs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&home);
        fs::create_dir(&home).expect("a directory for the sockets");
        let sockets = [1, 2].map(|fid| home.join(format!("vf{fid}")));
        let plugs = [1, 2].map(|fid| format!("{fid}={}", sockets[fid - 1].display()));
        let plugs = ["--vfs", "2", "--plug", &plugs[0], "--plug", &plugs[1]];
        let server = node.ironverbs(&["serve"], &[&plugs[..], options].concat());
        until("the sockets are there", Duration::from_secs(20), || {
            sockets.iter().all(|socket| socket.exists())
        });
        Self { server, sockets, home, node }
    }

    fn run(&self, fid: usize, program: &[&str]) -> Running {
        let socket = self.sockets[fid - 1].display().to_string();
        self.node.ironverbs(&["run"], &[&["--vfio-user", &socket, "--"], program].concat())
    }

    /// Runs a program on a function whose address is 10.0.0.`fid`.
    fn at(&self, fid: usize, program: &[&str]) -> Running {
        let (socket, address) = (self.sockets[fid - 1].display().to_string(), format!("10.0.0.{fid}"));
        let view = ["--vfio-user", &socket, "--address", &address, "--"];
        self.node.ironverbs(&["run"], &[&view[..], program].concat())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.kill();
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Runs each row between the two functions.
fn all_run(name: &str, rows: &[Row<'_>]) {
    let served = Served::new(name);
    for row in rows {
        let options: Vec<&str> = row.1.split_whitespace().collect();
        judge(*row, &Pair::served(&served.node, &served.sockets, row.0, &options));
    }
}

#[test]
fn pingpong_checks_its_data() {
    let options = ["-c", "-c -e", "-c -s 1048576 -n 100"];
    all_run("vu-pingpong", &options.map(|options| ("ibv_rc_pingpong", options)));
}

#[test]
fn shared_queues_and_extended_connections_work() {
    all_run("vu-shared", &[("ibv_srq_pingpong", "-c -n 200"), ("ibv_xsrq_pingpong", "-n 50")]);
}

#[test]
fn perftest_prints_its_figures() {
    let tools = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_read_lat", "ib_atomic_lat"];
    all_run("vu-perftest", &tools.map(|tool| (tool, "-F -n 500")));
}

#[test]
fn ucx_sends_puts_and_gets() {
    let served = Served::new("vu-ucx");
    for transport in customers::TRANSPORTS {
        for (test, size) in
            [("tag_lat", "8"), ("tag_bw", "1048576"), ("ucp_put_bw", "8"), ("ucp_get", "4096")]
        {
            let pair =
                Pair::served_at(&served.node, &served.sockets, ["10.0.0.1", "10.0.0.2"], |me, port| {
                    let words = customers::ucx("iron0", transport, test, size, port);
                    words.into_iter().chain((me == 1).then(|| "127.0.0.1".into())).collect()
                });
            assert!(pair.client.contains("Final:"), "{transport} {test} {size}: {}", pair.client);
        }
    }
}

/// libfabric's programs also use their fabric address for TCP, so it must be an address of the host.
#[test]
fn libfabric_talks_over_connections_and_by_datagrams() {
    let served = Served::new("vu-fabric");
    for (endpoint, sizes) in [("msg", &customers::SIZES[..]), ("dgram", &["64", "4k"])] {
        let addresses = ["127.0.0.11/8", "127.0.0.12/8"];
        let pair = Pair::served_at(&served.node, &served.sockets, addresses, |me, port| {
            let sides: [&[&str]; 2] = [&["-B", port], &["-P", port, "127.0.0.11"]];
            customers::fabric("verbs", endpoint, sides[me])
        });
        customers::fabric_said(&pair.client, sizes);
    }
}

/// Between two functions that one program has open, each over its own socket.
#[test]
fn raw_packets_are_sent_spread_and_rid_of_their_tags() {
    let served = Served::new("vu-raw");
    let [first, second] = [0, 1].map(|n| served.sockets[n].display().to_string());
    for (name, promises) in [("raw", [1, 4]), ("spread", [3, 7])] {
        let program = compiled(name);
        let view = ["--vfio-user", &first, "--vfio-user", &second, "--", &program, "iron0", "iron1"];
        let out = served.node.ironverbs(&["run"], &view).finish();
        let kept = out.lines().filter(|line| line.ends_with(" ok")).count();
        assert_eq!(kept, promises[usize::from(may_send_raw())], "{name}: {out}");
    }
}

/// Each rank is a program on its own function.
#[test]
fn open_mpi_sends_and_checks_messages_of_every_size() {
    let served = Served::new("vu-mpi");
    let program = compiled_mpi("ranks");
    // One program for all ranks: mpirun of Open MPI 5.0.7 crashes if a job has two, even of true(1).
    let rank = r#"
        rank=$OMPI_COMM_WORLD_RANK program=$1 ironverbs=$2
        shift 2
        shift "$rank"
        exec "$ironverbs" run --vfio-user "$1" --address "10.0.0.$((rank + 1))" -- \
            env UCX_TLS=rc_v,self UCX_NET_DEVICES=iron0:1 "$program" pingpong"#;
    let mut mpi = Command::new("timeout");
    mpi.args(["120", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]);
    mpi.args(["--mca", "pml", "ucx", "--mca", "btl", "^openib", "sh", "-euc", rank, "rank", &program]);
    mpi.arg(ironverbs()).args(&served.sockets[..2]);
    let said = mpi.output().expect("mpirun, of openmpi-bin");
    let out = String::from_utf8_lossy(&said.stdout);
    let rows = out.lines().filter(|line| line.split_whitespace().count() == 2).count();
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.status.success() && rows >= 11 && out.contains("1048576"),
        "{}\n{out}\n{errors}",
        said.status
    );
}

#[test]
fn a_function_is_for_one_program_at_a_time_and_says_so() {
    let served = Served::new("vu-busy");
    let out = served.run(1, &["ibv_devinfo", "-v"]).finish();
    has_all(&out, ["iron0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "fe80::1b:56ff:fe00:1"]);
    let holder = served.run(1, &["ibv_rc_pingpong", "-d", "iron0", "-g", "0", "-p", "18999"]);
    // It has the function open once it listens.
    until("the holder listens", Duration::from_secs(20), || is_heard("18999"));
    let out = served.run(1, &["ibv_devinfo"]).fails();
    assert!(out.contains("another client"), "{out}");
    let mut holder = holder;
    holder.kill();
    served.run(1, &["ibv_devinfo"]).finish();
}

/// Programs that connect by addresses alone; the first has 10.0.0.1.
#[test]
fn connections_are_made_by_address() {
    let served = Served::new("vu-cm");
    let at = |fid, line: &str| served.at(fid, &line.split_whitespace().collect::<Vec<_>>());
    for (server, client, said) in [
        ("rping -s -a 10.0.0.1 -C 10 -v", "rping -c -a 10.0.0.1 -C 10 -v", "rdma-ping-9:"),
        ("rping -s -C 3 -v", "rping -c -I 10.0.0.2 -a 10.0.0.1 -C 3 -v", "rdma-ping-2:"),
        ("ucmatose -c 6", "ucmatose -s 10.0.0.1 -c 6", "return status 0"),
        ("udaddy -c 3", "udaddy -s 10.0.0.1 -c 3", "return status 0"),
        ("ib_write_bw -R -F -n 500", "ib_write_bw -R -F -n 500 10.0.0.1", "65536      500"),
    ] {
        let serving = at(1, server);
        // A listener is not visible from outside; a client that connects before it is there is refused, or gets no answer.
        let begin = Instant::now();
        let heard = loop {
            let (succeeded, heard) = at(2, client).ends();
            if succeeded || begin.elapsed() > Duration::from_secs(30) {
                break heard;
            }
            sleep(Duration::from_millis(100));
        };
        let listened = serving.finish();
        assert!(
            heard.contains(said) && listened.contains(said),
            "{client}\n{heard}\n--- {server}\n{listened}"
        );
    }
}

#[test]
fn a_peer_that_is_not_there_is_named() {
    let served = Served::new("vu-nobody");
    let said = served.at(1, &["rping", "-c", "-a", "10.0.0.9", "-v"]).fails();
    assert!(said.contains("RDMA_CM_EVENT_ADDR_ERROR"), "{said}");
}

#[test]
fn a_program_hears_that_its_device_is_gone() {
    let program = compiled("fatal");
    let mut served = Served::new("vu-fatal");
    let sign = served.home.join("open");
    let waiting = served.run(1, &[&program, "iron0", &sign.display().to_string()]);
    until("the device is open", Duration::from_secs(20), || sign.exists());
    served.server.kill();
    waiting.finish();
}

/// Faults of a function during traffic that takes too long to end by itself.
const LOST: [&str; 3] = [
    "power-loss@doorbell=500",
    "wrong-health=fatal@doorbell=500",
    "wrong-health=fatal@doorbell=500,stuck-command@doorbell=500",
];

/// A polling program gets an error from the poll; a sleeping one is woken and gets the same. Such a program never reads events.
#[test]
fn a_program_in_traffic_ends_when_its_function_is_lost() {
    for how in LOST {
        for sleeps in [false, true] {
            let what = format!("{how}, sleeping: {sleeps}");
            let served = Served::misbehaving("vu-lost", how);
            let begin = Instant::now();
            let sides = Pair::served_under_way(
                &served.node,
                &served.sockets,
                ["10.0.0.1", "10.0.0.2"],
                |me, port| {
                    let words = ["ibv_rc_pingpong", "-d", "iron0", "-g", "1", "-p", port, "-n", "100000000"];
                    let more = [(sleeps, "-e"), (me == 1, "127.0.0.1")];
                    let more = more.into_iter().filter(|(wanted, _)| *wanted).map(|(_, word)| word);
                    words.into_iter().chain(more).map(String::from).collect()
                },
            );
            let (mut server, client) = sides;
            let mut said = client.fails();
            assert!(said.contains("remote address: "), "{what}: it did not connect: {said}");
            // Either function may be lost first. If it is the server's, the client may learn of that before its own is lost; otherwise
            // nothing tells the server that its peer has stopped sending.
            match said.contains("poll CQ failed") {
                true => server.kill(),
                false => said += &server.fails(),
            }
            assert!(said.contains("poll CQ failed"), "{what}: {said}");
            assert!(begin.elapsed() < Duration::from_secs(40), "{what}: it took {:?}", begin.elapsed());
        }
    }
}

/// A program that reads events gets one, and destroys all its objects.
#[test]
fn a_program_in_traffic_hears_that_its_device_is_gone() {
    let program = compiled("fatal");
    for how in LOST {
        let served = Served::misbehaving("vu-lost-event", how);
        let begin = Instant::now();
        let said = served.at(1, &[&program, "iron0"]).finish();
        assert!(said.contains("local catastrophic error") && said.contains("no poll"), "{how}: {said}");
        assert!(begin.elapsed() < Duration::from_secs(40), "{how}: it took {:?}", begin.elapsed());
    }
}

/// A guest's manager is not one of ours: the node sees nothing of it except its messages.
#[test]
fn a_connection_to_a_guest_lasts_although_nothing_shows_that_its_manager_lives() {
    const SOON: Duration = Duration::from_secs(20);
    let program = compiled_cpp("farewell");
    let served = Served::new("vu-meets");
    let place = format!(
        "vfio-user={};address=127.0.0.2;neighbour=127.0.0.1=02:1b:56:00:00:00",
        served.sockets[0].display()
    );
    let meet = std::path::Path::new(env!("CARGO_BIN_EXE_meet"));
    let mut guest = Program::start(meet, &[&place, "0", "listen", "anything"]).expect("a program");
    guest.expect("port", SOON).expect("its port");
    guest.tell("7471").unwrap();
    guest.expect("listening", SOON).unwrap();
    let mut host = served.node.start(&[&program, "127.0.0.2", "127.0.0.1"]);
    guest.expect("connected", SOON).unwrap();
    // The node checks every half second that peers are alive.
    sleep(Duration::from_secs(2));
    host.kill();
    assert_eq!(host.end(), "established\n");
}
