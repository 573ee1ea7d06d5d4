//! Adds the simulated devices to the launched program's view of the host.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::LaunchError;
use super::cover::{Covered, bind, cover, cover_or_make, newest_first};
use super::error::is_shortage;
use super::processor;
use super::projection::{self, CDEVS, Entries, Projection};
use super::provider::{self, Provider, STEM};
use super::sys;
use super::sysfs::{self, DEVICES_FROM_BUS, DEVICES_FROM_CLASS, FUNCTIONS, HOME, NODE_FILE};
use node::devices::DeviceInfo;
use node::place::Place;

const CLASS: &str = "/sys/class";
const DEVICES_OF_VERBS: &str = "/sys/class/infiniband";
const UVERBS: &str = "/sys/class/infiniband_verbs";
const UMAD: &str = "/sys/class/infiniband_mad";
const PCI: &str = "/sys/bus/pci/devices";
const DEVICES: &str = "/sys/devices";
const DEV: &str = "/dev";
const DRIVERS: &str = "/etc/libibverbs.d";
/// The file that replaces the kernel's processor description in virtual time.
const PROCESSOR: &str = "/sys/devices/ironverbs/cpuinfo";

/// Classes where the node's entries are added to the host's links. The other classes stay as they are.
const CLASSES: [&str; 4] = ["infiniband", "infiniband_verbs", "infiniband_mad", "misc"];

/// Maximum size in bytes of a file that states a device's place.
const LONGEST_PLACE: u64 = 1 << 20;

/// Device numbers reserved per adapter in a view, so that devices keep theirs when another adapter gets VFs.
const NUMBERS: u32 = 1 << 7;

/// Maximum delay between a change of the node and its appearance in a view: one check by the supervisor, and the creation of 128 devices.
const CATCHES_UP: Duration = Duration::from_secs(1);

/// True if this program sees these devices, and no others of their nodes. If it sees other devices of each of the nodes, waits for its
/// supervisor, which may be about to show these.
pub fn comes_to_show(devices: &[DeviceInfo]) -> Result<bool, LaunchError> {
    let mut wanted: Vec<_> = devices.iter().map(|d| d.place.clone()).collect();
    wanted.sort_by_key(Place::text);
    let nodes = |places: &[Place]| -> BTreeSet<Option<PathBuf>> {
        places.iter().map(|place| place.node().map(PathBuf::from)).collect()
    };
    let of_wanted = nodes(&wanted);
    let start = Instant::now();
    loop {
        let mut there = places().map_err(list(UVERBS))?;
        // Devices of further nodes may be visible too. Functions that belong to no node must be the only visible ones.
        there.retain(|place| {
            of_wanted.contains(&place.node().map(PathBuf::from)) || of_wanted.contains(&None)
        });
        there.sort_by_key(Place::text);
        if there == wanted {
            return Ok(true);
        }
        let may_come = !of_wanted.contains(&None) && nodes(&there) == of_wanted;
        if !may_come || start.elapsed() > CATCHES_UP {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Places of the devices that this process sees.
///
/// # Errors
/// The device directory exists but cannot be listed.
pub fn places() -> io::Result<Vec<Place>> {
    Ok(shown()?.into_iter().map(|(_, place)| place).collect())
}

/// The same with the number of each `uverbsN`, ordered by it.
pub fn shown() -> io::Result<Vec<(u32, Place)>> {
    shown_below(Path::new("/"))
}

/// The same for a program whose root directory is `root`.
pub fn shown_below(root: &Path) -> io::Result<Vec<(u32, Place)>> {
    let class = root.join(UVERBS.trim_start_matches('/'));
    let numbered = |name: OsString| {
        let number = name.to_str()?.strip_prefix("uverbs")?.parse().ok()?;
        Some((number, place_in(&class, Path::new(&name))?))
    };
    let mut all: Vec<_> = names(&class)?.into_iter().filter_map(numbered).collect();
    all.sort_by_key(|(number, _)| *number);
    Ok(all)
}

/// The place of the device that this process sees as `uverbs`, such as `uverbs0`; `None` if it is not a simulated device.
pub fn place(uverbs: &Path) -> Option<Place> {
    place_in(Path::new(UVERBS), uverbs)
}

/// The same for a view with its `/sys/class/infiniband_verbs`, or a copy of it, at `class`.
pub fn place_in(class: &Path, uverbs: &Path) -> Option<Place> {
    // In a container's image this may be any kind of file, and opening a pipe would wait for its other end.
    let path = class.join(uverbs).join(NODE_FILE);
    let opened =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    let file = opened.ok().filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))?;
    let mut text = Vec::new();
    file.take(LONGEST_PLACE).read_to_end(&mut text).ok()?;
    Place::parse(&text).ok()
}

/// Covers the directories and fills them, and replaces the kernel's processor description by `processor`, if given. The caller is in a
/// mount namespace of its own. Returns the devices as numbered in the view, and the projected directories for the process that keeps them
/// up to date; `None` if the kernel is too old for that.
pub fn project(
    mut devices: Vec<DeviceInfo>,
    provider: &Provider,
    processor: Option<String>,
) -> Result<(Vec<DeviceInfo>, Option<Projection>), LaunchError> {
    if let Some(taken) = devices.iter().find(|d| is_of_host(d.name.as_ref())) {
        return Err(LaunchError::NameTaken(taken.name.clone()));
    }
    tell_apart(&devices)?;
    number(&mut devices, first_free_uverbs()?);
    let projection = sysfs(&devices, provider, processor.as_deref())?;
    device_files(&devices)?;
    driver_list()?;
    if processor.is_some() {
        let step = LaunchError::step(format!("put the counter's rate into {}", processor::FILE));
        bind(Path::new(PROCESSOR), Path::new(processor::FILE)).map_err(step)?;
    }
    Ok((devices, projection))
}

/// Numbers the devices from `first` on, with a range for each adapter.
fn number(devices: &mut [DeviceInfo], first: u32) {
    let (mut from, mut last) = (first, None);
    for d in devices {
        let node = d.node().map(PathBuf::from);
        if last.as_ref().is_some_and(|last| *last != node) {
            from += NUMBERS;
        }
        last = Some(node);
        d.uverbs = from + u32::from(d.fid);
    }
}

/// Checks for devices of different nodes that a view could not distinguish; the first two are the error.
fn tell_apart(devices: &[DeviceInfo]) -> Result<(), LaunchError> {
    for (at, one) in devices.iter().enumerate() {
        let same = |other: &&DeviceInfo| {
            other.node() != one.node() && (other.name == one.name || other.bdf == one.bdf)
        };
        if let Some(other) = devices[..at].iter().find(same) {
            let (what, option) =
                if other.name == one.name { (&one.name, "--name") } else { (&one.bdf, "--pci") };
            return Err(LaunchError::Twice {
                what: what.clone(),
                places: [other, one].map(|d| d.place.to_string()),
                option,
            });
        }
    }
    Ok(())
}

/// True if the view shows devices of the host in addition to simulated ones.
pub fn host_has_devices() -> io::Result<bool> {
    Ok(names(Path::new(DEVICES_OF_VERBS))?.iter().any(|name| is_of_host(name)))
}

/// True if the host has a verbs device with this name.
fn is_of_host(name: &OsStr) -> bool {
    let link = fs::read_link(Path::new(DEVICES_OF_VERBS).join(name));
    link.is_ok_and(|to| !to.starts_with(DEVICES_FROM_CLASS))
}

/// Returns the first number for simulated devices; the host's own uverbs and umad devices keep their numbers.
fn first_free_uverbs() -> Result<u32, LaunchError> {
    let mut free = 0;
    for (dir, kind) in [(UVERBS, "uverbs"), (UMAD, "umad")] {
        for name in names(Path::new(dir)).map_err(list(dir))? {
            let ours =
                fs::read_link(Path::new(dir).join(&name)).is_ok_and(|to| to.starts_with(DEVICES_FROM_CLASS));
            let number = name.to_str().and_then(|name| name.strip_prefix(kind)?.parse::<u32>().ok());
            if let Some(number) = number.filter(|_| !ours) {
                free = free.max(number.saturating_add(1));
            }
        }
    }
    Ok(free)
}

/// The entries of a directory; none if it does not exist.
fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        list => list?.map(|entry| Ok(entry?.file_name())).collect(),
    }
}

fn sysfs(
    devices: &[DeviceInfo],
    provider: &Provider,
    processor: Option<&str>,
) -> Result<Option<Projection>, LaunchError> {
    let home = cover_or_make(Path::new(DEVICES))?;
    if let Some(home) = &home {
        // Keeps everything but the devices of another node, if this program was launched on one. Functions of the host are read below.
        home.keep(|name, _| name != HOME)?;
    }
    let pci = cover_or_make(Path::new(PCI))?;
    let class = cover_or_make(Path::new(CLASS))?;
    let newest_first = newest_first(Path::new(CLASS)).map_err(list(CLASS))?;
    let entries = Entries::of(devices, newest_first);
    entries.functions.write(Path::new(FUNCTIONS)).map_err(fill(FUNCTIONS))?;
    let lib = Path::new(STEM).parent().unwrap_or(Path::new(DEVICES));
    provider::lay(lib, provider).map_err(fill(DEVICES))?;
    processor.map_or(Ok(()), |text| fs::write(PROCESSOR, text)).map_err(fill(DEVICES))?;
    let functions = clone_of(FUNCTIONS)?;
    if let Some(home) = &home {
        home.seal()?;
    }

    entries.bus.write(Path::new(PCI)).map_err(fill(PCI))?;
    let bus = clone_of(PCI)?;
    if let Some(pci) = &pci {
        pci.keep(|_, target| target.is_some_and(|to| !to.starts_with(DEVICES_FROM_BUS)))?;
        pci.seal()?;
    }

    entries.classes.write(Path::new(CLASS)).map_err(fill(CLASS))?;
    let classes = clone_of(CLASS)?;
    if let Some(class) = &class {
        class.keep(|name, _| CLASSES.iter().all(|c| name != *c))?;
        for name in CLASSES {
            let (old, new) = (class.old_path().join(name), Path::new(CLASS).join(name));
            host_links(&old, &new).map_err(fill(CLASS))?;
        }
        class.seal()?;
    }
    let clones = functions.zip(bus).zip(classes);
    Ok(clones.map(|((functions, bus), classes)| Projection { functions, bus, classes, newest_first }))
}

/// Opens the projected directories of this process's view again: those of functions, PCI devices and classes.
pub fn again() -> io::Result<[OwnedFd; 3]> {
    let open = |dir: &str| {
        let clone = sys::clone_mount(dir)?;
        sys::make_writable(&clone)?;
        Ok::<_, io::Error>(clone)
    };
    Ok([open(FUNCTIONS)?, open(PCI)?, open(CLASS)?])
}

/// The clone of a projected directory; `None` if the host does not support it. A shortage is an error.
fn clone_of(dir: &str) -> Result<Option<OwnedFd>, LaunchError> {
    match sys::clone_mount(dir) {
        Err(e) if is_shortage(&e) => Err(LaunchError::step(format!("open {dir} once more"))(e)),
        clone => Ok(clone.ok()),
    }
}

/// Copies the links to the host's own devices. All of them lead out of the class relative to `/sys`.
fn host_links(old: &Path, new: &Path) -> io::Result<()> {
    for name in names(old)? {
        let Ok(target) = fs::read_link(old.join(&name)) else { continue };
        if !target.starts_with(DEVICES_FROM_CLASS) && fs::symlink_metadata(new.join(&name)).is_err() {
            fs::create_dir_all(new)?;
            std::os::unix::fs::symlink(target, new.join(&name))?;
        }
    }
    Ok(())
}

/// Creates the device files, including the connection manager's, which the provider emulates: the host's own could not connect simulated
/// devices.
fn device_files(devices: &[DeviceInfo]) -> Result<(), LaunchError> {
    let covered: Covered = if Path::new(CDEVS).is_dir() {
        cover(Path::new(CDEVS))?
    } else {
        // A directory created in the host's own /dev would outlive the program.
        let dev = cover(Path::new(DEV))?;
        dev.keep(|_, _| true)?;
        fs::create_dir(CDEVS).map_err(LaunchError::step(format!("create {CDEVS}")))?;
        dev
    };
    for name in projection::device_files(devices).into_iter().chain([sysfs::RDMA_CM.to_owned()]) {
        let at = Path::new(CDEVS).join(name);
        projection::make_device_file(&at)
            .map_err(LaunchError::step(format!("bind /dev/null to {}", at.display())))?;
    }
    covered.keep(|_, _| true)
}

/// Adds a `.driver` file, for programs that are started with a cleared environment. libibverbs tries the drivers in the reverse of the
/// order in which the directory lists them, and the first that matches a device takes it: this one must be listed last.
fn driver_list() -> Result<(), LaunchError> {
    let dir = Path::new(DRIVERS);
    if !dir.is_dir() {
        return Ok(());
    }
    let covered = cover(dir)?;
    let ours = || fs::write(dir.join("ironverbs.driver"), format!("driver {STEM}\n")).map_err(fill(DRIVERS));
    if newest_first(dir).map_err(list(DRIVERS))? {
        ours()?;
        covered.keep(|_, _| true)?;
    } else {
        covered.keep(|name, _| name != "ironverbs.driver")?;
        ours()?;
    }
    covered.seal()
}

fn list(dir: &str) -> impl Fn(io::Error) -> LaunchError + Clone {
    LaunchError::step(format!("list {dir}"))
}

fn fill(dir: &str) -> impl Fn(io::Error) -> LaunchError + Clone {
    LaunchError::step(format!("fill {dir}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a view created during a shortage of descriptors would lack the host's own devices.
    #[test]
    fn a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one() {
        assert!(names(Path::new("/no/such/directory")).unwrap().is_empty());
        assert!(names(Path::new("/dev/null")).is_err());
        assert!(newest_first(Path::new("/dev/null")).is_err());
    }

    /// A pipe would block the hook until the runtime times out.
    #[test]
    fn what_an_image_has_in_the_place_of_a_device_is_read_without_waiting() {
        let class = &testkit::Scratch::new().0;
        fs::create_dir_all(class.join("uverbs0")).unwrap();
        let file = class.join("uverbs0").join(NODE_FILE);
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        assert_eq!(place_in(class, Path::new("uverbs0")), None);
        fs::remove_file(&file).unwrap();
        fs::write(&file, "node=/n\nfid=3\n").unwrap();
        assert_eq!(place_in(class, Path::new("uverbs0")), Some(Place::Node { dir: "/n".into(), fid: 3 }));
    }
}
