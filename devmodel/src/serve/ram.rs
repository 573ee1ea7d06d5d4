//! Memory of a client, mapped through its descriptor, that may go away under us.
//!
//! A client can cut its file short at any time; touching what is no longer there raises SIGBUS. The handler then puts zero
//! pages in place of the whole mapping, so that the access under way ends, and marks it: what was read or written
//! counts as an abort. A signal for any other address goes to whoever handled it before.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::*, compiler_fence},
    },
};
use vm_memory::{FileOffset, mmap::MmapRegion};

/// Mappings of all clients of this process at most.
const MAPPINGS: usize = 512;

/// A mapping, for the signal handler: no lock, no allocation.
struct Place {
    /// 0: free; 1: being set up.
    base: AtomicUsize,
    len: AtomicUsize,
    /// Its file was cut short.
    torn: AtomicBool,
}

static PLACES: [Place; MAPPINGS] =
    [const { Place { base: AtomicUsize::new(0), len: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        MAPPINGS];

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A client's file, mapped whole.
pub(super) struct Ram {
    region: MmapRegion,
    place: &'static Place,
    /// Which file: device and inode.
    pub(super) file: (u64, u64),
    /// Whether it may be written.
    pub(super) writable: bool,
}

/// File systems whose pages come from memory or a local disk. A page of any other may take for ever.
fn is_local(file: &File) -> io::Result<bool> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the structure is written by a call that succeeds.
    let kind = unsafe {
        if libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) == -1 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init().f_type
    };
    Ok([TMPFS, RAMFS, HUGETLBFS, EXT, XFS, BTRFS].contains(&kind))
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Ram {
    /// Maps all of `file`, for writing too if it lets us.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() || !is_local(&file)? {
            return Err(errno(libc::ENODEV));
        }
        let len = usize::try_from(meta.len()).map_err(|_| errno(libc::EFBIG))?;
        watch();
        let id = (meta.dev(), meta.ino());
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let map = |prot| {
            let file = FileOffset::new(file.try_clone()?, 0);
            MmapRegion::build(Some(file), len, prot, flags).map_err(|e| match e {
                vm_memory::mmap::MmapRegionError::Mmap(e) => e,
                _ => errno(libc::EINVAL),
            })
        };
        let (region, writable) = match map(libc::PROT_READ | libc::PROT_WRITE) {
            Ok(region) => (region, true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                (map(libc::PROT_READ)?, false)
            }
            Err(e) => return Err(e),
        };
        let free = |p: &&Place| p.base.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let place = PLACES.iter().find(free).ok_or_else(|| errno(libc::ENOSPC))?;
        place.torn.store(false, Relaxed);
        place.len.store(region.size(), Relaxed);
        place.base.store(region.as_ptr() as usize, Release);
        Ok(Self { region, place, file: id, writable })
    }

    /// Its first byte.
    pub(super) fn base(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.region.size() as u64
    }

    /// Whether it was found cut short. What was copied before this answers `false` is as good as the client's memory.
    #[inline]
    pub(super) fn is_torn(&self) -> bool {
        // The handler runs in the thread that touched the memory.
        compiler_fence(SeqCst);
        self.place.torn.load(Relaxed)
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        self.place.base.store(0, Release);
    }
}

/// Sets the handler up, once.
fn watch() {
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: plain structures; the handler below keeps to what signal handlers may do.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
            before.assume_init()
        }
    });
}

extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel's own structure.
    let at = unsafe { (*info).si_addr() } as usize;
    for place in &PLACES {
        let (base, len) = (place.base.load(Acquire), place.len.load(Relaxed));
        if base > 1 && (base..base.saturating_add(len)).contains(&at) {
            place.torn.store(true, Relaxed);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a mapping of ours, replaced by one of the same size: pointers into it stay good. Whoever unmaps it
            // waits until no copy is under way, and a copy is: the one that faulted.
            let put = unsafe { libc::mmap(base as *mut _, len, prot, flags, -1, 0) };
            if put != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not ours: the access faults again and finds the handler that was there before.
    // SAFETY: plain structures.
    unsafe {
        let fallback = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        let before = BEFORE.get().unwrap_or(&fallback);
        libc::sigaction(libc::SIGBUS, ptr::from_ref(before), ptr::null_mut());
    }
}
