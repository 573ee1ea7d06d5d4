//! Devices with intentional defects.

use super::client::{Served, eventually, signals};
use hwspec::cmd::{Opcode, Status};
use ironverbs_devmodel::serve::{Misbehaviour, When};
use std::time::Duration;

const COUNTER: u64 = 0x1010;

#[test]
fn health_goes_on_unless_told_otherwise() {
    let healthy = Served::new();
    let mut c = healthy.guest(1);
    let first = c.register(COUNTER);
    eventually("the health counter moves", || c.register(COUNTER) != first);
    let stopped = Served::misbehaving("wrong-health");
    let mut c = stopped.guest(1);
    let first = c.register(COUNTER);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(c.register(COUNTER), first);
    c.works();
    let fatal = Served::misbehaving("wrong-health=fatal");
    assert_eq!(fatal.guest(1).register(0x23c) >> 16 & 0xff, 1);
}

#[test]
fn a_command_can_be_stuck_alone() {
    let served = Served::misbehaving(&format!("stuck-command={}", Opcode::QueryPages.raw()));
    let mut c = served.guest(1);
    let at = c.post_query(16);
    c.ring();
    assert_eq!(c.config(0), 0x1018_15b3);
    assert!(!c.is_done(at), "never completed");
    let out = c.run(Opcode::DisableHca, 0, &[0; 16], 16);
    assert_eq!(out.status(), Status::Ok);
}

#[test]
fn an_interrupt_can_be_lost_alone() {
    let served = Served::misbehaving("lost-interrupt=0");
    let mut c = served.guest(1);
    let uar = c.init();
    let (lost, other) = (c.connect(0), c.connect(1));
    c.create_eq(uar, 0);
    c.works();
    assert_eq!(signals(&lost), 0);
    c.guest_triggers(1);
    assert_eq!(signals(&other), 1);
}

#[test]
fn two_things_can_be_broken_at_once() {
    let served =
        Served::misbehaving(&format!("wrong-health=fatal,stuck-command={}", Opcode::QueryPages.raw()));
    let mut c = served.guest(1);
    assert_eq!(c.register(0x23c) >> 16 & 0xff, 1);
    let at = c.post_query(16);
    c.ring();
    assert_eq!(c.config(0), 0x1018_15b3);
    assert!(!c.is_done(at), "never completed");
}

#[test]
fn power_is_lost_behind_the_last_command_of_so_many() {
    // Enabling is the guest's first command.
    let served = Served::misbehaving("power-loss=1");
    let mut c = served.guest(1);
    assert_ne!(c.register(COUNTER), u32::MAX);
    let at = c.post_query(16);
    c.ring();
    assert_eq!((c.register(COUNTER), c.config(0)), (u32::MAX, u32::MAX));
    assert!(!c.is_done(at), "never completed");
}

#[test]
fn power_is_lost_behind_the_last_doorbell_of_so_many() {
    let served = Served::misbehaving("power-loss@doorbell=2");
    let mut c = served.guest(1);
    let uar = c.init();
    c.create_eq(uar, 0);
    let page = u64::from(uar) << 12;
    // A CQ doorbell, a send doorbell in halves, and one through the other buffer: two send doorbells in
    // total.
    c.write(0, page + 0x20, &[0; 8]).expect("written");
    for (at, half) in [(0x800, 4), (0x804, 4), (0x900, 8)] {
        c.write(0, page + at, &[0; 8][..half]).expect("written");
    }
    assert_ne!(c.register(COUNTER), u32::MAX);
    c.write(0, page + 0x800, &[0; 8]).expect("written");
    assert_eq!((c.register(COUNTER), c.config(0)), (u32::MAX, u32::MAX));
}

#[test]
fn kinds_are_read_from_words() {
    let parsed = |text: &str| text.parse::<Misbehaviour>();
    assert_eq!(parsed("stuck-command"), Ok(Misbehaviour::StuckCommand(None, When::Always)));
    let behind = When::Doorbells(7);
    assert_eq!(parsed("stuck-command@doorbell=7"), Ok(Misbehaviour::StuckCommand(None, behind)));
    assert_eq!(parsed("stuck-command=0x104@doorbell=7"), Ok(Misbehaviour::StuckCommand(Some(0x104), behind)));
    assert_eq!(parsed("wrong-health=fatal"), Ok(Misbehaviour::FatalHealth(When::Always)));
    assert_eq!(parsed("wrong-health=fatal@3"), Ok(Misbehaviour::FatalHealth(When::Commands(3))));
    assert_eq!(parsed("lost-interrupt=2"), Ok(Misbehaviour::LostInterrupt(Some(2))));
    assert_eq!(parsed("power-loss=7"), Ok(Misbehaviour::PowerLoss(When::Commands(7))));
    assert_eq!(parsed("power-loss@doorbell=7"), Ok(Misbehaviour::PowerLoss(behind)));
    assert_eq!(parsed("ask-pages=-9@3"), Ok(Misbehaviour::AskPages(-9, When::Commands(3))));
    assert_eq!(parsed("ask-pages=9@teardown"), Ok(Misbehaviour::AskPages(9, When::Teardown)));
    for wrong in [
        "",
        "power-loss",
        "power-loss=5@7",
        "power-loss@doorbell",
        "power-loss@teardown",
        "wrong-health@doorbell=x",
        "lost-interrupt@5",
        "ask-pages=5",
        "ask-pages=0@1",
        "ask-pages=x@1",
        "health",
        "wrong-health=x",
        "lost-interrupt=64",
        "stuck-command=0x10000",
        "stuck-command=z",
    ] {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}
