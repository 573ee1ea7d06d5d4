//! The driver's verbs directly on the model, in logical time, over a wire that loses, duplicates and corrupts frames.

use devmodel::{Config, engine::faults::FaultPlan};
use driver::{Device, Error, SendFlags, SendOp, SendWr, Target, WcStatus};
use ironverbs::sim::machine::Machine;
use ironverbs_tests::end::{End, Patience, every_operation, pattern};
use std::sync::Arc;

const LEN: usize = 256 << 10;

fn two_ends(machine: &Machine, patience: Patience) -> (End, End) {
    ends_by(|fid| machine.open(fid), patience)
}

fn ends_by(open: impl Fn(u8) -> Result<Arc<Device>, Error>, patience: Patience) -> (End, End) {
    let end = |fid| End::new(open(fid).expect("bring-up"), LEN).expect("an end");
    let (a, b) = (end(1), end(2));
    a.connect(&b.card(), patience).expect("connect");
    b.connect(&a.card(), patience).expect("connect");
    (a, b)
}

fn inject(machine: &Machine, plan: &str, seed: u64) {
    let plan = FaultPlan::parse("plan", plan, seed).expect("a plan");
    machine.inject(plan).expect("a plan of frames");
}

#[test]
fn the_driver_brings_up_the_physical_function_and_a_virtual_one() {
    let machine = Machine::new(2, Config::default());
    for fid in 0..3 {
        let device = machine.open(fid).expect("bring-up");
        assert_eq!(device.is_virtual(), fid != 0);
        assert!(device.port().expect("port").active);
        assert_eq!(device.gid(1).expect("GID")[12..], [127, 0, 0, fid + 1]);
        device.close().expect("close");
    }
}

#[test]
fn data_are_right_on_a_bad_wire() {
    for seed in 1..8 {
        let machine = Machine::new(2, Config::default());
        let (a, b) = two_ends(&machine, Patience::default());
        let fault = |kind, more| format!("[[fault]]\ndo = \"{kind}\"\n{more}\n");
        let chance = "chance = 0.02";
        let plan = fault("drop", "chance = 0.03")
            + &["duplicate", "corrupt"].map(|kind| fault(kind, chance)).concat()
            + &fault("reorder", &format!("{chance}\nbehind = 4"))
            + &fault("delay", &format!("{chance}\nfor_us = 50.0"));
        inject(&machine, &plan, seed);
        every_operation(&a, &b, &[8, 4096, 5000, 100_000, LEN - 8]);
        b.words.set_word(0, 0);
        for i in 0..20 {
            a.post(5, b.to_add(0, 1), &[a.sge(0, 8)]);
            a.succeeded();
            assert_eq!((a.words.word(0), b.words.word(0)), (i, i + 1), "once and only once, seed {seed}");
        }
    }
}

#[test]
fn requests_written_into_the_doorbell_page_are_done_once_and_in_order() {
    let machine = Machine::new(2, Config::default());
    let (a, b) = ends_by(|fid| machine.open_combining(fid), Patience::default());
    let (raddr, rkey) = (b.words.addr(), b.mr.rkey());
    let wr = |wr_id, op, sge, flags| SendWr { wr_id, op, sge, flags };
    let add = SendOp::FetchAdd { raddr, rkey, add: 1 };
    let write = SendOp::Write { raddr: raddr + 64, rkey };
    let word = [a.sge(8, 8)];
    let (silent, told) = (SendFlags::empty(), SendFlags::SIGNALED);
    let mut stores = 0;
    for number in 0..300 {
        // Work requests of one basic block, of two (which eventually wrap around the end of the ring), and three at once.
        let posted = match number % 3 {
            0 => a.qp.post_send([wr(number, add, &word[..], told)]),
            1 => a.qp.post_inline(wr(number, write, &[], told), &Target::Peer, &pattern(40, number as u8)),
            _ => a.qp.post_send([silent, silent, told].map(|flags| wr(number, add, &word[..], flags))),
        };
        posted.expect("post");
        let wc = a.wait();
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, number));
        stores += [8, 16, 1][number as usize % 3];
        assert_eq!(machine.combined(), stores, "request {number}");
        if number % 3 == 1 {
            assert_eq!(b.words.bytes(64, 40), pattern(40, number as u8));
        }
    }
    assert_eq!(b.words.word(0), 100 + 300, "each was done once");
}

#[test]
fn a_peer_that_is_cut_off_ends_in_retry_exceeded_after_the_time_of_the_specification() {
    let machine = Machine::new(2, Config::default());
    let patience = Patience { timeout: 14, retry_cnt: 3 };
    let (a, b) = two_ends(&machine, patience);
    inject(&machine, "[[fault]]\ndo = \"drop\"\nfrom = 1\n", 1);
    let start = machine.now();
    a.post(1, b.to_write(0), &[a.sge(0, 64)]);
    let wc = a.wait();
    assert_eq!((wc.status, wc.vendor_err), (WcStatus::RetryExcErr, 0x81));
    // Four timeouts of T to 4 T each.
    let (took, t) = (machine.now() - start, 4_096_000u64 << 14);
    assert!((4 * t..=16 * t).contains(&took), "{took} ps");
}
