//! Two nodes joined by a link, and Debian's programs between them: the link carries what a wire would carry.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages perftest and ibverbs-utils; if tshark is installed,
//! it checks a capture.

use hwspec::wire::{Headers, Icrc, eth::Ethernet};
use ironverbs_tests::{
    end::{Card, End, Patience},
    stock::{Node, Pair, Running},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Two nodes and the processes that join them.
struct Joined {
    nodes: [Node; 2],
    links: Vec<Running>,
    sockets: PathBuf,
    /// True if frames are lost on purpose.
    loses: bool,
    /// Serializes the tests.
    _turn: Node,
}

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    testkit::until(what, Duration::from_secs(20), done);
}

impl Joined {
    /// Joins nodes 1 and 2 by `kind`, with `faults` on the first node's links.
    fn by(kind: &str, faults: &str) -> Self {
        let turn = Node::new(&format!("link-{kind}"), 1);
        let mut nodes = [turn.beside(1), turn.beside(2)];
        let mut layer = "ethernet";
        if kind == "infiniband" {
            (nodes, layer) = (nodes.map(Node::on_infiniband), kind);
        }
        for (node, id) in nodes.iter().zip(["1", "2"]) {
            let options = ["--vfs", "1", "--node-id", id, "--link-layer", layer];
            node.ironverbs(&["node", "create"], &options).finish();
        }
        let sockets = std::env::temp_dir().join(format!("ironverbs-{}-{kind}", std::process::id()));
        let _ = fs::remove_dir_all(&sockets);
        fs::create_dir(&sockets).expect("a directory for sockets");
        let at = |name: &str| sockets.join(name).display().to_string();
        let ends = match kind {
            "dgram" => {
                vec![format!("dgram:{},{}", at("a"), at("b")), format!("dgram:{},{}", at("b"), at("a"))]
            }
            "stream" => vec![format!("stream:listen:{}", at("s")), format!("stream:connect:{}", at("s"))],
            "udp" => vec!["udp:127.0.1.2".into(), "udp:127.0.2.2,peer=127.0.1.2".into()],
            "node" | "infiniband" => vec![format!("node:{}", nodes[1].dir().display())],
            other => panic!("expected dgram, stream, udp, node or infiniband, found {other}"),
        };
        let mut links = Vec::new();
        for (i, (node, end)) in nodes.iter().zip(&ends).enumerate() {
            let faults = if i == 0 && !faults.is_empty() { vec!["--link-faults", faults] } else { vec![] };
            links.push(node.ironverbs(&["serve"], &[&["--link", end][..], &faults].concat()));
        }
        let joined = Self { nodes, links, sockets, loses: faults.contains("drop"), _turn: turn };
        until("both uplinks are held", || {
            joined.nodes.iter().all(|node| status(node).contains("uplink held"))
        });
        joined
    }

    fn pair(&self, tool: &str, options: &[&str]) -> Pair {
        let [server, client] = &self.nodes;
        let run = || Pair::across(server, client, tool, options);
        let pair = if self.loses && tool == "ibv_rc_pingpong" {
            Pair::where_frames_are_lost(run)
        } else {
            run().unwrap_or_else(|said| panic!("{said}"))
        };
        let said = format!("{}{}", pair.server, pair.client);
        assert!(!said.contains("invalid data") && !said.contains("Failed status"), "{tool}: {said}");
        pair
    }

    /// Ends the links. Returns their output.
    fn end(mut self) -> Vec<String> {
        let said = self.links.drain(..).map(Running::interrupt).collect();
        let left = fs::read_dir(&self.sockets).expect("the directory").count();
        assert_eq!(left, 0, "sockets are left in {}", self.sockets.display());
        said
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.links.iter_mut().for_each(Running::kill);
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

fn status(node: &Node) -> String {
    node.ironverbs(&["node", "status"], &[]).finish()
}

/// Parses `sent`, `received` or `lost` of a link that has ended.
fn counted(said: &str, what: &str) -> u64 {
    let after = said.split(&format!("{what} ")).nth(1).unwrap_or_else(|| panic!("no {what} in {said}"));
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

const SET: [(&str, &[&str]); 6] = [
    ("ibv_rc_pingpong", &["-c", "-n", "200"]),
    ("ibv_rc_pingpong", &["-c", "-e", "-s", "65536", "-n", "50"]),
    ("ib_send_bw", &["-F", "-s", "4096", "-n", "300"]),
    ("ib_write_bw", &["-F", "-s", "65536", "-n", "100"]),
    ("ib_read_bw", &["-F", "-s", "65536", "-n", "50"]),
    ("ib_atomic_lat", &["-F", "-n", "100"]),
];

fn moves_data(kind: &str) {
    let joined = Joined::by(kind, "");
    for (tool, options) in SET {
        joined.pair(tool, options);
    }
    for said in joined.end() {
        let frames = counted(&said, "sent") + counted(&said, "received");
        // On a busy machine a peer may not accept a frame in time; the transport recovers.
        assert!(frames > 1000 && counted(&said, "lost") * 100 < frames, "{said}");
    }
}

ironverbs_tests::each! {
    data_go_over_a_datagram_socket: moves_data("dgram");
    data_go_over_a_stream: moves_data("stream");
    data_go_over_the_hosts_own_udp: moves_data("udp");
    data_go_from_node_to_node: moves_data("node");
    data_go_from_one_infiniband_adapter_to_another: moves_data("infiniband");
}

/// Tools ask the administrator of their own adapter.
#[test]
fn programs_see_the_whole_subnet() {
    let joined = Joined::by("infiniband", "");
    let said =
        |words: &[&str]| joined.nodes[0].start(&[&["saquery", "-t", "20000"], words].concat()).finish();
    // A switch and two functions each: LIDs 768, 257 and 258; 1024, 513 and 514.
    let nodes = || said(&["-C", "iron1", "NR"]);
    until("both adapters are on record", || nodes().matches("NodeRecord dump").count() == 6);
    let path = said(&["-C", "iron1", "--src-to-dst", "258:514", "PR"]);
    assert!(path.contains("dlid....................514"), "{path}");
    let node = said(&["-C", "iron1", "NR", "514"]);
    assert!(node.contains("ironverbs iron1 of adapter 2"), "{node}");
}

#[test]
fn unreliable_services_reach_another_node() {
    for kind in ["node", "dgram", "infiniband"] {
        let joined = Joined::by(kind, "");
        for tool in ["ibv_uc_pingpong", "ibv_ud_pingpong"] {
            joined.pair(tool, &["-c", "-n", "200"]);
        }
        joined.end();
    }
}

#[test]
fn shared_queues_and_extended_connections_reach_another_node() {
    for kind in ["node", "dgram", "infiniband"] {
        let joined = Joined::by(kind, "");
        joined.pair("ibv_srq_pingpong", &["-c", "-n", "200"]);
        joined.pair("ibv_xsrq_pingpong", &["-n", "100"]);
        joined.pair("ib_send_bw", &["--use-srq", "-F", "-n", "300"]);
        joined.pair("ib_send_bw", &["-c", "XRC", "-F", "-n", "300"]);
        joined.end();
    }
}

#[test]
fn data_are_whole_when_the_link_loses_doubles_damages_and_reorders_frames() {
    let joined = Joined::by("dgram", "drop=1%,duplicate=1%,corrupt=0.5%,reorder=1%,seed=11");
    joined.pair("ibv_rc_pingpong", &["-c", "-n", "500", "-m", "1024"]);
    joined.pair("ib_write_bw", &["-F", "-s", "16384", "-n", "100", "-t", "8"]);
    joined.pair("ib_read_bw", &["-F", "-s", "16384", "-n", "50", "-t", "8"]);
    joined.pair("ib_atomic_bw", &["-F", "-n", "100"]);
    let said = joined.end().concat();
    assert!(counted(&said, "faults") > 50, "{said}");
}

#[test]
fn a_delay_on_the_link_is_felt() {
    let joined = Joined::by("dgram", "delay=3ms");
    let pair = joined.pair("ib_send_lat", &["-F", "-n", "20"]);
    // Half a round trip; the link delays both ways.
    let least = pair.rows().concat()[2];
    assert!(least >= 3000.0, "expected 3000 us or more, found {least}");
    joined.end();
}

#[test]
fn addresses_that_were_set_are_found_over_ipv4_and_ipv6() {
    let joined = Joined::by("dgram", "");
    for family in [["10.77.0.1/24", "10.77.0.2/24"], ["fd77::1/64", "fd77::2/64"]] {
        for (node, address) in joined.nodes.iter().zip(family) {
            node.ironverbs(&["node", "address"], &["iron1", address]).finish();
            assert!(status(node).contains(&format!("address {address}")));
        }
        let pair = joined.pair("ibv_rc_pingpong", &["-c", "-n", "50"]);
        let bare = family[1].split('/').next().unwrap_or_default();
        assert!(pair.server.contains(bare), "{}", pair.server);
    }
    joined.end();
}

#[test]
fn faults_on_a_nodes_own_wire_are_made_good() {
    let turn = Node::new("link-own", 2);
    turn.ironverbs(&["node", "create"], &["--vfs", "2", "--wire-faults", "drop=1%,corrupt=1%,seed=3"])
        .finish();
    let pair = Pair::where_frames_are_lost(|| {
        Pair::try_pingpong(&turn, "ibv_rc_pingpong", "iron1", "iron2", &["-c", "-n", "1000"])
    });
    assert!(!format!("{}{}", pair.server, pair.client).contains("invalid data"));
    let (mut server, mut client) =
        Pair::perftest_under_way(&turn, "ib_write_bw", "iron1", "iron2", &["-D", "20", "-s", "65536"]);
    until("damage is found", || status(&turn).contains("rx_icrc_errors"));
    until("requests are sent again", || status(&turn).contains("duplicate_request"));
    client.kill();
    server.kill();
    let refused = turn.ironverbs(&["node", "create"], &["--wire-faults", "drop=2%"]).fails();
    assert!(refused.contains("has faults drop=1%,corrupt=1%,seed=3, asked for drop=2%"), "{refused}");
    let refused = turn.ironverbs(&["node", "create"], &["--strict", "events=strict"]).fails();
    assert!(refused.contains("has strictness none, asked for events=strict"), "{refused}");
}

/// Makes a node with two VFs, and a folder with `plan` in a file.
fn planned(name: &str, plan: &str) -> (Node, testkit::Scratch, String) {
    let (turn, room) = (Node::new(name, 2), testkit::Scratch::new());
    turn.ironverbs(&["node", "create"], &["--vfs", "2"]).finish();
    fs::create_dir_all(&room.0).expect("a folder");
    let file = room.0.join("plan.toml");
    fs::write(&file, plan).expect("the plan");
    (turn, room, file.display().to_string())
}

#[test]
fn a_plan_befalls_the_frames_it_names_and_says_what_followed() {
    let (turn, room, plan) = planned(
        "link-plan",
        "[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 40\n
         [[fault]]\ndo = \"corrupt\"\nopcode = \"RcWriteMiddle\"\nmessage = 20\ntimes = 1\n
         [[fault]]\ndo = \"delay\"\nto = 2\nopcode = \"RcAck\"\nnth = 3\nfor_us = 1000\n
         [[fault]]\ndo = \"reorder\"\nopcode = \"RcWriteFirst\"\nmessage = 40\ntimes = 1\nbehind = 2\n
         [[fault]]\ndo = \"duplicate\"\nopcode = \"RcWriteFirst\"\nmessage = 60\ntimes = 1\n
         [[fault]]\ndo = \"stop\"\nfrom = 2\nnth = 1000\nfor_us = 2000\n",
    );
    let timeline = room.0.join("timeline.json").display().to_string();
    let faults = turn.ironverbs(&["node", "faults"], &[&plan, "--timeline", &timeline]);
    until("the plan is tried", || status(&turn).contains("wire captured"));
    Pair::perftest(&turn, "ib_write_bw", "iron1", "iron2", &["-n", "200", "-s", "65536", "-t", "1"]);
    let said = faults.interrupt();
    let lines: Vec<&str> = said.lines().collect();
    let told = |kind: &str| {
        let of = |line: &&&str| line.split_whitespace().nth(1) == Some(kind);
        (*lines.iter().find(of).unwrap_or_else(|| panic!("{kind} is not told of: {said}"))).to_owned()
    };
    for lost in ["drop", "corrupt"] {
        let line = told(lost);
        assert!(line.contains("NAK (sequence) after") && line.contains("sent again after"), "{line}");
    }
    // The receiver may get the frame before it has requested it again; it then requests the one after it.
    assert!(told("reorder").contains("acknowledged after"), "{said}");
    for harmless in ["duplicate", "stop"] {
        assert!(!told(harmless).contains("NAK (sequence)"), "{said}");
    }
    let whole: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&timeline).expect("the timeline")).expect("JSON");
    let frames = whole["frames"].as_array().expect("frames");
    let delayed =
        frames.iter().find(|frame| frame["faults"] == serde_json::json!([2])).expect("the delayed one");
    let ns = |of: &str| delayed[of].as_f64().expect("a time");
    assert!(ns("arrived_ns") - ns("sent_ns") >= 1e6, "{delayed}");
    let dropped =
        frames.iter().find(|frame| frame["faults"] == serde_json::json!([0])).expect("the dropped one");
    assert!(dropped["arrived_ns"].is_null(), "{dropped}");

    // A fault that no wire causes is refused with one line, and so is one that matched no frame.
    let write = |text: &str| fs::write(&plan, text).expect("the plan");
    write("[[fault]]\ndo = \"sleep\"\nfor_us = 5\n");
    let refused = turn.ironverbs(&["node", "faults"], &[&plan]).fails();
    assert!(refused.contains("plan.toml:1: expected a fault of frames"), "{refused}");
    write("[[fault]]\ndo = \"drop\"\nqp = 0xabcdef\n");
    let refused = turn.ironverbs(&["node", "faults"], &[&plan, "--seconds", "1"]).fails();
    assert!(refused.contains("plan.toml:1: expected a frame as this fault says, found none"), "{refused}");
    // Frames bypass the process again.
    Pair::pingpong(&turn, "ibv_rc_pingpong", "iron1", "iron2", &["-c", "-n", "100"]);
}

/// If the process that all frames go through is killed, only the frames that it holds are lost: the rest bypass it again.
#[test]
fn a_plan_whose_process_is_killed_holds_nobody_up() {
    let (turn, _room, plan) = planned("link-plan-dies", "[[fault]]\ndo = \"delay\"\nfor_us = 50\n");
    let mut faults = turn.ironverbs(&["node", "faults"], &[&plan]);
    until("the plan is tried", || status(&turn).contains("wire captured"));
    let (server, client) =
        Pair::perftest_under_way(&turn, "ib_write_bw", "iron1", "iron2", &["-D", "4", "-s", "65536"]);
    faults.kill();
    until("the wire is free", || !status(&turn).contains("wire captured"));
    for program in [client, server] {
        program.finish();
    }
}

/// Returns the complete frames of a capture.
fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).expect("the capture");
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while let Some((head, body)) = rest.split_first_chunk::<16>() {
        // The first word shows the byte order of the file.
        let word = [head[8], head[9], head[10], head[11]];
        let little = bytes[..4] == [0x4d, 0x3c, 0xb2, 0xa1];
        let len = if little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) } as usize;
        let (frame, behind) = body.split_at(len);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

#[test]
fn a_capture_holds_whole_packets_that_a_dissector_understands() {
    let turn = Node::new("link-capture", 2);
    turn.ironverbs(&["node", "create"], &["--vfs", "2"]).finish();
    let file = std::env::temp_dir().join(format!("ironverbs-{}.pcap", std::process::id()));
    let capture = turn.ironverbs(&["node", "capture"], &[&file.display().to_string()]);
    until("the capture begins", || status(&turn).contains("wire captured"));
    Pair::pingpong(&turn, "ibv_rc_pingpong", "iron1", "iron2", &["-c", "-n", "20"]);
    for (tool, options) in [
        ("ib_write_bw", &["-n", "20", "-s", "8"][..]),
        ("ib_read_bw", &["-n", "20", "-s", "9001"]),
        ("ib_send_bw", &["-n", "20", "-s", "9001"]),
        ("ib_atomic_bw", &["-n", "20"]),
    ] {
        Pair::perftest(&turn, tool, "iron1", "iron2", options);
    }
    let said = capture.interrupt();
    let all = frames(&file);
    assert!(said.contains(&format!("{} frames, 0 lost", all.len())), "{said}");
    assert!(all.len() > 200, "{}", all.len());
    for frame in &all {
        let headers = Headers::parse(frame).unwrap_or_else(|e| panic!("{e}: {frame:02x?}"));
        let (covered, icrc) = frame[Ethernet::SIZE..].split_at(frame.len() - Ethernet::SIZE - 4);
        assert_eq!(Icrc::new(covered).finish(), icrc, "{}", headers.frame_len());
    }
    let dissected = Command::new("tshark")
        .args(["-r", &file.display().to_string(), "--disable-protocol", "rpcordma"])
        .args(["-Y", "_ws.malformed || _ws.expert.severity == error || !infiniband"])
        .output();
    fs::remove_file(&file).expect("the capture");
    if let Ok(said) = dissected {
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.trim().is_empty(), "tshark: {text}");
    }
}

/// The link's process runs functions that programs of its node have open, so it cleans up after programs that end.
#[test]
fn a_program_is_reached_after_another_on_its_function_has_ended() {
    let joined = Joined::by("node", "");
    let [server, client] = &joined.nodes;
    for (node, address) in [(server, "10.7.0.1/24"), (client, "10.7.0.2/24")] {
        node.ironverbs(&["node", "address"], &["iron1", address]).finish();
    }
    let words = |side: &'static str, port: &'static str| {
        ["timeout", "30", "rping", side, "-a", "10.7.0.1", "-p", port, "-C", "3", "-v"]
    };
    // No program on the server's node starts after these.
    let servers = ["7174", "7175"].map(|port| Pair::listener(server, &words("-s", port)));
    for (running, port) in servers.into_iter().zip(["7174", "7175"]) {
        let said = client.run(&words("-c", port));
        assert_eq!(said.matches("ping data: ").count(), 3, "port {port}: {said}");
        running.finish();
    }
    joined.end();
}

#[test]
fn a_peer_that_nobody_has_is_refused_in_time_and_by_name() {
    let joined = Joined::by("dgram", "");
    let node = node::Node::open(joined.nodes[0].dir()).expect("the node");
    let device = node::open_device_of(&node, 1).expect("iron1");
    let start = Instant::now();
    let gid = "::ffff:10.9.9.9".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let end = End::new(device, 4096).expect("an end");
    let card = Card { gid, ..end.card() };
    let said = end.connect(&card, Patience::default()).expect_err("nobody has that address").to_string();
    assert!(said.contains("10.9.9.9") && start.elapsed() < Duration::from_secs(10), "{said}");
    drop(end);
    joined.end();
}
