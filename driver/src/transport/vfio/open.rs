//! Opens a device by PCI address: through its group and a container, or, if the kernel supports them, through its own
//! character device and an iommufd.

use super::{super::fork::Alone, iommu::Iommu, sys};
use crate::{
    common::Common,
    pci::{Address, PciDevice, PciError},
};
use std::{
    ffi::CString,
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Reasons why a function could not be opened through kernel VFIO.
#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    /// Its state in sysfs forbids it.
    #[error(transparent)]
    Pci(#[from] PciError),
    /// Another process uses it.
    #[error(
        "{address} is in use{}: kernel VFIO gives a function (its IOMMU group) to one process at a time",
        match pid { Some(pid) => format!(" by process {pid}"), None => String::new() }
    )]
    Busy {
        /// The function.
        address: Address,
        /// The process that uses it, if found.
        pid: Option<u32>,
    },
    /// The kernel has no VFIO.
    #[error("there is no {}: the kernel's VFIO is not loaded (modprobe vfio-pci), or not passed into this container", .0.display())]
    NoVfio(PathBuf),
    /// No permission to open a device file.
    #[error("{} may not be opened: give it to this user (chown), or run as root", .0.display())]
    Forbidden(PathBuf),
    /// The container lacks the required interface.
    #[error(
        "expected a VFIO container of type 1 version 2, this kernel has none (modprobe vfio_iommu_type1)"
    )]
    NoType1,
    /// Any other failure, with the step in question.
    #[error("{address}: cannot {what}: {source}")]
    Step {
        /// The function.
        address: Address,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl VfioError {
    /// The errno a verbs call returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Busy { .. } => libc::EBUSY,
            Self::Forbidden(_) => libc::EACCES,
            Self::Step { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Pci(_) | Self::NoVfio(_) | Self::NoType1 => libc::ENODEV,
        }
    }
}

/// An open device with the address space that it needs. The device is closed first.
pub struct Opened {
    pub device: Arc<Alone<File>>,
    pub iommu: Arc<Iommu>,
}

/// Address spaces of groups that this process has open: a group can be opened only once, and its devices share one
/// address space. The key includes the fork generation, since files opened by the parent are not available in a child.
static GROUPS: Common<(u32, u32), Iommu> = Common::new();

/// Opens `device`.
pub fn open(device: &PciDevice) -> Result<Opened, VfioError> {
    let group = device.check_vfio()?;
    let cdev = device.vfio_cdev().map(|name| Path::new("/dev/vfio/devices").join(name));
    match cdev {
        Some(path) if path.exists() && Path::new("/dev/iommu").exists() => through_iommufd(device, &path),
        _ => through_group(device, group),
    }
}

fn step(address: Address, what: &'static str) -> impl FnOnce(io::Error) -> VfioError {
    move |source| VfioError::Step { address, what, source }
}

/// Opens a VFIO device file.
fn file(address: Address, path: &Path) -> Result<OwnedFd, VfioError> {
    sys::open(path).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => VfioError::Busy { address, pid: holder(path) },
        Some(libc::EACCES | libc::EPERM) => VfioError::Forbidden(path.into()),
        Some(libc::ENOENT) => VfioError::NoVfio(path.into()),
        _ => VfioError::Step { address, what: "open its VFIO file", source },
    })
}

fn through_group(device: &PciDevice, number: u32) -> Result<Opened, VfioError> {
    let address = device.address;
    let key = (sync::fork::generation(), number);
    let iommu = GROUPS.get(key, |_| true, || container(device, number))?;
    let group = iommu.group().ok_or(VfioError::NoType1)?;
    let name = CString::new(address.to_string()).unwrap_or_default();
    let file = sys::group_device(group, &name).map_err(step(address, "open it from its group"))?;
    Ok(opened(file, iommu))
}

fn opened(file: File, iommu: Arc<Iommu>) -> Opened {
    Opened { device: Arc::new(Alone::new(file)), iommu }
}

/// Creates a container with the group in it.
fn container(device: &PciDevice, number: u32) -> Result<Iommu, VfioError> {
    let address = device.address;
    let container = file(address, Path::new("/dev/vfio/vfio"))?;
    if !sys::check_container(container.as_fd()).map_err(step(address, "ask VFIO for its version"))? {
        return Err(VfioError::NoType1);
    }
    let group = file(address, &Path::new("/dev/vfio").join(number.to_string()))?;
    if !sys::group_is_viable(group.as_fd()).map_err(step(address, "ask for the state of its group"))? {
        let members = device.group_obstacles()?;
        return Err(PciError::NotViable { address, group: number, members }.into());
    }
    sys::set_container(group.as_fd(), container.as_fd())
        .map_err(step(address, "give its group an address space"))?;
    Iommu::container(container, group).map_err(step(address, "learn what the IOMMU can do"))
}

fn through_iommufd(device: &PciDevice, path: &Path) -> Result<Opened, VfioError> {
    let address = device.address;
    let cdev = file(address, path)?;
    let iommufd = file(address, Path::new("/dev/iommu"))?;
    let ioas =
        sys::bind_iommufd(cdev.as_fd(), iommufd.as_fd()).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY | libc::EINVAL) if holder(path).is_some() => {
                VfioError::Busy { address, pid: holder(path) }
            }
            _ => VfioError::Step { address, what: "bind it to an iommufd", source },
        })?;
    let iommu = Iommu::iommufd(iommufd, ioas).map_err(step(address, "learn what the IOMMU can do"))?;
    Ok(opened(File::from(cdev), Arc::new(iommu)))
}

/// Finds another process that has `path` open, among those whose files this process may list.
fn holder(path: &Path) -> Option<u32> {
    let me = std::process::id();
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != me).find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))
    })
}
