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
        program(&["ucmatose", "-b", "10.7.0.3", "-c", "4", "-S", "4096"]),
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
        timeout 120 ucmatose -p 18600 -c 4 -S 4096 >/dev/null 2>&1 &
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
        ucmatose -s 10.7.0.1 -p 18600 -c 4 -S 4096
        iperf3 -c 10.7.0.1 -n 10M
        echo of the host:
        rping -c -I 10.7.0.2 -a 10.7.0.3 -C 20 -V -v
        ucmatose -b 10.7.0.2 -s 10.7.0.3 -c 4 -S 4096
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
    let connected = |said: &str| said.matches("return status 0").count();
    let written = guests.lines().filter(|line| line.trim_start().starts_with("65536      100 ")).count();
    assert_eq!((written, connected(guests), connected(of_host)), (1, 1, 1), "{}", said[1]);
    assert!(guests.lines().any(|line| line.ends_with("receiver")), "{guests}");
    assert_eq!(guests.matches("ping data: ").count(), 20, "{guests}");
    assert_eq!(of_host.matches("ping data: ").count(), 20, "{of_host}");
}
