//! Compares the stock drivers' streams with those in `tests/streams/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::images::Images;
use crate::server::{self, Server, Strict};
use crate::{Outcome, built, failed, tree};

use super::mlx5::{self, Pair, Place};
use super::sides::{perftest, pingpong};
use super::verbs;

/// If set, the streams are written instead of compared.
const WRITE: &str = "IRONVERBS_WRITE_STREAMS";

/// File for a server's recording, outside the server's own directory, which is removed with it.
pub fn file(dir: &Path) -> PathBuf {
    dir.join("stream")
}

/// Arguments for a server that records to `file`.
pub fn arguments(file: &Path) -> Vec<String> {
    vec!["--record".into(), file.display().to_string()]
}

/// Runs `ironverbs stream`. Returns its output, and true if it exited with 0; it also exits with 1 if streams differ.
pub fn words(arguments: &[&str]) -> Outcome<(bool, String)> {
    let done = Command::new(built().join("ironverbs")).arg("stream").args(arguments).output()?;
    if !done.stderr.is_empty() {
        return failed(format!("ironverbs stream: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok((done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned()))
}

/// Compares the recording of `function` with `tests/streams/NAME.txt`: the same commands, requests and fields, except for the words
/// `aside`.
pub fn judge(server: Server, file: &Path, name: &str, function: &str, aside: &[&str]) -> Outcome {
    // The recording is complete once the server is gone.
    drop(server);
    let kept = tree().join("tests/streams").join(format!("{name}.txt"));
    let (recorded, golden) = (file.display().to_string(), kept.display().to_string());
    if std::env::var_os(WRITE).is_some() {
        let (_, text) = words(&["show", "--compact", "--function", function, &recorded])?;
        std::fs::write(&kept, &text)?;
        println!("    {golden}: {} lines written", text.lines().count());
        return Ok(());
    }
    // Commands that a driver sends on its own, at intervals or after events, have no fixed position.
    let differences = |a: &str, b: &str| -> Outcome<String> {
        let (_, found) = words(&["diff", "--words", "--function", function, a, b])?;
        let counts = |line: &&str| {
            let mut words = line.split(' ');
            words.next() != Some("order") && words.next().is_none_or(|word| !aside.contains(&word))
        };
        Ok(found.lines().filter(counts).map(|line| format!("{line}\n")).collect())
    };
    let (now, before) = (differences(&golden, &recorded)?, differences(&recorded, &golden)?);
    match now.is_empty() && before.is_empty() {
        true => Ok(()),
        false => failed(format!(
            "the stock driver sends something else than {golden}; {WRITE}=1 writes it anew.\n--- now:\n{now}--- before:\n{before}"
        )),
    }
}

/// The stock driver's stream of a VF that is loaded, used by verbs programs and unloaded.
pub fn stock(images: &Images) -> Outcome {
    let scratch = super::scratch::scratch("recorded")?;
    let file = file(&scratch);
    let kernels = ["6.12", "6.12"];
    let served = server::Plan { arguments: arguments(&file), strict: Strict::Prompt, ..Default::default() };
    let mut pair = Pair::boot_on(images, "stream", Place::OneGuest, kernels, served)?;
    let bench = &mut pair.bench;
    for (name, options) in [
        ("ibv_rc_pingpong", "-c -n 20"),
        ("ibv_rc_pingpong", "-c -e -n 20"),
        ("ibv_ud_pingpong", "-c -n 20 -s 1024"),
        ("ibv_srq_pingpong", "-c -n 20 -q 2"),
    ] {
        bench.both_ways(&pingpong(name, options))?;
    }
    for (tool, options) in [
        ("ib_send_bw", "-n 20 -s 4096"),
        ("ib_write_bw", "-n 20 -s 4096"),
        ("ib_read_bw", "-n 20 -s 4096"),
        ("ib_atomic_bw", "-n 20"),
        ("ib_atomic_bw", "-A CMP_AND_SWAP -n 20"),
        ("ib_send_lat", "-n 20 -s 64 -I 64"),
        ("ib_send_lat", "-c UD -n 20 -s 64"),
    ] {
        bench.tool(&perftest(tool, options))?;
    }
    verbs::rping(bench, 10)?;
    bench.guests[0].run(30, "modprobe -r rdma_ucm")?;
    // A device in the namespace created for it would keep the driver from unloading.
    bench.at(1, 10, "ip link set f11 down netns 1")?;
    mlx5::unload(&mut bench.guests[0])?;
    let server = pair.finish_serving()?;
    judge(server, &file, "stock-vf", "1", &[])
}
