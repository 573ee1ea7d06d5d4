//! A node: creation, opening, status and reset.

use super::{
    NodeError, NodeStatus,
    arena::{Arena, Owner},
    core::Core,
    damage::{attach_region, map_existing, sane},
    data, dir,
    file::{Access, FUNCTIONS, HEAD_LEN, MAGIC, Mapped, PAGE, REGION_AT, RegionMemory, file_len, region_len},
    locks::{LockFile, NodeLock},
    parked::Parked,
    party::Me,
    party_set::PROGRAMS,
    ports::Ports,
    room, sys, vfs,
};
use crate::{
    devices::{DeviceInfo, MAX_VFS},
    naming::{Bus, Name, Naming},
};
use devmodel::{
    Adapter, Config, Conformance, LinkLayer,
    host::{self, Parties, Party},
    identity::MAX_SUBNET_ID,
    region::{Geometry, Region},
    strict::Strict,
    wire::Faults,
};
use std::{
    fs::OpenOptions as FileOptions,
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak, atomic::Ordering::*},
};

/// Options for creating a node, and requirements for an existing one.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Number of virtual functions. `None`: as many as the node has, or 8 if it is new.
    pub vfs: Option<u8>,
    /// Disables direct copies between programs' memories; each parked thread copies for its own program instead. For hosts that forbid such
    /// copies, and for tests of that case. Applies only to a new node.
    pub no_direct_copies: bool,
    /// Behaviour of the adapter. Applies only to a new node.
    pub config: Config,
    /// The link layer of the ports, and the node's number: [`Config::link_layer`] and [`Config::node_id`]. `None`: as in the existing node,
    /// or from `config` for a new one. It is an error if an existing node has another value.
    pub link_layer: Option<LinkLayer>,
    /// The node's number, like `link_layer`.
    pub node_id: Option<u16>,
    /// [`Config::faults`], like `link_layer`.
    pub faults: Option<Faults>,
    /// [`Config::strict`], like `link_layer`.
    pub strict: Option<Strict>,
    /// The verbs name of the functions, like `link_layer`.
    pub name: Option<Name>,
    /// The PCI bus of the functions, like `link_layer`.
    pub bus: Option<Bus>,
    /// The NUMA node of the adapter, like `link_layer`.
    pub numa: Option<u16>,
}

/// A node in this process, shared by all its users here.
pub struct Node {
    parked: Mutex<Option<Parked>>,
    pub(super) core: Arc<Core>,
    file: (u64, u64),
}

static NODES: Mutex<Vec<Weak<Node>>> = Mutex::new(Vec::new());

impl Node {
    /// Opens the node in `dir`, and creates it if there is none.
    pub fn open_or_create(dir: &Path, options: &NodeOptions) -> Result<Arc<Self>, NodeError> {
        let dir = dir::claim_in_memory(dir)?;
        sane(&dir, || Self::open_with(&dir, Some(options)))
    }

    /// Opens the node in `dir`, which must exist.
    pub fn open(dir: &Path) -> Result<Arc<Self>, NodeError> {
        let dir = dir::existing(dir)?;
        sane(&dir, || Self::open_with(&dir, None))
    }

    fn open_with(dir: &Path, options: Option<&NodeOptions>) -> Result<Arc<Self>, NodeError> {
        let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|n| n.strong_count() != 0);
        let path = dir.join("adapter");
        if options.is_none() && !path.exists() {
            return Err(NodeError::Missing(dir.into()));
        }
        let (locks, lock) = LockFile::open_locked(dir)?;
        let id = data::id(&path);
        let is_usable = |node: &Self| {
            node.core.has_its_files();
            Some(node.file) == id && node.core.is_ours() && !node.core.is_lost()
        };
        let known = nodes.iter().filter_map(Weak::upgrade).find(|node| is_usable(node));
        let node = match (known, id, options) {
            (Some(node), ..) => node,
            (None, None, None) => return Err(NodeError::Missing(dir.into())),
            (None, None, Some(options)) => Self::create(dir, options, locks, &lock)?,
            (None, Some(_), _) => Self::attach(dir, locks, &lock)?,
        };
        node.core.reap_locked(&lock);
        let wanted = node.has_room().and_then(|()| {
            let Some(options) = options else { return Ok(()) };
            node.is_as_asked(options)?;
            options.vfs.map_or(Ok(()), |asked| node.core.want_vfs(asked, &lock))
        });
        if wanted.is_ok() && !nodes.iter().any(|n| n.as_ptr() == Arc::as_ptr(&node)) {
            nodes.push(Arc::downgrade(&node));
        }
        // Dropping a node acquires the lock, so it must be free when an error returns.
        drop(lock);
        wanted.map(|()| node)
    }

    /// Checks that there is room for this party. The slots of dead parties have already been freed.
    fn has_room(&self) -> Result<(), NodeError> {
        match self.core.map.header().taken.len() > PROGRAMS {
            true => Err(NodeError::Full),
            false => Ok(()),
        }
    }

    /// Checks that an existing node has the fixed properties that `options` require.
    fn is_as_asked(&self, options: &NodeOptions) -> Result<(), NodeError> {
        let config = self.core.adapter.config();
        let differs = |what, asked: String, found: String| {
            Err(NodeError::Differs { dir: self.core.dir.clone(), what, asked, found })
        };
        match (options.link_layer, options.node_id) {
            (Some(asked), _) if asked != config.link_layer => {
                differs("link layer", asked.to_string(), config.link_layer.to_string())
            }
            (_, Some(asked)) if asked != config.node_id => {
                differs("id", asked.to_string(), config.node_id.to_string())
            }
            _ => match (options.faults, options.strict) {
                (Some(asked), _) if asked != config.faults => {
                    differs("faults", asked.to_string(), config.faults.to_string())
                }
                (_, Some(asked)) if asked != config.strict => {
                    differs("strictness", asked.to_string(), config.strict.to_string())
                }
                _ => self.is_called(options).or_else(|(what, asked, found)| differs(what, asked, found)),
            },
        }
    }

    /// Checks that an existing node has the names that `options` require. The error is the property that differs, its requested and its
    /// actual value.
    fn is_called(&self, options: &NodeOptions) -> Result<(), (&'static str, String, String)> {
        let Naming { name, bus, numa } = self.core.map.naming().unwrap_or_default();
        let near = |numa: Option<u16>| numa.map_or("none".into(), |numa| numa.to_string());
        match (options.name, options.bus, options.numa) {
            (Some(asked), ..) if asked != name => Err(("name", asked.to_string(), name.to_string())),
            (_, Some(asked), _) if asked != bus => Err(("PCI address", asked.to_string(), bus.to_string())),
            (.., asked @ Some(_)) if asked != numa => Err(("NUMA node", near(asked), near(numa))),
            _ => Ok(()),
        }
    }

    /// Creates the file under a temporary name, so that a partial node is never visible.
    fn create(
        dir: &Path,
        options: &NodeOptions,
        locks: &'static LockFile,
        lock: &NodeLock,
    ) -> Result<Arc<Self>, NodeError> {
        let config = Config {
            link_layer: options.link_layer.unwrap_or(options.config.link_layer),
            node_id: options.node_id.unwrap_or(options.config.node_id),
            faults: options.faults.unwrap_or(options.config.faults),
            strict: options.strict.unwrap_or(options.config.strict),
            ..options.config
        };
        if config.link_layer == LinkLayer::Infiniband && config.node_id > MAX_SUBNET_ID {
            return Err(NodeError::SubnetId { id: config.node_id, most: MAX_SUBNET_ID });
        }
        room::room(dir, room::ROOM_TO_CREATE)?;
        let (limit, need) = (sys::file_size_limit(), file_len() as u64);
        if limit < need {
            return Err(NodeError::FileSize { dir: dir.into(), limit, need });
        }
        let (path, half) = (dir.join("adapter"), dir.join("adapter.new"));
        let _ = std::fs::remove_file(&half);
        let made = || -> Result<_, NodeError> {
            let step = || NodeError::system(format!("make {}", half.display()));
            let file = FileOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&half);
            let file = file.map_err(step())?;
            dir::new_file(&file, dir).map_err(step())?;
            file.set_len(file_len() as u64).map_err(step())?;
            let map = Arc::new(Mapped::new(file, Access::Change, room::lost_notice(dir)).map_err(step())?);
            if !(map.back(0, HEAD_LEN) && map.back(REGION_AT, PAGE)) {
                return Err(room::no_room(dir, room::ROOM_TO_CREATE));
            }
            let id = map.id;
            let header = map.header();
            header.epoch.store(sys::monotonic_ns(), Relaxed);
            header.no_direct.store(options.no_direct_copies.into(), Relaxed);
            write_behaviour(&map, &config);
            let usual = Naming::default();
            let naming = Naming {
                name: options.name.unwrap_or(usual.name),
                bus: options.bus.unwrap_or(usual.bus),
                numa: options.numa,
            };
            map.header().naming.iter().zip(naming.words()).for_each(|(to, word)| to.store(word, Relaxed));
            let me = Me::claim(dir, &map, locks, lock)?;
            let adapter = power_on(dir, &map, config, me);
            let adapter = adapter.inspect_err(|_| locks.end_life(me.slot))?;
            let core = Arc::new(Core::new(dir.into(), map, adapter, locks, me));
            core.set_vfs(options.vfs.unwrap_or(vfs::DEFAULT).min(MAX_VFS), lock)?;
            core.map.header().magic.store(MAGIC, Release);
            std::fs::rename(&half, &path).map_err(NodeError::system(format!("make {}", path.display())))?;
            Ok(Arc::new(Self { parked: Mutex::new(None), core, file: id }))
        };
        sane(dir, made).inspect_err(|_| drop(std::fs::remove_file(&half)))
    }

    fn attach(dir: &Path, locks: &'static LockFile, lock: &NodeLock) -> Result<Arc<Self>, NodeError> {
        let map = map_existing(dir, Access::Change)?;
        let id = map.id;
        let config = read_behaviour(&map);
        let region = attach_region(dir, &map)?;
        let me = Me::claim(dir, &map, locks, lock)?;
        free_stray_locks(&region, me, (map.header().vfs.load(Acquire) as u8).min(MAX_VFS));
        let core = Arc::new(Core::new(dir.into(), map, Adapter::attach(region, config), locks, me));
        Ok(Arc::new(Self { parked: Mutex::new(None), core, file: id }))
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Its directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.core.dir
    }

    /// The link layer of its ports.
    pub fn link_layer(&self) -> LinkLayer {
        self.core.adapter.config().link_layer
    }

    /// Number of enabled virtual functions.
    pub fn vfs(&self) -> u8 {
        self.core.map.header().vfs.load(Acquire) as u8
    }

    /// The PF or VF with the address `ip`: the one that was set, or else its default loopback address.
    pub fn device_at(&self, ip: IpAddr) -> Option<DeviceInfo> {
        self.core.devices().find(|device| device.ip == ip)
    }

    /// The PF and the enabled VFs, as programs see them.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        (0..=self.vfs()).map(|fid| self.core.device(fid)).collect()
    }

    /// The names and PCI addresses of the functions.
    pub fn naming(&self) -> Naming {
        self.core.map.naming().unwrap_or_default()
    }

    /// This process's number among the parties.
    pub fn party(&self) -> u16 {
        self.core.me.slot
    }

    /// The model of the adapter, for tools that look inside.
    pub fn adapter(&self) -> &Adapter {
        &self.core.adapter
    }

    /// True if this process itself copies to and from the memory of the program of `party`.
    pub fn reaches(&self, party: u16) -> bool {
        self.core.reaches(party)
    }

    /// True if this process copies to and from the memory of programs that permit it.
    pub fn copies_directly(&self) -> bool {
        self.core.copies_directly()
    }

    /// The status of the node. Cleans up after dead parties first.
    pub fn status(&self) -> Result<NodeStatus, NodeError> {
        self.core.status()
    }

    /// Starts the parked thread, once.
    pub(super) fn park(&self) -> Result<(), NodeError> {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if parked.is_none() {
            *parked =
                Some(Parked::start(&self.core).map_err(NodeError::system("start the adapter's thread"))?);
        }
        Ok(())
    }

    /// Removes the node in `dir`. Fails while programs use it, unless `force` is set: those programs then keep their old node. Returns true
    /// if there was one.
    pub fn reset(dir: &Path, force: bool) -> Result<bool, NodeError> {
        let dir: PathBuf = match dir::existing(dir) {
            Err(NodeError::Missing(_)) => return Ok(false),
            other => other?,
        };
        let nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
        // Kept until the lock is free again, because dropping the last reference to a node acquires it.
        let ours: Vec<Arc<Self>> = nodes.iter().filter_map(Weak::upgrade).collect();
        let locked = match LockFile::open_locked(&dir) {
            // A forced reset does not need the lock: the next node is a new file.
            Err(NodeError::Held { .. }) if force => None,
            other => Some(other?),
        };
        let path = dir.join("adapter");
        let id = data::id(&path);
        let mut pids = locked.as_ref().map_or_else(Vec::new, |(locks, _)| locks.holders());
        if ours.iter().any(|n| Some(n.file) == id && n.core.is_ours()) {
            pids.push(std::process::id());
        }
        if !pids.is_empty() && !force {
            return Err(NodeError::Busy { dir, pids });
        }
        let _ = std::fs::remove_file(dir.join("adapter.new"));
        let removed = match std::fs::remove_file(&path) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(NodeError::system(format!("remove {}", path.display()))(e)),
        };
        // Programs that live on without their node are told from those of the next by these files.
        if let Some((locks, lock)) = locked.as_ref().filter(|_| pids.is_empty()) {
            Ports::remove(&dir);
            locks.remove(&dir, lock);
        }
        Ok(removed)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.parked.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let core = &self.core;
        if !core.is_ours() {
            return;
        }
        // Program memory that is still in the arena must be moved back before this process's slot is freed.
        if !core.take_all_back() || core.is_lost() {
            core.lent.keep();
            return;
        }
        // Otherwise, the process that cleans up after this one frees the slot.
        let is_opener = || (0..FUNCTIONS as u8).any(|fid| core.has_open(core.me.slot, fid));
        if let Some(lock) = core.locks.lock().ok().filter(|_| !is_opener()) {
            Arena::new(&core.map, &lock).free_all(Owner::Party(core.me.slot));
            core.map.header().taken.remove(core.me.slot);
            core.locks.end_life(core.me.slot);
        }
    }
}

fn write_behaviour(map: &Mapped, config: &Config) {
    let profile = match config.profile {
        Conformance::Ibta => 0,
        Conformance::Cx5 => 1,
    };
    let link_layer = match config.link_layer {
        LinkLayer::Ethernet => 0,
        LinkLayer::Infiniband => 1,
    };
    let [flags, slow, card] = config.strict.words();
    let words = [
        profile,
        config.min_ack_timeout.into(),
        config.ack_every,
        config.sealed.into(),
        config.budget,
        link_layer,
        config.node_id.into(),
        config.faults.drop,
        config.faults.duplicate,
        config.faults.reorder,
        config.faults.corrupt,
        config.faults.delay,
        config.faults.seed,
        flags,
        slow,
        card,
    ];
    map.header().behaviour.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
}

/// Reads the adapter's behaviour as its creator recorded it.
pub(super) fn read_behaviour(map: &Mapped) -> Config {
    let [profile, timeout, ack_every, sealed, budget, link_layer, node_id, rest @ ..] =
        map.header().behaviour.each_ref().map(|word| word.load(Relaxed));
    let [drop, duplicate, reorder, corrupt, delay, seed, strict @ ..] = rest;
    Config {
        profile: if profile == 0 { Conformance::Ibta } else { Conformance::Cx5 },
        min_ack_timeout: timeout as u8,
        ack_every,
        sealed: sealed != 0,
        budget,
        link_layer: if link_layer == 0 { LinkLayer::Ethernet } else { LinkLayer::Infiniband },
        node_id: node_id as u16,
        faults: Faults { drop, duplicate, reorder, corrupt, delay, seed },
        // Invalid words have been refused earlier.
        strict: Strict::of_words(strict).unwrap_or_default(),
        ..Config::default()
    }
}

fn power_on(dir: &Path, map: &Arc<Mapped>, config: Config, me: Me) -> Result<Adapter, NodeError> {
    let region = Region::create(region_len(), Geometry::NODE, Box::new(RegionMemory(map.clone())))?;
    if !(region.back_words() && region.back_function(0, Party(me.slot))) {
        return Err(room::no_room(dir, room::ROOM_TO_CREATE));
    }
    Ok(Adapter::power_on(region, config, &mut Unplugged(Party(me.slot))))
}

/// Frees locks that name this party. A new party holds none, so they are damage, and this process would wait for itself.
fn free_stray_locks(region: &Region, me: Me, vfs: u8) {
    let me = Party(me.slot);
    for fid in 0..=vfs {
        let locks = [region.function_lock(fid), region.ring_lock(fid)];
        if locks.iter().any(|lock| lock.holder() == Some(me)) {
            region.free_locks_among(fid..fid + 1, &mut Unplugged(STRANGER), me);
        }
    }
}

/// A party number that is not used on any node.
const STRANGER: Party = Party(u16::MAX);

/// A host without a machine, for switching on the adapter and checking its locks. It considers only the calling party alive.
struct Unplugged(Party);

impl host::Bus for Unplugged {}

impl Parties for Unplugged {
    fn entropy(&mut self) -> [u64; 2] {
        // Two hashes under keys that the standard library gets from the system.
        let random = RandomState::new();
        [0, 1].map(|i: u64| random.hash_one(i))
    }
    fn party(&self) -> Party {
        self.0
    }
    fn reaches(&mut self, _: Party) -> bool {
        false
    }
    fn wake(&mut self, _: Party) {}
    fn alive(&mut self, party: Party) -> bool {
        party == self.0
    }
    fn relax(&mut self, _: Party, _: u32) -> bool {
        sys::yield_now();
        false
    }
}
