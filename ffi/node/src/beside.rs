//! Two adapters that a link joins directly: programs on one put their frames into the receive rings of the other and run the receivers, as
//! between functions of one adapter, without a thread of the link.
//!
//! The party that holds both uplinks records in each adapter's file which the other is. A program that opens a function becomes a party of
//! the other adapter as well, if it may open it, until it has closed all functions of both. Frames of other programs (as in containers),
//! groups, address discovery and raw packets leave by the uplink, and no frame overtakes an earlier one there.

use super::{
    core::Core, data, drive::Rest, file::BesideSlot, host::NodeHost, memory::Memory, node::Node,
    scratch::bits,
};
use devmodel::region::{FunctionSet, WireRing};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicUsize, Ordering::*},
    },
};

/// Taken to open or close an adapter beside another.
static CHANGES: Mutex<()> = Mutex::new(());

fn change() -> MutexGuard<'static, ()> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The adapter beside one that this process has open.
#[derive(Default)]
pub struct Beside {
    /// Open functions of this adapter.
    users: AtomicUsize,
    /// The other adapter. Its place among the parties cannot be given up while a thread reads this. Calls never wait for it: they may be
    /// in a signal handler, or in one of those threads.
    node: RwLock<Option<Arc<Node>>>,
}

impl Beside {
    fn is_set(&self) -> bool {
        self.node.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, node: Option<Arc<Node>>) -> Option<Arc<Node>> {
        std::mem::replace(&mut *self.node.write().unwrap_or_else(PoisonError::into_inner), node)
    }
}

/// One function of an adapter that is open. As long as there is one, the adapter beside it stays open.
pub struct User(Arc<Core>);

impl Drop for User {
    fn drop(&mut self) {
        // Locks and threads belong to the parent of a forked child.
        if !self.0.is_ours() {
            return;
        }
        let beside = &self.0.beside;
        let changes = change();
        if beside.users.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        let other = beside.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        let unused = other.filter(|other| other.core.beside.users.load(Relaxed) == 0);
        let gone = unused.map(|other| (beside.set(None), other.core.beside.set(None), other));
        drop(changes);
        // To close an adapter takes locks and waits for its thread.
        drop(gone);
    }
}

impl BesideSlot {
    fn id(&self) -> (u64, u64) {
        let inode = self.file[1].load(Acquire);
        (self.file[0].load(Relaxed), inode)
    }

    /// The other adapter's file and directory.
    fn read(&self) -> Option<((u64, u64), PathBuf)> {
        let id = self.id();
        let bytes: Vec<u8> = self.dir.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let len = bytes.iter().position(|byte| *byte == 0)?;
        (id.1 != 0).then(|| (id, Path::new(OsStr::from_bytes(&bytes[..len])).into()))
    }

    fn set(&self, (device, inode): (u64, u64), dir: &Path) {
        self.clear();
        let mut bytes = dir.as_os_str().as_bytes().to_vec();
        // At least one zero ends the path. Programs on an adapter with a longer one use the uplink.
        if bytes.len() >= size_of_val(&self.dir) {
            return;
        }
        bytes.resize(size_of_val(&self.dir), 0);
        for (word, bytes) in self.dir.iter().zip(bytes.chunks_exact(size_of::<u64>())) {
            word.store(u64::from_ne_bytes(hwspec::layout::prefix(bytes)), Relaxed);
        }
        self.file[0].store(device, Relaxed);
        self.file[1].store(inode, Release);
    }

    fn clear(&self) {
        self.file[1].store(0, Release);
        self.passed.store(0, Relaxed);
    }
}

impl Node {
    /// Counts a function of this adapter as open. The first one opens the adapter beside this one, if a link has joined them and this
    /// process may open it.
    pub(super) fn begin_use(self: &Arc<Self>) -> User {
        // Another program may hold the lock of that adapter for a while, so others are not kept waiting for this.
        let opened = if self.core.beside().is_some() { None } else { self.open_beside() };
        let changes = change();
        self.core.beside.users.fetch_add(1, Relaxed);
        let gone = match opened {
            Some(other) if self.core.beside().is_none() && !other.core.beside.is_set() => {
                other.core.beside.set(Some(self.clone()));
                let before = self.core.beside.set(Some(other));
                // A link has joined another adapter since.
                let back = before.as_ref().and_then(|before| before.core.beside.set(None));
                (before, back)
            }
            opened => (opened, None),
        };
        drop(changes);
        drop(gone);
        User(self.core.clone())
    }

    fn open_beside(&self) -> Option<Arc<Self>> {
        let (id, dir) = self.core.map.header().beside.read()?;
        // The words may come from any program that can write to this adapter's file. So nothing is opened but an adapter that the same
        // users can write to, and that names this one.
        if data::id(&dir.join("adapter")) != Some(id) || !has_same_users(&self.core.dir, &dir) {
            return None;
        }
        let other = Self::open(&dir).ok()?;
        if !self.core.is_joined(&other.core) {
            return None;
        }
        other.core.make_room_for_frames().ok()?;
        // Its thread resumes the work that a call leaves.
        other.park().ok()?;
        other.core.meet();
        Some(other)
    }
}

/// True if two directories have the same owner, group and mode.
fn has_same_users(a: &Path, b: &Path) -> bool {
    let users = |dir| fs::symlink_metadata(dir).ok().map(|meta| (meta.uid(), meta.gid(), meta.mode()));
    users(a).is_some_and(|of_a| users(b) == Some(of_a))
}

impl Core {
    /// Records that a link joins the adapter of `other` to this one.
    pub fn set_beside(&self, other: &Node) {
        self.map.header().beside.set(other.core.map.id, other.dir());
    }

    /// Records that no adapter is joined to this one any more.
    pub fn forget_beside(&self) {
        self.map.header().beside.clear();
    }

    /// True if a link joins the adapter of `other` to this one. In virtual time, frames take the time that the link takes.
    fn is_joined(&self, other: &Self) -> bool {
        let names = |one: &Self, other: &Self| one.map.header().beside.id() == other.map.id;
        names(self, other) && names(other, self) && self.board().is_none() && other.board().is_none()
    }

    /// Number of frames that programs have delivered to the adapter beside this one.
    pub fn passed(&self) -> u64 {
        self.map.header().beside.passed.load(Relaxed)
    }

    /// The adapter beside this one, if it may get frames directly.
    fn beside(&self) -> Option<Open<'_>> {
        if self.map.header().beside.file[1].load(Relaxed) == 0 {
            return None;
        }
        self.known_beside().filter(|open| open.core().is_some_and(|other| self.is_joined(other)))
    }

    /// The adapter that is or was beside this one, if this process has it open.
    fn known_beside(&self) -> Option<Open<'_>> {
        let open = Open(self.beside.node.try_read().ok()?);
        let is_usable = open.core().is_some_and(|other| other.is_ours() && !other.is_lost());
        is_usable.then_some(open)
    }

    /// Free slots in the receive ring of the function with `mac` of the adapter beside this one.
    pub fn room_beside(&self, mac: [u8; 6]) -> Option<usize> {
        let open = self.beside()?;
        let adapter = &open.core()?.adapter;
        if adapter.is_watched() {
            return None;
        }
        adapter.owner(&mac).map(|fid| WireRing::of(adapter.region(), fid).free())
    }

    /// Delivers a frame to its receiver on the adapter beside this one. Returns the functions to [run](Self::run_beside); `None` if the
    /// frame must leave by the uplink.
    pub fn deliver_beside(&self, headers: &[u8], payload: &[u8]) -> Option<FunctionSet> {
        let open = self.beside()?;
        let other = open.core()?;
        let deliver = || {
            other.engines.with(|engine| {
                let mut host = NodeHost(Memory { core: other, scratch: &mut engine.scratch });
                let now = other.now();
                let taken = engine.runner.accept(&other.adapter, &mut host, now, (headers, payload));
                engine.scratch.entrusted.drain(|fid| other.polling.entrust(fid));
                if engine.scratch.suspect != 0 {
                    other.suspect(std::mem::take(&mut engine.scratch.suspect));
                }
                taken.then(|| engine.runner.take_due())
            })
        };
        // The other adapter's file may be damaged, which is no fault of this one.
        let due = catch_unwind(AssertUnwindSafe(deliver)).ok()??;
        self.map.header().beside.passed.fetch_add(1, Relaxed);
        Some(due)
    }

    /// Runs functions of the adapter beside this one. Returns the functions of this adapter that have got frames of them.
    #[cold]
    pub fn run_beside(&self, due: FunctionSet) -> FunctionSet {
        let Some(open) = self.known_beside() else { return 0 };
        let Some(other) = open.core() else { return 0 };
        let run = || {
            let now = other.now();
            other.engines.with(|engine| {
                let mut host = NodeHost(Memory { core: other, scratch: &mut engine.scratch });
                // The next poll runs the functions that this program polls.
                bits(due)
                    .filter(|fid| !other.is_poller(*fid))
                    .for_each(|fid| engine.runner.run(&other.adapter, &mut host, now, fid));
                other.afterwards(&mut engine.runner, &mut host, now, Rest::ToCaller)
            })
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or(0)
    }

    /// Leaves functions of the adapter beside this one to the thread that is parked there.
    #[cold]
    pub fn leave_beside(&self, due: FunctionSet) {
        if let Some(other) = self.known_beside().as_ref().and_then(Open::core) {
            other.leave_to_parked(due);
        }
    }

    /// Runs the functions of the adapter beside this one whose programs have not taken the frames left to them.
    pub fn take_back_beside(&self) {
        if let Some(other) = self.known_beside().as_ref().and_then(Open::core) {
            other.take_back_entrusted(other.now());
        }
    }

    /// The same for the parked thread. Returns true if it should check again soon.
    pub fn take_back_stalled_beside(&self) -> bool {
        let open = self.known_beside();
        open.as_ref().and_then(Open::core).is_some_and(|other| other.take_back_stalled(other.now()))
    }
}

/// The adapter beside one, which stays open as long as this exists.
struct Open<'a>(RwLockReadGuard<'a, Option<Arc<Node>>>);

impl Open<'_> {
    fn core(&self) -> Option<&Core> {
        self.0.as_ref().map(|node| &*node.core)
    }
}
