//! Steps that only read.

use super::{plan::Plan, report::Recorder};
use crate::{
    bringup::{CMDIF_REV, CMDQ_LOW, FW_REV, INTERFACE, unknown_device},
    config::{Config, STATUS_COMMAND},
    error::Error,
    health::Health,
    ready,
    transport::{Bar, Transport},
};
use hwspec::pcie::{
    BAR_MEM64_PREFETCH, CAP_ID_EXPRESS, CLASS_CODE, CLASS_CODE_INFINIBAND, ConfigHeader, EXT_CAP_ID_SRIOV,
    ExpressCap, SriovCap, StatusCommand, VENDOR_ID, known,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Class codes of a ConnectX port: Ethernet and InfiniBand network controllers.
const CLASSES: [u32; 2] = [CLASS_CODE, CLASS_CODE_INFINIBAND];
/// Type bits of a base address register: memory, 64-bit, prefetchable.
const BAR_KIND: u32 = 0xf;
/// Interval between reads of the health counter.
const LOOK: Duration = Duration::from_millis(5);

/// Runs all of them. Returns false if one failed.
pub fn all(transport: &Arc<dyn Transport>, plan: &Plan, r: &mut Recorder<'_>) -> bool {
    let transport = &**transport;
    let Some(command) = r.step("configuration space", |r| configuration(transport, r)) else { return false };
    let passed = r
        .step("initialization segment", |r| {
            // Registers answer only while memory space is enabled, so it is enabled for these steps.
            if !command.memory_space() {
                r.note("memory space", "turned on to look");
                let mut on = command;
                on.set().memory_space(true);
                write_command(transport, on)?;
            }
            segment(transport, plan, r)
        })
        .and_then(|()| r.step("health", |r| health(transport, plan, r)))
        .is_some();
    if !command.memory_space() {
        // The next step that writes enables it again, and reports it if that fails.
        let _ = write_command(transport, command);
    }
    passed
}

fn write_command(transport: &dyn Transport, command: StatusCommand) -> Result<(), Error> {
    // Writing ones to the status half would clear its bits.
    Config(transport).write16(STATUS_COMMAND, u32::from_be_bytes(*command.as_bytes()) as u16)
}

fn bar(transport: &dyn Transport) -> Result<Bar, Error> {
    transport.bar(0).map_err(Error::io("cannot map BAR0"))
}

fn hex(value: impl std::fmt::LowerHex) -> String {
    format!("{value:#x}")
}

/// Reads `N` bytes at `at`. The first byte of each dword is the most significant, as the layouts expect.
fn read<const N: usize>(config: &Config<'_>, at: u16) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    for (dword, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&config.read(at + 4 * dword as u16)?.to_be_bytes());
    }
    Ok(bytes)
}

/// Returns the command register.
fn configuration(transport: &dyn Transport, r: &mut Recorder<'_>) -> Result<StatusCommand, Error> {
    let config = Config(transport);
    let header = ConfigHeader::from_bytes(read(&config, 0)?);
    if header.vendor_id() == u16::MAX {
        r.note("vendor", hex(header.vendor_id()));
        return Err(Error::Gone);
    }
    r.expect("vendor", hex(header.vendor_id()), hex(VENDOR_ID))?;
    let Some(found) = known(header.device_id()) else {
        r.note("device", hex(header.device_id()));
        return Err(unknown_device(VENDOR_ID, header.device_id()));
    };
    let kind = if found.is_virtual { "virtual" } else { "physical" };
    r.note("device", format!("{:#x}, a {kind} function of {}", header.device_id(), found.name));
    r.note("revision", hex(header.revision_id()));
    r.note("class", format!("{:#08x}", header.class_code()));
    if !CLASSES.contains(&header.class_code()) {
        return Err(Error::device("class 0x020000 or 0x020700", format!("{:#08x}", header.class_code())));
    }
    // The base address registers of a virtual function read as zeros (PCI Express 9.3.4.1.11), unless the host emulates
    // them for a guest.
    let kind = header.bar0() & BAR_KIND;
    r.note("BAR0", hex(header.bar0()));
    if header.bar0() != 0 && kind != BAR_MEM64_PREFETCH {
        return Err(Error::device("BAR0 to be prefetchable 64-bit memory (0xc)", hex(kind)));
    }
    let command = header.status_command();
    r.note("memory space", on(command.memory_space()));
    r.note("bus master", on(command.bus_master()));

    let at = config.capability(CAP_ID_EXPRESS)?;
    let at = at.ok_or_else(|| Error::device("a PCI Express capability", "none"))?;
    let express = ExpressCap::from_bytes(read(&config, at)?);
    r.expect("function level reset", on(express.flr_capable()), "on")?;
    r.note("link", format!("x{} generation {}", express.link_width(), express.link_speed()));
    r.note("errors reported", errors(&express));
    r.note("MSI-X vectors", config.msix_vectors()?);
    if let Some(at) = config.extended_capability(EXT_CAP_ID_SRIOV)? {
        let sriov = SriovCap::from_bytes(read(&config, at)?);
        r.note("virtual functions", format!("{} of {}", sriov.num_vfs(), sriov.total_vfs()));
    }
    Ok(command)
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

fn errors(express: &ExpressCap) -> String {
    let bits = [
        (express.correctable_error(), "correctable"),
        (express.non_fatal_error(), "non-fatal"),
        (express.fatal_error(), "fatal"),
        (express.unsupported_request(), "unsupported request"),
    ];
    let set: Vec<&str> = bits.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".into() } else { set.join(", ") }
}

/// A shorter wait for the firmware is reported as "at once".
const AT_ONCE: Duration = Duration::from_millis(10);

fn segment(transport: &dyn Transport, plan: &Plan, r: &mut Recorder<'_>) -> Result<(), Error> {
    let bar = bar(transport)?;
    // Opening the function may have reset it.
    let waited = ready::wait(transport, &bar, plan.ready_timeout)?;
    r.note("firmware ready", if waited < AT_ONCE { "at once".into() } else { format!("after {waited:.1?}") });
    let (firmware, interface) = (bar.read32(FW_REV), bar.read32(CMDIF_REV));
    r.note("firmware", format!("{}.{}.{}", firmware as u16, firmware >> 16, interface as u16));
    r.expect("command interface", (interface >> 16) as u16, INTERFACE)?;
    let queue = bar.read32(CMDQ_LOW);
    let (log_size, log_stride) = (queue >> 4 & 0xf, queue & 0xf);
    r.note("command queue", format!("{} entries of {} bytes", 1u32 << log_size, 1u32 << log_stride));
    r.expect("interface in use (0: the full one)", queue >> 8 & 3, 0)?;
    Ok(())
}

fn health(transport: &dyn Transport, plan: &Plan, r: &mut Recorder<'_>) -> Result<(), Error> {
    let bar = bar(transport)?;
    let first = Health::read(&bar);
    r.note("counter", hex(first.counter));
    r.expect("fatal syndrome", hex(first.fatal), hex(0u8))?;
    r.note("syndrome", hex(first.syndrome));
    if first.syndrome != 0 {
        r.note("extended syndrome", hex(first.ext_syndrome));
        r.note("severity", first.severity);
        r.note("reset requested", on(first.reset_requested));
    }
    if first.is_fatal() {
        return Err(Error::device("a device that need not be reset", "one that asks for it"));
    }
    let began = Instant::now();
    loop {
        std::thread::sleep(LOOK);
        transport.idle();
        let now = Health::read(&bar).counter;
        if now != first.counter {
            r.note("counter later", hex(now));
            return Ok(());
        }
        if began.elapsed() > plan.timeout {
            return Err(Error::device(
                format!("the health counter to go up within {:?}", plan.timeout),
                format!("{now:#x} all the time: the firmware does not run"),
            ));
        }
    }
}
