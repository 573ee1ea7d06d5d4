//! Checks a node's file before use: a damaged file is refused with a reason.

use super::{
    NodeError,
    books::CLASSES,
    data,
    file::{ARENA_PAGES, Access, MAGIC, Mapped, RegionMemory, file_len, region_len},
    party_set::PARTIES,
    room, sys,
};
use crate::devices::MAX_VFS;
use devmodel::{
    identity::MAX_SUBNET_ID,
    region::{Geometry, NoAddresses, Region},
    strict::Strict,
};
use std::{
    fs::OpenOptions,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering::*},
};

/// Maps the file of the adapter in `dir` after a check of its version.
pub fn map_existing(dir: &Path, access: Access) -> Result<Arc<Mapped>, NodeError> {
    let path = dir.join("adapter");
    let step = || NodeError::system(format!("open {}", path.display()));
    let changes = access == Access::Change;
    let file =
        data::open(&path, OpenOptions::new().read(true).write(changes)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::NotFound => NodeError::Missing(dir.into()),
                _ => step()(error),
            }
        })?;
    let version = |found: String, expected: String| NodeError::Version { dir: dir.into(), found, expected };
    let len = file.metadata().map_err(step())?.len();
    if len != file_len() as u64 {
        return Err(version(format!("{len} bytes"), format!("{}", file_len())));
    }
    // An observer has no devices to lose.
    let notice = if changes { room::lost_notice(dir) } else { String::new() };
    let map = Mapped::new(file, access, notice).map_err(step())?;
    let magic = map.header().magic.load(Acquire);
    if magic != MAGIC {
        return Err(version(format!("layout {magic:#x}"), format!("{MAGIC:#x}")));
    }
    check(&map).map_err(|what| NodeError::Damaged { dir: dir.into(), what })?;
    Ok(Arc::new(map))
}

/// Attaches to the region in `map`, the file of the adapter in `dir`.
pub fn attach_region(dir: &Path, map: &Arc<Mapped>) -> Result<Region, NodeError> {
    let region = Region::attach(region_len(), Box::new(RegionMemory(map.clone())))?;
    let damaged = |what| Err(NodeError::Damaged { dir: dir.into(), what });
    if *region.geometry() != Geometry::NODE {
        return damaged(format!("geometry: expected {:?}, found {:?}", Geometry::NODE, region.geometry()));
    }
    found(map, &region).map_or(Ok(region), damaged)
}

/// Describes damage in a node that may have changed since it was opened.
pub fn found(map: &Mapped, region: &Region) -> Option<String> {
    let present = || 0..=map.header().vfs.load(Acquire) as u8;
    let magic = map.header().magic.load(Acquire);
    let lost = (magic != MAGIC).then(|| format!("layout: expected {MAGIC:#x}, found {magic:#x}"));
    lost.or_else(|| check(map).err()).or_else(|| present().find_map(|fid| region.damage(fid)))
}

/// Runs `work` on a node that may be damaged, where it may find anything and panic. A panic becomes an error; unwinding has released the
/// locks that were held.
pub fn sane<T>(dir: &Path, work: impl FnOnce() -> Result<T, NodeError>) -> Result<T, NodeError> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    result.unwrap_or_else(|payload| match payload.is::<NoAddresses>() {
        true => Err(NodeError::NoAddresses(dir.into())),
        false => Err(NodeError::Damaged { dir: dir.into(), what: "its tables contradict each other".into() }),
    })
}

/// Describes damage in the words before the region: the expected and the found value.
fn check(map: &Mapped) -> Result<(), String> {
    let header = map.header();
    let (begun, now) = (header.epoch.load(Relaxed), sys::monotonic_ns());
    if begun > now {
        return Err(format!("when it was made: expected {now} ns at most by this clock, found {begun}"));
    }
    within("virtual functions", header.vfs.load(Acquire), MAX_VFS.into())?;
    within("pages of the arena", header.arena_fresh.load(Acquire), ARENA_PAGES)?;
    let used = u32::try_from(header.arena_used.load(Acquire)).unwrap_or(u32::MAX);
    within("pages of the arena in use", used, ARENA_PAGES)?;
    let behaviour = header.behaviour.each_ref().map(|word| word.load(Relaxed));
    let [profile, timeout, _, sealed, budget, link_layer, node_id, _, _, _, _, _, _, strict @ ..] = behaviour;
    within("profile", profile, 1)?;
    within("least acknowledgement timeout", timeout, 31)?;
    within("sealed frames", sealed, 1)?;
    within("link layer", link_layer, 1)?;
    within("id", node_id, if link_layer == 0 { u16::MAX } else { MAX_SUBNET_ID }.into())?;
    if Strict::of_words(strict).is_none() {
        return Err(format!("strictness: expected known switches, found {strict:x?}"));
    }
    if map.naming().is_none() {
        return Err("names of devices: expected letters and a number, found neither".into());
    }
    if header.taken.has(0) {
        return Err("places of programs: expected from 1 on, found 0 taken".into());
    }
    if budget == 0 {
        return Err("work of a call: expected more than 0, found 0".into());
    }
    for function in map.functions() {
        within("server of a function", function.server.load(Relaxed), PARTIES as u32 - 1)?;
        within("bits of a network", function.prefix.load(Relaxed), 128)?;
    }
    let free = header.arena_free.iter().map(|head| head.load(Acquire));
    free.take(CLASSES).try_for_each(|head| within("free block of the arena", head, ARENA_PAGES))
}

fn within(what: &str, found: u32, most: u32) -> Result<(), String> {
    if found <= most { Ok(()) } else { Err(format!("{what}: expected {most} at most, found {found}")) }
}
