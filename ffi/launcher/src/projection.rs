//! The projected directories, for the process that keeps them up to date while programs use them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use super::cover::bind;
use super::sysfs::{self, DEVICES_FROM_CLASS};
use super::tree::{Tree, lay};
use node::devices::DeviceInfo;

/// The directory of device files.
pub const CDEVS: &str = "/dev/infiniband";

/// The entries by which a view shows its devices.
pub struct Entries {
    /// Entries in the directory of the functions.
    pub functions: Tree,
    /// Entries in the directory of PCI devices.
    pub bus: Tree,
    /// Entries in the directory of classes.
    pub classes: Tree,
    device_files: BTreeSet<String>,
}

impl Entries {
    /// The entries of a view of `devices`. libibverbs keeps the order in which the directory lists devices, and tools open the first device
    /// by default. So the PF must be listed first, even if directories list the newest entry first.
    pub fn of(devices: &[DeviceInfo], newest_first: bool) -> Self {
        let mut ordered = devices.to_vec();
        if newest_first {
            ordered.reverse();
        }
        let device_files = device_files(devices).into_iter().collect();
        Self {
            functions: sysfs::functions(&ordered),
            bus: sysfs::bus(&ordered),
            classes: sysfs::classes(&ordered),
            device_files,
        }
    }
}

/// The projected directories, through writable descriptors. Programs see the same files read-only.
pub struct Projection {
    /// The directory of the functions.
    pub functions: OwnedFd,
    /// The directory of PCI devices.
    pub bus: OwnedFd,
    /// The directory of classes.
    pub classes: OwnedFd,
    /// True if directories list the newest entry first.
    pub newest_first: bool,
}

impl Projection {
    /// The directory of the functions.
    pub fn functions(&self) -> PathBuf {
        path_of(&self.functions)
    }

    /// Shows the devices `new` in place of `old`. An entry that names a device exists only while the device does. The caller is in the
    /// mount namespace of the view.
    ///
    /// # Errors
    /// An entry could not be created or removed. The view then shows the old devices, as far as possible.
    pub fn change(&self, old: &[DeviceInfo], new: &[DeviceInfo]) -> io::Result<()> {
        let [old, new] = [old, new].map(|devices| Entries::of(devices, self.newest_first));
        self.turn(&old, &new, |steps| steps.iter().try_for_each(|step| step())).inspect_err(|_| {
            // Undoes all possible steps, even if some of them fail.
            let _ = self.turn(&new, &old, |steps| {
                steps.iter().for_each(|step| drop(step()));
                Ok(())
            });
        })
    }

    /// Passes to `run` the steps that show `new` in place of `old`. Entries that refer to removed devices are removed first; entries that
    /// refer to new devices are created last.
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

    /// Rebuilds the links of the classes, so that they are listed in order, and before or after the host's links as before.
    fn order(&self, ours: &Tree, classes: &Path) -> io::Result<()> {
        let mut of_host = of_host(classes)?;
        ours.lay_links(classes)?;
        if self.newest_first {
            of_host.reverse();
        }
        of_host.iter().try_for_each(|(at, target)| lay(target, at))
    }
}

/// The links in the RDMA classes to the host's own devices, in order, and their targets.
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

/// The path of an open directory for this process.
pub fn path_of(dir: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

/// Names of the device files of `devices`.
pub fn device_files(devices: &[DeviceInfo]) -> Vec<String> {
    let uverbs = devices.iter().map(|d| format!("uverbs{}", d.uverbs));
    let umads = devices.iter().filter(|d| d.has_umad()).map(|d| format!("umad{}", d.uverbs));
    uverbs.chain(umads).collect()
}

/// Makes `/dev/null` available under another name: a character device that can be opened and fails ioctl with ENOTTY, whereupon libibverbs
/// reads sysfs.
pub fn make_device_file(at: &Path) -> io::Result<()> {
    let file = File::create_new(at)?;
    // By descriptor, because programs may replace the file behind the name.
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    bind(Path::new("/dev/null"), &by_descriptor).inspect_err(|_| {
        let _ = fs::remove_file(at);
    })
}

/// Removes a file that [`make_device_file`] created, if it exists. A file of another origin has nothing mounted over it and stays.
fn remove_device_file(at: &Path) -> io::Result<()> {
    // By itself, without following links. Its open files stay open.
    let unmounted = umount2(at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    match unmounted.map_err(io::Error::from).and_then(|()| fs::remove_file(at)) {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Err(e),
        _ => Ok(()),
    }
}
