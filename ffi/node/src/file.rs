//! Layout of the node's file.
//!
//! A header, the state of functions and neighbours, the slots of parties, the listeners of each interrupt vector, the arena's books, the
//! adapter's region, and the arena itself. The file is sparse, so untouched parts cost nothing: the head has memory from the start; the
//! slot of a party and the listeners of a vector get theirs on first use. All words before the region are atomics.
#![allow(unsafe_code)]

use super::{
    books::{CLASSES, block_of},
    naming::{self, Naming},
    party_set::{PARTIES, PARTY_BITS, PartySet},
    sys::{self, Shared},
};
use devmodel::{
    missing::{Mark, Replace, Watched},
    region::{Geometry, Memory, NoAddresses},
};
use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::MetadataExt,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
};
use sync::{Bell, Kept};

/// First word of the file: name and version of the layout.
pub const MAGIC: u64 = 0x6e6f_6465_0000_0013;
const _: () = assert!(PARTIES <= 1 << PARTY_BITS);
/// Maximum number of functions of a node.
pub const FUNCTIONS: usize = 128;
/// Number of neighbours that are remembered.
pub const NEIGHBOURS: usize = 256;
/// Interrupt vectors of a function.
pub const VECTORS: usize = 64;
/// `Header::by_value`: some program cannot copy to and from another's memory.
pub const UNREACHED: u32 = 1;
/// `Header::by_value`: a function is served to a guest.
pub const SERVED: u32 = 2;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of the arena: 64 GiB of addresses, of which only allocated blocks have memory.
pub const ARENA_PAGES: u32 = 16 << 20;

/// The first page.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// CLOCK_MONOTONIC (ns) at the node's creation, which is its time 0.
    pub epoch: AtomicU64,
    /// VFs enabled.
    pub vfs: AtomicU32,
    /// 1 if the node's configuration forbids direct copies between programs.
    pub no_direct: AtomicU32,
    /// Not 0 if payload travels by value. With [`UNREACHED`], that is the payload of functions with openers that have memory used by its
    /// virtual address; with [`SERVED`], payload to and from guests.
    pub by_value: AtomicU32,
    /// The adapter's behaviour: profile (0 Ibta, 1 Cx5), minimum acknowledgement timeout, packets between requests for an acknowledgement,
    /// sealed frames, budget, link layer (0 Ethernet, 1 InfiniBand), node ID; faults of frames; strictness.
    pub behaviour: [AtomicU32; 16],
    /// Names and addresses of the functions: the words of a [`Naming`].
    pub naming: [AtomicU32; naming::WORDS],
    /// The outlets: uplink and capture.
    pub outlets: [OutletSlot; 2],
    /// The adapter that a link joins to this one directly.
    pub beside: BesideSlot,
    /// Counts changes of the neighbours, and is the futex word for threads that wait for an address.
    pub neighbours_changed: AtomicU32,
    /// Total number of dead parties that were cleaned up after.
    pub reaped: AtomicU32,
    /// 1 while a party changes the arena's books.
    pub arena_busy: AtomicU32,
    /// Number of arena pages ever used. There are no gaps between blocks below it.
    pub arena_fresh: AtomicU32,
    /// For each class the first free block: its first page plus one.
    pub arena_free: [AtomicU32; CLASSES],
    /// Pages in use.
    pub arena_used: AtomicU64,
    /// Slots taken by living parties, and by dead ones that are not cleaned up after yet.
    pub taken: PartySet,
}

/// The consumer of an outlet of the adapter's region.
#[repr(C)]
pub struct OutletSlot {
    /// Opener (see `Transport::opener`) that consumes it; 0 if none.
    pub holder: AtomicU32,
    /// Rung when there are frames; the consumer's thread sleeps on it.
    pub bell: Bell,
}

/// The adapter that a link joins to this one directly.
#[repr(C)]
pub struct BesideSlot {
    /// Device number of its file's file system, and the inode; zero if there is none.
    pub file: [AtomicU64; 2],
    /// Its directory, padded with zeros.
    pub dir: [AtomicU64; 32],
    /// Number of frames that programs of this adapter have delivered to it.
    pub passed: AtomicU64,
}

/// A neighbour: an address beyond the uplink.
#[repr(C)]
pub struct NeighbourSlot {
    /// 0 free, 1 requested, 2 known.
    pub state: AtomicU32,
    /// Function that requested it.
    pub asker: AtomicU32,
    /// IPv6 or IPv4-mapped address, as big-endian numbers.
    pub address: [AtomicU64; 2],
    /// MAC, as a big-endian number.
    pub mac: AtomicU64,
    /// When it was last heard from or requested, in ps.
    pub at: AtomicU64,
}

/// The slot of a party. [`Header::taken`] tells whether it is taken.
#[repr(C, align(256))]
pub struct PartySlot {
    /// How often the slot was taken.
    pub generation: AtomicU32,
    /// Process ID in its own PID namespace.
    pub pid: AtomicU32,
    /// PID namespace (inode number).
    pub pid_namespace: AtomicU64,
    /// Start time of the process, which distinguishes it from a later one with the same PID.
    pub started: AtomicU64,
    /// Address, in the process, of a copy of `token`, by which others find out whether they can access its memory.
    pub probe: AtomicU64,
    /// A random number.
    pub token: AtomicU64,
    /// Wakes the parked thread.
    pub bell: Bell,
    /// When the parked thread wakes by itself, in ps of the node's time; 0 while it is awake, all ones for never.
    pub deadline: AtomicU64,
    /// How often the parked thread was woken.
    pub wakes: AtomicU64,
    /// How often it woke because of a timer.
    pub ticks: AtomicU64,
    /// Functions it has open, a bit each.
    pub functions: [AtomicU64; 2],
    /// Number of ranges of its memory that the device uses by their virtual addresses. All other memory of its functions is in the node's
    /// file.
    pub by_address: AtomicU32,
}

/// State of a function. The members that every access to memory reads come first.
#[repr(C, align(128))]
pub struct FunctionSlot {
    /// Party that serves the function to a client outside the node, and is then the only one that runs it; 0 if none.
    pub server: AtomicU32,
    /// Party that polls the function continuously and that others leave its frames to; 0 if none.
    pub poller: AtomicU32,
    /// The block that its openers share: its first page in the arena plus one.
    pub shared: AtomicU32,
    /// Length of the network prefix of `address`.
    pub prefix: AtomicU32,
    /// No party becomes the function's poller until this time (ms of the node's time). A time in the past tells when a poller last kept
    /// others waiting (see `polling`).
    pub distrusted: AtomicU64,
    /// The IP address that was set, IPv6 or IPv4-mapped, as big-endian numbers; all zero if none.
    pub address: [AtomicU64; 2],
    /// Parties that have it open.
    pub openers: PartySet,
    /// Vectors with listeners, a bit each ([`Mapped::listeners`]).
    pub vectors: AtomicU64,
    /// How often each vector fired, on separate cache lines because it is written often.
    pub fired: Fired,
}

/// A counter per interrupt vector.
#[repr(C, align(128))]
pub struct Fired(pub [AtomicU32; VECTORS]);

const FUNCTIONS_AT: usize = PAGE;
const LIVES_AT: usize = FUNCTIONS_AT + FUNCTIONS * size_of::<FunctionSlot>();
const NEIGHBOURS_AT: usize = (LIVES_AT + PARTIES * size_of::<AtomicU32>()).next_multiple_of(PAGE);
/// Bytes at the start of the file that get memory on creation.
pub const HEAD_LEN: usize = (NEIGHBOURS_AT + NEIGHBOURS * size_of::<NeighbourSlot>()).next_multiple_of(PAGE);
const PARTIES_AT: usize = HEAD_LEN;
const LISTENERS_AT: usize = (PARTIES_AT + PARTIES * size_of::<PartySlot>()).next_multiple_of(PAGE);
/// Offset of the arena's books.
pub const BLOCKS_AT: usize =
    (LISTENERS_AT + FUNCTIONS * VECTORS * size_of::<PartySet>()).next_multiple_of(PAGE);
/// Offset of the adapter's region.
pub const REGION_AT: usize = BLOCKS_AT + ARENA_PAGES as usize * 8;
/// Size of the arena in bytes.
pub const ARENA_LEN: usize = ARENA_PAGES as usize * PAGE;
const _: () = assert!(size_of::<Header>() <= PAGE && BLOCKS_AT % PAGE == 0 && REGION_AT % PAGE == 0);

/// Size of the region in bytes, rounded up to whole pages.
pub fn region_len() -> usize {
    Geometry::NODE.size().next_multiple_of(PAGE)
}

/// Offset of the arena in the file.
pub fn arena_at() -> usize {
    REGION_AT + region_len()
}

/// File offset of the arena's byte `offset`.
pub fn place_in_file(offset: u64) -> u64 {
    arena_at() as u64 + offset
}

/// Size of the file in bytes.
pub fn file_len() -> usize {
    arena_at() + ARENA_LEN
}

/// The purpose of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Observation. The kernel refuses stores.
    Look,
    /// Use by a party.
    Change,
}

/// The notice to a program that has closed the node's descriptors.
pub const CLOSED: &str =
    "ironverbs: this program has closed the descriptors of the adapter: it has lost its devices\n";
/// log2 of the bytes of the arena that are mapped together. Larger blocks are mapped whole.
const GRANULE: u32 = 21;
/// Minimum number of words of the arena's books to map.
const WORDS: usize = 8 << 10;

/// The file, as far as this process has mapped it: the part before the arena's books at once, the rest when touched, so that a process
/// needs no more address space, and no more locked memory, than it uses. A holder of a reference into the mapping keeps this alive.
pub struct Mapped {
    front: NonNull<u8>,
    /// The arena's books from the first word on, and the number of mapped words.
    books: AtomicPtr<AtomicU64>,
    words: AtomicUsize,
    /// Address of each granule of the arena, once mapped.
    arena: Box<[AtomicPtr<u8>]>,
    /// All mappings. The watch is dropped before its mapping.
    parts: Mutex<Vec<(Watched, Shared)>>,
    access: Access,
    /// Set when a page that other processes must see too had no memory, or no address space was left.
    lost: Arc<Mark>,
    /// The same for pages that only this process depends on.
    own: Arc<Mark>,
    file: Kept<File>,
    /// Device number of its file system, and its inode.
    pub id: (u64, u64),
}
// SAFETY: shared memory; the words are atomics, and the region and the arena have their own rules.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives access to atomics, and to addresses of the region and the arena, which have their own access rules.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Names and addresses of the functions. `None` if the file is damaged.
    pub fn naming(&self) -> Option<Naming> {
        Naming::of_words(self.header().naming.each_ref().map(|word| word.load(Relaxed)))
    }

    /// Maps `file`, which has [`file_len`] bytes. A program prints `notice` on stderr when it touches a page that the file system has no
    /// room for.
    pub fn new(file: File, access: Access, notice: String) -> io::Result<Self> {
        let meta = file.metadata()?;
        let mut mapped = Self {
            front: NonNull::dangling(),
            books: AtomicPtr::default(),
            words: AtomicUsize::new(0),
            arena: (0..ARENA_LEN >> GRANULE).map(|_| AtomicPtr::default()).collect(),
            parts: Mutex::default(),
            access,
            lost: Mark::new(notice),
            own: Arc::default(),
            id: (meta.dev(), meta.ino()),
            file: Kept::new(file)?,
        };
        let mut parts = Vec::new();
        mapped.front = mapped.part(&mut parts, 0, BLOCKS_AT)?;
        mapped.parts = Mutex::new(parts);
        Ok(mapped)
    }

    /// The file itself.
    ///
    /// # Errors
    /// EBADF: the program has closed the descriptor.
    pub fn file(&self) -> io::Result<&File> {
        self.file.get()
    }

    fn parts(&self) -> MutexGuard<'_, Vec<(Watched, Shared)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps `len` bytes at `offset` of the file, a multiple of the page size.
    fn part(&self, parts: &mut Vec<(Watched, Shared)>, offset: usize, len: usize) -> io::Result<NonNull<u8>> {
        let len = len.next_multiple_of(PAGE);
        let map = Shared::new(self.file()?, offset, len, self.access == Access::Change)?;
        let base = map.base()?;
        let region = offset.checked_sub(REGION_AT);
        let mark = match region.is_some_and(|offset| Geometry::NODE.is_journal(offset)) {
            true => &self.own,
            false => &self.lost,
        };
        // SAFETY: this structure owns the mapping, which outlives the watch. Reads may return anything that another program wrote,
        // including zeros.
        let watched = unsafe { Watched::new(base.as_ptr(), len, Replace::Page, mark.clone()) };
        parts.push((watched, map));
        Ok(base)
    }

    /// Marks the node as lost, because this process cannot map a part that it must see.
    #[cold]
    fn lose(&self) {
        const NOTICE: &str = "ironverbs: no addresses are left to map the adapter (is there a limit, ulimit -v?): this program has lost its devices\n";
        let notice = if self.file().is_err() { CLOSED } else { NOTICE };
        self.lost.set_for(if self.access == Access::Change { notice } else { "" });
    }

    /// Like [`lose`](Self::lose), and panics: unwinding undoes the current operation.
    #[cold]
    fn leave(&self) -> ! {
        self.lose();
        NoAddresses::unwind()
    }

    /// Set when this process can no longer see what other processes do to the node, or they no longer see what it does.
    pub fn lost(&self) -> &Arc<Mark> {
        &self.lost
    }

    /// Allocates memory for `len` bytes at `offset` of the file. Returns false if the file system is full.
    pub fn back(&self, offset: usize, len: usize) -> bool {
        let Ok(file) = self.file() else { return false };
        loop {
            match sys::allocate(file, offset as u64, len as u64).map_err(|e| e.raw_os_error()) {
                Err(Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM)) => return false,
                Err(Some(libc::EINTR)) => {}
                // Where the call is forbidden, pages get their memory when touched.
                _ => return true,
            }
        }
    }

    fn words<T>(&self, offset: usize, count: usize) -> &[T] {
        // SAFETY: the callers below name parts of the front by its layout; they consist of aligned atomics.
        unsafe { std::slice::from_raw_parts(self.front.as_ptr().add(offset).cast(), count) }
    }

    /// The first page.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.words(0, 1)[0]
    }

    /// The slot of party `slot`. It has memory only if it is or was taken.
    #[inline]
    pub fn party(&self, slot: u16) -> &PartySlot {
        &self.words(PARTIES_AT, PARTIES)[usize::from(slot) % PARTIES]
    }

    /// Allocates memory for the slot of party `slot`, so that touching it cannot fail. Returns false if there is none.
    pub fn back_party(&self, slot: u16) -> bool {
        let len = size_of::<PartySlot>();
        self.back(PARTIES_AT + usize::from(slot) * len, len)
    }

    /// Thread ID of the parked thread of party `slot`, or 0 if there is none. When the thread is killed with its process, the kernel sets
    /// [`DIED`](sys::DIED). These words are adjacent, because a sender checks those of all openers of a function.
    #[inline]
    pub fn life(&self, slot: u16) -> &AtomicU32 {
        &self.words(LIVES_AT, PARTIES)[usize::from(slot) % PARTIES]
    }

    /// The parties that listen to an interrupt vector. Has memory only if its bit in [`FunctionSlot::vectors`] is set.
    #[inline]
    pub fn listeners(&self, fid: u8, vector: u16) -> &PartySet {
        let all: &[PartySet] = self.words(LISTENERS_AT, FUNCTIONS * VECTORS);
        &all[(usize::from(fid) * VECTORS + usize::from(vector) % VECTORS) % all.len()]
    }

    /// Allocates memory for the listeners of a vector, so that touching them cannot fail. Returns false if there is none.
    pub fn back_listeners(&self, fid: u8, vector: u16) -> bool {
        let (len, index) = (size_of::<PartySet>(), usize::from(fid) * VECTORS + usize::from(vector));
        self.back(LISTENERS_AT + index * len, len)
    }

    /// The functions.
    #[inline]
    pub fn functions(&self) -> &[FunctionSlot] {
        self.words(FUNCTIONS_AT, FUNCTIONS)
    }

    /// The neighbours.
    pub fn neighbours(&self) -> &[NeighbourSlot] {
        self.words(NEIGHBOURS_AT, NEIGHBOURS)
    }

    /// The word of a page in the arena's books, if the arena has the page.
    pub fn book(&self, page: u32) -> Option<&AtomicU64> {
        if page < ARENA_PAGES && !self.reaches_book(page) {
            self.leave();
        }
        let page = page as usize;
        if page >= self.words.load(Acquire) {
            return None;
        }
        // SAFETY: that many words are mapped, by the check or since; a later mapping has more.
        Some(unsafe { &*self.books.load(Acquire).add(page) })
    }

    /// Maps the word of a page in the arena's books. Returns false if no address space is left for it.
    pub fn reaches_book(&self, page: u32) -> bool {
        (page as usize) < self.words.load(Acquire) || self.more_books(page as usize).is_some()
    }

    #[cold]
    fn more_books(&self, page: usize) -> Option<()> {
        let mut parts = self.parts();
        let before = self.words.load(Relaxed);
        if page >= before {
            let wanted = (2 * before).max(WORDS).max(page + 1).min(ARENA_PAGES as usize);
            if page >= wanted {
                return None;
            }
            let at = self.part(&mut parts, BLOCKS_AT, wanted * size_of::<u64>()).ok()?;
            self.books.store(at.as_ptr().cast(), Release);
            self.words.store(wanted, Release);
        }
        Some(())
    }

    /// `len` bytes of the arena at `offset`, if they are within one block or granule.
    #[inline]
    pub fn arena(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        match self.reach_arena(offset, len) {
            Ok(found) => found,
            Err(_) => self.leave(),
        }
    }

    /// Like [`arena`](Self::arena).
    ///
    /// # Errors
    /// They cannot be mapped.
    #[inline]
    pub fn reach_arena(&self, offset: u64, len: usize) -> io::Result<Option<NonNull<u8>>> {
        let Some(granule) = self.arena.get((offset >> GRANULE) as usize) else { return Ok(None) };
        let granule = granule.load(Acquire);
        let within = offset as usize & ((1 << GRANULE) - 1);
        if granule.is_null() || len > (1 << GRANULE) - within {
            return self.arena_beyond(offset, len);
        }
        // SAFETY: within the granule, by the check.
        Ok(NonNull::new(unsafe { granule.add(within) }))
    }

    /// [`arena`](Self::arena) for a range that is not mapped yet, or extends beyond a granule.
    #[cold]
    #[inline(never)]
    fn arena_beyond(&self, offset: u64, len: usize) -> io::Result<Option<NonNull<u8>>> {
        // Nothing is mapped for an address beyond the pages ever used.
        let used = u64::from(self.header().arena_fresh.load(Relaxed).min(ARENA_PAGES)) * PAGE as u64;
        let Some(end) = offset.checked_add(len.max(1) as u64).filter(|end| *end <= used) else {
            return Ok(None);
        };
        let (first, last) = ((offset >> GRANULE) as usize, ((end - 1) >> GRANULE) as usize);
        let word = |page| self.book(page).map(|word| word.load(SeqCst));
        let block = block_of((offset / PAGE as u64) as u32, (1 << GRANULE) / PAGE as u32, word);
        let mut parts = self.parts();
        let lies = |granule: usize| self.arena[granule].load(Relaxed);
        let base = lies(first);
        let whole =
            !base.is_null() && (first..=last).all(|n| lies(n) == base.wrapping_add((n - first) << GRANULE));
        if !whole {
            // A block of several granules is mapped as one, because a user of one part may use all of it.
            let pages = block.filter(|pages| pages.contains(&(((end - 1) / PAGE as u64) as u32)));
            let granules = match pages {
                Some(pages) => granules_of(&pages),
                None if first == last => first..first + 1,
                None => return Ok(None),
            };
            let at = arena_at() + (granules.start << GRANULE);
            let base = self.part(&mut parts, at, granules.len() << GRANULE)?;
            for (n, granule) in granules.enumerate() {
                self.arena[granule].store(base.as_ptr().wrapping_add(n << GRANULE), Release);
            }
        }
        Ok(NonNull::new(lies(first).wrapping_add(offset as usize & ((1 << GRANULE) - 1))))
    }
}

/// The granules that a block of several granules occupies.
fn granules_of(pages: &Range<u32>) -> Range<usize> {
    let granule = |page: u32| (page as usize * PAGE) >> GRANULE;
    granule(pages.start)..granule(pages.end)
}

/// The adapter's region, as part of the file.
pub struct RegionMemory(pub Arc<Mapped>);

// SAFETY: pages of the file, which is new and therefore zero when a region is created in it; mappings live as long as `Mapped`, and all
// show the file. Where a page has no memory, this process sees a private page instead and no longer takes part in the node.
unsafe impl Memory for RegionMemory {
    fn map(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.0.part(&mut self.0.parts(), REGION_AT + offset, len).ok()
    }

    fn lost(&self) {
        self.0.lose();
    }

    fn takes_part(&self) -> bool {
        self.0.access == Access::Change
    }

    fn back(&self, offset: usize, len: usize) -> bool {
        self.0.back(REGION_AT + offset, len)
    }

    fn give_back(&self, offset: usize, len: usize) {
        // If the file system does not support that, the function keeps the memory.
        let _ = self.0.file().and_then(|file| sys::punch(file, (REGION_AT + offset) as u64, len as u64));
    }
}
