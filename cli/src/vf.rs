//! `ironverbs vf`: virtual functions, and which driver a PCI function belongs to.

use std::fmt::Write;
use std::process::ExitCode;

use driver::pci::{PciDevice, PciError, Summary, Sysfs};

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

fn run(sysfs: &Sysfs, command: &Vf) -> Result<String, PciError> {
    match command {
        Vf::Create { pf, count, probe } => create(&sysfs.device(*pf)?, *count, *probe),
        Vf::Bind { address, driver } => bind(&sysfs.device(*address)?, driver),
        Vf::Unbind { address } => {
            let device = sysfs.device(*address)?;
            let before = device.driver();
            device.unbind()?;
            Ok(match before {
                Some(driver) => format!("{address} taken from {driver}\n"),
                None => format!("{address} was bound to no driver\n"),
            })
        }
        Vf::List { all } => list(sysfs, *all),
    }
}

fn create(pf: &PciDevice, count: u16, probe: bool) -> Result<String, PciError> {
    pf.set_vfs(count, probe)?;
    let mut text = String::new();
    for address in pf.virtual_functions() {
        let _ = writeln!(text, "{address}");
    }
    if count == 0 {
        text = format!("{} has no virtual functions\n", pf.address);
    }
    Ok(text)
}

fn bind(device: &PciDevice, driver: &str) -> Result<String, PciError> {
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

/// Whether a list without `--all` shows it: NICs, what has or is a virtual function, what belongs to user space.
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
        // One that is just going away is left out.
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
