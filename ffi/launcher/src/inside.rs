//! The view of a container, from outside: the devices that its programs see, and the files that show them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::cover::newest_first;
use super::project;
use super::projection::{Projection, path_of};
use super::sys;
use node::Observer;
use node::devices::DeviceInfo;

/// Returns the devices, as numbered in the container, and the projected directories, through writable descriptors. `thread` belongs to the
/// hook, which has just created them: files from a container's own program are not trusted. The calling process has one thread.
///
/// # Errors
/// `thread` belongs to another program, has ended or may not be followed, sees no devices of a node, or their node cannot be opened.
pub fn view_of(thread: u32) -> io::Result<(Vec<DeviceInfo>, Projection)> {
    let program = |of: &str| fs::metadata(format!("/proc/{of}/exe")).map(|file| (file.dev(), file.ino()));
    if program(&thread.to_string())? != program("self")? {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    let (shown, [functions, bus, classes]) = sys::within(thread, || {
        let shown = project::shown()?;
        match shown.is_empty() {
            true => Err(io::Error::from(io::ErrorKind::NotFound)),
            false => Ok((shown, project::again()?)),
        }
    })?;
    let newest_first = newest_first(&path_of(&classes))?;
    let mut nodes: BTreeMap<&Path, Vec<DeviceInfo>> = BTreeMap::new();
    for dir in shown.iter().filter_map(|(_, place)| place.node()) {
        if !nodes.contains_key(dir) {
            let observer = Observer::open(dir).map_err(io::Error::other)?;
            nodes.insert(dir, observer.devices().map_err(io::Error::other)?);
        }
    }
    let device = |uverbs: u32, place| {
        let mut all = nodes.values().flatten();
        all.find(|device| device.place == place).map(|device| DeviceInfo { uverbs, ..device.clone() })
    };
    let devices = shown.iter().filter_map(|(uverbs, place)| device(*uverbs, place.clone())).collect();
    Ok((devices, Projection { functions, bus, classes, newest_first }))
}
