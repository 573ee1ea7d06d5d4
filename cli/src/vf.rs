//! `ironverbs vf`: virtual functions, and the driver of a PCI function.

use std::fmt::Write;
use std::process::ExitCode;

use driver::pci::{Address, PciDevice, PciError, Summary, Sysfs};
use launcher::rtnetlink::{self, VfSettings};

use crate::options::Vf;
use crate::say::fail;
use crate::say::say;

/// Network controllers (class 0x02) and InfiniBand controllers (class 0x0c, subclass 0x06).
const NETWORK: u32 = 0x02;
const INFINIBAND: u32 = 0x0c06;
const MELLANOX: u16 = 0x15b3;

pub fn vf(command: &Vf) -> ExitCode {
    match run(&Sysfs::default(), command) {
        Ok(text) => {
            say!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => fail(1, e),
    }
}

fn run(sysfs: &Sysfs, command: &Vf) -> Result<String, String> {
    let in_words = |e: PciError| e.to_string();
    let device = |address: &Address| sysfs.device(*address).map_err(in_words);
    match command {
        Vf::Create { pf, count, probe, mac, vlan, trust } => {
            if mac.len() > usize::from(*count) {
                let given = mac.len();
                return Err(format!(
                    "{count} virtual functions were asked for, and {given} MAC addresses given"
                ));
            }
            let of = |number: usize| VfSettings { mac: mac.get(number).copied(), vlan: *vlan, trust: *trust };
            create(&device(pf)?, *count, *probe, of)
        }
        Vf::Delete { pf } => create(&device(pf)?, 0, false, |_| VfSettings::default()),
        Vf::Bind { address, driver, force } => bind(&device(address)?, driver, *force).map_err(in_words),
        Vf::Unbind { address, force } => unbind(&device(address)?, *force).map_err(in_words),
        Vf::List { all } => list(sysfs, *all).map_err(in_words),
    }
}

fn create(
    pf: &PciDevice,
    count: u16,
    probe: bool,
    settings: impl Fn(usize) -> VfSettings,
) -> Result<String, String> {
    pf.set_vfs(count, probe).map_err(|e| e.to_string())?;
    for number in 0..usize::from(count) {
        let settings = settings(number);
        if settings.is_empty() {
            continue;
        }
        let nets = pf.net_devices();
        let net = nets.first().ok_or_else(|| {
            format!(
                "{} has no net device, by which MAC, VLAN and trust of its virtual functions are set",
                pf.address
            )
        })?;
        rtnetlink::set_vf(net, number as u32, &settings).map_err(|e| {
            format!("cannot set MAC, VLAN or trust of virtual function {number} of {net}: {e}")
        })?;
    }
    let mut text = String::new();
    for address in pf.virtual_functions() {
        let _ = writeln!(text, "{address}");
    }
    if count == 0 {
        text = format!("{} has no virtual functions\n", pf.address);
    }
    Ok(text)
}

fn unbind(device: &PciDevice, force: bool) -> Result<String, PciError> {
    if !force {
        device.check_unused()?;
    }
    let before = device.driver();
    device.unbind()?;
    Ok(match before {
        Some(driver) => format!("{} taken from {driver}\n", device.address),
        None => format!("{} was bound to no driver\n", device.address),
    })
}

fn bind(device: &PciDevice, driver: &str, force: bool) -> Result<String, PciError> {
    if !force && device.driver().as_deref() != Some(driver) {
        device.check_unused()?;
    }
    device.bind(driver)?;
    let mut text = format!("{} bound to {driver}", device.address);
    if let Some(group) = device.group().filter(|_| driver::pci::is_vfio(driver)) {
        let _ = write!(text, ", IOMMU group {group}: /dev/vfio/{group}");
        let obstacles = device.group_obstacles()?;
        if !obstacles.is_empty() {
            let others: Vec<_> = obstacles.iter().map(|(at, driver)| format!("{at} ({driver})")).collect();
            let _ = write!(text, "; usable once {} are taken from their drivers", others.join(", "));
        }
    }
    text.push('\n');
    Ok(text)
}

/// True if a list without `--all` includes it: NICs, physical functions with VFs, VFs, and functions that belong to user space.
fn is_of_interest(s: &Summary) -> bool {
    s.class >> 16 == NETWORK
        || s.class >> 8 == INFINIBAND
        || s.id.0 == MELLANOX
        || s.vfs.is_some()
        || s.physical.is_some()
        || s.driver.as_deref().is_some_and(driver::pci::is_vfio)
}

fn list(sysfs: &Sysfs, all: bool) -> Result<String, PciError> {
    let mut text =
        format!("{:12} {:9} {:6} {:14} {:>5}  {}\n", "address", "id", "class", "driver", "group", "is");
    let mut count = 0;
    for device in sysfs.devices()? {
        // A device that is disappearing is skipped.
        let Ok(s) = device.summary() else { continue };
        if !all && !is_of_interest(&s) {
            continue;
        }
        count += 1;
        let (vendor, id) = s.id;
        let group = s.group.map_or("-".into(), |group| group.to_string());
        let is = match (s.physical, s.vfs) {
            (Some(pf), _) => format!("virtual function of {pf}"),
            (None, Some((have, most))) => format!("{have} of {most} virtual functions"),
            (None, None) => String::new(),
        };
        let line = format!(
            "{:12} {vendor:04x}:{id:04x} {:06x} {:14} {group:>5}  {is}",
            s.address.to_string(),
            s.class,
            s.driver.as_deref().unwrap_or("-"),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    match count {
        0 => {
            Ok("no network function, no virtual function and none of VFIO's; --all shows the others\n".into())
        }
        _ => Ok(text),
    }
}
