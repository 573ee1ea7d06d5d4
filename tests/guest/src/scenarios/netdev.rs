//! The net device of a function.

use std::collections::BTreeMap;

use crate::{Outcome, failed};

use super::sides::Bench;

/// Bytes of the TCP transfers.
const TRANSFER: u64 = 10 << 20;

/// Reads the counters of a net device by name, from `ethtool -S` and, as `link_*`, from the kernel.
fn counters(bench: &mut Bench, side: usize) -> Outcome<BTreeMap<String, u64>> {
    let net = bench.sides[side].net.clone();
    let script = format!(
        "bash -c 'ethtool -S {net} | tr -d \" \" | grep :; cd /sys/class/net/{net}/statistics && grep . * | sed s/^/link_/'"
    );
    let said = bench.at(side, 60, &script)?;
    let entry = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    Ok(said.lines().filter_map(entry).collect())
}

/// Returns the increase of a counter, or `None` if it does not exist.
fn increase(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, name: &str) -> Option<u64> {
    Some(after.get(name)?.wrapping_sub(*before.get(name)?))
}

/// Lists the loss and error counters that increased.
fn losses(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<String> {
    let bad = ["drop", "discard", "out_of", "err", "miss", "crc"];
    let names = after.keys().filter(|name| bad.iter().any(|word| name.contains(word)));
    let moves = names.map(|name| (name, increase(before, after, name).unwrap_or_default()));
    moves.filter(|(_, by)| *by > 0).map(|(name, by)| format!("{name} {by}")).collect()
}

/// Pings of both families and several sizes, both ways; the counters must match.
pub fn pings(bench: &mut Bench) -> Outcome {
    let before = [counters(bench, 0)?, counters(bench, 1)?];
    let mut sent = 0;
    for (from, to) in [(0, 1), (1, 0)] {
        let address = bench.sides[to].address.clone();
        for (count, size) in [(20, 56), (20, 1472), (5, 20_000)] {
            // One ping process for each: `-W` applies only until the first answer. After that ping waits for twice its slowest round trip,
            // or an interval, and would count later answers of an emulated machine as lost.
            let one = format!("ping -q -c 1 -W 5 -s {size} {address}");
            let said = bench.at(
                from,
                120,
                &format!("bash -c 'for n in $(seq {count}); do {one} || break; sleep 0.05; done'"),
            )?;
            if said.matches(" 0% packet loss").count() != count {
                let now = [counters(bench, 0)?, counters(bench, 1)?];
                let lost = [losses(&before[0], &now[0]), losses(&before[1], &now[1])];
                return failed(format!(
                    "expected all pings of {size} bytes answered, found\n{said}\ncounters of loss that moved: {lost:?}"
                ));
            }
            let fragments = (size + 8_u64).div_ceil(1480);
            sent += count as u64 * fragments;
        }
        // Link-local and group addresses; neighbours are discovered by multicast.
        let net = bench.sides[from].net.clone();
        let said = bench.at(from, 60, &format!("ping -6 -c 5 -i 0.1 -W 5 ff02::1%{net}"))?;
        if !said.contains("bytes from fe80::") {
            return failed(format!("expected answers to ff02::1, found\n{said}"));
        }
    }
    let after = [counters(bench, 0)?, counters(bench, 1)?];
    for side in 0..2 {
        for name in [
            "tx_packets",
            "rx_packets",
            "link_tx_packets",
            "link_rx_packets",
            "tx_packets_phy",
            "rx_packets_phy",
        ] {
            match increase(&before[side], &after[side], name) {
                // Each ping goes out and comes back; a few more frames discover neighbours.
                Some(n) if (sent..sent + 80).contains(&n) => {}
                found => return failed(format!("{name}: expected {sent} and a few, found {found:?}")),
            }
        }
    }
    Ok(())
}

/// Transfers 10 MB by TCP each way and compares checksums, and the counters of both ends with each other.
pub fn transfers(bench: &mut Bench) -> Outcome {
    bench.each_way(|bench| {
        let before = [counters(bench, 0)?, counters(bench, 1)?];
        let port = bench.port();
        let address = bench.sides[0].address.clone();
        let [got, sent] = bench.converse(
            180,
            port,
            &format!("bash -c 'socat -u TCP-LISTEN:{port},reuseaddr - | sha256sum'"),
            &format!(
                "bash -c 'head -c {TRANSFER} /dev/urandom >/tmp/sent && sha256sum </tmp/sent && socat -u /tmp/sent TCP:{address}:{port}'"
            ),
        )?;
        if got.trim() != sent.trim() || got.len() < 64 {
            return failed(format!(
                "expected the sum of what was sent, {}, found {}",
                sent.trim(),
                got.trim()
            ));
        }
        let after = [counters(bench, 0)?, counters(bench, 1)?];
        let figure =
            |side: usize, name: &str| increase(&before[side], &after[side], name).unwrap_or_default();
        for (tx, rx) in
            [("tx_packets", "rx_packets"), ("tx_bytes", "rx_bytes"), ("tx_bytes_phy", "rx_bytes_phy")]
        {
            for (from, to) in [(1, 0), (0, 1)] {
                let (out, into) = (figure(from, tx), figure(to, rx));
                let slack = if tx.contains("bytes") { 2000 } else { 10 };
                if out == 0 || out.abs_diff(into) > slack {
                    return failed(format!("{tx} moved by {out}, {rx} of the other end by {into}"));
                }
            }
        }
        if figure(0, "rx_bytes") < TRANSFER {
            return failed(format!(
                "rx_bytes: expected {TRANSFER} at least, found {}",
                figure(0, "rx_bytes")
            ));
        }
        Ok(())
    })
}

/// Checks that frames reach only their destination.
pub fn steers(bench: &mut Bench) -> Outcome {
    let (net, peer) = (bench.sides[1].net.clone(), bench.sides[0].net.clone());
    let address = bench.sides[0].address.clone();
    // A foreign MAC is not accepted.
    let before = counters(bench, 0)?;
    bench.at(1, 10, &format!("ip neigh replace {address} lladdr 02:00:00:00:00:99 dev {net}"))?;
    let lost = bench.at(1, 30, &format!("bash -c 'ping -c 3 -i 0.1 -W 1 {address}; true'"))?;
    bench.at(1, 10, &format!("ip neigh del {address} dev {net}"))?;
    let after = counters(bench, 0)?;
    if !lost.contains("100% packet loss") || increase(&before, &after, "rx_packets").unwrap_or(9) > 2 {
        return failed(format!("expected a frame for another MAC not to be taken, found\n{lost}"));
    }
    // An additional MAC and a VLAN are accepted once requested.
    bench.at(
        0,
        20,
        &format!(
            "bash -c 'modprobe -a macvlan 8021q && ip link add link {peer} name second address 02:00:00:00:00:77 type macvlan && \
             ip addr add 192.168.9.1/24 dev second && ip link set second up && \
             ip link add link {peer} name v5 type vlan id 5 && ip addr add 192.168.5.1/24 dev v5 && ip link set v5 up'"
        ),
    )?;
    bench.at(
        1,
        20,
        &format!(
            "bash -c 'modprobe 8021q && ip link add link {net} name v5 type vlan id 5 && ip addr add 192.168.5.2/24 dev v5 && \
             ip link set v5 up && ip addr add 192.168.9.2/24 dev {net}'"
        ),
    )?;
    for reached in ["192.168.9.1", "192.168.5.1"] {
        bench.at(1, 40, &format!("ping -c 5 -i 0.1 -W 5 {reached}"))?;
    }
    bench.at(0, 20, "bash -c 'ip link del second && ip link del v5'")?;
    bench.at(1, 20, "ip link del v5")?;
    Ok(())
}

/// Link state, MTU, and the tools' description of the device.
pub fn link(bench: &mut Bench) -> Outcome {
    for side in 0..2 {
        let (net, device) = (bench.sides[side].net.clone(), bench.sides[side].device.clone());
        let said = bench.at(
            side,
            20,
            &format!("bash -c 'ethtool {net}; ethtool -i {net}; rdma link show {device}/1; cat /sys/class/net/{net}/carrier'"),
        )?;
        for line in [
            "Link detected: yes",
            "driver: mlx5_core",
            "state ACTIVE physical_state LINK_UP",
            &format!("netdev {net}"),
        ] {
            if !said.contains(line) {
                return failed(format!("expected {line:?} in\n{said}"));
            }
        }
        bench.at(side, 30, &format!("ip link set {net} mtu 9000"))?;
    }
    let (address, net) = (bench.sides[0].address.clone(), bench.sides[0].net.clone());
    bench.at(1, 30, &format!("bash -c 'sleep 0.5; ping -c 3 -i 0.1 -W 5 -M do -s 8972 {address}'"))?;
    let device = bench.sides[0].device.clone();
    let down = format!(
        "bash -c 'ip link set {net} down; for t in $(seq 50); do rdma link show {device}/1 | grep -q DOWN && exit 0; sleep 0.1; done; \
         rdma link show {device}/1; exit 1'"
    );
    bench.at(0, 30, &down)?;
    let lost = bench.at(1, 30, &format!("bash -c 'ping -c 2 -i 0.2 -W 1 {address}; true'"))?;
    if !lost.contains("100% packet loss") {
        return failed(format!("expected no answer from a link that is down, found\n{lost}"));
    }
    bench.at(0, 30, &format!("bash -c 'ip link set {net} up; sleep 1'"))?;
    bench.give_address(0)?;
    bench.at(1, 40, &format!("ping -c 3 -i 0.2 -W 5 {address}"))?;
    Ok(())
}

/// IP over InfiniBand between the two ends, with multicast groups and paths from the subnet administrator.
pub fn ipoib(bench: &mut Bench) -> Outcome {
    for side in 0..2 {
        let address = bench.sides[side].address.clone();
        let device = bench.sides[side].device.clone();
        let said = bench.at(
            side,
            40,
            &format!(
                "bash -c 'modprobe ib_ipoib && n=$(ls /sys/class/infiniband/{device}/device/net) && ip addr add {address}/24 dev $n && \
                 ip link set $n up && for t in $(seq 100); do ip link show $n | grep -q LOWER_UP && break; sleep 0.1; done; echo $n'"
            ),
        )?;
        bench.sides[side].net = said.trim().into();
    }
    let address = bench.sides[0].address.clone();
    bench.at(1, 60, &format!("ping -c 10 -i 0.1 -W 10 {address}"))?;
    Ok(())
}
