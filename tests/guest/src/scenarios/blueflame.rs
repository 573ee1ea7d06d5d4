//! Our driver on two VFs bound to vfio-pci, one of which has write-combining doorbell pages.

use std::collections::BTreeSet;
use std::path::Path;

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server;
use crate::{Outcome, failed};

use super::scratch::scratch;
use super::sides::{Bench, Side, pingpong};
use super::{stream, verbs, vfio};

/// The kernel's list of the memory types of register mappings.
const TYPES: &str = "/sys/kernel/debug/x86/pat_memtype_list";
/// Size of a function's BAR in bytes.
const BAR: u64 = 32 << 20;

/// Runs perftest and a pingpong between them, both ways. Debian's kernel needs no parameter for write combining.
pub fn on_vfio(images: &Images) -> Outcome {
    let scratch = scratch("blueflame")?;
    let recorded = stream::file(&scratch);
    let arguments = stream::arguments(&recorded);
    let served = server::Plan { arguments, ..Default::default() };
    let (mut server, guest) = vfio::two_vfs(images, Plan::new("blueflame"), served)?;
    let side = |n: usize, environment: &str| Side {
        prefix: format!(
            "env {environment} /built/ironverbs run --bdf 0000:00:1{n}.0 --address 192.168.7.{}/24 --",
            n + 1
        ),
        device: "iron0".into(),
        gid: Some(1),
        host: "127.0.0.1".into(),
        ..Side::default()
    };
    let mut bench = Bench::new(vec![guest], [side(0, "MLX5_SHUT_UP_BF=0"), side(1, "MLX5_SHUT_UP_BF=1")]);
    let looking = format!("until [ -e /tmp/end ]; do cat {TYPES}; sleep 0.2; done | sort -u");
    let looking = bench.guest(0)?.start_script(400, &looking)?;
    traffic(&mut bench)?;
    bench.guest(0)?.run(10, "touch /tmp/end")?;
    let types = bench.guest(0)?.wait(&looking)?.text;
    for (n, combines) in [(0, true), (1, false)] {
        pages(bench.guest(0)?, n, combines, &types)?;
    }
    server.end(bench.guests)?;
    drop(server);
    stores(&recorded)
}

fn traffic(bench: &mut Bench) -> Outcome {
    bench.both_ways(&pingpong("ibv_rc_pingpong", "-c -n 100"))?;
    for (tool, options) in [
        ("ib_send_lat", "-n 200 -s 64 -I 64"),
        ("ib_write_lat", "-n 200 -s 8"),
        ("ib_send_lat", "-c UD -n 200 -s 64"),
        ("ib_atomic_lat", "-n 100"),
        ("ib_write_bw", "-n 200 -s 4096 -q 20"),
        ("ib_send_bw", "-n 200 -s 65536 -l 4"),
    ] {
        bench.each_way(|bench| {
            let figures = verbs::figures(bench, tool, options)?;
            println!("    {tool} {options}: {figures:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Checks the memory types of the mappings of the n-th function's registers: single write-combining pages beside uncached ones, or uncached
/// ones only.
fn pages(guest: &mut Guest, n: usize, combines: bool, types: &str) -> Outcome {
    let address = guest.run(10, &format!("head -n 1 /sys/bus/pci/devices/0000:00:1{n}.0/resource"))?;
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let Some(base) = address.split_whitespace().next().and_then(hex) else {
        return failed(format!("expected the place of the registers, found {address}"));
    };
    // PAT: [mem 0x00000000fa007000-0x00000000fa008000] write-combining
    let mappings = types.lines().filter_map(|line| {
        let (range, kind) = line.strip_prefix("PAT: [mem ")?.split_once("] ")?;
        let (from, to) = range.split_once('-')?;
        Some((hex(from)?, hex(to)?, kind))
    });
    let ours: Vec<_> = mappings.filter(|(from, ..)| (base..base + BAR).contains(from)).collect();
    let kinds: BTreeSet<&str> = ours.iter().map(|(.., kind)| *kind).collect();
    let expected = if combines { vec!["uncached-minus", "write-combining"] } else { vec!["uncached-minus"] };
    let single = ours.iter().all(|(from, to, kind)| *kind != "write-combining" || to - from == 4096);
    match kinds.into_iter().eq(expected.iter().copied()) && single {
        true => Ok(()),
        false => failed(format!("0000:00:1{n}.0: expected {expected:?} and single pages, found {ours:x?}")),
    }
}

/// Checks that the first function was sent whole work requests and doorbells, and the second only doorbells.
fn stores(recorded: &Path) -> Outcome {
    for (function, whole) in [("1", true), ("2", false)] {
        let (_, text) = stream::words(&["show", "--function", function, &recorded.display().to_string()])?;
        let count = |word: &str| text.lines().filter(|line| line.contains(word)).count();
        let (rung, written) = (count("register=send"), count("register=BlueFlame(8)"));
        println!("    function {function}: {rung} doorbells of send queues, {written} with a work request");
        // Most requests were posted singly; the rest came several at once, or from queue pairs without a BlueFlame register.
        let right = if whole { (rung / 2..rung).contains(&written) } else { rung > 0 && written == 0 };
        if !right {
            return failed("expected work requests in doorbell pages of the first function, and there alone");
        }
    }
    Ok(())
}
