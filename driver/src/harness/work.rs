//! Steps that write: bring-up, traffic, and teardown.

use super::{
    inject, loopback, pages,
    plan::{Outside, Plan},
    report::Recorder,
};
use crate::{
    config::{Config, STATUS_COMMAND},
    error::Error,
    shared_area::{FunctionState, Shared},
    transport::Transport,
    verbs::{Device, LinkLayer, OpenOptions, open_resolving},
};
use hwspec::{
    cmd::{CmdIn, Opcode, adapter_id::*},
    pcie::StatusCommand,
};
use std::{net::IpAddr, sync::Arc, time::Instant};

/// Number of commands timed.
const COMMANDS: usize = 100;

/// Runs all of them. After a failure, tears down as much as possible.
pub fn all(transport: &Arc<dyn Transport>, plan: &Plan, r: &mut Recorder<'_>) {
    if r.step("function level reset", |r| reset(transport, r)).is_none() {
        return;
    }
    let up = Device::open_watched(transport.clone(), options(plan), r);
    let Some(device) = r.settle(up) else { return };
    if at_work(&device, plan, r).is_none() {
        return;
    }
    if r.step("teardown", |_| tear_down(device)).is_none() {
        return;
    }
    r.step("reset and up again", |r| {
        reset(transport, r)?;
        let device = Device::open(transport.clone(), options(plan))?;
        r.note("link", if device.port()?.active { "up" } else { "down" });
        tear_down(device)
    });
}

fn options(plan: &Plan) -> OpenOptions {
    OpenOptions {
        command_timeout: plan.command_timeout,
        ready_timeout: plan.ready_timeout,
        ..OpenOptions::default()
    }
}

/// Resets the function, unless another opener is using it.
fn reset(transport: &Arc<dyn Transport>, r: &mut Recorder<'_>) -> Result<(), Error> {
    if Shared::open(transport)?.state() == FunctionState::Up {
        return Err(Error::busy("expected an unused function, found one that other programs have open"));
    }
    transport.reset().map_err(Error::io("cannot reset the function"))?;
    let command = Config(&**transport).read(STATUS_COMMAND)?;
    let command = StatusCommand::from_bytes(command.to_be_bytes());
    r.note("bus master afterwards", if command.bus_master() { "on" } else { "off" });
    Ok(())
}

fn at_work(device: &Arc<Device>, plan: &Plan, r: &mut Recorder<'_>) -> Option<()> {
    r.step("capability pages", |r| pages::capabilities(device, r))?;
    r.step("vport context", |r| pages::vport(device, r))?;
    r.step("commands", |r| commands(device, r))?;
    let pair = r.step("objects", |r| {
        own_address(device, r)?;
        loopback::Pair::new(device, plan.timeout, r)
    })?;
    r.step("loopback SEND", |r| pair.send(r))?;
    r.step("loopback WRITE", |r| pair.write(r))?;
    r.step("loopback READ", |r| pair.read(r))?;
    if device.attr().atomic_cap != crate::verbs::AtomicCap::None {
        r.step("loopback ATOMIC", |r| pair.atomic(r))?;
    }
    r.step("interrupt", |r| pair.interrupt(r))?;
    match (plan.outside, device.link_layer()) {
        (Some(outside), LinkLayer::Ethernet) => {
            r.step("frame from outside", |r| heard(device, plan, &outside, r))?
        }
        (Some(_), LinkLayer::InfiniBand) => {}
        (None, _) => r.skip("frame from outside", "not tried: no peer was named"),
    }
    r.step("refused commands", |r| inject::commands(device, &pair, r))?;
    r.step("refused key", |r| inject::key(device, pair, plan.timeout, r))
}

/// Times a command that changes nothing.
fn commands(device: &Arc<Device>, r: &mut Recorder<'_>) -> Result<(), Error> {
    let mut took = Vec::with_capacity(COMMANDS);
    for _ in 0..COMMANDS {
        let began = Instant::now();
        let out: QueryAdapterOut = device.function.call(Opcode::QueryAdapter, 0, &CmdIn::zeroed())?;
        took.push(began.elapsed());
        let vendor = out.query_adapter_struct().ieee_vendor_id();
        if vendor != device.attr().ieee_vendor_id {
            return Err(Error::device(
                format!("QUERY_ADAPTER to say vendor {:#x} again", device.attr().ieee_vendor_id),
                format!("{vendor:#x}"),
            ));
        }
    }
    took.sort_unstable();
    let (median, slowest) = (took[COMMANDS / 2], took[COMMANDS - 1]);
    r.note("QUERY_ADAPTER", format!("{median:.1?} (median of {COMMANDS}, slowest {slowest:.1?})"));
    Ok(())
}

/// Resolves the MAC of a host on the network: one frame out, one frame in.
fn heard(device: &Arc<Device>, plan: &Plan, outside: &Outside, r: &mut Recorder<'_>) -> Result<(), Error> {
    let gid = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    device.set_gid(1, Some(&gid(outside.own)))?;
    let asking = open_resolving(device.transport().clone(), options(plan))?;
    let began = Instant::now();
    let mac = asking.resolve(1, &gid(outside.peer));
    r.note("asked", format!("{} from {}", outside.peer, outside.own));
    r.note("answer", mac?.map(|byte| format!("{byte:02x}")).join(":"));
    r.note("after", format!("{:.1?}", began.elapsed()));
    asking.close()?;
    device.set_gid(1, None)
}

/// Loopback on Ethernet needs a GID. Sets the link-local one, unless there is a GID already.
fn own_address(device: &Arc<Device>, r: &mut Recorder<'_>) -> Result<(), Error> {
    let port = device.port()?;
    r.note("link", if port.active { "up" } else { "down" });
    if !port.active {
        return Err(Error::device("the link to be up", "down: nothing goes out, not even to oneself"));
    }
    if port.link_layer != LinkLayer::Ethernet {
        r.note("LID", port.lid);
        return Ok(());
    }
    if device.gid(0)? == [0; 16] {
        let m = port.mac;
        let mut gid = [0; 16];
        // EUI-64 of the MAC after the link-local prefix (RFC 4291, appendix A).
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&[m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]]);
        device.set_gid(0, Some(&gid))?;
    }
    r.note("GID 0", std::net::Ipv6Addr::from(device.gid(0)?));
    Ok(())
}

fn tear_down(device: Arc<Device>) -> Result<(), Error> {
    let outcome = device.function.outcome.clone();
    device.close()?;
    match Arc::into_inner(outcome).map(std::sync::OnceLock::into_inner) {
        Some(Some(outcome)) => outcome,
        _ => Err(Error::device("the function to go down with its only opener", "another holder keeps it up")),
    }
}
