//! A node seen by somebody who is not on it: takes no place among the parties, no lock, and changes nothing.

use super::{
    NodeError,
    board::{self, CmId},
    file::{MAGIC, Mapped, PARTIES, file_len},
    locks::LockFile,
    node::{attach_region, read_behaviour},
};
use devmodel::{
    region::{PortGlimpse, Region},
    state::{COUNTERS, CqRow, MkeyRow, PdRow, QpRow, SrqRow, UctxRow},
};
use hwspec::wire::mad::MAD_SIZE;
use std::{
    fs::{Metadata, OpenOptions},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::*},
};

/// A node that is only looked at.
pub struct Observer {
    map: Arc<Mapped>,
    region: Region,
    locks: &'static LockFile,
    dir: PathBuf,
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user context; 0 is the function's driver itself.
    pub context: u16,
    /// The program, as we see its number; 0 where another PID namespace hides it.
    pub pid: u32,
}

/// An object of the adapter: the driver's number of it, whose it is, and its row.
#[derive(Clone, Copy, Debug)]
pub struct Seen<R> {
    /// Its number.
    pub number: u32,
    /// Whose it is.
    pub owner: Owner,
    /// What the adapter keeps of it.
    pub row: R,
}

fn ids(meta: std::io::Result<Metadata>) -> Option<(u64, u64)> {
    meta.ok().map(|m| (m.dev(), m.ino()))
}

impl Observer {
    /// Looks at the node in `dir`.
    ///
    /// # Errors
    /// There is none, or one of another version.
    pub fn open(dir: &Path) -> Result<Self, NodeError> {
        let path = dir.join("adapter");
        let failed = || NodeError::system(format!("open {}", path.display()));
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed())?;
        let wrong = |found| NodeError::Version { dir: dir.into(), found, expected: format!("{MAGIC:#x}") };
        let len = file.metadata().map_err(failed())?.len();
        if len != file_len() as u64 {
            return Err(wrong(format!("{len} bytes")));
        }
        let map = Arc::new(Mapped::new(file).map_err(failed())?);
        let magic = map.header().magic.load(Acquire);
        if magic != MAGIC {
            return Err(wrong(format!("layout {magic:#x}")));
        }
        let (base, len) = map.region();
        Ok(Self {
            region: attach_region(base, len, &map)?,
            map,
            locks: LockFile::open(dir)?,
            dir: dir.into(),
        })
    }

    /// Whether the node in `dir` is still the one that is looked at.
    pub fn is_of(&self, dir: &Path) -> bool {
        ids(self.map.file.metadata()) == Self::identity(dir)
    }

    /// Device and inode number of the node in `dir`, if there is one.
    pub fn identity(dir: &Path) -> Option<(u64, u64)> {
        ids(std::fs::metadata(dir.join("adapter")))
    }

    /// What the port of `fid` has counted, by `devmodel::state::Counters`.
    pub fn counters(&self, fid: u8) -> [u64; COUNTERS] {
        self.region.counters(fid)
    }

    /// What the port of `fid` says to a performance management MAD; `None` to what is no question.
    pub fn performance(&self, fid: u8, request: &[u8; MAD_SIZE]) -> Option<[u8; MAD_SIZE]> {
        self.region.performance(fid, request)
    }

    /// What comes back to function `from` when a subnet management MAD that asks leaves its port for `dlid`; `None`: nothing.
    pub fn management(&self, from: u8, dlid: u16, request: &[u8; MAD_SIZE]) -> Option<[u8; MAD_SIZE]> {
        self.region.management(&read_behaviour(&self.map), from, dlid, request)
    }

    /// The port of `fid`.
    pub fn port(&self, fid: u8) -> Option<PortGlimpse> {
        self.region.port(fid)
    }

    /// Whether programs are on the node; nothing happens on it while there are none.
    pub fn has_programs(&self) -> bool {
        let taken = self.map.parties().iter().enumerate().filter(|(_, place)| place.state.load(Relaxed) != 0);
        taken.into_iter().any(|(slot, _)| slot != 0 && self.locks.holder(slot as u8).is_some())
    }

    /// The queue pairs of `fid`.
    pub fn qps(&self, fid: u8) -> impl Iterator<Item = Seen<QpRow>> + '_ {
        self.seen(fid, |row: &QpRow| (row.head.uid, row.head.party))
    }

    /// The completion queues of `fid`.
    pub fn cqs(&self, fid: u8) -> impl Iterator<Item = Seen<CqRow>> + '_ {
        self.seen(fid, |row: &CqRow| (row.head.uid, row.head.party))
    }

    /// The memory keys of `fid`, which are known by their index.
    pub fn mkeys(&self, fid: u8) -> impl Iterator<Item = Seen<MkeyRow>> + '_ {
        self.seen(fid, |row: &MkeyRow| (row.head.uid, row.head.party))
    }

    /// The protection domains of `fid`.
    pub fn pds(&self, fid: u8) -> impl Iterator<Item = Seen<PdRow>> + '_ {
        self.seen(fid, |row: &PdRow| (row.head.uid, row.head.party))
    }

    /// The shared receive queues of `fid`.
    pub fn srqs(&self, fid: u8) -> impl Iterator<Item = Seen<SrqRow>> + '_ {
        self.seen(fid, |row: &SrqRow| (row.head.uid, row.head.party))
    }

    /// The user contexts of `fid`: one for each time it is open. The context's own number is the row's index.
    pub fn contexts(&self, fid: u8) -> impl Iterator<Item = Seen<UctxRow>> + '_ {
        self.seen(fid, |row: &UctxRow| (row.head.uid, row.head.party))
    }

    /// The connection identifiers of `fid`. Their context is not known.
    pub fn cm_ids(&self, fid: u8) -> impl Iterator<Item = Seen<CmId>> {
        // Without the file nobody has used any.
        let all = board::cm_ids(&self.dir).unwrap_or_default().into_iter();
        all.filter(move |(_, _, row)| row.fid == fid).map(|(number, pid, row)| {
            let owner = Owner { context: 0, pid };
            Seen { number, owner, row }
        })
    }

    /// Objects of programs that live: what the dead left goes when the next program comes.
    fn seen<R>(&self, fid: u8, whose: fn(&R) -> (u16, u16)) -> impl Iterator<Item = Seen<R>> + '_
    where
        R: devmodel::region::Row + zerocopy::FromBytes + 'static,
    {
        let mut known: [Option<Option<u32>>; PARTIES] = [None; PARTIES];
        self.region.objects::<R>(fid).filter_map(move |(number, row)| {
            let (context, party) = whose(&row);
            let slot = usize::from(party) % PARTIES;
            let pid = *known[slot].get_or_insert_with(|| self.locks.holder(slot as u8));
            Some(Seen { number, owner: Owner { context, pid: pid? }, row })
        })
    }
}
