//! Puts the simulated devices into the launched program's view of the host.

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::LaunchError;
use super::cover::{Covered, bind, cover, cover_or_make, newest_first};
use super::sys;
use super::sysfs::{self, DEVICES_FROM_CLASS, NODE_FILE};
use crate::devices::DeviceInfo;

const CLASS: &str = "/sys/class";
const UVERBS: &str = "/sys/class/infiniband_verbs";
const UMAD: &str = "/sys/class/infiniband_mad";
const PCI: &str = "/sys/bus/pci/devices";
const DEV: &str = "/dev";
const CDEVS: &str = "/dev/infiniband";
const DRIVERS: &str = "/etc/libibverbs.d";

/// Classes where our entries stand among the host's links; the other classes stay as they are.
const CLASSES: [&str; 4] = ["infiniband", "infiniband_verbs", "infiniband_mad", "misc"];

/// True inside a program that was launched on the same node with the same devices.
pub fn already_there(devices: &[DeviceInfo], node: &Path) -> bool {
    let mut there: Vec<Vec<u8>> = Vec::new();
    for name in names(Path::new(UVERBS)) {
        if let Ok(text) = fs::read(Path::new(UVERBS).join(name).join(NODE_FILE)) {
            there.push(text);
        }
    }
    let mut wanted: Vec<_> = devices.iter().map(|d| sysfs::place(d, node).text()).collect();
    there.sort();
    wanted.sort();
    there == wanted
}

/// Covers the directories and fills them: the caller is in a mount namespace of its own. `provider` is the path of
/// the provider without its suffix. Gives the devices, numbered as they are there now, and the directory of PCI devices for
/// those who keep its files true; none where the kernel is too old for it.
pub fn project(
    mut devices: Vec<DeviceInfo>,
    node: &Path,
    provider: &Path,
) -> Result<(Vec<DeviceInfo>, Option<OwnedFd>), LaunchError> {
    let first = first_free_uverbs();
    for d in &mut devices {
        d.uverbs += first;
    }
    let tree = sysfs(&devices, node)?;
    device_files(&devices)?;
    driver_list(provider)?;
    Ok((devices, tree))
}

/// Whether the view shows devices of the host beside ours.
pub fn host_has_devices() -> bool {
    let dir = Path::new(CLASS).join("infiniband");
    let of_host =
        |name: OsString| fs::read_link(dir.join(name)).is_ok_and(|to| !to.starts_with(DEVICES_FROM_CLASS));
    names(&dir).any(of_host)
}

/// The host's real uverbs devices keep their numbers, and so do its umad devices; ours follow them.
fn first_free_uverbs() -> u32 {
    let of_host = |(dir, kind): (&'static str, &'static str)| {
        names(Path::new(dir)).filter_map(move |name| {
            let ours =
                fs::read_link(Path::new(dir).join(&name)).is_ok_and(|to| to.starts_with(DEVICES_FROM_CLASS));
            name.to_str()?.strip_prefix(kind)?.parse::<u32>().ok().filter(|_| !ours)
        })
    };
    let numbers = [(UVERBS, "uverbs"), (UMAD, "umad")].into_iter().flat_map(of_host);
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

fn names(dir: &Path) -> impl Iterator<Item = OsString> + use<> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.file_name()))
}

fn sysfs(devices: &[DeviceInfo], node: &Path) -> Result<Option<OwnedFd>, LaunchError> {
    let pci = cover_or_make(Path::new(PCI))?;
    let class = cover_or_make(Path::new(CLASS))?;
    // libibverbs keeps the order in which the directory lists the devices, and tools open the first when none is
    // named: the PF is to be the first.
    let mut ordered = devices.to_vec();
    if newest_first(Path::new(CLASS)) {
        ordered.reverse();
    }
    sysfs::functions(&ordered, node).write(Path::new(PCI)).map_err(fill(PCI))?;
    let tree = sys::clone_mount(c"/sys/bus/pci/devices").ok();
    if let Some(pci) = &pci {
        // The host's entries are links; directories are devices of another node this program was launched on.
        pci.keep(|_, target| target.is_some())?;
        pci.seal()?;
    }

    sysfs::classes(&ordered).write(Path::new(CLASS)).map_err(fill(CLASS))?;
    if let Some(class) = &class {
        class.keep(|name, _| CLASSES.iter().all(|c| name != *c))?;
        for name in CLASSES {
            let (old, new) = (class.old_path().join(name), Path::new(CLASS).join(name));
            host_links(&old, &new).map_err(fill(CLASS))?;
        }
        class.seal()?;
    }
    Ok(tree)
}

/// Copies the links to the host's own devices; all of them lead out of the class relative to `/sys`.
fn host_links(old: &Path, new: &Path) -> std::io::Result<()> {
    for name in names(old) {
        let Ok(target) = fs::read_link(old.join(&name)) else { continue };
        if !target.starts_with(DEVICES_FROM_CLASS) && fs::symlink_metadata(new.join(&name)).is_err() {
            fs::create_dir_all(new)?;
            std::os::unix::fs::symlink(target, new.join(&name))?;
        }
    }
    Ok(())
}

/// `/dev/null` under the names of our uverbs devices: a character device that can be opened and answers ioctl with
/// ENOTTY, upon which libibverbs turns to sysfs. The same under the name of the connection manager's, which the provider
/// answers for; the host's own could not bring our devices together.
fn device_files(devices: &[DeviceInfo]) -> Result<(), LaunchError> {
    let covered: Covered = if Path::new(CDEVS).is_dir() {
        cover(Path::new(CDEVS))?
    } else {
        // A directory made in the host's own /dev would outlive the program.
        let dev = cover(Path::new(DEV))?;
        dev.keep(|_, _| true)?;
        fs::create_dir(CDEVS).map_err(LaunchError::step(format!("create {CDEVS}")))?;
        dev
    };
    let uverbs = devices.iter().map(|d| format!("uverbs{}", d.uverbs));
    let umads = devices.iter().filter(|d| d.has_umad()).map(|d| format!("umad{}", d.uverbs));
    for name in uverbs.chain(umads).chain([sysfs::RDMA_CM.to_owned()]) {
        let at = Path::new(CDEVS).join(name);
        fs::File::create_new(&at)
            .and_then(|_| bind(Path::new("/dev/null"), &at))
            .map_err(LaunchError::step(format!("bind /dev/null to {}", at.display())))?;
    }
    covered.keep(|_, _| true)
}

/// Adds our `.driver` file, for programs that are started with a cleared environment. libibverbs tries the drivers
/// in the reverse of the order in which the directory lists them, and the first that matches a device takes it: ours
/// must be listed last.
fn driver_list(provider: &Path) -> Result<(), LaunchError> {
    let dir = Path::new(DRIVERS);
    if !dir.is_dir() {
        return Ok(());
    }
    let covered = cover(dir)?;
    let mut line = b"driver ".to_vec();
    line.extend_from_slice(provider.as_os_str().as_encoded_bytes());
    line.push(b'\n');
    let ours = || fs::write(dir.join("ironverbs.driver"), &line).map_err(fill(DRIVERS));
    if newest_first(dir) {
        ours()?;
        covered.keep(|_, _| true)?;
    } else {
        covered.keep(|name, _| name != "ironverbs.driver")?;
        ours()?;
    }
    covered.seal()
}

fn fill(dir: &str) -> impl Fn(std::io::Error) -> LaunchError + Clone {
    LaunchError::step(format!("fill {dir}"))
}
