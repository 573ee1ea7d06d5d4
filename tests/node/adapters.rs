//! Several nodes in one view, as several adapters of one machine: how Debian's tools list them, and how programs use them.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages iproute2, perftest, ibverbs-utils, rdmacm-utils and
//! pciutils.

use ironverbs_tests::{program::users, stock::Node};
use std::time::Duration;

/// Shell functions: `shown` prints the devices as libibverbs, the kernel and sysfs list them, `comes WHAT COMMAND` waits until the command
/// succeeds.
const WORDS: &str = r#"
shown() {
    echo "verbs $(ibv_devices | tail -n +3 | awk '{print $1}' | xargs)"
    echo "links $(rdma link | awk '{print $2}' | xargs)"
    for pf in $(ls -d /sys/bus/pci/devices/0000:c[12]:00.0); do
        echo "adapter $(basename $pf) $(cat $pf/sriov_numvfs) $(ls -d $pf/virtfn* | wc -l) $(basename $(readlink $pf/virtfn0/physfn))"
    done
}
comes() { what=$1; shift; for i in $(seq 200); do eval "$*" && return; sleep 0.05; done; echo "never: $what"; }
"#;

fn said<'a>(said: &'a str, word: &str) -> Vec<&'a str> {
    said.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
}

/// Each has its own names, addresses, VFs and counters, even while the other gets VFs.
#[test]
fn two_nodes_are_two_adapters_of_a_programs_machine() {
    for (name, user) in ["adapters", "adapters-nobody"].into_iter().zip(users()) {
        let first = Node::new(name, 2);
        let second = first.beside(9);
        let first = first.and_adapter(&second).under(user).installed();
        // In one line each: programs inside know both nodes without options.
        let script = format!(
            r#"{WORDS}
            shown | sed 's/^/before /'
            ib_read_lat -d iron129 -x 1 -n 1000 -F >/dev/null 2>&1 &
            comes 'a server' 'ss -Hltn | grep -q :18515'
            ib_read_lat -d iron130 -x 1 -n 1000 -F 127.0.1.2 >/dev/null 2>&1 || echo "never: a READ"; wait
            comes counters '[ $(cat /sys/class/infiniband/iron129/ports/1/hw_counters/rx_read_requests) = 1000 ]'
            echo "other $(cat /sys/class/infiniband/iron[012]/ports/1/hw_counters/rx_read_requests | xargs)"
            rdma statistic show link iron129/1 | grep -q 'rx_read_requests 1000 ' || echo "never: statistics"
            {command} run --vfs 3 -- true
            comes 'VFs of the first' '[ -e /sys/class/infiniband/iron3 ]'
            {command} run --node {second} --vfs 10 -- true
            comes 'VFs of the second' '[ -e /sys/class/infiniband/iron138 ]'
            shown | sed 's/^/after /'
            {command} run -- ibv_devices | grep -c iron | sed 's/^/inside /'
            {command} doctor | grep shell"#,
            command = first.binary().display(),
            second = second.dir().display(),
        );
        let all = first.run(&["sh", "-c", &script]);
        assert!(!all.contains("never"), "{all}");
        let vfs = |from: u32, count: u32, more: &str| {
            (from..=from + count).map(|i| format!("iron{i}{more}")).collect::<Vec<_>>().join(" ")
        };
        for (when, [a, b]) in [("before", [2, 8]), ("after", [3, 10])] {
            for (word, more) in [("verbs", ""), ("links", "/1")] {
                let expected = format!("{} {}", vfs(0, a, more), vfs(128, b, more));
                assert_eq!(said(&all, &format!("{when} {word}")), [expected], "{all}");
            }
            let expected =
                [("c1", a), ("c2", b)].map(|(bus, n)| format!("0000:{bus}:00.0 {n} {n} 0000:{bus}:00.0"));
            assert_eq!(said(&all, &format!("{when} adapter")), expected, "{all}");
        }
        assert_eq!((said(&all, "other"), said(&all, "inside")), (vec!["0 0 0"], vec!["15"]), "{all}");
        assert!(all.contains(&format!("and that in {}", second.dir().display())), "{all}");
    }
}

/// Two adapters on one wire reach each other like two cards, by verbs and by the connection manager.
#[test]
fn adapters_of_one_machine_reach_each_other_over_the_wire() {
    let first = Node::new("adapters-wire", 1);
    let second = first.beside(9);
    let first = first.and_adapter(&second);
    first.run(&["true"]);
    let link = first.ironverbs(&["serve"], &["--link", &format!("node:{}", second.dir().display())]);
    let is_held = || first.ironverbs(&["node", "status"], &[]).finish().contains("uplink held");
    testkit::until("the link is there", Duration::from_secs(20), is_held);
    let script = format!(
        "{WORDS}
        ib_write_bw -d iron129 -x 1 -n 200 -F >/dev/null &
        comes 'a server' 'ss -Hltn | grep -q :18515'
        ib_write_bw -d iron1 -x 1 -n 200 -F 127.0.1.2 | grep '^ 65536'; wait
        rping -s -a 127.0.1.2 -C 3 &
        comes 'a connection' 'rping -c -a 127.0.1.2 -I 127.0.0.2 -C 3 -v 2>/dev/null'; wait"
    );
    let all = first.run(&["sh", "-c", &script]);
    assert_eq!(all.lines().filter(|line| line.starts_with(" 65536")).count(), 1, "{all}");
    assert_eq!(all.lines().filter(|line| line.starts_with("ping data: ")).count(), 3, "{all}");
    let link = link.interrupt();
    let sent = link.split("sent ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0);
    assert!(sent >= 200 * 16, "expected each WRITE's packets on the link, found {link}");
}

/// Nodes that a view could not distinguish, or that a program could not address, are refused with one line.
#[test]
fn nodes_that_would_be_taken_for_each_other_are_refused() {
    let first = Node::new("adapters-refused", 1);
    let [same_names, same_number] = [first.beside(9), first.beside(10)];
    first.ironverbs(&["node", "create"], &[]).finish();
    same_names.ironverbs(&["node", "create"], &["--node-id", "9"]).finish();
    same_number.ironverbs(&["node", "create"], &["--name", "mlx5_0"]).finish();
    let run = |more: &[&str]| first.ironverbs(&["run"], &[more, &["--", "true"]].concat()).fails();
    let [names, number] = [&same_names, &same_number].map(|node| node.dir().display().to_string());
    for (options, expected) in [
        (&["--adapter", &*names][..], "are both iron0: `ironverbs adapter create --name`"),
        (&["--adapter", &*number], "expected adapters with numbers of their own, found 0 for both"),
        (
            &["--adapter", &*names, "--clock", "timed"],
            "expected one --adapter, for each has a time of its own",
        ),
        (&["--adapter", "/proc/1"], "/proc/1"),
    ] {
        let said = run(options);
        assert!(said.contains(expected) && said.trim_end().lines().count() == 1, "{options:?}: {said}");
    }
}
