//! Observation of a node from outside. An observer takes neither a party slot nor a lock, and changes nothing.

use super::{
    FunctionAddress, NodeError, address,
    cm_board::{self, CmId},
    damage::{self, attach_region, map_existing},
    data, dir,
    file::{Access, Mapped},
    locks::LockFile,
    node::read_behaviour,
    status::{NodeStatus, View},
};
use crate::devices::{DeviceInfo, MAX_VFS};
use devmodel::{
    region::{PortGlimpse, Region},
    state::COUNTERS,
};
use hwspec::wire::mad::Mad;
use std::{
    collections::HashMap,
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::*},
};

/// A node under observation.
pub struct Observer {
    map: Arc<Mapped>,
    region: Region,
    locks: &'static LockFile,
    dir: PathBuf,
}

/// The owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user context; 0 is the function's driver itself.
    pub context: u16,
    /// The program's PID in this PID namespace; 0 if it is hidden by another one.
    pub pid: u32,
}

/// An object of the adapter: its number for the driver, its owner, and its row.
#[derive(Clone, Copy, Debug)]
pub struct Seen<R> {
    /// Its number.
    pub number: u32,
    /// Its owner.
    pub owner: Owner,
    /// The adapter's state of the object.
    pub row: R,
}

fn ids(meta: std::io::Result<Metadata>) -> Option<(u64, u64)> {
    meta.ok().map(|m| (m.dev(), m.ino()))
}

impl Observer {
    /// Opens the node in `dir` for observation.
    ///
    /// # Errors
    /// There is no node, it is of another version, or it is damaged.
    pub fn open(dir: &Path) -> Result<Self, NodeError> {
        let dir = dir::existing(dir)?;
        let map = map_existing(&dir, Access::Look)?;
        let region = attach_region(&dir, &map)?;
        if !region.reach_books() {
            return Err(NodeError::NoAddresses(dir));
        }
        Ok(Self { region, locks: LockFile::existing(&dir)?, map, dir })
    }

    /// The status of the node. Dead parties that have not been cleaned up after are listed as dead.
    pub fn status(&self) -> NodeStatus {
        let (dir, map, locks, region) = (&*self.dir, &*self.map, self.locks, &self.region);
        View { dir, map, locks, region, config: &read_behaviour(map), me: None }.status()
    }

    /// True if the node in `dir` is still the observed one.
    pub fn is_of(&self, dir: &Path) -> bool {
        ids(self.map.file().and_then(File::metadata)) == Self::identity(dir)
    }

    /// Device and inode number of the adapter in `dir`, if there is one.
    pub fn identity(dir: &Path) -> Option<(u64, u64)> {
        data::id(&dir.join("adapter"))
    }

    /// The address that was set for each function, in order. These are the only part of [`Self::devices`] that changes during the life of a
    /// node.
    pub fn addresses(&self) -> Vec<Option<FunctionAddress>> {
        let vfs = (self.map.header().vfs.load(Acquire) as u8).min(MAX_VFS);
        (0..=vfs).map(|fid| FunctionAddress::of(&self.map, fid)).collect()
    }

    /// The functions of the node, as programs see them.
    ///
    /// # Errors
    /// The node was damaged since it was opened.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, NodeError> {
        let (config, naming) = (read_behaviour(&self.map), self.map.naming().unwrap_or_default());
        let addresses = self.addresses();
        if let Some(what) = damage::found(&self.map, &self.region) {
            return Err(NodeError::Damaged { dir: self.dir.clone(), what });
        }
        let all = (0..).zip(addresses);
        Ok(all.map(|(fid, address)| address::device(&self.dir, fid, &config, &naming, address)).collect())
    }

    /// The port counters of `fid`, indexed by `devmodel::state::Counters`.
    pub fn counters(&self, fid: u8) -> [u64; COUNTERS] {
        self.region.counters(fid)
    }

    /// The response that function `from` gets if its port sends the general management MAD `request` to `dlid`; `None` if there is none.
    /// A table of the subnet administrator is returned in one piece.
    pub fn general(&self, from: u8, dlid: u16, request: &Mad) -> Option<Vec<u8>> {
        self.region.general(&read_behaviour(&self.map), from, dlid, request)
    }

    /// The response that function `from` gets if its port sends the subnet management MAD `request`, a query, to `dlid`; `None` if there is
    /// none.
    pub fn management(&self, from: u8, dlid: u16, request: &Mad) -> Option<Mad> {
        self.region.management(&read_behaviour(&self.map), from, dlid, request)
    }

    /// The port of `fid`.
    pub fn port(&self, fid: u8) -> Option<PortGlimpse> {
        self.region.port(fid)
    }

    /// True if programs are on the node. Without programs the node is idle.
    pub fn has_programs(&self) -> bool {
        !self.map.header().taken.is_empty() && self.locks.is_lived_on()
    }

    /// The connection identifiers of `fid`. Their context is not known.
    pub fn cm_ids(&self, fid: u8) -> impl Iterator<Item = Seen<CmId>> {
        // The file is created by the first program that uses the connection manager.
        let all = cm_board::cm_ids(&self.dir).unwrap_or_default().into_iter();
        all.filter(move |(_, _, row)| row.fid == fid).map(|(number, pid, row)| {
            let owner = Owner { context: 0, pid };
            Seen { number, owner, row }
        })
    }

    /// The objects of a kind of `fid` that living programs own, a memory key numbered by its index. A row of user contexts is one opening of
    /// the function. Objects of dead programs are destroyed when the next program joins.
    pub fn objects<R>(&self, fid: u8) -> impl Iterator<Item = Seen<R>> + '_
    where
        R: devmodel::region::Row + zerocopy::FromBytes + 'static,
    {
        let mut known: HashMap<u16, Option<u32>> = HashMap::new();
        self.region.objects::<R>(fid).filter_map(move |(number, row)| {
            let (context, party) = (row.head().uid, row.head().party);
            let pid = *known.entry(party).or_insert_with(|| self.locks.holder(party));
            Some(Seen { number, owner: Owner { context, pid: pid? }, row })
        })
    }
}
