//! The view of a container, from outside: which of our devices its programs see, and the files that show them.

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

/// The devices, as they are numbered there, and the directories, through descriptors that may write to them. `thread` is that of our hook, which has just
/// made them: what a container's own program has laid out is not believed. The calling process has one thread.
///
/// # Errors
/// `thread` is another program's, it ended or may not be followed, it sees no devices of ours, or their node cannot be looked at.
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
