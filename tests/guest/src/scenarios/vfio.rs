//! Functions bound to vfio-pci in the guest, behind a virtual IOMMU.

use std::path::Path;

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server, Strict};
use crate::{Outcome, failed};

use super::scratch::scratch;
use super::sides::{Bench, Side, boot_two, find_gid, pingpong};
use super::wire::{Beside, packets};
use super::{mlx5, stream, verbs};

/// Binds the function at a slot to vfio-pci.
pub fn bind(guest: &mut Guest, slot: u32) -> Outcome {
    let script = format!(
        "modprobe vfio-pci && cd /sys/bus/pci/devices/0000:00:{slot:02x}.0 && echo vfio-pci >driver_override && \
         echo 0000:00:{slot:02x}.0 >/sys/bus/pci/drivers_probe && [ \"$(basename \"$(readlink driver)\")\" = vfio-pci ] && \
         [ -c /dev/vfio/$(basename \"$(readlink iommu_group)\") ]"
    );
    guest.run(30, &script).map(drop)
}

/// Serves two VFs, and boots a guest with both bound to vfio-pci.
pub fn two_vfs(images: &Images, plan: Plan, served: server::Plan) -> Outcome<(Server, Guest)> {
    let server = Server::start(&server::Plan { functions: vec![1, 2], ..served })?;
    let mut guest = Guest::boot(images, plan.iommu().plug(server.socket(1)).plug(server.socket(2)))?;
    bind(&mut guest, 0x10)?;
    bind(&mut guest, 0x11)?;
    Ok((server, guest))
}

/// Starts rdma-core's tests. They read EQEs 8 bytes at a time and leave the rest to scapy. Versions up to 2.4 accepted truncated packets,
/// but Debian 13's does not, so the missing bytes are padded.
const PYVERBS: &str = r#"
import runpy, sys
sys.path[:0] = ["/tmp/t", "/tmp/t/tests"]
import tests.mlx5_prm_structs as prm
plain = prm.SwEqe.__init__
prm.SwEqe.__init__ = lambda self, _pkt=b"", *a, **k: plain(self, _pkt.ljust(64, b"\0") if _pkt else _pkt, *a, **k)
sys.argv[0] = "/tmp/t/tests/run_tests.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"#;

/// rdma-core's user-space driver for a function on vfio-pci, run by rdma-core's own test.
pub fn pyverbs(images: &Images) -> Outcome {
    let scratch = scratch("pyverbs")?;
    let recorded = stream::file(&scratch);
    let mut server = Server::start(&server::Plan {
        functions: vec![0],
        infiniband: true,
        arguments: stream::arguments(&recorded),
        strict: Strict::Prompt,
        ..Default::default()
    })?;
    let mut guest = Guest::boot(images, Plan::new("pyverbs").iommu().plug(server.socket(0)))?;
    bind(&mut guest, 0x10)?;
    std::fs::write(guest.share().join("vfio-test.py"), PYVERBS)?;
    let output = guest.try_run(
        200,
        "mkdir /tmp/t && ln -s /usr/lib/rdma-core-tests /tmp/t/tests && cd /tmp/t &&
MLX5_DEBUG_FILE=/tmp/said python3 /share/vfio-test.py --pci-dev 0000:00:10.0 -v tests.test_mlx5_vfio
status=$?; cat /tmp/said; exit $status",
    )?;
    let passed = output.text.matches("... ok").count();
    if output.status != 0 || passed != 2 || output.text.contains("skipped") {
        return failed(format!("expected two tests to pass, status {}:\n{}", output.status, output.text));
    }
    server.end([guest])?;
    // The recorder does not find this driver's receives in every run, because their rings are in user memory objects.
    stream::judge(server, &recorded, "rdma-core-vfio", "0", &["post:receive"])
}

/// An example of the crate for Rust programs, unchanged: only the words that name its device differ from those on a node.
pub fn example(images: &Images) -> Outcome {
    let (mut server, mut guest) = two_vfs(images, Plan::new("example"), server::Plan::default())?;
    let echo = |word: &str, n: u8| {
        format!("/built/examples/echo {word} 'vfio=0000:00:1{n}.0 address=192.168.7.{}'", n + 1)
    };
    let script = format!(
        "{} 7471 >/tmp/served & served=$!
        until grep -q listening /tmp/served; do kill -0 $served || exit 1; sleep 0.1; done
        {} 192.168.7.1:7471 'by vfio'
        kill $served",
        echo("serve", 0),
        echo("ask", 1),
    );
    let said = guest.run(60, &script)?;
    if said.trim() != "by vfio" {
        return failed(format!("expected an echo, found\n{said}"));
    }
    server.end(vec![guest])
}

/// Our driver and provider on a function on vfio-pci, with a peer in another guest under the stock driver.
pub fn provider(images: &Images) -> Outcome {
    let server = Server::start(&server::Plan { functions: vec![0, 1], ..Default::default() })?;
    let scratch = scratch("provider")?;
    let plans = [Plan::new("ours").plug(server.socket(0)).iommu(), Plan::new("stock").plug(server.socket(1))];
    let mut guests = boot_two(images, &scratch, plans)?;
    bind(&mut guests[0], 0x10)?;
    mlx5::load(&mut guests[1], &[0x10], false)?;
    // A VF that was assigned no MAC has chosen a random one.
    let drawn = guests[1].run(10, "cat /sys/class/net/f10/address")?.trim().to_string();
    let capture = scratch.join("wire.pcap");
    let watcher = Beside::capture(&server.node(), &capture)?;
    let ours = Side {
        guest: 0,
        prefix: "/built/ironverbs run --bdf 0000:00:10.0 --address 192.168.7.1/24 --".into(),
        device: "iron0".into(),
        gid: Some(1),
        host: "10.9.0.1".into(),
        address: "192.168.7.1".into(),
        ..Side::default()
    };
    let stock = Side {
        guest: 1,
        device: mlx5::device(&mut guests[1], 0x10)?,
        net: "f10".into(),
        host: "10.9.0.2".into(),
        address: "192.168.7.2".into(),
        ..Side::default()
    };
    let mut bench = Bench::new(guests, [ours, stock]);
    bench.give_address(1)?;
    find_gid(&mut bench, 1)?;
    let known = bench.at(0, 60, "ibv_devinfo -v")?;
    if !known.contains("PORT_ACTIVE") || !known.contains("iron0") {
        return failed(format!("expected iron0 with an active port, found\n{known}"));
    }
    asked_by_the_kernel(&mut bench)?;
    for options in ["-c -n 300", "-c -e -n 100", "-c -s 65536 -n 30"] {
        bench.both_ways(&pingpong("ibv_rc_pingpong", options))?;
    }
    for (tool, options) in [
        ("ib_send_bw", "-n 200 -s 65536"),
        ("ib_write_bw", "-n 200 -s 65536"),
        ("ib_read_bw", "-n 100 -s 65536"),
        ("ib_send_lat", "-n 200"),
        ("ib_write_lat", "-n 200"),
        ("ib_read_lat", "-n 200"),
        ("ib_atomic_lat", "-n 200"),
    ] {
        bench.each_way(|bench| verbs::figures(bench, tool, options).map(drop))?;
    }
    connections(&mut bench)?;
    watcher.end();
    discovered(images, &capture, &drawn)?;
    mlx5::Pair::over(bench, server, scratch).finish()
}

/// While a program has our function open, a kernel that sends to it learns its MAC by ARP and by neighbour discovery.
fn asked_by_the_kernel(bench: &mut Bench) -> Outcome {
    let holding = format!("{} timeout 20 ibv_asyncwatch -d iron0", bench.sides[0].prefix);
    let running = bench.guest(0)?.start_script(40, &holding)?;
    for (ip, host) in [("192.168.7.1", "192.168.7.1"), ("fe80::1b:56ff:fe00:0", "fe80::1b:56ff:fe00:0%f10")] {
        // The first time the kernel may hear the announcement of the address; the second time it has to ask.
        let script = format!(
            "bash -c 'learns() {{ for t in $(seq 80); do echo >/dev/udp/{host}/9; \
             ip neigh show {ip} dev f10 | grep -q 02:1b:56:00:00:00 && return; sleep 0.1; done; ip neigh; exit 1; }}; \
             learns; ip neigh flush dev f10; learns'"
        );
        bench.at(1, 20, &script)?;
    }
    bench.guest(0)?.run(10, "pkill -x ibv_asyncwatch || true")?;
    bench.guest(0)?.wait(&running)?;
    bench.at(1, 10, "ip neigh flush dev f10").map(drop)
}

/// Programs that connect by rdma_cm, server and client, with placeholders for the port and the server's address.
const CONNECTING: [(&str, &str); 3] = [
    ("rping -s -a SERVER -p PORT -C 100 -V", "rping -c -a SERVER -p PORT -C 100 -V"),
    ("ucmatose -b SERVER -p PORT -c 3", "ucmatose -s SERVER -p PORT -c 3"),
    ("ib_send_bw -R -F -p PORT -n 200 -s 65536", "ib_send_bw -R -F -p PORT -n 200 -s 65536 SERVER"),
];

/// Connects our connection manager and the kernel's, each way.
fn connections(bench: &mut Bench) -> Outcome {
    bench.guest(1)?.run(30, "modprobe -a rdma_cm rdma_ucm ib_uverbs")?;
    for way in ["client", "server"] {
        for (server, client) in CONNECTING {
            let port = bench.port().to_string();
            let address = bench.sides[0].address.clone();
            let words = |side: &Side, command: &str| {
                format!("{} {}", side.prefix, command.replace("SERVER", &address).replace("PORT", &port))
            };
            let (server, client) = (words(&bench.sides[0], server), words(&bench.sides[1], client));
            let running = bench.guest(0)?.start_script(90, &server)?;
            // Our listeners appear in no table of the kernel.
            let client = format!("for t in $(seq 20); do {client} && exit 0; sleep 0.5; done; exit 1");
            let asked = bench.guest(1)?.try_run(90, &client)?;
            let served = bench.guest(0)?.wait(&running)?;
            if asked.status != 0 || served.status != 0 {
                return failed(format!(
                    "{client}, the kernel being the {way}: {}\n{}\n--- {server}: {}\n{}",
                    asked.status, asked.text, served.status, served.text
                ));
            }
            println!("    {server}, the kernel being the {way}");
        }
        bench.sides.swap(0, 1);
    }
    Ok(())
}

/// Checks that requests and answers of both protocols went both ways, with the MAC `drawn` for the stock driver.
fn discovered(images: &Images, capture: &Path, drawn: &str) -> Outcome {
    let (ours, stock) = ("eth.src == 02:1b:56:00:00:00", format!("eth.src == {drawn}"));
    let stock = stock.as_str();
    for (who, own) in [(ours, "192.168.7.1"), (stock, "192.168.7.2")] {
        for (what, kind) in [("requests", 1), ("answers", 2)] {
            let filter = format!("{who} && arp.opcode == {kind} && arp.src.proto_ipv4 == {own}");
            let found = packets(images, capture, &filter)?;
            if found.is_empty() {
                return failed(format!("expected ARP {what} of {own}, found none"));
            }
            println!("    {:3} ARP {what} of {own}", found.len());
        }
    }
    let advertised =
        packets(images, capture, &format!("{ours} && icmpv6.type == 136 && icmpv6.nd.na.flag.s == 1"))?;
    match advertised.is_empty() {
        true => failed("expected an advertisement of ours that was asked for, found none"),
        false => Ok(()),
    }
}
