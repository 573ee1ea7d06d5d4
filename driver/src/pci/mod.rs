//! PCI functions in the host's sysfs: identity, driver, IOMMU group, and creation of virtual functions. This module is
//! independent of the kind of device.

mod address;
mod bind;
mod error;
#[cfg(test)]
mod tests;
mod usage;

pub use address::Address;
pub use error::PciError;
pub use usage::Usage;

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Drivers that do no DMA of their own, or tolerate other devices of their IOMMU group in user space.
const HARMLESS: [&str; 3] = ["pci-stub", "pcieport", "shpchp"];

/// A sysfs tree.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    /// Directory with the routing tables of this network namespace.
    net: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: "/sys".into(), net: "/proc/net".into() }
    }
}

/// One PCI function.
#[derive(Clone, Debug)]
pub struct PciDevice {
    sysfs: Sysfs,
    dir: PathBuf,
    /// Its address.
    pub address: Address,
}

/// One-line summary of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its address.
    pub address: Address,
    /// Vendor and device id.
    pub id: (u16, u16),
    /// Class code: base class, subclass, programming interface.
    pub class: u32,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Current and maximum number of virtual functions, for a physical function with SR-IOV.
    pub vfs: Option<(u16, u16)>,
    /// The physical function, for a virtual one.
    pub physical: Option<Address>,
}

impl Sysfs {
    /// A sysfs mounted at `root`, or a directory laid out like one; the kernel's routing tables are in its `net`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { net: root.join("net"), root }
    }

    /// Net devices with default routes.
    fn default_routes(&self) -> Vec<String> {
        let table = |name: &str| fs::read_to_string(self.net.join(name)).unwrap_or_default();
        usage::default_routes(&table("route"), &table("ipv6_route"))
    }

    fn bus(&self) -> PathBuf {
        self.root.join("bus/pci")
    }

    /// The function at `address`.
    pub fn device(&self, address: Address) -> Result<PciDevice, PciError> {
        let dir = self.bus().join("devices").join(address.to_string());
        match dir.is_dir() {
            true => Ok(PciDevice { sysfs: self.clone(), dir, address }),
            false => Err(PciError::Missing(address)),
        }
    }

    /// All functions, in order of address.
    pub fn devices(&self) -> Result<Vec<PciDevice>, PciError> {
        let dir = self.bus().join("devices");
        let entries = fs::read_dir(&dir).map_err(PciError::file("list", &dir))?;
        let addresses = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<Address>().ok());
        let mut all: Vec<_> = addresses.filter_map(|address| self.device(address).ok()).collect();
        all.sort_by_key(|device| device.address);
        Ok(all)
    }

    /// True if a driver of this name is loaded.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.bus().join("drivers").join(driver).is_dir()
    }
}

impl PciDevice {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The text of an attribute, `None` if it does not exist.
    fn text(&self, name: &str) -> Result<Option<String>, PciError> {
        let path = self.path(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(PciError::file("read", &path)(e)),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u32>, PciError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map(Some).map_err(|_| PciError::Value {
            path: self.path(name),
            expected: "a number",
            found: text.clone(),
        })
    }

    fn link(&self, name: &str) -> Option<String> {
        Some(fs::read_link(self.path(name)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// The driver it is bound to.
    pub fn driver(&self) -> Option<String> {
        self.link("driver")
    }

    /// Its IOMMU group.
    pub fn group(&self) -> Option<u32> {
        self.link("iommu_group")?.parse().ok()
    }

    /// All functions of its IOMMU group, including itself.
    pub fn group_members(&self) -> Result<Vec<PciDevice>, PciError> {
        let dir = self.path("iommu_group/devices");
        let entries = fs::read_dir(&dir).map_err(PciError::file("list", &dir))?;
        let addresses = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<Address>().ok());
        let mut all: Vec<_> = addresses.filter_map(|address| self.sysfs.device(address).ok()).collect();
        all.sort_by_key(|device| device.address);
        Ok(all)
    }

    /// The functions of its IOMMU group that are bound to kernel drivers, with their drivers. If there are any, user
    /// space cannot get the group.
    pub fn group_obstacles(&self) -> Result<Vec<(Address, String)>, PciError> {
        let members = self.group_members()?;
        let driven = members.into_iter().filter_map(|device| Some((device.address, device.driver()?)));
        Ok(driven.filter(|(_, driver)| !HARMLESS.contains(&driver.as_str()) && !is_vfio(driver)).collect())
    }

    /// Name of its VFIO character device (`vfio0`), if the kernel provides one and the function is bound to VFIO.
    pub fn vfio_cdev(&self) -> Option<String> {
        let entries = fs::read_dir(self.path("vfio-dev")).ok()?;
        entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).find(|name| name.starts_with("vfio"))
    }

    /// Vendor and device id.
    pub fn id(&self) -> Result<(u16, u16), PciError> {
        let part = |name| Ok::<_, PciError>(self.number(name)?.unwrap_or(0xffff) as u16);
        Ok((part("vendor")?, part("device")?))
    }

    /// The physical function, for a virtual one.
    pub fn physical(&self) -> Option<Address> {
        self.link("physfn")?.parse().ok()
    }

    /// Current and maximum number of virtual functions, `None` without SR-IOV.
    pub fn vf_counts(&self) -> Result<Option<(u16, u16)>, PciError> {
        let Some(total) = self.number("sriov_totalvfs")? else { return Ok(None) };
        Ok(Some((self.number("sriov_numvfs")?.unwrap_or(0) as u16, total as u16)))
    }

    /// Addresses of the existing virtual functions, in order.
    pub fn virtual_functions(&self) -> Vec<Address> {
        (0..).map_while(|n| self.link(&format!("virtfn{n}"))?.parse().ok()).collect()
    }

    /// Its summary.
    pub fn summary(&self) -> Result<Summary, PciError> {
        Ok(Summary {
            address: self.address,
            id: self.id()?,
            class: self.number("class")?.unwrap_or(0),
            driver: self.driver(),
            group: self.group(),
            vfs: self.vf_counts()?,
            physical: self.physical(),
        })
    }
}

/// True if functions bound to `driver` can be opened through VFIO.
pub fn is_vfio(driver: &str) -> bool {
    driver.starts_with("vfio-") || driver.ends_with("-vfio-pci") || driver.ends_with("_vfio_pci")
}
