//! Linux's rdma_rxe.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, log};

use super::scratch::scratch;
use super::sides::{Bench, Side, cable, find_gid, pingpong, plug_cable};
use super::verbs;

/// Two guests with rxe devices that talk over a cable: tests the programs and this harness without any of our code.
pub fn among_themselves(images: &Images) -> Outcome {
    let dir = scratch("rxe")?;
    let plans = [0, 1].map(|n| Plan::new(&format!("rxe{n}")).qemu(cable(&dir, n)));
    let mut guests = Guest::boot_all(images, plans.to_vec())?;
    for (n, guest) in (0..).zip(&mut guests) {
        plug_cable(guest, n)?;
        guest.run(30, "modprobe -a rdma_rxe ib_uverbs && rdma link add rxe0 type rxe netdev cable")?;
    }
    let side = |guest: usize| Side {
        guest,
        prefix: String::new(),
        device: "rxe0".into(),
        net: "cable".into(),
        gid: None,
        host: format!("10.9.0.{}", guest + 1),
        address: format!("10.9.0.{}", guest + 1),
    };
    let mut bench = Bench::new(guests, [side(0), side(1)]);
    find_gid(&mut bench, 0)?;
    find_gid(&mut bench, 1)?;
    bench.both_ways(&pingpong("ibv_rc_pingpong", "-c -n 300"))?;
    bench.both_ways(&pingpong("ibv_ud_pingpong", "-c -n 100 -s 512"))?;
    verbs::figures(&mut bench, "ib_write_bw", "-n 100 -s 65536")?;
    verbs::rping(&mut bench, 50)?;
    for guest in &mut bench.guests {
        log::clean(guest)?;
    }
    bench.power_off()
}
