//! The driver against a scripted device in memory.

mod blueflame;
mod bringup;
mod commands;
mod data;
mod events;
mod network;
mod pages;

use crate::{
    Device, OpenOptions,
    transport::fake::{Chip, Fake},
};
use std::{sync::Arc, time::Duration};

fn options() -> OpenOptions {
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x1b, 0x56, 0xff, 0xfe, 0, 0, 3];
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 4];
    OpenOptions {
        gids: vec![gid, mapped],
        command_timeout: Duration::from_millis(200),
        ready_timeout: Duration::from_millis(200),
        lock_timeout: Duration::from_millis(200),
        eq_entries: 64,
        ..OpenOptions::default()
    }
}

fn open(fake: &Arc<Fake>) -> Arc<Device> {
    Device::open(fake.clone(), options()).expect("the device opens")
}

fn device() -> (Arc<Chip>, Arc<Device>) {
    let chip = Chip::new();
    let device = open(&chip.opener(1));
    (chip, device)
}
