//! Congestion control of a port, as the stock driver reads and sets it.

use std::process::Command;

use super::host::wait_for;
use super::mlx5::Pair;
use super::scratch::scratch;
use super::sides::perftest;
use super::verbs::statistic;
use super::wire::Beside;
use crate::machine::Guest;
use crate::{Outcome, built, failed};

/// The driver's parameter files and their values on an unmodified port: those that DCQCN's paper proposes, otherwise the defaults of cards.
const FILES: [(&str, u32); 20] = [
    ("rp_clamp_tgt_rate", 1),
    ("rp_clamp_tgt_rate_ati", 1),
    ("rp_time_reset", 55),
    ("rp_byte_reset", 10_000_000),
    ("rp_threshold", 5),
    ("rp_ai_rate", 40),
    ("rp_max_rate", 0),
    ("rp_hai_rate", 400),
    ("rp_min_dec_fac", 50),
    ("rp_min_rate", 10),
    ("rp_rate_to_set_on_first_cnp", 0),
    ("rp_dce_tcp_g", 1020),
    ("rp_dce_tcp_rtt", 55),
    ("rp_rate_reduce_monitor_period", 50),
    ("rp_initial_alpha_value", 1023),
    ("rp_gd", 11),
    ("np_min_time_between_cnps", 50),
    ("np_cnp_dscp", 48),
    ("np_cnp_prio_mode", 0),
    ("np_cnp_prio", 6),
];
/// Every middle packet of a WRITE is marked.
const MARKS: &str = "[[fault]]\ndo = \"mark\"\nopcode = \"RcWriteMiddle\"\n";

/// Reads and writes all parameters of the PF and marks packets: notifications are counted at both ends, at the rate that the driver has
/// set.
pub fn control(pair: &mut Pair) -> Outcome {
    let files = "/sys/kernel/debug/mlx5/0000:00:10.0/cc_params";
    let bench = &mut pair.bench;
    let vf = bench.guests[0].run(10, "ls -d /sys/kernel/debug/mlx5/0000:00:11.0/cc_params 2>&1 || true")?;
    if !vf.contains("No such file") {
        return failed(format!("expected no parameters of a VF, found {vf}"));
    }
    let shown = |said: &str| {
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let look = format!("cd {files} && for f in *; do echo $f $(cat $f); done");
    let expect = |guest: &mut Guest, values: &[(&str, u32)]| {
        let expected =
            shown(&values.iter().map(|(name, value)| format!("{name} {value}\n")).collect::<String>());
        let found = shown(&guest.run(10, &look)?);
        match found == expected {
            true => Ok(()),
            false => failed(format!("expected {expected:?}, found {found:?}")),
        }
    };
    let guest = &mut bench.guests[0];
    expect(guest, &FILES)?;
    // Each parameter reads back as set, and the others stay. A flag is inverted.
    let other = |value: u32| if value == 0 { 1 } else { value - 1 };
    let set = FILES.map(|(name, value)| (name, other(value)));
    let script: String =
        set.iter().map(|(name, value)| format!("echo {value} > {files}/{name} || exit 1\n")).collect();
    guest.run(10, &script)?;
    // Setting a priority implies using it, so the mode reads 0 although another value was written before.
    expect(guest, &set.map(|(name, value)| (name, if name == "np_cnp_prio_mode" { 0 } else { value })))?;
    let back: String =
        FILES.iter().map(|(name, value)| format!("echo {value} > {files}/{name} || exit 1\n")).collect();
    guest.run(10, &back)?;
    notifications(pair, files)
}

/// The receiver's marked packets and sent notifications, and the sender's handled notifications.
const COUNTERS: [&str; 3] = ["np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"];

fn notifications(pair: &mut Pair, files: &str) -> Outcome {
    let scratch = scratch("congestion")?;
    let plan = scratch.join("plan.toml");
    std::fs::write(&plan, MARKS)?;
    let faults = Beside::faults(&pair.server.node(), &plan)?;
    wait_for_faults(pair)?;
    let [often, seldom] = [4, 1_000_000].map(|us| marked_writes(pair, files, us));
    faults.end();
    let ([marked, sent, handled], [still, few, also]) = (often?, seldom?);
    if sent < 10 || handled != sent || marked < 10 * sent.min(10) {
        return failed(format!("expected notifications of many marks, found {marked}, {sent}, {handled}"));
    }
    // One a second for each queue pair, and a run takes a few seconds.
    if few > 10 || also != few || still < marked / 2 {
        return failed(format!("expected a notification a second, found {still}, {few}, {also}"));
    }
    println!("    {marked} marks, {sent} notifications; told to be slow {still} and {few}");
    Ok(())
}

/// Writes from side 1 to side 0, where the port notifies at most every `us`. Returns the increase of the counters.
fn marked_writes(pair: &mut Pair, files: &str, us: u32) -> Outcome<[u64; 3]> {
    let bench = &mut pair.bench;
    bench.guests[0].run(10, &format!("echo {us} > {files}/np_min_time_between_cnps"))?;
    let mut count = |sign: i64, sums: &mut [i64; 3]| -> Outcome {
        let (receiver, sender) = (statistic(bench, 0, &COUNTERS[..2])?, statistic(bench, 1, &COUNTERS[2..])?);
        for (sum, value) in sums.iter_mut().zip(receiver.iter().chain(&sender)) {
            *sum += sign * *value as i64;
        }
        if sign < 0 {
            bench.tool(&perftest("ib_write_bw", "-n 200 -s 65536 -t 4"))?;
        }
        Ok(())
    };
    let mut sums = [0; 3];
    count(-1, &mut sums)?;
    count(1, &mut sums)?;
    Ok(sums.map(|sum| sum.max(0) as u64))
}

/// Waits until the fault plan's process controls the wire.
fn wait_for_faults(pair: &Pair) -> Outcome {
    wait_for("the plan of faults to have the wire", 20, || {
        let mut command = Command::new(built().join("ironverbs"));
        let said = command.args(["node", "status", "--node"]).arg(pair.server.node()).output()?;
        Ok(String::from_utf8_lossy(&said.stdout).contains("wire captured by process"))
    })
}
