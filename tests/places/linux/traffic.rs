//! Programs on two VFs, each in its own network namespace: all traffic patterns of libibverbs and perftest, rping and TCP.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS};

/// A shell function: `meets PROGRAM OPTION...` runs a server in namespace n1, which has 10.9.0.1, and its client in n2, and prints a line
/// if the client did 100 iterations.
pub const MEETING: &str = r#"
meets() {
    program=$1
    shift
    ip netns exec n1 timeout 60 $program -d $R1 "$@" -n 100 >/run/server 2>&1 & server=$!
    until_so listens 1
    ip netns exec n2 timeout 60 $program -d $R2 "$@" -n 100 10.9.0.1 >/run/client 2>&1 || { cat /run/client; return 1; } >&2
    wait $server
    grep -Eq '^100 iters in|^ *[0-9]+ +100 ' /run/client || { cat /run/client; return 1; } >&2
    echo "met by $program $*"
}
"#;

#[test]
fn programs_in_two_namespaces_meet_on_two_vfs() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}{CHECKS}{MEETING}
        rdma system set netns exclusive
        numvfs 2
        vf 1
        vf 2
        for service in rc uc ud; do meets ibv_${{service}}_pingpong -g 1; done
        meets ibv_rc_pingpong -g 1 -c -e
        meets ibv_srq_pingpong -g 1 -q 2
        for operation in send write read atomic; do
            meets ib_${{operation}}_lat -x 1 -F
            meets ib_${{operation}}_bw -x 1 -F
        done
        for service in UC UD; do meets ib_send_bw -x 1 -F -c $service; done
        connects n1 n2 10.9.0.1
        ip netns exec n1 timeout 60 rping -s -a 10.9.0.1 -C 10 -V >/run/server 2>&1 & until_so cm_listens 7174 n1
        ip netns exec n2 timeout 60 rping -c -a 10.9.0.1 -C 10 -V -v
        wait
        ip netns exec n1 timeout 60 iperf3 -s -1 >/run/server 2>&1 & until_so listens 1
        ip netns exec n2 timeout 60 iperf3 -c 10.9.0.1 -n 20M
        wait
        complaints"
    );
    let said = place.quiet_script(&[], &script);
    assert_eq!(said.matches("met by ").count(), 15, "{said}");
    assert!(said.contains("return status 0"), "{said}");
    assert_eq!(said.matches("ping data: ").count(), 10, "{said}");
    let received = said.lines().find(|line| line.ends_with("receiver")).unwrap_or_else(|| panic!("{said}"));
    assert!(received.contains("MBytes"), "{received}");
}

/// UCX's own mlx5 transports create their queues by DevX, in user memory objects, and ring doorbells themselves.
#[test]
fn ucx_meets_by_its_mlx5_transports() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}{CHECKS}
        rdma system set netns exclusive
        numvfs 2
        vf 1
        vf 2
        for UCX_TLS in rc_x ud_x; do
            export UCX_TLS
            ip netns exec n1 timeout 60 ucx_perftest -t tag_bw -s 4096 -n 100 >/run/server 2>&1 & until_so listens 1
            ip netns exec n2 timeout 60 ucx_perftest 10.9.0.1 -t tag_bw -s 4096 -n 100
            wait
        done
        complaints"
    );
    let said = place.quiet_script(&[], &script);
    assert_eq!(said.matches("Final:                   100").count(), 2, "{said}");
}

/// On an otherwise idle VF a command completes with a single interrupt. If it is lost, no other interrupt follows: Linux then waits for a
/// minute and prints a warning.
#[test]
fn idle_vfs_are_told_of_each_command_beside_traffic_of_others() {
    let Some(place) = Place::new() else { return };
    let script = format!(
        "{VFS}{COMPLAINTS}
        rdma system set netns exclusive
        numvfs 12
        for n in 1 2 3 4; do vf $n; done
        sleep 1
        for pair in '1 2' '3 4' '2 3' '4 1'; do
            set -- $pair
            ip netns exec n$1 timeout 15 ping -q -f -s 1400 10.9.0.$2 >/dev/null &
        done
        up() {{ read up idle </proc/uptime; up=${{up%.*}}; }}
        up
        end=$((up + 15))
        counters() {{
            device=/sys/class/infiniband/$(ls $pci/0000:00:00.0/virtfn$(($1 - 1))/infiniband)/ports/1
            commands=0
            while up; [ $up -lt $end ]; do
                read count <$device/hw_counters/out_of_buffer
                read count <$device/counters/port_xmit_data
                commands=$((commands + 2))
            done
            echo commands $commands
        }}
        for n in 5 6 7 8 9 10 11 12; do counters $n & done
        wait
        complaints"
    );
    let said = place.quiet_script(&["--vfs", "12"], &script);
    let commands = said.lines().filter_map(|line| line.strip_prefix("commands ")?.parse::<u32>().ok());
    let commands: Vec<u32> = commands.collect();
    assert!(commands.len() == 8 && commands.iter().all(|count| *count > 100), "{said}");
}
