//! Debian's librdmacm and programs that use it on a simulated node: rdmacm-utils and perftest's `-R`.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages rdmacm-utils and perftest.

use devmodel::state::Counters;
use ironverbs_tests::stock::{Node, Pair, compiled_cpp, locks, rename, renamed_libraries};
use std::path::Path;
use std::time::{Duration, Instant};

/// The range of all possible locks on a node's ports.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// iron1 of node 0.
const SERVER: &str = "127.0.0.2";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a pair of programs on one node, each given as a command line, and checks that no port is held when both have ended.
fn pair(name: &str, server: &str, client: &str) -> Pair {
    let node = Node::new(name, 2);
    let pair = Pair::managed(&node, &words(server), &words(client));
    assert_eq!(locks(&node, ALL), 0, "ports are held by nobody who lives");
    pair
}

#[test]
fn rping_sees_its_data_come_back() {
    let pair = pair("cm-rping", "rping -s -v -C 10", &format!("rping -c -a {SERVER} -v -C 10"));
    for side in [&pair.server, &pair.client] {
        assert!(side.contains("ping data: rdma-ping-9:"), "{side}");
    }
}

#[test]
fn a_program_that_brings_both_libraries_along_connects() {
    let dir = renamed_libraries("bundled-cm");
    rename(Path::new("/usr/bin/rping"), &dir.join("rping"));
    let (dir, rping) = (dir.display(), dir.join("rping").display().to_string());
    let rping = format!("env LD_LIBRARY_PATH={dir} {rping}");
    let client = format!("{rping} -c -a {SERVER} -v -C 10");
    let pair = pair("cm-bundled", &format!("{rping} -s -v -C 10"), &client);
    for side in [&pair.server, &pair.client] {
        assert!(side.contains("ping data: rdma-ping-9:"), "{side}");
    }
}

#[test]
fn rping_ten_thousand_times() {
    pair("cm-rping-long", "rping -s -C 10000", &format!("rping -c -a {SERVER} -C 10000"));
}

#[test]
fn rping_to_one_address_from_another_and_over_ipv6() {
    pair("cm-rping-bound", "rping -s -a 127.0.0.2 -C 3", "rping -c -I 127.0.0.3 -a 127.0.0.2 -C 3");
    pair("cm-rping-v6", "rping -s -a :: -C 3", "rping -c -a ::ffff:127.0.0.3 -C 3");
}

#[test]
fn connections_by_the_dozen() {
    let pair = pair("cm-matose", "ucmatose -c 12", &format!("ucmatose -s {SERVER} -c 12"));
    assert!(pair.client.contains("return status 0") && pair.server.contains("return status 0"));
}

#[test]
fn datagrams_find_their_queue_pair() {
    let pair = pair("cm-udaddy", "udaddy -c 3", &format!("udaddy -s {SERVER} -c 3"));
    assert!(pair.client.contains("return status 0") && pair.server.contains("return status 0"));
}

#[test]
fn synchronous_ids() {
    for kind in ["r", "x"] {
        let server = format!("rdma_xserver -c {kind}");
        let pair = pair(&format!("cm-x{kind}"), &server, &format!("rdma_xclient -s {SERVER} -c {kind}"));
        assert!(pair.client.contains("end 0") && pair.server.contains("end 0"), "{kind}");
    }
    let pair = pair("cm-sync", "rdma_server", &format!("rdma_client -s {SERVER}"));
    assert!(pair.client.contains("end 0") && pair.server.contains("end 0"));
}

#[test]
fn a_group_is_joined_and_its_members_hear() {
    let node = Node::new("cm-mckey", 2);
    let receiver = node.start(&words("mckey -m 224.1.1.1 -b 127.0.0.2 -C 3"));
    let sender = node.start(&words("mckey -m 224.1.1.1 -b 127.0.0.3 -s -C 3"));
    for text in [sender.finish(), receiver.finish()] {
        assert!(text.contains("joined dgid: ::ffff:224.1.1.1") && text.contains("return status 0"), "{text}");
    }
}

#[test]
fn a_group_of_a_subnet_is_joined_at_its_administrator_and_left_by_its_last_member() {
    let node = Node::new("cm-mckey-ib", 2).on_infiniband();
    // They keep the functions open, because a port that is reset leaves all groups.
    let _watching = [1, 2].map(|i| node.start(&words(&format!("ibv_asyncwatch -d iron{i}"))));
    let joined = |text: &str, lid: &str| {
        let first = format!("joined dgid: ff12:4001:ffff::1:101 mlid {lid} sl 0");
        assert!(text.contains(&first) && text.contains("return status 0"), "{first}: {text}");
    };
    // Two members at one port, one of which leaves; the other still receives.
    let group = "mckey -m 224.1.1.1 -b";
    let [brief, long] = [1, 4].map(|count| node.start(&words(&format!("{group} 127.0.0.2 -C {count}"))));
    let send = |count: u32| node.run(&words(&format!("{group} 127.0.0.3 -s -C {count}")));
    std::thread::sleep(Duration::from_millis(800));
    let sent = send(1);
    let texts = [sent, brief.finish(), send(3), long.finish()];
    texts.iter().for_each(|text| joined(text, "0xc000"));
    // Without members the group is deleted; the next of the same name is a new one, and numbers are reused late.
    joined(&send(1), "0xc001");
}

#[test]
fn sockets_over_rdma() {
    for options in ["-S 64", "-S 65536", "-S 4096 -T b", "-S 4096 -T n"] {
        let client = format!("rstream -s {SERVER} {options}");
        let pair = pair("cm-rstream", &format!("rstream {options}"), &client);
        assert!(pair.client.contains("custom"), "{}", pair.client);
    }
    let pair = pair("cm-riostream", "riostream -S 64", &format!("riostream -s {SERVER} -S 64"));
    assert!(pair.client.contains("custom"), "{}", pair.client);
}

#[test]
fn a_file_is_copied_whole() {
    let node = Node::new("cm-rcopy", 2);
    let dir = std::env::temp_dir();
    let name =
        |what| dir.join(format!("ironverbs-rcopy-{}-{what}", std::process::id())).display().to_string();
    let (from, to) = (name("from"), name("to"));
    let bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i.wrapping_mul(7919) >> 8) as u8).collect();
    std::fs::write(&from, &bytes).expect("a file");
    let mut server = Pair::listener(&node, &["rcopy"]);
    node.run(&["rcopy", &from, &format!("{SERVER}:{to}")]);
    assert!(std::fs::read(&to).expect("the copy") == bytes);
    server.kill();
    let _ = (std::fs::remove_file(from), std::fs::remove_file(to));
}

#[test]
fn perftest_by_the_connection_manager() {
    for tool in [
        "ib_send_bw -n 500",
        "ib_write_bw -n 500",
        "ib_read_lat -n 500",
        "ib_send_bw -c UD -n 500",
        "ib_write_bw -q 4 -n 100",
    ] {
        let server = format!("{tool} -R -F");
        let pair = pair("cm-perftest", &server, &format!("{server} {SERVER}"));
        assert!(!pair.rows().is_empty(), "{tool}: {}", pair.client);
    }
}

#[test]
fn a_connection_to_nobody_fails_at_once() {
    let node = Node::new("cm-nobody", 2);
    let start = Instant::now();
    let text = node.start(&words("rping -c -a 127.0.0.2 -C 1")).fails();
    assert!(text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{text}");
    let text = node.start(&words("udaddy -s 127.0.0.2")).fails();
    assert!(text.contains("RDMA_CM_EVENT_UNREACHABLE, error: 1"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let text = node.start(&words("rping -c -a 10.9.9.9 -C 1")).fails();
    assert!(text.contains("RDMA_CM_EVENT_ADDR_ERROR"), "{text}");
}

#[test]
fn a_port_is_one_programs_until_it_ends() {
    let node = Node::new("cm-port", 2);
    let mut first = Pair::listener(&node, &words("rping -s -a 127.0.0.2"));
    let text = node.start(&words("rping -s -a 127.0.0.2")).fails();
    assert!(text.contains("Address already in use"), "{text}");
    let mut other = Pair::listener(&node, &words("rping -s -a 127.0.0.3"));
    let text = node.start(&words("rping -s -p 80 -a 10.1.2.3")).fails();
    assert!(text.contains("Cannot assign requested address"), "{text}");
    first.kill();
    other.kill();
    assert_eq!(locks(&node, ALL), 0);
    Pair::managed(&node, &words("rping -s -C 1"), &words("rping -c -a 127.0.0.2 -C 1"));
}

#[test]
fn losing_a_peer_is_reported() {
    let node = Node::new("cm-killed", 2);
    let pair = || {
        let server = Pair::listener(&node, &words("rping -s -v"));
        let runtime = node::Node::open(node.dir()).expect("the adapter");
        let sent = || runtime.adapter().region().counters(1)[Counters::TxPackets as usize];
        let before = sent();
        let client = node.start(&words("rping -c -a 127.0.0.2 -v -C 1000000"));
        testkit::until("they are at work", Duration::from_secs(30), || sent() >= before + 200);
        (server, client)
    };
    // In the middle of its work.
    let (mut server, client) = pair();
    server.kill();
    let text = client.end();
    assert!(text.contains("DISCONNECT") || text.contains("completion failed"), "{}", tail(&text));

    // While waiting for an idle peer, so that no packet would reveal that it is gone.
    let (server, mut client) = pair();
    client.signal("STOP");
    std::thread::sleep(Duration::from_millis(300));
    client.kill();
    let text = server.end();
    assert!(text.contains("server DISCONNECT EVENT"), "{}", tail(&text));
    assert_eq!(locks(&node, ALL), 0);
}

#[test]
fn a_connection_can_be_ended_by_what_a_program_does_at_its_exit() {
    let program = compiled_cpp("farewell");
    for more in ["", "atexit"] {
        let pair = pair("cm-farewell", &program, &format!("{program} {SERVER} {more}"));
        assert_eq!(pair.client, "disconnected\nparted\n", "{more}");
        assert_eq!(pair.server, "disconnected\n", "{more}");
    }
}

#[test]
fn a_burst_of_requests_to_a_program_that_slept_is_answered() {
    let node = Node::new("cm-burst", 2);
    let server = Pair::listener(&node, &words("ucmatose -c 100"));
    server.stop();
    let client = node.start(&words(&format!("ucmatose -s {SERVER} -c 100")));
    // All of them wait in its queue when it continues.
    testkit::until("they ask", Duration::from_secs(30), || {
        node.run(&words("rdma resource show iron1")).contains("cm_id 101 ")
    });
    server.signal("CONT");
    assert!(client.finish().contains("return status 0") && server.finish().contains("return status 0"));
}

#[test]
fn events_at_the_same_time_keep_their_order() {
    let program = compiled_cpp("fickle");
    let node = Node::new("cm-order", 2);
    let asked = |what: &str| {
        let there = || node.run(&words("rdma resource show cm_id")).contains(what);
        testkit::until(what, Duration::from_secs(30), there);
    };
    let server = Pair::listener(&node, &[&program]);
    server.stop();
    let client = node.start(&[&program, SERVER]);
    asked("state CONNECT");
    client.stop();
    server.signal("CONT");
    assert_eq!(server.finish(), "taken back\n");
    // Both the answer and its end wait for the client.
    client.signal("CONT");
    assert_eq!(client.finish(), "asked\nRDMA_CM_EVENT_CONNECT_RESPONSE\nRDMA_CM_EVENT_REJECTED\n");
}

fn tail(text: &str) -> String {
    text.lines().rev().take(5).collect::<Vec<_>>().join("\n")
}

/// Returns the IPv4 addresses of the queue pairs printed by perftest, its own and its peer's; it prints them as GIDs.
fn addresses(said: &str) -> Vec<String> {
    let address = |line: &str| {
        let octets = line.trim().strip_prefix("GID: ")?.split(':').skip(12);
        let octets = octets.map(|octet| octet.parse::<u8>().expect("a decimal octet").to_string());
        Some(octets.collect::<Vec<_>>().join("."))
    };
    said.lines().filter_map(address).collect()
}

#[test]
fn perftest_connects_from_the_device_it_is_given() {
    let tool = "ib_write_bw -R -F -n 100 -d";
    let pair = pair("cm-device", &format!("{tool} iron1"), &format!("{tool} iron2 {SERVER}"));
    assert_eq!(addresses(&pair.client), ["127.0.0.3", "127.0.0.2"], "{}", pair.client);
}

/// Returns a command that runs a program in its own network namespace, with an additional address on the loopback interface. Returns
/// `None` if this host forbids it.
fn with_address(address: &str, program: &str) -> Option<Vec<String>> {
    let namespace = ["unshare", "-n"];
    let allowed = std::process::Command::new(namespace[0]).args([namespace[1], "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not make network namespaces");
        return None;
    }
    let script = format!("ip link set lo up && ip address add {address}/32 dev lo && exec {program}");
    Some([&namespace[..], &["sh", "-c", &script]].concat().iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn in_a_namespace_with_one_functions_address_that_function_connects() {
    let tool = "ib_write_bw -R -F -n 100";
    for (name, [to, from]) in [("own", ["127.0.0.2", "127.0.0.3"]), ("given", ["10.9.0.1", "10.9.0.2"])] {
        let node = Node::new(&format!("cm-namespace-{name}"), 2);
        node.run(&["true"]);
        for (device, address) in [("iron1", to), ("iron2", from)] {
            node.ironverbs(&["node", "address"], &[device, address]).finish();
        }
        // Neither names a device: perftest then opens the first, which is not involved.
        let server = with_address(to, tool);
        let client = with_address(from, &format!("{tool} {}", to));
        let (Some(server), Some(client)) = (server, client) else { return };
        let server: Vec<&str> = server.iter().map(String::as_str).collect();
        let client: Vec<&str> = client.iter().map(String::as_str).collect();
        let pair = Pair::managed(&node, &server, &client);
        assert_eq!(addresses(&pair.client), [from, to], "{}", pair.client);
    }
}

/// As in a container that was given one function: the others are in sysfs, but not in `/dev`.
#[test]
fn a_program_that_may_open_one_device_connects_from_it() {
    let allowed = std::process::Command::new("unshare").args(["-m", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: this user may not make mount namespaces");
    }
    let node = Node::new("cm-one-device", 2);
    let script = "mkdir \"$0\" && mount -t tmpfs none \"$0\" && \
        for file in uverbs2 rdma_cm; do touch \"$0/$file\" && mount --bind /dev/infiniband/$file \"$0/$file\"; done && \
        mount --rbind \"$0\" /dev/infiniband && exec rping -c -v -C 3 -a 127.0.0.2";
    let view = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cm-one-device-{}", std::process::id()));
    let client = ["unshare", "-m", "sh", "-c", script, view.to_str().expect("a path in UTF-8")];
    let pair = Pair::managed(&node, &words("rping -s -C 3"), &client);
    let _ = std::fs::remove_dir(view);
    // If the connection had been assigned the device of the destination address, librdmacm would not have found that device.
    assert!(pair.client.contains("ping data: rdma-ping-2:"), "{}", pair.client);
}

/// The messages of rdma_server and rdma_client of rdmacm-utils.
const LEN: usize = 16;

#[test]
fn rust_programs_meet_those_of_librdmacm() {
    use ironverbs::{Device, Error, Listener, Pool, block_on};

    let node = Node::new("cm-rust", 2);
    let server = Pair::listener(&node, &["rdma_server"]);
    let device = |fid| Device::open(&format!("node={} fid={fid}", node.dir().display())).expect("a device");
    let client = device(2);
    let pool = Pool::new(&client, 4, LEN).expect("a pool");
    block_on(async {
        let connection =
            client.qp().connect(format!("{SERVER}:7471").parse().expect("an address"), b"").await?;
        let answer = connection.recv(pool.empty()?);
        connection.send(pool.take(&[7; LEN])?).await?;
        assert_eq!(answer.await?.len(), LEN);
        connection.disconnected().await;
        Ok::<_, Error>(())
    })
    .expect("an answer of rdma_server");
    server.finish();

    let there = device(1);
    let listener = Listener::on(&there, 7472).expect("a port");
    let client = node.start(&["rdma_client", "-s", SERVER, "-p", "7472"]);
    let pool = Pool::new(&there, 4, LEN).expect("a pool");
    block_on(async {
        let connection = listener.accept().await?.accept().await?;
        let message = connection.recv(pool.empty()?).await?;
        assert_eq!(message.len(), LEN);
        connection.send(message.into_buf()).await?;
        connection.disconnected().await;
        Ok::<_, Error>(())
    })
    .expect("a message of rdma_client");
    client.finish();
}
