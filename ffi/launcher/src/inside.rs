//! The view of a process in a container, from outside: which of our devices it sees, and the files that show them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::cover::newest_first;
use super::project;
use super::projection::{Projection, path_of};
use super::sys;
use node::Observer;
use node::devices::DeviceInfo;

/// The devices, as they are numbered there, and the directories, through descriptors that may write to them. The calling
/// process has one thread.
///
/// # Errors
/// `thread` ended or may not be followed, it sees no devices of ours, or their node cannot be looked at.
pub fn view_of(thread: u32) -> io::Result<(Vec<DeviceInfo>, Projection)> {
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
