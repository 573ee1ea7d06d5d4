//! Handling of mapped pages that turn out to be missing: their file was truncated, or its file system is full.
//!
//! The kernel raises SIGBUS in the thread that touched such a page. The handler replaces the missing memory with zero pages, so that the
//! access completes, and marks the mapping: the user of the mapping checks the mark and returns an error. If the access was a copy that
//! expects this (`guarded.rs`), by SIGBUS or by SIGSEGV, the copy fails. Any other signal goes to the handler that the program had
//! installed before.
#![allow(unsafe_code)]

use crate::guarded;
use std::{
    mem::MaybeUninit,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*, compiler_fence},
    },
};

/// Mappings in a block of [`Places`].
const MAPPINGS: usize = 128;
const PAGE: usize = 4096;

/// The memory that is replaced when a page is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The whole mapping: its file can no longer be trusted.
    All,
    /// Only the missing page; the others stay shared.
    Page,
}

/// Set permanently once a page of any mapping with this mark was missing.
#[derive(Debug, Default)]
pub struct Mark {
    set: AtomicBool,
    notice: String,
}

impl Mark {
    /// Creates a clear mark. `notice` is written to stderr when it is set.
    pub fn new(notice: String) -> Arc<Self> {
        Arc::new(Self { set: AtomicBool::new(false), notice })
    }

    /// True if a page was missing. While it is false, everything copied so far came from the file.
    #[inline]
    pub fn is_set(&self) -> bool {
        // The handler runs in the thread that touched the page.
        compiler_fence(SeqCst);
        self.set.load(Relaxed)
    }

    /// Sets the mark for another reason than a missing page and writes `notice` instead of its own. Async-signal-safe.
    pub fn set_for(&self, notice: &str) {
        if !self.set.swap(true, Relaxed) {
            // SAFETY: the pointer and length are those of a slice.
            unsafe { libc::write(libc::STDERR_FILENO, notice.as_ptr().cast(), notice.len()) };
        }
    }
}

/// A mapping as the signal handler sees it: without locks or allocation.
struct Place {
    /// 0: free; 1: being set up.
    base: AtomicUsize,
    len: AtomicUsize,
    /// True for [`Replace::All`].
    whole: AtomicBool,
    mark: AtomicPtr<Mark>,
}

/// All mappings, in a list of blocks that are never freed.
struct Places {
    block: [Place; MAPPINGS],
    next: AtomicPtr<Places>,
}

impl Places {
    const fn new() -> Self {
        Self {
            block: [const {
                Place {
                    base: AtomicUsize::new(0),
                    len: AtomicUsize::new(0),
                    whole: AtomicBool::new(false),
                    mark: AtomicPtr::new(ptr::null_mut()),
                }
            }; MAPPINGS],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// All blocks.
    fn all() -> impl Iterator<Item = &'static Self> {
        // SAFETY: blocks are leaked before they are published.
        std::iter::successors(Some(&PLACES), |places| unsafe { places.next.load(Acquire).as_ref() })
    }

    /// Claims a free place.
    fn claim() -> &'static Place {
        let free = |p: &&Place| p.base.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        loop {
            if let Some(place) = Self::all().flat_map(|places| &places.block).find(free) {
                return place;
            }
            let more: *mut Self = Box::leak(Box::new(Self::new()));
            for places in Self::all() {
                if places.next.compare_exchange(ptr::null_mut(), more, AcqRel, Relaxed).is_ok() {
                    break;
                }
            }
        }
    }
}

static PLACES: Places = Places::new();

/// The signals raised by a failed access.
const SIGNALS: [libc::c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The program's own action for each of them.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// A mapping that may be touched, whether its pages are present or not, for the lifetime of this value.
pub struct Watched {
    place: &'static Place,
    _mark: Arc<Mark>,
}

impl Watched {
    /// Watches `len` bytes at `base` and sets `mark` when one of their pages is missing.
    ///
    /// # Safety
    /// The range is the caller's own private or shared mapping, which stays mapped until the result is dropped. The caller's assumptions
    /// about its contents must also hold for zero pages in its place.
    pub unsafe fn new(base: *mut u8, len: usize, replace: Replace, mark: Arc<Mark>) -> Self {
        watch();
        let place = Places::claim();
        place.whole.store(replace == Replace::All, Relaxed);
        place.mark.store(Arc::as_ptr(&mark).cast_mut(), Relaxed);
        place.len.store(len, Relaxed);
        place.base.store(base as usize, Release);
        Self { place, _mark: mark }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.place.base.store(0, Release);
    }
}

impl Place {
    /// Replaces the missing memory at `at` with zero pages. False if the address is not in this mapping or the kernel refuses.
    fn mend(&self, at: usize) -> bool {
        let (base, len) = (self.base.load(Acquire), self.len.load(Relaxed));
        if base <= 1 || !(base..base.saturating_add(len)).contains(&at) {
            return false;
        }
        // SAFETY: the `Watched`, which outlives accesses to the mapping, keeps the mark alive.
        if let Some(mark) = unsafe { self.mark.load(Relaxed).as_ref() } {
            mark.set_for(&mark.notice);
        }
        let (from, bytes) = if self.whole.load(Relaxed) { (base, len) } else { (at & !(PAGE - 1), PAGE) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the owner of the mapping has agreed to zero pages (`Watched::new`), so pointers into it stay valid. It is still mapped,
        // because the access that faulted is in progress.
        let put = unsafe { libc::mmap(from as *mut _, bytes, prot, flags, -1, 0) };
        put != libc::MAP_FAILED
    }
}

/// Installs the handler, once.
pub(crate) fn watch() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: plain structures; the handler does only what is allowed in a signal handler.
            unsafe {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&raw mut action.sa_mask);
                libc::sigaction(signal, &raw const action, before.as_mut_ptr());
                before.assume_init()
            }
        })
    });
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's own structure; the address is meaningful if an access raised the signal and no process sent it.
    let (at, is_access) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    // SAFETY: a thread-local variable, which the calls below may change under code that is about to read it.
    let errno = unsafe { *libc::__errno_location() };
    let mend = || Places::all().flat_map(|places| &places.block).any(|place| place.mend(at));
    // SAFETY: the context that the kernel passed to this handler.
    let leave = || unsafe { guarded::leave(context, at) };
    let done = is_access && (signal == libc::SIGBUS && mend() || leave());
    // SAFETY: the same thread-local variable, which no other code can read while its thread runs the handler.
    unsafe { *libc::__errno_location() = errno };
    if !done {
        pass_on(signal, info, context, is_access);
    }
}

/// Passes a signal that is not ours to the handler that the program had installed before.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_access: bool) {
    // SAFETY: plain structures of integers.
    let none: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let place = SIGNALS.iter().position(|one| *one == signal);
    let before = BEFORE.get().zip(place).map_or(&none, |(before, place)| &before[place]);
    match before.sa_sigaction {
        libc::SIG_IGN if !is_access => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The signal ends the program, as it would without this handler: a failed access cannot be ignored. The access is repeated when
            // the handler returns, so that a core dump shows its location.
            // SAFETY: the default action has no preconditions; a signal that was sent is delivered when this handler returns.
            unsafe {
                libc::sigaction(signal, &raw const none, ptr::null_mut());
                if !is_access {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the program's own handler, called as the kernel would call it: with the signals blocked that it asked for, and with
            // the arguments of its kind, as given by `SA_SIGINFO`.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const before.sa_mask, mask.as_mut_ptr());
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), ptr::null_mut());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        os::{fd::AsRawFd, unix::fs::FileExt},
    };

    /// Maps a file of `pages` pages and then truncates it to one.
    fn cut(pages: usize) -> (File, *mut u8) {
        // SAFETY: a new mapping at an address chosen by the kernel.
        unsafe {
            let file = testkit::memfd((pages * PAGE) as u64);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(ptr::null_mut(), pages * PAGE, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            file.set_len(PAGE as u64).unwrap();
            (file, at.cast())
        }
    }

    #[test]
    fn a_missing_page_reads_as_zeros_and_is_marked_and_the_others_stay_shared() {
        let (file, at) = cut(8);
        let mark = Mark::new(String::new());
        // SAFETY: the mapping belongs to the test and is never unmapped.
        let _watched = unsafe { Watched::new(at, 8 * PAGE, Replace::Page, mark.clone()) };
        // SAFETY: within the mapping.
        let touch = |page: usize| unsafe { at.add(page * PAGE).write_volatile(1) };
        touch(0);
        assert!(!mark.is_set(), "the first page is there");
        touch(7);
        assert!(mark.is_set());
        let mut byte = [0];
        file.read_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [1], "the first page was there, and is the file's");
    }

    /// Pages replaced by the program's own handler.
    static MENDED: AtomicUsize = AtomicUsize::new(0);

    /// The result of a forked child: its exit status, or the negated number of the signal that ended it.
    fn in_child(body: fn()) -> i32 {
        let mut status = 0;
        // SAFETY: the child exits without running anything else; only the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                body();
                libc::_exit(0);
            }
            libc::waitpid(child, &raw mut status, 0);
        }
        if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
    }

    /// Touches an unwatched page between two watched ones. Exits with 6 plus the number of pages replaced by the program's own handler.
    fn touch_all() {
        let ([_one, _two], [first, last]) = {
            let [a, b] = [cut(2), cut(2)];
            ([a.0, b.0], [a.1, b.1])
        };
        let (_another, theirs) = cut(2);
        // SAFETY: the test's own mappings, which are never unmapped.
        unsafe {
            // The list has more mappings between the two than fit in one block of places.
            let watch = |at| Watched::new(at, 2 * PAGE, Replace::All, Arc::default());
            let _first = watch(first);
            let _more: Vec<_> = (0..2 * MAPPINGS).map(|_| watch(first)).collect();
            let _last = watch(last);
            first.add(PAGE).write_volatile(1);
            theirs.add(PAGE).write_volatile(1);
            last.add(PAGE).write_volatile(1);
            libc::_exit(6 + MENDED.load(Relaxed) as i32);
        }
    }

    #[test]
    fn the_programs_own_handler_is_called_for_what_is_not_ours() {
        extern "C" fn with_address(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
            MENDED.fetch_add(1, Relaxed);
            // SAFETY: the kernel's structure, and a missing page of the test's own mapping.
            unsafe {
                let at = (*info).si_addr().map_addr(|at| at & !(PAGE - 1));
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            }
        }
        extern "C" fn plain(_: libc::c_int) {
            // SAFETY: the handler only exits.
            unsafe { libc::_exit(9) };
        }
        fn install(handler: usize, flags: libc::c_int) {
            // SAFETY: plain structures; the handlers only exit.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                (action.sa_sigaction, action.sa_flags) = (handler, flags);
                libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
            }
            watch();
        }
        // Each case is a fresh run of this test alone in its own process, because the handler is installed only once.
        match std::env::var("IRONVERBS_TEST_HANDLER").as_deref() {
            Ok("address") => install(with_address as *const () as usize, libc::SA_SIGINFO),
            Ok("plain") => install(plain as *const () as usize, 0),
            Ok("default") => install(libc::SIG_DFL, 0),
            _ => {
                for (handler, expected) in [("address", 7), ("plain", 9), ("default", -libc::SIGBUS)] {
                    let name = "missing::tests::the_programs_own_handler_is_called_for_what_is_not_ours";
                    let run = std::process::Command::new(std::env::current_exe().unwrap())
                        .args(["--exact", "--nocapture", name])
                        .env("IRONVERBS_TEST_HANDLER", handler)
                        .status();
                    assert_eq!(run.unwrap().code(), Some(0), "{handler}: expected {expected}");
                }
                return;
            }
        }
        let expected = match std::env::var("IRONVERBS_TEST_HANDLER").as_deref() {
            Ok("address") => 7,
            Ok("plain") => 9,
            _ => -libc::SIGBUS,
        };
        assert_eq!(in_child(touch_all), expected);
    }
}
