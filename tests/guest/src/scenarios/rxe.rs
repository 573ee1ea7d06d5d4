//! Linux's rdma_rxe.

use crate::images::Images;
use crate::machine::Plan;
use crate::{Outcome, log};

use super::scratch::scratch;
use super::sides::{Bench, Side, boot_two, find_gid, pingpong};
use super::verbs;

/// Two guests with rxe devices that talk over a cable: tests the programs and this harness without any of our code.
pub fn among_themselves(images: &Images) -> Outcome {
    let dir = scratch("rxe")?;
    let mut guests = boot_two(images, &dir, ["rxe0", "rxe1"].map(Plan::new))?;
    for guest in &mut guests {
        guest.run(30, "modprobe -a rdma_rxe ib_uverbs && rdma link add rxe0 type rxe netdev cable")?;
    }
    let side = |guest: usize| Side {
        guest,
        device: "rxe0".into(),
        net: "cable".into(),
        host: format!("10.9.0.{}", guest + 1),
        address: format!("10.9.0.{}", guest + 1),
        ..Side::default()
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
