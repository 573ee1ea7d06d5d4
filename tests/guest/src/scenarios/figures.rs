//! Performance figures, for information only.

use crate::Outcome;
use crate::images::Images;
use crate::server::{self, Strict};

use super::mlx5::{Pair, Place};
use super::sides::{Bench, Side, find_gid};
use super::verbs;

/// Sends commands one after the other on an idle guest, by reading debugfs files that issue a QUERY_EQ per read. The commands of the driver
/// itself are less useful: while it loads, the guest is busy, and memory keys are created by the dozen.
const COMMANDS: &str = "cd /sys/kernel/debug/mlx5/0000:00:10.0 && \
    for i in $(seq 300); do cat EQs/*/num_eqes >/dev/null; done && \
    echo $(cat commands/QUERY_EQ/n) commands, $(($(cat commands/QUERY_EQ/average) / 1000)) us each";

/// perftest tools, their options, the relevant column of the last row, and its unit.
const TABLE: [(&str, &str, usize, &str); 8] = [
    ("ib_send_lat", "-s 2 -n 1000", 4, "us"),
    ("ib_write_lat", "-s 2 -n 1000", 4, "us"),
    ("ib_read_lat", "-s 2 -n 1000", 4, "us"),
    ("ib_atomic_lat", "-n 1000", 4, "us"),
    ("ib_send_bw", "-s 65536 -n 2000", 3, "MiB/s"),
    ("ib_write_bw", "-s 65536 -n 2000", 3, "MiB/s"),
    ("ib_read_bw", "-s 65536 -n 2000", 3, "MiB/s"),
    ("ib_write_bw", "-s 64 -n 5000", 4, "M/s"),
];

fn column(bench: &mut Bench) -> Outcome<Vec<f64>> {
    let mut figures = Vec::new();
    for (tool, options, column, _) in TABLE {
        figures.push(verbs::figures(bench, tool, options)?.get(column).copied().unwrap_or_default());
    }
    Ok(figures)
}

/// Measures commands, doorbells and the perftest table, with rxe in the same guest for comparison.
pub fn run(images: &Images) -> Outcome {
    let kind = server::Plan { strict: Strict::Kind, ..Default::default() };
    let mut pair = Pair::boot_on(images, "figures", Place::OneGuest, ["6.12", "6.12"], kind)?;
    let model = column(&mut pair.bench)?;
    let commands = pair.bench.guests[0].run(60, COMMANDS)?;
    let rxe = "modprobe -a rdma_rxe dummy && ip link add d0 type dummy && ip addr add 10.1.1.1/24 dev d0 && \
               ip link set d0 up && rdma link add rxe0 type rxe netdev d0";
    pair.bench.guests[0].run(30, rxe)?;
    let side = || Side {
        device: "rxe0".into(),
        net: "d0".into(),
        host: "127.0.0.1".into(),
        address: "10.1.1.1".into(),
        ..Side::default()
    };
    let sides = std::mem::replace(&mut pair.bench.sides, [side(), side()]);
    find_gid(&mut pair.bench, 0)?;
    find_gid(&mut pair.bench, 1)?;
    let theirs = column(&mut pair.bench)?;
    pair.bench.sides = sides;
    println!("    command round trip: {}", commands.trim());
    println!("    doorbell to CQE, a remote READ of 2 bytes: {:.1} us", model[2]);
    println!("    {:<32} {:>10} {:>10}", "in the guest", "mlx5", "rxe");
    for (((tool, options, _, unit), model), theirs) in TABLE.iter().zip(&model).zip(&theirs) {
        println!("    {:<32} {model:>10.2} {theirs:>10.2} {unit}", format!("{tool} {options}"));
    }
    pair.bench.guests[0].dmesg()?;
    pair.finish()
}
