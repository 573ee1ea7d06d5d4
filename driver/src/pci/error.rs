//! Reasons why a function cannot be used, each displayed in one line.

use super::{Address, Usage, usage::Uses};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Reasons why sysfs could not be read, or a change in it had no effect.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// No such function.
    #[error("there is no PCI function {0} on this machine")]
    Missing(Address),
    /// An attribute could not be read or written.
    #[error("cannot {what} {}: {source}{}", path.display(), Hint(source))]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// An attribute has an unexpected value.
    #[error("expected {expected} in {}, found {found:?}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The expected value.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// No SR-IOV.
    #[error("{0} has no SR-IOV capability: only a physical function makes virtual ones")]
    NoSriov(Address),
    /// More virtual functions requested than the device supports.
    #[error("{address} can have {most} virtual functions, {asked} were asked for")]
    TooMany {
        /// The physical function.
        address: Address,
        /// The number requested.
        asked: u16,
        /// The maximum number.
        most: u16,
    },
    /// Virtual functions exist already.
    #[error(
        "{address} has {have} virtual functions already: 'ironverbs vf create {address} 0' removes them first"
    )]
    HasVfs {
        /// The physical function.
        address: Address,
        /// The number of existing ones.
        have: u16,
    },
    /// The driver of the physical function created a different number of virtual functions.
    #[error("{address}: {asked} virtual functions were asked for, {have} are there")]
    OtherCount {
        /// The physical function.
        address: Address,
        /// The number requested.
        asked: u16,
        /// The number of existing ones.
        have: u16,
    },
    /// The driver is not loaded.
    #[error("the kernel has no driver {0} loaded: modprobe {0}")]
    NoDriver(String),
    /// The driver did not bind the function.
    #[error("driver {driver} did not take {address}: {}", match found { Some(f) => format!("{f} has it"), None => "no driver has it; see the kernel's log".into() })]
    NotTaken {
        /// The function.
        address: Address,
        /// The driver that should have bound it.
        driver: String,
        /// The driver that it is bound to.
        found: Option<String>,
    },
    /// No IOMMU group.
    #[error(
        "{0} is in no IOMMU group: the machine has no IOMMU or it is off (firmware: VT-d or AMD-Vi; kernel: intel_iommu=on)"
    )]
    NoGroup(Address),
    /// Other functions of the group are bound to kernel drivers.
    #[error(
        "IOMMU group {group} of {address} is not viable: {} must be unbound or bound to vfio-pci too",
        Members(members)
    )]
    NotViable {
        /// The function.
        address: Address,
        /// Its group.
        group: u32,
        /// The functions in question, with their drivers.
        members: Vec<(Address, String)>,
    },
    /// The function is in use.
    #[error("{address} is in use: {}; --force takes it all the same", Uses(uses))]
    InUse {
        /// The function.
        address: Address,
        /// The uses of it.
        uses: Vec<Usage>,
    },
    /// The function is not bound to a VFIO driver.
    #[error("{address} is {}: 'ironverbs vf bind {address}' gives it to vfio-pci", match driver { Some(d) => format!("bound to {d}"), None => "bound to no driver".into() })]
    NotVfio {
        /// The function.
        address: Address,
        /// The driver that it is bound to.
        driver: Option<String>,
    },
}

struct Hint<'a>(&'a io::Error);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::PermissionDenied => f.write_str(" (this takes root)"),
            _ => Ok(()),
        }
    }
}

struct Members<'a>(&'a [(Address, String)]);

impl fmt::Display for Members<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (address, driver)) in self.0.iter().enumerate() {
            write!(f, "{}{address} ({driver})", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl PciError {
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Self::File { what, path, source }
    }
}
