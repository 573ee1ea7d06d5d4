//! Traffic of Debian's verbs programs between two ends.

use std::process::Command;

use crate::{Outcome, failed, tree};

use super::sides::{Bench, last_row, perftest, pingpong};

/// The pingpongs with data checks, and the perftest tools.
pub fn data_moves(bench: &mut Bench) -> Outcome {
    for (name, options) in [
        ("ibv_rc_pingpong", "-c -n 300"),
        ("ibv_rc_pingpong", "-c -e -n 100"),
        ("ibv_rc_pingpong", "-c -s 65536 -n 30"),
        ("ibv_ud_pingpong", "-c -n 300 -s 1024"),
        ("ibv_ud_pingpong", "-c -e -n 100 -s 512"),
        ("ibv_srq_pingpong", "-c -n 300 -q 4"),
        ("ibv_srq_pingpong", "-c -e -n 100 -q 2"),
    ] {
        bench.both_ways(&pingpong(name, options))?;
    }
    for (name, options) in [
        ("ib_send_bw", "-n 300 -s 65536"),
        ("ib_write_bw", "-n 300 -s 65536"),
        ("ib_read_lat", "-n 300 -s 4096"),
        ("ib_atomic_lat", "-n 300"),
        ("ib_send_bw", "-a -n 20"),
        ("ib_write_bw", "-q 8 -n 50"),
        ("ib_read_bw", "-n 100 -s 65536"),
        ("ib_send_lat", "-c UD -n 200 -s 1024"),
        ("ib_atomic_bw", "-A CMP_AND_SWAP -n 100"),
    ] {
        figures(bench, name, options)?;
    }
    Ok(())
}

/// Runs a perftest tool and returns the figures of the last row.
pub fn figures(bench: &mut Bench, name: &str, options: &str) -> Outcome<Vec<f64>> {
    const TRIES: usize = 5;
    let mut said = String::new();
    for _ in 0..TRIES {
        [_, said] = bench.tool(&perftest(name, options))?;
        let row = last_row(&said);
        if row.iter().skip(2).any(|figure| *figure > 0.0) {
            return Ok(row);
        }
        // perftest first calibrates the processor's clock against the system's. On a busy host an emulated clock may be irregular; perftest
        // then says so, moves the data all the same, and prints zeros.
        if !said.contains("Correlation coefficient") {
            break;
        }
    }
    failed(format!("{name} {options}: expected figures, found\n{said}"))
}

/// Returns the sums of the hardware counters of a side's port, from `rdma statistic` and sysfs.
pub(super) fn statistic(bench: &mut Bench, side: usize, names: &[&str]) -> Outcome<Vec<u64>> {
    let device = bench.sides[side].device.clone();
    let said = bench.at(side, 20, &format!("rdma statistic show link {device}/1"))?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let value =
        |name: &&str| words.windows(2).find(|pair| pair[0] == *name).and_then(|pair| pair[1].parse().ok());
    names.iter().map(|name| value(name).map_or_else(|| failed(format!("no {name} in {said}")), Ok)).collect()
}

/// Checks that `rdma statistic` counts the server's requests one by one.
pub fn counters(bench: &mut Bench) -> Outcome {
    const NAMES: [&str; 4] =
        ["rx_write_requests", "rx_read_requests", "rx_atomic_requests", "out_of_sequence"];
    for (n, (tool, options)) in
        [("ib_write_bw", "-n 250 -s 4096"), ("ib_read_lat", "-n 250 -s 64"), ("ib_atomic_lat", "-n 250")]
            .iter()
            .enumerate()
    {
        let before = statistic(bench, 0, &NAMES)?;
        bench.tool(&perftest(tool, options))?;
        let after = statistic(bench, 0, &NAMES)?;
        let moved: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a.wrapping_sub(*b)).collect();
        for (kind, count) in moved.iter().enumerate() {
            let fits = if kind == n { (250..=300).contains(count) } else { *count == 0 };
            if !fits {
                return failed(format!("{tool} {options}: counters {NAMES:?} moved by {moved:?}"));
            }
        }
    }
    Ok(())
}

/// `rping` over the kernel's rdma_cm; it verifies the echoed data.
pub fn rping(bench: &mut Bench, count: u32) -> Outcome {
    for guest in &mut bench.guests {
        guest.run(30, "modprobe -a rdma_cm rdma_ucm ib_uverbs")?;
    }
    let port = bench.port();
    let (server, client) = (bench.sides[0].address.clone(), bench.sides[1].address.clone());
    // rdma_cm's listeners appear only in rdma_cm's own table, not in that of sockets.
    let ready = format!("until rdma resource show cm_id | grep -q {port}; do sleep 0.1; done");
    let said = bench.converse_when(
        240,
        &ready,
        &format!("rping -s -a {server} -p {port} -C {count} -V"),
        &format!(
            "bash -c 'set -o pipefail; rping -c -a {server} -I {client} -p {port} -C {count} -v -V 2>/tmp/rping | \
             grep -c \"^ping data: rdma-ping-\" || cat /tmp/rping'"
        ),
    )?;
    let pings = said[1].trim();
    if pings != count.to_string() {
        return failed(format!("rping: expected {count} pings, found {pings}"));
    }
    Ok(())
}

/// The error codes that libmlx5 and the kernel return for refused verbs are those in docs/codes.md.
pub fn codes(bench: &mut Bench) -> Outcome {
    let (source, program) = (tree().join("tests/programs/codes.c"), bench.guest(0)?.share().join("codes"));
    let made = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).arg("-libverbs").output()?;
    if !made.status.success() {
        return failed(format!("cc: {}", String::from_utf8_lossy(&made.stderr).trim()));
    }
    let device = bench.sides[0].device.clone();
    let said = bench.at(0, 60, &format!("/share/codes {device}"))?;
    let page = std::fs::read_to_string(tree().join("docs/codes.md"))?;
    let expected = page.lines().filter(|line| line.starts_with("| `")).filter_map(|line| {
        let cells: Vec<_> = line.split('|').collect();
        let cells = (cells.get(1)?, cells.get(2)?, cells.get(4).filter(|code| **code != " - ")?);
        Some(format!("|{}|{}|{}|", cells.0, cells.1, cells.2))
    });
    let (expected, found): (Vec<_>, Vec<_>) = (expected.collect(), said.lines().map(str::to_owned).collect());
    match expected == found {
        true => Ok(()),
        false => failed(format!("docs/codes.md: expected\n{}\nfound\n{said}", expected.join("\n"))),
    }
}
