//! Files and registers that children of fork do not inherit. A device belongs to the process that opened it, but a
//! child of fork shares its files and registers, and would keep the device busy and confuse it. So in a child the files
//! are closed, and the registers read as all ones, as for an unplugged device.

use std::{
    ops::Deref,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::NonNull,
    sync::{
        Once,
        atomic::{
            AtomicI32, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// Maximum number of files and BARs of all devices. Any more are shared with children.
const ENTRIES: usize = 512;
/// All registers that a driver reads to detect a missing device are below this offset.
const PROBED: usize = 0x2000;

/// One file (`len` 0, `at` its descriptor) or one mapping. Consists of words only, since a child must not take locks.
struct Entry {
    /// 0: free; 1: being filled; 2: in use.
    state: AtomicU32,
    at: AtomicUsize,
    len: AtomicUsize,
}

static TABLE: [Entry; ENTRIES] =
    [const { Entry { state: AtomicU32::new(0), at: AtomicUsize::new(0), len: AtomicUsize::new(0) } };
        ENTRIES];
static NOTHING: AtomicI32 = AtomicI32::new(-1);
static HANDLER: Once = Once::new();

/// While this value lives, a file or a mapping of this process is absent from children of fork.
#[derive(Debug)]
pub struct Absence(Option<usize>);

impl Absence {
    /// Closes a file in children.
    pub fn of_file(fd: BorrowedFd<'_>) -> Self {
        Self::enter(fd.as_raw_fd() as usize, 0)
    }

    /// Makes registers read as all ones in children.
    pub fn of_registers(at: NonNull<u8>, len: usize) -> Self {
        Self::enter(at.as_ptr() as usize, len)
    }

    fn enter(at: usize, len: usize) -> Self {
        watch();
        let free = TABLE.iter().position(|e| e.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok());
        if let Some(entry) = free.map(|index| &TABLE[index]) {
            entry.at.store(at, Relaxed);
            entry.len.store(len, Relaxed);
            entry.state.store(2, Release);
        }
        Self(free)
    }
}

/// A file that children of fork do not inherit.
#[derive(Debug)]
pub struct Alone<F> {
    /// Dropped first: once the file is closed, its number may be reused.
    _absence: Absence,
    file: F,
}

impl<F: AsFd> Alone<F> {
    /// Takes effect immediately.
    pub fn new(file: F) -> Self {
        Self { _absence: Absence::of_file(file.as_fd()), file }
    }
}

impl<F> Deref for Alone<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.file
    }
}

impl Drop for Absence {
    fn drop(&mut self) {
        if let Some(index) = self.0 {
            TABLE[index].state.store(0, Release);
        }
    }
}

/// Registers the fork handler.
fn watch() {
    HANDLER.call_once(|| {
        // SAFETY: a file of our own, open until the process ends.
        let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        NOTHING.store(null, Relaxed);
        // SAFETY: the handler only does what is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    let null: RawFd = NOTHING.load(Relaxed);
    for entry in TABLE.iter().filter(|entry| entry.state.load(Acquire) == 2) {
        let (at, len) = (entry.at.load(Relaxed), entry.len.load(Relaxed));
        if len == 0 {
            if null >= 0 {
                // The descriptor stays allocated, so that a later close of it does not close another file.
                // SAFETY: replaces a file of ours.
                unsafe { libc::dup3(null, at as RawFd, libc::O_CLOEXEC) };
            }
            continue;
        }
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: replaces our own mapping with memory, which we may then write.
        unsafe {
            let got =
                libc::mmap(at as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if got != libc::MAP_FAILED {
                got.cast::<u8>().write_bytes(0xff, len.min(PROBED));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bar, Mapping};
    use super::*;
    use std::{fs::File, sync::Arc};

    /// Checks, when it is closed, that children would still lose its number.
    struct Watched(File, Arc<AtomicU32>);

    impl AsFd for Watched {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let at = self.0.as_raw_fd() as usize;
            let entered = |e: &&Entry| {
                e.state.load(Acquire) == 2 && e.len.load(Relaxed) == 0 && e.at.load(Relaxed) == at
            };
            self.1.store(1 + TABLE.iter().filter(entered).count() as u32, Relaxed);
        }
    }

    #[test]
    fn a_files_number_is_let_go_of_before_it_is_closed() {
        let seen = Arc::new(AtomicU32::new(0));
        let file = Alone::new(Watched(File::open("/dev/null").unwrap(), seen.clone()));
        let at = file.0.as_raw_fd() as usize;
        assert!(TABLE.iter().any(|e| e.state.load(Acquire) == 2 && e.at.load(Relaxed) == at));
        drop(file);
        assert_eq!(seen.load(Relaxed), 1, "entries of the file while it is closed, and one");
    }

    #[test]
    fn a_child_has_neither_the_file_nor_the_registers() {
        let file = testkit::memfd(0x4000);
        let bar = Bar::Mapped(Arc::new(Mapping::of_file(&file, 0, 0x4000).unwrap()));
        sync::fork::watch();
        let _absence = Absence::of_file(file.as_fd());
        bar.write32(0x10, 7);
        let (before, size) = (sync::fork::generation(), |file: &File| file.metadata().map_or(0, |m| m.len()));
        // SAFETY: the child reads its memory and one file, and exits.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                let gone =
                    bar.read32(0x10) == u32::MAX && sync::fork::generation() != before && size(&file) == 0;
                bar.doorbell(0x3800, 1);
                libc::_exit(i32::from(!gone));
            }
            child
        };
        let mut status = -1;
        // SAFETY: the process is our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!((bar.read32(0x10), bar.read32(0x3804), size(&file)), (7, 0, 0x4000));
    }
}
