//! A guest that writes garbage harms only itself.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server, Strict};
use crate::{Outcome, failed, log};

use super::mlx5;
use super::sides::{Bench, Side, pingpong};

/// Seconds of garbage.
const SECONDS: u64 = 30;

/// Keeps the hostile guest's kernel out of the upper half of its memory, to which its garbage directs the device's writes.
const SPARE: &str = "memmap=512M$512M";

/// One guest attacks its function while another runs traffic between two others.
pub fn run(images: &Images) -> Outcome {
    let mut server = Server::start(&server::Plan {
        functions: vec![0, 1, 2],
        infiniband: true,
        strict: Strict::Kind,
        ..Default::default()
    })?;
    let honest = Plan::new("honest").plug(server.socket(1)).plug(server.socket(2));
    let mut hostile = Plan::new("hostile").plug(server.socket(0));
    hostile.append.push_str(SPARE);
    let mut guests = Guest::boot_all(images, vec![honest, hostile])?;
    let (Some(mut hostile), Some(mut honest)) = (guests.pop(), guests.pop()) else {
        return failed("two guests");
    };
    mlx5::load(&mut honest, &[0x10, 0x11], true)?;
    let mut sides = Vec::new();
    for slot in [0x10, 0x11] {
        sides.push(Side {
            device: mlx5::device(&mut honest, slot)?,
            host: "127.0.0.1".into(),
            ..Side::default()
        });
    }
    let [first, second] = <[Side; 2]>::try_from(sides).or_else(|_| failed("two sides"))?;
    let mut bench = Bench::new(vec![honest], [first, second]);
    let share = hostile.share();
    std::fs::write(share.join("garbage.py"), include_str!("../garbage.py"))?;
    let seed = std::env::var("IRONVERBS_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("    IRONVERBS_SEED={seed}");
    let running = hostile
        .start_script(SECONDS + 90, &format!("python3 /share/garbage.py 0000:00:10.0 {seed} {SECONDS}"))?;
    let mut rounds = 0;
    while hostile.poll(&running)?.is_none() {
        bench.both_ways(&pingpong("ibv_rc_pingpong", "-c -n 500"))?;
        rounds += 2;
    }
    let said = hostile.done(&running)?;
    said.lines().for_each(|line| println!("    {line}"));
    println!("    {rounds} pingpongs beside it");
    server.check()?;
    bench.both_ways(&pingpong("ibv_rc_pingpong", "-c -n 100"))?;
    log::clean(&mut bench.guests[0])?;
    // A reset restores the function's initial state.
    hostile.run(20, "echo 1 >/sys/bus/pci/devices/0000:00:10.0/reset")?;
    hostile.dmesg()?;
    mlx5::load(&mut hostile, &[0x10], true)?;
    log::clean(&mut hostile)?;
    hostile.power_off()?;
    bench.power_off()?;
    server.check()
}
