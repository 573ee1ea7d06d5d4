//! The node's file: what lies where.
//!
//! A header, what is kept of functions and neighbours, the parties' places, who listens to which interrupt vector, the
//! arena's books, the adapter's region, the arena itself. The file is sparse, so what nobody touched costs nothing: the
//! head has memory from the start, a party's place and a vector's listeners get theirs when they are first used. All
//! words before the region are atomics.
#![allow(unsafe_code)]

use super::{
    naming::{self, Naming},
    party_set::{PARTIES, PARTY_BITS, PartySet},
    sys::{self, Shared},
};
use devmodel::{
    missing::{Replace, Stripes, Watched},
    region::{Geometry, Memory},
};
use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};
use sync::Bell;

/// First word of the file: name and version of the layout.
pub const MAGIC: u64 = 0x6e6f_6465_0000_0010;
const _: () = assert!(PARTIES <= 1 << PARTY_BITS);
/// Most functions of a node.
pub const FUNCTIONS: usize = 128;
/// Neighbours that are remembered.
pub const NEIGHBOURS: usize = 256;
/// Interrupt vectors of a function.
pub const VECTORS: usize = 64;
/// `Header::by_value`: some program can't copy to and from another's memory.
pub const UNREACHED: u32 = 1;
/// `Header::by_value`: a function is served to a guest.
pub const SERVED: u32 = 2;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of the arena: 64 GiB of addresses, of which only allocated blocks have memory.
pub const ARENA_PAGES: u32 = 16 << 20;
/// log2 classes of arena blocks, in pages.
pub const CLASSES: usize = 25;

/// The first page.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// CLOCK_MONOTONIC (ns) when the node was made, which is its time 0.
    pub epoch: AtomicU64,
    /// VFs enabled.
    pub vfs: AtomicU32,
    /// 1 if the node's configuration forbids direct copies between programs.
    pub no_direct: AtomicU32,
    /// Not 0 if payload travels by value: with [`UNREACHED`] that of functions whose openers have memory by address, with [`SERVED`]
    /// what comes from guests or goes to them.
    pub by_value: AtomicU32,
    /// The adapter's behaviour: profile (0 Ibta, 1 Cx5), least acknowledgement timeout, packets between requests for
    /// an acknowledgement, sealed frames, budget, link layer (0 Ethernet, 1 InfiniBand), node id; what befalls
    /// frames; strictness.
    pub behaviour: [AtomicU32; 16],
    /// How the functions are called and where they are: words of a [`Naming`].
    pub naming: [AtomicU32; naming::WORDS],
    /// The outlets: uplink and capture.
    pub outlets: [OutletSlot; 2],
    /// Counts changes of the neighbours; whoever waits for an address sleeps on this word.
    pub neighbours_changed: AtomicU32,
    /// Dead parties that were ever cleaned up after.
    pub reaped: AtomicU32,
    /// 1 while a party changes the arena's books.
    pub arena_busy: AtomicU32,
    /// Pages of the arena that were ever used; below this there are no gaps between blocks.
    pub arena_fresh: AtomicU32,
    /// For each class the first free block: its first page plus one.
    pub arena_free: [AtomicU32; CLASSES],
    /// Pages in use.
    pub arena_used: AtomicU64,
    /// Places that are taken by living parties, and by dead ones that nobody cleaned up after yet.
    pub taken: PartySet,
}

/// The consumer of an outlet of the adapter's region.
#[repr(C)]
pub struct OutletSlot {
    /// Opener (see `Transport::opener`) that consumes it; 0 is none.
    pub holder: AtomicU32,
    /// Rung for frames; the consumer's thread sleeps.
    pub bell: Bell,
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
    /// When it was last heard of or requested, ps.
    pub at: AtomicU64,
}

/// The place of a party. [`Header::taken`] says whether it is taken.
#[repr(C, align(256))]
pub struct PartySlot {
    /// How often the place was taken.
    pub generation: AtomicU32,
    /// Process id in its own PID namespace.
    pub pid: AtomicU32,
    /// PID namespace (inode number).
    pub pid_namespace: AtomicU64,
    /// Start time of the process, which distinguishes it from a later one with the same pid.
    pub started: AtomicU64,
    /// Address, in the process, of a copy of `token`, by which others find out whether they can reach it.
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
    /// Ranges of its memory that the device knows by their addresses in its process. All else that its functions work on lies in
    /// the node's file.
    pub by_address: AtomicU32,
}

/// State of a function. The members that every access to memory reads come first.
#[repr(C, align(128))]
pub struct FunctionSlot {
    /// Party that serves the function to a client outside the node, and alone runs it; 0 is none.
    pub server: AtomicU32,
    /// Party that polls the function all the time, to which others leave its frames; 0 is none.
    pub poller: AtomicU32,
    /// The block that its openers share: its first page in the arena plus one.
    pub shared: AtomicU32,
    /// Length of the network prefix of `address`.
    pub prefix: AtomicU32,
    /// Nobody becomes the function's poller until this time (ms of the node's time). If it is past, it is when a
    /// poller last kept others waiting; see `polling`.
    pub distrusted: AtomicU64,
    /// The IP address that was set, IPv6 or IPv4-mapped, as big-endian numbers; all zero is none.
    pub address: [AtomicU64; 2],
    /// Parties that have it open.
    pub openers: PartySet,
    /// Vectors that anybody listens to, a bit each; see [`Mapped::listeners`].
    pub vectors: AtomicU64,
    /// How often each vector fired, on cache lines of its own since it is written often.
    pub fired: Fired,
}

/// A counter per interrupt vector.
#[repr(C, align(128))]
pub struct Fired(pub [AtomicU32; VECTORS]);

const FUNCTIONS_AT: usize = PAGE;
const LIVES_AT: usize = FUNCTIONS_AT + FUNCTIONS * size_of::<FunctionSlot>();
const NEIGHBOURS_AT: usize = (LIVES_AT + PARTIES * size_of::<AtomicU32>()).next_multiple_of(PAGE);
/// Bytes at the start of the file that get memory when it is made.
pub const HEAD_LEN: usize = (NEIGHBOURS_AT + NEIGHBOURS * size_of::<NeighbourSlot>()).next_multiple_of(PAGE);
const PARTIES_AT: usize = HEAD_LEN;
const LISTENERS_AT: usize = (PARTIES_AT + PARTIES * size_of::<PartySlot>()).next_multiple_of(PAGE);
/// First byte of the arena's books.
pub const BLOCKS_AT: usize =
    (LISTENERS_AT + FUNCTIONS * VECTORS * size_of::<PartySet>()).next_multiple_of(PAGE);
/// First byte of the adapter's region.
pub const REGION_AT: usize = BLOCKS_AT + ARENA_PAGES as usize * 8;
/// Bytes of the arena.
pub const ARENA_LEN: usize = ARENA_PAGES as usize * PAGE;
const _: () = assert!(size_of::<Header>() <= PAGE && BLOCKS_AT % PAGE == 0 && REGION_AT % PAGE == 0);

/// Bytes of the region, whole pages.
fn region_len() -> usize {
    Geometry::NODE.size().next_multiple_of(PAGE)
}

/// Offset of the arena in the file.
pub fn arena_at() -> usize {
    REGION_AT + region_len()
}

/// Bytes of the file.
pub fn file_len() -> usize {
    arena_at() + ARENA_LEN
}

/// The purpose of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Observing. The kernel refuses stores.
    Look,
    /// A party's.
    Change,
}

/// The file, mapped. Whoever holds a reference into it holds this.
pub struct Mapped {
    base: NonNull<u8>,
    /// Pages that the file system has no room for end no program. Before the mapping: it is watched no longer when it is unmapped.
    watched: Watched,
    _map: Shared,
    /// The file itself.
    pub file: File,
    /// Device number of its file system, and its inode.
    pub id: (u64, u64),
    arena: usize,
}
// SAFETY: shared memory; the words are atomics, the region and the arena have their own rules.
unsafe impl Send for Mapped {}
// SAFETY: a shared reference gives atomics, and addresses of the region and the arena, which are touched by their own rules.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// How the functions are called and where they are. `None` if the file is damaged.
    pub fn naming(&self) -> Option<Naming> {
        Naming::of_words(self.header().naming.each_ref().map(|word| word.load(Relaxed)))
    }

    /// Maps `file`, which has [`file_len`] bytes. `notice` is what a program says on stderr that touches a page for which the file
    /// system has no room.
    pub fn new(file: File, access: Access, notice: String) -> io::Result<Self> {
        let meta = file.metadata()?;
        let id = (meta.dev(), meta.ino());
        let map = Shared::new(&file, file_len(), access == Access::Change)?;
        let base = map.base()?;
        let journals = Geometry::NODE.journals();
        let unmarked = Stripes { first: REGION_AT + journals.first, ..journals };
        // SAFETY: the mapping is ours, and goes behind this; what is read of it may be anything that another program
        // wrote, zeros among it.
        let watched = unsafe { Watched::new(base.as_ptr(), file_len(), Replace::Page { unmarked, notice }) };
        Ok(Self { base, watched: watched?, _map: map, file, id, arena: arena_at() })
    }

    /// True when a page had no memory that others would have to see too: what this process does to the node is no longer what the
    /// others see.
    pub fn lost(&self) -> &'static AtomicBool {
        self.watched.mark()
    }

    /// Gives `len` bytes at `offset` of the file memory. False: the file system is full.
    pub fn back(&self, offset: usize, len: usize) -> bool {
        loop {
            match sys::allocate(&self.file, offset as u64, len as u64).map_err(|e| e.raw_os_error()) {
                Err(Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM)) => return false,
                Err(Some(libc::EINTR)) => {}
                // Where the call is forbidden pages get their memory when they are touched.
                _ => return true,
            }
        }
    }

    fn part<T>(&self, offset: usize, count: usize) -> &[T] {
        // SAFETY: the callers below name parts of the file as it is laid out, made of atomics, aligned.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// The first page.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.part(0, 1)[0]
    }

    /// The place of party `slot`. Only a place that is or was taken has memory already.
    #[inline]
    pub fn party(&self, slot: u16) -> &PartySlot {
        &self.part(PARTIES_AT, PARTIES)[usize::from(slot) % PARTIES]
    }

    /// Gives the place of party `slot` memory, so that touching it cannot fail. False: there is none.
    pub fn back_party(&self, slot: u16) -> bool {
        let len = size_of::<PartySlot>();
        self.back(PARTIES_AT + usize::from(slot) * len, len)
    }

    /// Thread id of the parked thread of party `slot`, 0 while there is none. When it is killed with its process the
    /// kernel sets [`DIED`](sys::DIED). These words lie side by side, for who sends to a function asks for those of all
    /// its openers.
    #[inline]
    pub fn life(&self, slot: u16) -> &AtomicU32 {
        &self.part(LIVES_AT, PARTIES)[usize::from(slot) % PARTIES]
    }

    /// The parties that listen to an interrupt vector. Has memory if its bit in [`FunctionSlot::vectors`] is set.
    #[inline]
    pub fn listeners(&self, fid: u8, vector: u16) -> &PartySet {
        let all: &[PartySet] = self.part(LISTENERS_AT, FUNCTIONS * VECTORS);
        &all[(usize::from(fid) * VECTORS + usize::from(vector) % VECTORS) % all.len()]
    }

    /// Gives the listeners of a vector memory, so that touching them cannot fail. False: there is none.
    pub fn back_listeners(&self, fid: u8, vector: u16) -> bool {
        let (len, index) = (size_of::<PartySet>(), usize::from(fid) * VECTORS + usize::from(vector));
        self.back(LISTENERS_AT + index * len, len)
    }

    /// The functions.
    #[inline]
    pub fn functions(&self) -> &[FunctionSlot] {
        self.part(FUNCTIONS_AT, FUNCTIONS)
    }

    /// The neighbours.
    pub fn neighbours(&self) -> &[NeighbourSlot] {
        self.part(NEIGHBOURS_AT, NEIGHBOURS)
    }

    /// The arena's books: a word per page.
    pub fn blocks(&self) -> &[AtomicU64] {
        self.part(BLOCKS_AT, ARENA_PAGES as usize)
    }

    /// Where the region lies, and its length.
    pub fn region(&self) -> (NonNull<u8>, usize) {
        // SAFETY: within the mapping.
        (unsafe { self.base.add(REGION_AT) }, region_len())
    }

    /// Where the file begins in memory.
    pub fn view(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// Where in the file the arena's byte `offset` lies.
    pub fn place_in_file(&self, offset: u64) -> u64 {
        self.arena as u64 + offset
    }

    /// `len` bytes of the arena at `offset`, if it has them.
    #[inline]
    pub fn arena(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len as u64)?;
        // SAFETY: within the mapping by the check.
        (end <= ARENA_LEN as u64).then(|| unsafe { self.base.add(self.arena + offset as usize) })
    }
}

/// The adapter's region as a part of the file.
pub struct RegionMemory(pub Arc<Mapped>);

impl Memory for RegionMemory {
    fn back(&self, offset: usize, len: usize) -> bool {
        self.0.back(REGION_AT + offset, len)
    }
}
