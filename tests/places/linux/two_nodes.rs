//! Two Linux nodes on one wire, and a program of the host on a third.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, LIMIT, Place, VFS, complaints};
use ironverbs_tests::program::built;
use std::process::{Command, Stdio};

#[test]
fn vfs_of_two_nodes_and_a_program_of_the_host_meet_on_one_wire() {
    let Some(place) = Place::new() else { return };
    let _wire = place.wire(&["node", "other", "host"], &["--vfs", "2"]);
    let host = place.path("host").display().to_string();
    let ironverbs = built().join("ironverbs");
    let addressed = Command::new(&ironverbs)
        .args(["node", "address", "--node", &host, "iron1", "10.7.0.3/24"])
        .output()
        .unwrap();
    assert!(addressed.status.success(), "{}", String::from_utf8_lossy(&addressed.stderr));
    let program = |words: &[&str]| {
        Command::new("timeout")
            .arg(LIMIT.to_string())
            .arg(&ironverbs)
            .args(["run", "--node", &host, "--"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let programs = [
        program(&["rping", "-s", "-a", "10.7.0.3", "-C", "20", "-V"]),
        program(&["ib_write_bw", "-R", "-d", "iron1", "-n", "100", "-F"]),
    ];
    // The VFs have the addresses; the PF is up so that the adapter's port is up.
    let vf = "numvfs 1
        net=$(ls $pci/0000:00:00.1/net) device=$(ls $pci/0000:00:00.1/infiniband)
        ip link set $net up";
    let server = format!(
        "{VFS}{COMPLAINTS}{CHECKS}{vf}
        ip addr add 10.7.0.1/24 dev $net
        iperf3 -s -1 -D
        timeout 120 ibv_rc_pingpong -d $device -g 1 -n 100 >/dev/null 2>&1 &
        timeout 120 rping -s -a 10.7.0.1 -C 20 -V >/dev/null 2>&1 &
        timeout 120 ib_write_bw -d $device -x 1 -n 100 -F -p 18700 >/dev/null 2>&1 &
        timeout 120 ib_send_lat -R -d $device -n 100 -F -p 18600 >/dev/null 2>&1 &
        servers() {{ [ $(ss -Hltn | wc -l) -ge 3 ] && cm_listens 7174 && cm_listens 18600; }}
        until_so servers
        say listening
        await over
        complaints"
    );
    let client = format!(
        "{VFS}{COMPLAINTS}{CHECKS}{vf}
        ip addr add 10.7.0.2/24 dev $net
        await listening
        ping -c 3 -i 0.2 -w 10 10.7.0.1
        ibv_rc_pingpong -d $device -g 1 -n 100 10.7.0.1
        rping -c -a 10.7.0.1 -C 20 -V -v
        ib_write_bw -d $device -x 1 -n 100 -F -p 18700 10.7.0.1
        ib_send_lat -R -d $device -n 100 -F -p 18600 10.7.0.1
        iperf3 -c 10.7.0.1 -n 10M
        echo of the host:
        rping -c -I 10.7.0.2 -a 10.7.0.3 -C 20 -V -v
        ib_write_bw -R -d $device -n 100 -F 10.7.0.3
        say over
        complaints"
    );
    let said = place.scripts(&[("node", &["--vfs", "1"], &server), ("other", &["--vfs", "1"], &client)]);
    for program in programs {
        let program = program.wait_with_output().unwrap();
        assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));
    }
    for said in &said {
        assert_eq!(complaints(said), Vec::<&str>::new());
    }
    let (guests, of_host) = said[1].split_once("of the host:\n").unwrap();
    assert!(guests.contains("3 packets transmitted, 3 received"), "{guests}");
    assert_eq!(guests.matches("100 iters in").count(), 1, "{guests}");
    let rows =
        |said: &str, size: &str| said.lines().filter(|line| line.trim_start().starts_with(size)).count();
    assert_eq!((rows(guests, "65536      100 "), rows(guests, "2       100 ")), (1, 1), "{guests}");
    assert!(guests.lines().any(|line| line.ends_with("receiver")), "{guests}");
    assert_eq!(guests.matches("ping data: ").count(), 20, "{guests}");
    assert_eq!(of_host.matches("ping data: ").count(), 20, "{of_host}");
    assert_eq!(rows(of_host, "65536      100 "), 1, "{of_host}");
}
