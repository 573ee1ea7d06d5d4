//! The contents of the board.

use super::{
    channel::{CHANNELS, Channel},
    player::Player,
    sys,
};
use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::*},
    },
    time::Duration,
};

/// The board's file name in an adapter's directory.
pub const FILE: &str = "clock";
/// Maximum number of threads in virtual time.
pub const PLAYERS: usize = 256;
/// Functions of an adapter.
pub(crate) const FUNCTIONS: usize = 128;
/// Maximum number of a thread's doorbells that the conductor has not taken yet.
const RING: usize = 512;
/// The origins of clocks are multiples of this, in nanoseconds.
const EVEN: u64 = 1_000_000;
/// Name and version of the layout.
const MAGIC: u64 = 0x636c_6f63_6b00_0006;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It runs. Time stands still meanwhile.
    Running = 0,
    /// It waits for a completion of its function.
    Waiting = 1,
    /// It sleeps until a time.
    Sleeping = 2,
    /// It has run for so long that it must be polling memory until that changes.
    Spinning = 3,
    /// It polled memory and noticed a change; it continues when the conductor says when.
    Noticed = 4,
    /// It waits in the kernel for files, at most until a time.
    Limited = 5,
    /// It waits on its place on the board, at most until a time.
    Parked = 6,
}

impl State {
    pub(crate) fn of(word: u32) -> Self {
        match word {
            1 => Self::Waiting,
            2 => Self::Sleeping,
            3 => Self::Spinning,
            4 => Self::Noticed,
            5 => Self::Limited,
            6 => Self::Parked,
            _ => Self::Running,
        }
    }
}

/// Costs of calls of programs, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Posting a request after a wait.
    pub post: u64,
    /// Posting a request after another one.
    pub post_rate: u64,
    /// Writing 64 bytes to a doorbell page.
    pub pio: u64,
    /// Each further 64 bytes.
    pub pio_block: u64,
    /// Reading a clock.
    pub clock: u64,
    /// Reading the processor's counter.
    pub counter: u64,
}

/// A write to a doorbell register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    /// Time at which the thread had written it, ps.
    pub at: u64,
    /// The value that was written.
    pub value: u64,
    /// Offset of the register in BAR0.
    pub offset: u32,
    /// The function.
    pub fid: u8,
    /// Blocks of 64 bytes that were written, at least 1.
    pub blocks: u8,
    /// True for a write of 4 bytes instead of 8.
    pub half: bool,
}

/// A write to a doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// 8 bytes of a posted request.
    Request,
    /// 8 other bytes.
    Whole,
    /// 4 bytes.
    Half,
}

impl Bell {
    /// The send counter after the request of a send doorbell. The doorbell is the first eight bytes of the request's control segment: bits
    /// 40 to 55 are the request's number, the lowest six its size in 16-byte pieces.
    pub fn posted(&self) -> u16 {
        ((self.value >> 40) as u16).wrapping_add(blocks(self.value).into())
    }
}

/// Size of a send doorbell's request in blocks of 64 bytes.
pub(crate) fn blocks(value: u64) -> u8 {
    (value as u8 & 0x3f).div_ceil(4).max(1)
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct BellSlot {
    pub at: AtomicU64,
    pub value: AtomicU64,
    pub offset: AtomicU32,
    /// The function; in higher bits the number of blocks, and a flag for writes of 4 bytes.
    pub what: AtomicU32,
}

/// A thread's place. All times are the adapter's, in picoseconds.
#[repr(C, align(128))]
pub(crate) struct Place {
    /// Thread id, 0 is free; and its process.
    pub tid: AtomicU32,
    pub pid: AtomicU32,
    /// The [`State`]; the thread sleeps on this word.
    pub state: AtomicU32,
    /// The function it used last.
    pub fid: AtomicU32,
    /// Its time, and its time when it joined.
    pub time: AtomicU64,
    pub began: AtomicU64,
    /// Time at which its sleep or wait ends at the latest.
    pub until: AtomicU64,
    /// Time at which the event that ended its wait became visible; 0 for none.
    pub woken: AtomicU64,
    /// Duration until it notices that event.
    pub notice: AtomicU64,
    /// The function whose queues it last began to poll (upper bits), and the number of entries that the function had written then.
    pub known: AtomicU64,
    /// The direction of a connection by which it is about to receive, or is receiving; 0 for none.
    pub listens: AtomicU64,
    /// Value of [`Layout::said`] when it last began to wait.
    pub said: AtomicU32,
    /// 1 if it waited since its last post.
    pub rested: AtomicU32,
    /// Number of [`Call`](super::Call)s that it is in.
    pub calls: AtomicU32,
    /// 1 if its wait in the kernel is over, but the kernel has not resumed it.
    pub over: AtomicU32,
    /// 1 for a thread that a provider created for itself.
    pub apart: AtomicU32,
    /// Number of doorbells written, and taken.
    pub head: AtomicU32,
    pub tail: AtomicU32,
    pub ring: [BellSlot; RING],
}

#[repr(C)]
pub(crate) struct Layout {
    pub magic: AtomicU64,
    /// The conductor's rules: see [`Board::mark`].
    pub mark: AtomicU64,
    /// The conductor's process.
    pub conductor: AtomicU32,
    /// The conductor sleeps on this word, which counts notifications by threads.
    pub bell: AtomicU32,
    /// The adapter's time: that of the last event.
    pub now: AtomicU64,
    /// The latest time of a thread that sent a message by a socket.
    pub sent: AtomicU64,
    /// Number of calls of [`Board::speak`].
    pub said: AtomicU32,
    /// The kernel's clocks (monotonic, real) at the adapter's time 0, in nanoseconds.
    pub origin: [AtomicU64; 2],
    pub costs: [AtomicU64; 6],
    /// Bitmap of functions that may have work: see [`Board::leave`].
    pub left: [AtomicU64; FUNCTIONS / 64],
    /// Number of queue entries that each function wrote.
    pub entries: [AtomicU32; FUNCTIONS],
    pub places: [Place; PLAYERS],
    pub channels: [Channel; CHANNELS],
}

/// The board that this process found first.
pub(crate) static FOUND: OnceLock<Board> = OnceLock::new();

/// A board, mapped for as long as the process lives.
#[derive(Clone, Copy)]
pub struct Board(pub(crate) &'static Layout);

impl Board {
    /// Creates a board at `path` and replaces an existing one. Threads find it once it is [opened](Board::open_up).
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(size_of::<Layout>() as u64)?;
        Self::map(&file)
    }

    /// The board at `path`. `None` if there is none, or its conductor is gone.
    ///
    /// # Errors
    /// It exists but cannot be used.
    pub fn find(path: &Path) -> io::Result<Option<Self>> {
        // Others may have put a link or a pipe in its place.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let meta = file.metadata()?;
        // A shorter file is still being created.
        if !meta.is_file() || meta.len() < size_of::<Layout>() as u64 {
            return Ok(None);
        }
        let board = Self::map(&file)?;
        if board.0.magic.load(Acquire) == MAGIC && board.is_conducted() {
            let _ = FOUND.set(board);
            return Ok(Some(board));
        }
        // SAFETY: the whole mapping, to which there is no other reference.
        unsafe { libc::munmap(std::ptr::from_ref(board.0).cast_mut().cast(), size_of::<Layout>()) };
        Ok(None)
    }

    fn map(file: &File) -> io::Result<Self> {
        let (len, prot) = (size_of::<Layout>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of a file that is at least as long.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped for as long as the process lives, aligned to a page, and all of it is atomic words, for which any bytes will do.
        Ok(Self(unsafe { &*at.cast::<Layout>() }))
    }

    /// Admits threads. The adapter's time is `now`, and was 0 when the kernel's monotonic clock was `epoch`.
    pub fn open_up(&self, now: u64, epoch: u64, costs: Costs, mark: u64) {
        let Costs { post, post_rate, pio, pio_block, clock, counter } = costs;
        let all = [post, post_rate, pio, pio_block, clock, counter];
        self.0.costs.iter().zip(all).for_each(|(to, cost)| to.store(cost, Relaxed));
        // Round numbers, so that values rounded by programs are the same in every run.
        let even = |ns: u64| ns.next_multiple_of(EVEN);
        let ahead = sys::realtime_ns().saturating_sub(sys::monotonic_ns());
        self.0.origin[0].store(even(epoch), Relaxed);
        self.0.origin[1].store(even(epoch + ahead), Relaxed);
        self.0.mark.store(mark, Relaxed);
        self.0.now.store(now, Relaxed);
        self.0.sent.store(now, Relaxed);
        self.0.conductor.store(sys::thread().1, Relaxed);
        self.0.magic.store(MAGIC, Release);
    }

    /// True if its conductor is alive.
    pub fn is_conducted(&self) -> bool {
        let pid = self.0.conductor.load(SeqCst);
        // A process that has ended stays a zombie until its parent waits for it.
        pid != 0 && sys::state(pid, pid).is_some_and(|state| state != 'Z')
    }

    /// Ends the conductor's work, unless a thread is on the board. Returns true if it ended.
    pub fn close(&self) -> bool {
        let pid = self.0.conductor.swap(0, SeqCst);
        // A thread that joins checks for the conductor afterwards.
        let deserted = self.players().next().is_none();
        if !deserted {
            self.0.conductor.store(pid, SeqCst);
        }
        deserted
    }

    /// A number that identifies the rules of time.
    pub fn mark(&self) -> u64 {
        self.0.mark.load(Relaxed)
    }

    /// The adapter's time, ps.
    pub fn now(&self) -> u64 {
        self.0.now.load(Acquire)
    }

    /// The adapter's time, or the time of the latest message if that is later.
    pub fn latest(&self) -> u64 {
        self.now().max(self.0.sent.load(Acquire))
    }

    /// Sets the adapter's time to `now`.
    pub fn set_now(&self, now: u64) {
        self.0.now.store(now, Release);
    }

    /// The costs of calls.
    pub fn costs(&self) -> Costs {
        let costs = self.0.costs.each_ref().map(|cost| cost.load(Relaxed));
        let [post, post_rate, pio, pio_block, clock, counter] = costs;
        Costs { post, post_rate, pio, pio_block, clock, counter }
    }

    /// The value of the kernel's real or monotonic clock at `time` of the adapter, in nanoseconds.
    pub fn wall(&self, time: u64, real: bool) -> u64 {
        self.0.origin[usize::from(real)].load(Relaxed) + time / 1000
    }

    /// The calling thread as a player. `None` if there is no place for it.
    pub fn player(&self) -> Option<Player> {
        Player::of_thread(*self)
    }

    /// The players, in the order of their places.
    pub fn players(&self) -> impl Iterator<Item = Player> + use<> {
        let board = *self;
        let taken = move |number: &usize| board.0.places[*number].tid.load(Acquire) != 0;
        (0..PLAYERS).filter(taken).map(move |number| Player::new(board, number))
    }

    /// The player at place `number`, which a thread uses or has used.
    pub fn at(&self, number: usize) -> Player {
        Player::new(*self, number)
    }

    /// Makes threads that wait for completions poll once more: a message may have been sent, or a thread may do something that they wait
    /// for.
    pub fn speak(&self) {
        self.0.said.fetch_add(1, SeqCst);
        self.tell();
    }

    /// Notes that `fid` wrote an entry of a queue.
    pub fn entry(&self, fid: u8) {
        self.0.entries[usize::from(fid) % FUNCTIONS].fetch_add(1, SeqCst);
    }

    /// Leaves the work of `functions` (a bitmap) to the conductor.
    pub fn leave(&self, functions: u128) {
        self.0.left[0].fetch_or(functions as u64, Release);
        self.0.left[1].fetch_or((functions >> 64) as u64, Release);
        self.tell();
    }

    /// Takes the bitmap of functions with work left to the conductor.
    pub fn take_left(&self) -> u128 {
        let [low, high] = self.0.left.each_ref().map(|word| u128::from(word.swap(0, Acquire)));
        low | high << 64
    }

    /// Number of notifications by threads so far; see [`Board::listen`].
    pub fn heard(&self) -> u32 {
        self.0.bell.load(SeqCst)
    }

    /// Sleeps until the number of notifications differs from `heard`, or for `limit`.
    pub fn listen(&self, heard: u32, limit: Duration) {
        sys::futex_wait(&self.0.bell, heard, limit);
    }

    /// Notifies the conductor of a change.
    pub(crate) fn tell(&self) {
        self.0.bell.fetch_add(1, SeqCst);
        sys::futex_wake(&self.0.bell);
    }
}
