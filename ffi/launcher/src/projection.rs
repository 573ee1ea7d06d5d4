//! The projected directories in the hands of those who keep them true while programs use them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::cover::{bind, c_path};
use super::sys;
use super::sysfs::{self, DEVICES_FROM_CLASS};
use super::tree::{Tree, lay};
use node::devices::DeviceInfo;

/// Where device files are.
pub const CDEVS: &str = "/dev/infiniband";

/// What a view shows of its devices.
pub struct Entries {
    /// Below the directory of the functions.
    pub functions: Tree,
    /// Below that of PCI devices.
    pub bus: Tree,
    /// Below that of classes.
    pub classes: Tree,
    device_files: BTreeSet<String>,
}

impl Entries {
    /// What a view shows of `devices`. libibverbs keeps the order in which the directory lists the devices, and tools open the first when
    /// none is named: the PF is to be the first, also where directories list their newest entry first.
    pub fn of(devices: &[DeviceInfo], node: &Path, newest_first: bool) -> Self {
        let mut ordered = devices.to_vec();
        if newest_first {
            ordered.reverse();
        }
        let device_files = device_files(devices).into_iter().collect();
        let functions = sysfs::functions(&ordered, node);
        Self { functions, bus: sysfs::bus(&ordered), classes: sysfs::classes(&ordered), device_files }
    }
}

/// The projected directories, as those may write them who have these descriptors; programs see the same files behind seals.
pub struct Projection {
    /// The directory of the functions.
    pub functions: OwnedFd,
    /// That of PCI devices.
    pub bus: OwnedFd,
    /// That of classes.
    pub classes: OwnedFd,
    /// Directories list the newest entry first.
    pub newest_first: bool,
}

impl Projection {
    /// The directory of the functions.
    pub fn functions(&self) -> PathBuf {
        path_of(&self.functions)
    }

    /// Shows the devices `new` of `node` in place of `old`: whatever names a device is there only while the device is. The caller
    /// is in the mount namespace of the view.
    ///
    /// # Errors
    /// What could not be made or removed. The view then shows the old devices, as far as it can.
    pub fn change(&self, old: &[DeviceInfo], new: &[DeviceInfo], node: &Path) -> io::Result<()> {
        let [old, new] = [old, new].map(|devices| Entries::of(devices, node, self.newest_first));
        self.turn(&old, &new, |steps| steps.iter().try_for_each(|step| step())).inspect_err(|_| {
            // What can be taken back is, whatever cannot.
            let _ = self.turn(&new, &old, |steps| {
                steps.iter().for_each(|step| drop(step()));
                Ok(())
            });
        })
    }

    /// Has `run` take the steps that show `new` in place of `old`: first goes what leads to devices that go, last comes what leads
    /// to those that come.
    fn turn(
        &self,
        old: &Entries,
        new: &Entries,
        run: impl FnOnce(&[&dyn Fn() -> io::Result<()>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let [functions, bus, classes] = [&self.functions, &self.bus, &self.classes].map(path_of);
        let only_in = |one: &Entries, other: &Entries| -> Vec<PathBuf> {
            one.device_files.difference(&other.device_files).map(|name| Path::new(CDEVS).join(name)).collect()
        };
        let (gone, come) = (only_in(old, new), only_in(new, old));
        run(&[
            &|| old.classes.take_all_but(&new.classes, &classes),
            &|| gone.iter().try_for_each(|at| remove_device_file(at)),
            &|| old.bus.take_all_but(&new.bus, &bus),
            &|| old.functions.take_all_but(&new.functions, &functions),
            &|| come.iter().try_for_each(|at| make_device_file(at)),
            &|| new.functions.add_to(&old.functions, &functions),
            &|| new.bus.add_to(&old.bus, &bus),
            &|| self.order(&new.classes, &classes),
        ])
    }

    /// Lays the links of the classes so that they are listed in their order, and before or behind the host's as they were.
    fn order(&self, ours: &Tree, classes: &Path) -> io::Result<()> {
        let mut of_host = of_host(classes)?;
        ours.lay_links(classes)?;
        if self.newest_first {
            of_host.reverse();
        }
        of_host.iter().try_for_each(|(at, target)| lay(target, at))
    }
}

/// The links to the host's own devices in the classes of RDMA, as they are listed, and where they lead.
fn of_host(classes: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut all = Vec::new();
    for class in ["infiniband", "infiniband_verbs", "infiniband_mad"] {
        for entry in fs::read_dir(classes.join(class))? {
            let at = entry?.path();
            let theirs = fs::read_link(&at).ok().filter(|to| !to.starts_with(DEVICES_FROM_CLASS));
            all.extend(theirs.map(|target| (at, target)));
        }
    }
    Ok(all)
}

fn path_of(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Names of the device files of `devices`.
pub fn device_files(devices: &[DeviceInfo]) -> Vec<String> {
    let uverbs = devices.iter().map(|d| format!("uverbs{}", d.uverbs));
    let umads = devices.iter().filter(|d| d.has_umad()).map(|d| format!("umad{}", d.uverbs));
    uverbs.chain(umads).collect()
}

/// `/dev/null` under another name: a character device that can be opened and answers ioctl with ENOTTY, upon which
/// libibverbs turns to sysfs.
pub fn make_device_file(at: &Path) -> io::Result<()> {
    let file = File::create_new(at)?;
    // By its descriptor: programs may put something else in the place of the name.
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    bind(Path::new("/dev/null"), &by_descriptor).inspect_err(|_| {
        let _ = fs::remove_file(at);
    })
}

/// Removes what [`make_device_file`] made, if it is there; a file of somebody else's has nothing mounted over it and stays.
fn remove_device_file(at: &Path) -> io::Result<()> {
    let unmounted = c_path(at).and_then(|at| sys::unmount(&at));
    match unmounted.and_then(|()| fs::remove_file(at)) {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Err(e),
        _ => Ok(()),
    }
}
