//! UC and UD with Debian's ibverbs-utils and perftest, and with a C program that answers datagrams using address handles that the stock
//! libibverbs derives from completions.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), the packages perftest and ibverbs-utils, and a C compiler with
//! libibverbs-dev.

use super::tools::{PEERS, all_run, each};
use ironverbs_tests::{
    program::may_send_raw,
    stock::{Node, Pair, compiled},
};

#[test]
fn unreliable_pingpongs_check_their_data() {
    let rows = [
        ("ibv_uc_pingpong", "-c"),
        ("ibv_uc_pingpong", "-c -e"),
        ("ibv_uc_pingpong", "-c -s 1024 -n 300"),
        ("ibv_uc_pingpong", "-c -s 1048576 -n 50"),
        ("ibv_ud_pingpong", "-c"),
        ("ibv_ud_pingpong", "-c -e"),
        ("ibv_ud_pingpong", "-c -s 1024 -n 300"),
    ];
    all_run(&Node::new("unreliable", 2), &PEERS, &rows);
}

#[test]
fn perftest_runs_on_unreliable_services() {
    let rows = [
        ("ib_send_lat", "-c UC -n 500"),
        ("ib_send_bw", "-c UC -n 500"),
        ("ib_write_lat", "-c UC -n 500"),
        ("ib_write_bw", "-c UC -n 500"),
        ("ib_send_lat", "-c UD -n 500"),
        ("ib_send_bw", "-c UD -a -n 200"),
        ("ib_send_bw", "-c UD -b -n 500"),
        ("ib_send_bw", "-c UD -q 8 -n 500"),
        ("ib_send_bw", "-c UD -n 500 --use_old_post_send"),
    ];
    all_run(&Node::new("unreliable-perf", 2), &PEERS, &rows);
}

#[test]
fn multicast_groups_carry_perftest() {
    let node = Node::new("multicast", 2);
    // perftest's group is an IPv6 one, so the source must be IPv6 too.
    let rows = ["ib_send_lat", "ib_send_bw"].map(|tool| (tool, "-c UD -g -x 0 -F -n 500"));
    each(&PEERS, &rows, |tool, server, client, options| Pair::plain(&node, tool, server, client, options));
}

#[test]
fn raw_packets_are_counted_by_perftest() {
    if !may_send_raw() {
        return println!("skipped: raw packets need CAP_NET_RAW");
    }
    let node = Node::new("raw", 2);
    node.ironverbs(&["node", "create"], &["--vfs", "2"]).finish();
    let end = |role, dev, from, to| {
        let words =
            ["--", "raw_ethernet_bw", role, "-d", dev, "-B", from, "-E", to, "-n", "200", "-s", "1024"];
        node.ironverbs(&["run"], &words)
    };
    let (one, two) = ("02:1b:56:00:00:01", "02:1b:56:00:00:02");
    // The flow of a killed program takes no frames from the next.
    let mut killed = end("--server", "iron1", one, two);
    std::thread::sleep(std::time::Duration::from_secs(2));
    killed.kill();
    let mut server = end("--server", "iron1", one, two);
    // The two do not communicate otherwise: the client sends until the server has everything it waits for.
    for _ in 0..20 {
        let said = end("--client", "iron2", two, one).finish();
        assert!(said.contains("MsgRate"), "{said}");
        if server.ended() {
            let said = server.finish();
            assert!(said.contains("MsgRate"), "{said}");
            return;
        }
    }
    panic!("the server did not get 200 of 4000 frames");
}

#[test]
fn on_infiniband_lids_are_enough() {
    let node = Node::new("unreliable-ib", 2).on_infiniband();
    let rows = [
        ("ibv_uc_pingpong", "-c"),
        ("ibv_ud_pingpong", "-c"),
        ("ib_send_bw", "-c UC -F -n 500"),
        ("ib_send_bw", "-c UD -F -n 500"),
    ];
    each(&PEERS, &rows, |tool, server, client, options| Pair::plain(&node, tool, server, client, options));
}

/// Returns the 40 bytes before the payload, as the first receiver printed them.
fn header(said: &str) -> Vec<u8> {
    let line = said.lines().find(|line| line.starts_with("grh")).expect("a line that begins with grh");
    let bytes = line.split_once(':').expect("a colon").1;
    bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect()
}

#[test]
fn a_datagram_is_answered_with_an_address_handle_made_of_its_completion() {
    let program = compiled("reply");
    let node = Node::new("reply", 2);
    for (from, to) in PEERS {
        // IPv6: the header of the packet, which equals a GRH except for the next header (IBTA A17.4.5.2).
        let said = node.run(&[&program, from, to, "0"]);
        assert!(said.contains("answered"), "{said}");
        let grh = header(&said);
        assert_eq!((grh[0], &grh[1..4], grh[6], grh[7]), (0x62, &[0x21, 0x23, 0x45][..], 17, 9), "{said}");
        // IPv4: its header is in the last 20 bytes.
        let said = node.run(&[&program, from, to, "1"]);
        assert!(said.contains("answered"), "{said}");
        let ip = &header(&said)[20..];
        let host = |dev: &str| 1 + dev.trim_start_matches("iron").parse::<u8>().expect("a number");
        assert_eq!((ip[0], ip[8], ip[9]), (0x45, 9, 17), "{said}");
        assert_eq!(ip[12..], [127, 0, 0, host(from), 127, 0, 0, host(to)], "{said}");
    }
    let node = node.beside(7).on_infiniband();
    let said = node.run(&[&program, "iron1", "iron2", "0"]);
    assert!(said.contains("answered") && header(&said)[6] == 0x1b, "{said}");
}
