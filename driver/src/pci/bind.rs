//! Binding functions to drivers, and creating virtual functions (Linux: Documentation/ABI/testing/sysfs-bus-pci).

use super::{PciDevice, PciError};
use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write},
    path::Path,
    time::{Duration, Instant},
};

/// Timeout for a driver to bind a function; most have done so when the write to `drivers_probe` returns.
const PROBE: Duration = Duration::from_secs(5);

/// Writes an attribute in one call. The attribute must exist, since a file cannot be created in sysfs.
fn write(path: &Path, text: &str) -> Result<(), PciError> {
    let open = OpenOptions::new().write(true).truncate(true).open(path);
    open.and_then(|mut file| file.write_all(text.as_bytes())).map_err(PciError::file("write", path))
}

impl PciDevice {
    /// Unbinds the function from its driver; `driver_override` keeps other drivers from binding it.
    pub fn unbind(&self) -> Result<(), PciError> {
        self.release()?;
        write(&self.path("driver_override"), "\n")
    }

    fn release(&self) -> Result<(), PciError> {
        if self.driver().is_none() {
            return Ok(());
        }
        let path = self.path("driver/unbind");
        match write(&path, &self.address.to_string()) {
            // The driver has released it in the meantime.
            Err(PciError::File { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound) || source.raw_os_error() == Some(ENODEV) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Binds the function to `driver`, and keeps other drivers from binding it.
    pub fn bind(&self, driver: &str) -> Result<(), PciError> {
        if self.driver().as_deref() == Some(driver) {
            return Ok(());
        }
        if !self.sysfs.has_driver(driver) {
            return Err(PciError::NoDriver(driver.into()));
        }
        if super::is_vfio(driver) && self.group().is_none() {
            return Err(PciError::NoGroup(self.address));
        }
        write(&self.path("driver_override"), driver)?;
        self.release()?;
        write(&self.sysfs.bus().join("drivers_probe"), &self.address.to_string())?;
        let begin = Instant::now();
        loop {
            let found = self.driver();
            if found.as_deref() == Some(driver) {
                return Ok(());
            }
            if found.is_some() || begin.elapsed() > PROBE {
                return Err(PciError::NotTaken { address: self.address, driver: driver.into(), found });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Creates `count` virtual functions, or removes all of them if `count` is 0. With `probe`, the kernel's drivers
    /// bind them at once.
    pub fn set_vfs(&self, count: u16, probe: bool) -> Result<(), PciError> {
        let (have, most) = self.vf_counts()?.ok_or(PciError::NoSriov(self.address))?;
        if count > most {
            return Err(PciError::TooMany { address: self.address, asked: count, most });
        }
        if have == count {
            return Ok(());
        }
        if have != 0 && count != 0 {
            return Err(PciError::HasVfs { address: self.address, have });
        }
        let autoprobe = self.path("sriov_drivers_autoprobe");
        let before = self.text("sriov_drivers_autoprobe")?.filter(|_| count != 0);
        if before.is_some() {
            write(&autoprobe, if probe { "1" } else { "0" })?;
        }
        let made = write(&self.path("sriov_numvfs"), &count.to_string());
        // The attribute was set for the new VFs only; for those of others it gets its old value back.
        let restored = before.map_or(Ok(()), |before| write(&autoprobe, &before));
        made.and(restored)?;
        match self.vf_counts()? {
            Some((now, _)) if now != count => {
                Err(PciError::OtherCount { address: self.address, asked: count, have: now })
            }
            _ => Ok(()),
        }
    }

    /// Checks that user space can open the function: its driver, its IOMMU group and the other functions of that
    /// group.
    pub fn check_vfio(&self) -> Result<u32, PciError> {
        let group = self.group().ok_or(PciError::NoGroup(self.address))?;
        let driver = self.driver();
        if !driver.as_deref().is_some_and(super::is_vfio) {
            return Err(PciError::NotVfio { address: self.address, driver });
        }
        let members = self.group_obstacles()?;
        match members.is_empty() {
            true => Ok(group),
            false => Err(PciError::NotViable { address: self.address, group, members }),
        }
    }
}

/// The kernel's error if the function is no longer bound to the driver.
const ENODEV: i32 = 19;
