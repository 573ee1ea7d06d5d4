//! What can keep a function from being used, in one line each.

use super::Address;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why sysfs could not be read, or did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// No such function.
    #[error("there is no PCI function {0} on this machine")]
    Missing(Address),
    /// An attribute could not be read or written.
    #[error("cannot {what} {}: {source}{}", path.display(), Hint(source))]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An attribute does not hold what it should.
    #[error("expected {expected} in {}, found {found:?}", path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
        /// What is.
        found: String,
    },
    /// No SR-IOV.
    #[error("{0} has no SR-IOV capability: only a physical function makes virtual ones")]
    NoSriov(Address),
    /// More virtual functions than there can be.
    #[error("{address} can have {most} virtual functions, {asked} were asked for")]
    TooMany {
        /// The physical function.
        address: Address,
        /// How many were asked for.
        asked: u16,
        /// How many there can be.
        most: u16,
    },
    /// There are virtual functions already.
    #[error(
        "{address} has {have} virtual functions already: 'ironverbs vf create {address} 0' removes them first"
    )]
    HasVfs {
        /// The physical function.
        address: Address,
        /// How many there are.
        have: u16,
    },
    /// The driver of the physical function made another number of virtual ones.
    #[error("{address}: {asked} virtual functions were asked for, {have} are there")]
    OtherCount {
        /// The physical function.
        address: Address,
        /// How many were asked for.
        asked: u16,
        /// How many there are.
        have: u16,
    },
    /// The driver is not there.
    #[error("the kernel has no driver {0} loaded: modprobe {0}")]
    NoDriver(String),
    /// The driver did not take the function.
    #[error("driver {driver} did not take {address}: {}", match found { Some(f) => format!("{f} has it"), None => "no driver has it; see the kernel's log".into() })]
    NotTaken {
        /// The function.
        address: Address,
        /// The driver that was to take it.
        driver: String,
        /// The driver that has it.
        found: Option<String>,
    },
    /// No IOMMU group.
    #[error(
        "{0} is in no IOMMU group: the machine has no IOMMU or it is off (firmware: VT-d or AMD-Vi; kernel: intel_iommu=on)"
    )]
    NoGroup(Address),
    /// Others of the group belong to the kernel.
    #[error(
        "IOMMU group {group} of {address} is not viable: {} must be unbound or bound to vfio-pci too",
        Members(members)
    )]
    NotViable {
        /// The function.
        address: Address,
        /// Its group.
        group: u32,
        /// Who is in the way, with the driver.
        members: Vec<(Address, String)>,
    },
    /// The function is bound to no driver that gives it to user space.
    #[error("{address} is {}: 'ironverbs vf bind {address}' gives it to vfio-pci", match driver { Some(d) => format!("bound to {d}"), None => "bound to no driver".into() })]
    NotVfio {
        /// The function.
        address: Address,
        /// Who has it.
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
