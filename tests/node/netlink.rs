//! RDMA netlink and the counters below `/sys`, as seen by iproute2's `rdma`, by libibverbs, and by programs that use netlink directly.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages iproute2, perftest, ibverbs-utils and python3.

use ironverbs_tests::stock::{Node, has_all, ironverbs};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Runs checks of the script by name.
fn speak(name: &str, checks: &[&str]) -> String {
    let node = Node::new(name, 2);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/rdma_netlink.py");
    let script = script.to_str().expect("a path of letters");
    checks.iter().map(|check| node.run(&["/usr/bin/python3", script, check])).collect()
}

ironverbs_tests::each! {
    a_program_without_a_library_lists_the_devices:
        assert_eq!(speak("nl-list", &["link_list"]), "iron0 iron1 iron2\n");
    sockets_have_ports_as_the_kernel_gives_them:
        speak("nl-ports", &["bound_numbers", "unbound_and_connected"]);
    sockets_can_be_waited_for_peeked_into_and_interrupted:
        speak("nl-wait", &["waiting", "blocking", "peeked", "backlog"]);
    what_the_kernel_refuses_is_refused_with_its_errno: speak("nl-errors", &["errors", "bad_addresses"]);
    children_keep_sockets_and_numbers_of_closed_ones_are_used_again:
        speak("nl-fork", &["forked", "own_numbers", "few_descriptors"]);
    a_programs_own_sockets_do_not_depend_on_the_supervisor: speak("nl-own", &["own_sockets"]);
}

/// A node of 128 devices is shown completely, even to programs limited to 256 descriptors.
#[test]
fn rdma_shows_every_device_of_a_full_adapter_under_any_limit() {
    let node = Node::new("nl-full", 127);
    let few = node.beside(1).under(&["prlimit", "--nofile=256:256"]);
    let soft = node.beside(2).under(&["prlimit", "--nofile=256:"]);
    for node in [&node, &few, &soft] {
        for object in ["link", "dev", "statistic", "resource"] {
            let out = node.run(&["rdma", object, "show"]);
            let shown = |i: u8| out.contains(&format!("iron{i}/1 ")) || out.contains(&format!("iron{i}: "));
            assert!((0..128).all(shown), "{object}: {out}");
        }
    }
}

#[test]
fn rdma_shows_devices_links_and_the_system() {
    let node = Node::new("nl-rdma", 2);
    let out = node.run(&["rdma", "-d", "dev", "show", "iron1"]);
    // Newer releases of iproute2 also print the protocol.
    has_all(
        &out,
        [
            "iron1: node_type ca ",
            " fw 16.",
            "node_guid 021b:56ff:fe00:0001",
            "sys_image_guid 021b:56ff:fe00:0000",
        ],
    );
    let out = node.run(&["rdma", "-j", "link", "show"]);
    has_all(
        &out,
        [r#""ifname":"iron2","port":1,"state":"ACTIVE","physical_state":"LINK_UP""#, r#""netdev":"lo""#],
    );
    let out = node.run(&["rdma", "system", "show"]);
    assert!(out.contains("netns shared"), "{out}");
    let out = node.run(&["sh", "-c", "rdma dev set iron1 name other 2>&1 || true"]);
    assert!(out.contains("not "), "{out}");
}

#[test]
fn rdma_shows_the_objects_of_programs_and_whose_they_are() {
    let node = Node::new("nl-objects", 2);
    let script = "ib_write_bw -d iron2 -x 1 -D 4 >server 2>&1 & s=$!; sleep 1; \
        ib_write_bw -d iron1 -x 1 -D 3 127.0.0.1 >/dev/null 2>&1 & c=$!; \
        for i in $(seq 40); do rdma resource show qp | grep -q 'state RTS' && break; sleep 0.1; done; \
        rdma resource show iron1; rdma -d resource show qp; rdma resource show cq; rdma resource show mr; \
        rdma resource show pd; echo client $c; kill $s $c; wait; rdma resource show iron1";
    let dir = std::env::temp_dir();
    let script = format!("cd {} && {}", dir.display(), script.replace(">server", ">/dev/null"));
    let out = node.run(&["sh", "-c", &script]);
    let client = out.lines().find_map(|l| l.strip_prefix("client ")).expect("the client's number");
    assert!(out.contains("iron1: pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1 srq 0"), "{out}");
    let rows = |with: &str| out.lines().filter(|l| l.contains(with)).count();
    // An unprivileged user sees the same except the keys.
    let owned = format!("pid {client} comm ib_write_bw");
    assert_eq!(rows(&owned), 4, "{owned}: {out}");
    assert!(out.contains("type RC state RTS") && out.contains("mrlen 131072"), "{out}");
    // The programs' objects are gone with them.
    assert!(out.trim_end().ends_with("pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0"), "{out}");
}

#[test]
fn rdma_shows_connection_identifiers_how_far_they_have_come_and_whose_they_are() {
    let node = Node::new("nl-cm-ids", 2);
    let script = "rping -s -a 127.0.0.2 >/dev/null 2>&1 & s=$!; udaddy >/dev/null 2>&1 & u=$!; \
        for i in $(seq 60); do [ $(rdma resource show cm_id | wc -l) = 4 ] && break; sleep 0.1; done; \
        rping -c -a 127.0.0.2 -C 100000000 >/dev/null 2>&1 & c=$!; \
        for i in $(seq 60); do [ $(rdma resource show cm_id | grep -c CONNECT) = 2 ] && break; sleep 0.1; done; \
        rdma resource show cm_id; rdma resource show qp; rdma resource show iron1; \
        echo $s $u $c; kill -9 $s $u $c; wait; rdma resource show cm_id; echo end; rdma resource show iron1";
    let out = node.run(&["sh", "-c", script]);
    let programs =
        out.lines().find(|l| l.split(' ').all(|w| w.parse::<u32>().is_ok())).expect("their numbers");
    let [server, datagrams, client] = programs.split(' ').collect::<Vec<_>>()[..] else { panic!("{out}") };
    let value = |line: &str, name: &str| -> String {
        let mut words = line.split_whitespace().skip_while(|w| *w != name);
        words.nth(1).unwrap_or_else(|| panic!("no {name} in {line}: {out}")).into()
    };
    let rows = |state: &str, pid: &str| -> Vec<&str> {
        let wanted = |l: &&str| l.contains(&format!("state {state} ")) && l.contains(&format!(" pid {pid} "));
        out.lines().filter(wanted).collect()
    };
    // A program that listens on every address is shown at every device.
    let everywhere = rows("LISTEN", datagrams);
    let devices: Vec<&str> = everywhere.iter().map(|l| l.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(devices, ["iron0/1", "iron1/1", "iron2/1"], "{out}");
    assert!(everywhere.iter().all(|l| l.contains("ps UDP") && l.contains("src-addr 0.0.0.0:7174")), "{out}");
    let [listens] = rows("LISTEN", server)[..] else { panic!("{out}") };
    assert!(listens.starts_with("link iron1/1 ") && listens.contains("comm rping"), "{out}");
    assert_eq!((value(listens, "ps"), value(listens, "src-addr")), ("TCP".into(), "127.0.0.2:7174".into()));
    // Both ends of the connection refer to each other, and to existing queue pairs.
    let ends = [rows("CONNECT", server), rows("CONNECT", client)].concat();
    let [of_server, of_client] = ends[..] else { panic!("{out}") };
    assert_eq!(value(of_server, "src-addr"), "127.0.0.2:7174");
    assert_eq!(value(of_server, "src-addr"), value(of_client, "dst-addr"));
    assert_eq!(value(of_server, "dst-addr"), value(of_client, "src-addr"));
    for end in ends {
        let qp = format!("lqpn {} ", value(end, "lqpn"));
        let same = |l: &&str| l.contains(&qp) && l.contains("state RTS") && !l.contains("cm-idn");
        assert!(out.lines().any(|l| same(&l)), "{qp}: {out}");
        assert_eq!(value(end, "qp-type"), "RC");
    }
    let summary = out.lines().find(|l| l.contains("iron1: pd")).expect("a summary");
    assert!(summary.contains("cm_id 4 "), "{out}");
    // The programs' objects are gone with them, however they end.
    let after = out.split(programs).last().unwrap();
    assert!(!after.contains("cm-idn") && after.contains("cm_id 0"), "{out}");
}

#[test]
fn counters_count_in_the_kernels_units_and_stay_when_programs_go() {
    let node = Node::new("nl-counters", 2);
    // 100 messages of 65536 bytes in packets of 4096 (the path MTU is given), written to iron2.
    let script = "cd /sys/class/infiniband/iron1/ports/1; exec 5<counters/port_xmit_packets; \
        ib_write_bw -d iron2 -x 1 -m 4096 -n 100 >/dev/null 2>&1 & sleep 1; \
        ib_write_bw -d iron1 -x 1 -m 4096 -n 100 127.0.0.1 >/dev/null 2>&1; wait; sleep 0.2; \
        grep -H . counters/* hw_counters/*; cat <&5; cd ../../../iron2/ports/1; \
        echo writes $(cat hw_counters/rx_write_requests); rdma statistic show link iron2/1 | tr ' ' '\\n' | grep -A1 rx_write";
    let out = node.run(&["sh", "-c", script]);
    let value = |name: &str| -> u64 {
        let line = out.lines().find_map(|l| l.strip_prefix(&format!("{name}:")));
        line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{name} is missing in\n{out}"))
    };
    let (packets, words) = (value("counters/port_xmit_packets"), value("counters/port_xmit_data"));
    let payload = 100 * 65536 / 4;
    assert!(
        packets >= 1600 && words > payload && words < payload + packets * 30,
        "{packets} packets, {words} words"
    );
    assert_eq!(value("counters/unicast_xmit_packets"), packets);
    assert!(value("counters/port_rcv_packets") > 0 && value("hw_counters/lifespan") > 0);
    // A file descriptor opened before reads the new value.
    assert!(out.lines().any(|l| l == packets.to_string()), "{out}");
    let writes: u64 = out.lines().find_map(|l| l.strip_prefix("writes ")).unwrap().parse().unwrap();
    assert!(writes >= 100, "{out}");
    assert!(out.trim_end().ends_with(&format!("rx_write_requests\n{writes}")), "{out}");
}

/// Reads every counter of two ports in a loop for three seconds, and prints the number of reads and the last value of one counter.
const READS: &str = r#"
import glob, time
last = {file: 0 for file in glob.glob("/sys/class/infiniband/iron[12]/ports/1/*counters/*")}
end, reads = time.monotonic() + 3, 0
while time.monotonic() < end:
    for file in last:
        text = open(file).read()
        assert text.endswith("\n") and int(text) >= last[file], (file, last[file], text)
        last[file] = int(text)
        reads += 1
print("reads", reads, last["/sys/class/infiniband/iron1/ports/1/counters/port_xmit_packets"])
"#;

#[test]
fn counters_are_whole_at_every_read_and_true_in_new_views_from_the_start() {
    let node = Node::new("nl-whole", 2);
    let script = format!(
        "ib_write_bw -d iron2 -x 1 -p 18633 -D 3 >/dev/null 2>&1 & sleep 0.5; \
         ib_write_bw -d iron1 -x 1 -p 18633 -D 3 127.0.0.1 >/dev/null 2>&1 & python3 -c '{READS}'; wait"
    );
    let out = node.run(&["sh", "-c", &script]);
    let said: Vec<u64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(matches!(*said, [reads, packets] if reads > 1000 && packets > 1000), "{out}");
    let packets = "/sys/class/infiniband/iron1/ports/1/counters/port_xmit_packets";
    let known = node.run(&["sh", "-c", &format!("sleep 0.3; cat {packets}")]);
    let views: Vec<String> = (0..20).map(|_| node.run(&["cat", packets])).collect();
    assert!(views.iter().all(|view| *view == known), "{known:?} is found as {views:?}");
}

#[test]
fn nothing_is_left_when_the_last_process_goes_and_not_before() {
    let node = Node::new("nl-end", 1);
    // The program ends, but a child of it continues and queries later.
    let out = node.run(&["sh", "-c", "(sleep 1; rdma dev show) & echo gone"]);
    assert!(out.contains("gone") && out.contains("iron1"), "{out}");
    testkit::until("all supervisors are gone", Duration::from_secs(5), || node.supervisors().is_empty());
}

#[test]
fn a_run_of_another_node_inside_a_run_finds_its_devices_in_sysfs() {
    let node = Node::new("nl-nested", 2);
    let other = node.dir().with_extension("inner");
    let script = format!(
        "{ironverbs} run -- rdma link show iron2/1; {ironverbs} run --node {0} --vfs 1 -- ibv_devices; \
         {ironverbs} run --node {0} -- {ironverbs} doctor | grep netlink; rm -r {0}",
        other.display(),
        ironverbs = ironverbs().display()
    );
    let out = node.run(&["sh", "-c", &script]);
    assert!(
        out.contains("link iron2/1") && out.contains("iron1 ") && out.contains("another supervisor"),
        "{out}"
    );
}

#[test]
fn verbs_looked_up_as_nccl_does_are_all_there_and_work_and_nothing_of_mlx5s_own_is_promised() {
    let node = Node::new("nl-nccl", 1);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/nccl_symbols.py");
    let out = node.run(&["/usr/bin/python3", script.to_str().expect("a path of letters")]);
    assert_eq!(out, "iron0\niron1\n24 symbols\n");
}

#[test]
fn perfquery_reads_the_counters_of_every_port_on_infiniband_and_says_so_where_it_cannot() {
    let node = Node::new("nl-perf", 2).on_infiniband();
    let script = "ib_write_bw -d iron2 -n 100 >/dev/null 2>&1 & sleep 1; \
        ib_write_bw -d iron1 -n 100 127.0.0.1 >/dev/null 2>&1; wait; sleep 0.2; \
        perfquery -C iron1 -x 2>&1; perfquery -C iron1 -x 3 1 2>&1; cat /sys/class/infiniband/iron1/ports/1/counters/port_xmit_data; \
        perfquery -C iron1 -R 2>&1; true";
    let out = node.run(&["sh", "-c", script]);
    let values = |name: &str| -> Vec<u64> {
        let rows =
            out.lines().filter_map(|l| l.strip_prefix(name)?.trim_start_matches([':', '.']).parse().ok());
        rows.collect()
    };
    let (sent, received) = (values("PortXmitData"), values("PortRcvData"));
    assert!(sent.len() == 2 && sent[0] > 100 * 65536 / 4 && received[1] >= sent[0], "{out}");
    assert!(out.lines().any(|l| l == sent[0].to_string()), "{out}");
    assert!(out.contains("failed: perf reset"), "{out}");
    drop(node);
    let ethernet = Node::new("nl-perf-eth", 1);
    let out = ethernet.run(&["sh", "-c", "perfquery -C iron1 2>&1 || true; ibstat iron1; ibstatus iron1"]);
    has_all(
        &out,
        ["Failed to open 'iron1'", "State: Active", "Link layer: Ethernet", "state:\t\t 4: ACTIVE"],
    );
}

#[test]
fn infiniband_diags_find_the_subnet_as_it_is() {
    let node = Node::new("nl-diags", 2).on_infiniband();
    let script = "cat /sys/class/infiniband/iron1/node_guid; smpquery -C iron1 nodeinfo -D 0; \
        smpquery -C iron1 nodedesc -D 0,1,3; smpquery -C iron1 portinfo -D 0 | grep -E '^(Lid|SMLid|LinkState|GidPrefix|CapMask)'; \
        ibstat iron1 | grep Capab; ibv_devinfo -v -d iron1 | grep port_cap_flags:; rdma -d link show iron1/1; \
        sminfo -C iron2; ibnetdiscover -C iron1; ibhosts -C iron2; ibtracert -C iron1 2 3; ibroute -C iron1 512; \
        smpquery -C iron1 nodeinfo -D 0,1,9; ibv_devinfo -d iron2 | grep state";
    let out = node.run(&["sh", "-c", &format!("{{ {script}; }} 2>&1")]);
    // The node's GUID from sysfs, in the format of these tools.
    let guid = out.lines().next().expect("a GUID").replace(':', "");
    let short = guid.trim_start_matches('0');
    has_all(
        &out,
        [
            &format!("Guid:............................0x{guid}\nPortGuid:........................0x{guid}"),
            "Node Description:.................ironverbs iron2",
            "GidPrefix:.......................0xfe80000000000000\nLid:.............................2\n",
            "SMLid:...........................512\nCapMask:.........................0xc800\nLinkState:.......................Active",
            // With the communication management bit, which belongs to the programs.
            "Capability mask: 0x0001c800",
            "port_cap_flags:\t\t0x0001c800",
            "caps: <SYS_IMAGE_GUID, EXTENDED_SPEEDS, CAP_MASK2, CM>",
            "sminfo: sm lid 512",
            "SMINFO_MASTER",
            &format!("[2]\t\"H-{guid}\"[1]({short}) \t\t# \"ironverbs iron1\" lid 2 4xEDR"),
            &format!("Ca\t: 0x{guid} ports 1 \"ironverbs iron1\""),
            "[2] lid 512-512 \"ironverbs switch\"\n[3] -> ca port",
            "3 valid lids dumped",
            // A port without a function has no peer.
            "failed: operation nodeinfo: node info query failed",
            "state:\t\t\tPORT_ACTIVE",
        ],
    );
    assert_eq!(out.matches("Ca\t1 \"H-").count(), 3, "{out}");
}

#[test]
fn management_packets_of_every_class_are_answered_at_once() {
    let node = Node::new("nl-classes", 2).on_infiniband();
    // Generous time limits, which must not be used up.
    let script = "saquery -C iron1 -t 20000 CPI; saquery -C iron1 -t 20000 --src-to-dst 2:3 PR; saquery -C iron1 -t 20000 NR 3; \
        saquery -C iron1 -t 20000 PIR 512/2; saquery -C iron1 -t 20000 MCMR; saquery -C iron1 -t 20000 SR; \
        vendstat -C iron1 -t 20000 -N 3; ibsysstat -C iron1 -t 20000 3; \
        perfquery -C iron1 -t 20000 512 2; perfquery -C iron1 -t 20000 512 200; perfquery -C iron1 -t 20000 99; \
        timeout -s INT 3 ibping -C iron1 -t 20000 -c 1 3; ibqueryerrors -C iron1 -t 20000 --skip-sl --details; echo clean $?";
    let start = Instant::now();
    let out = node.run(&["sh", "-c", &format!("{{ {script}; }} 2>&1; true")]);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}: {out}", start.elapsed());
    has_all(
        &out,
        [
            // The administrator's answers.
            "Class version............2",
            "dlid....................3",
            "NodeDescription.........ironverbs iron2",
            "MAD Method/Attribute combination is not supported",
            "vendstat: iberror: failed",
            "failed: ibsystat to Lid 3: Connection timed out",
            "1 packets transmitted, 0 received",
            // Performance management at the switch: an existing port, and a missing one.
            "# Port counters: Lid 512 port 2",
            "clean 0",
        ],
    );
    // The answer has exactly as many records as there are.
    assert_eq!(out.matches("PathRecord dump").count(), 1, "{out}");
    assert!(!out.contains("sysstat ping succeeded"), "{out}");
}

/// As the kernel does, the supervisor assembles the segments of a table for a program, and reports a buffer that is too small by ENOSPC.
#[test]
fn tables_of_the_subnet_administrator_come_whole() {
    let node = Node::new("nl-tables", 6).on_infiniband();
    let said = |words: &[&str]| node.run(&[&["saquery", "-C", "iron1", "-t", "20000"], words].concat());
    let nodes = said(&[]);
    assert_eq!(nodes.matches("NodeRecord dump").count(), 8, "{nodes}");
    for name in (0..7).map(|fid| format!("ironverbs iron{fid}\n")).chain(["ironverbs switch\n".into()]) {
        assert!(nodes.contains(&name), "{name:?} is missing in {nodes}");
    }
    assert_eq!(said(&["-p"]).matches("PathRecord dump").count(), 8 * 8);
    // One of each function, the switch's own, and those of its ports for functions.
    assert_eq!(said(&["PIR"]).matches("PortInfoRecord dump").count(), 7 + 129);
    let errors = node.run(&["ibqueryerrors", "-C", "iron1", "-t", "20000", "--details"]);
    assert!(errors.contains("## Summary: 8 nodes checked, 0 bad nodes found"), "{errors}");
    // The kernel handles a read of the same length from any other file.
    let plain =
        node.run(&["sh", "-c", "head -c 4000 /dev/zero | dd bs=320 iflag=fullblock 2>/dev/null | wc -c"]);
    assert_eq!(plain.trim(), "4000");
}
