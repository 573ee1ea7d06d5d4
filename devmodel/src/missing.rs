//! Mapped pages that are missing when they are touched: their file was cut short, or its file system is full.
//!
//! The kernel raises SIGBUS in the thread that touched one. The handler puts zero pages in the place of what is missing, so that the
//! access under way ends, and marks the mapping: its user looks at the mark and answers with an error. Where the access was a copy that
//! expects it (`guarded.rs`), by SIGBUS or by SIGSEGV, the copy fails. Any other signal goes to the handler that the program had before.
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
    /// The whole mapping: its file is not to be trusted any more.
    All,
    /// The page alone; the others stay shared.
    Page,
}

/// Set for good when a page of any mapping that has this mark was missing.
#[derive(Debug, Default)]
pub struct Mark {
    set: AtomicBool,
    notice: String,
}

impl Mark {
    /// One that is not set. `notice` is what is written to stderr when it is.
    pub fn new(notice: String) -> Arc<Self> {
        Arc::new(Self { set: AtomicBool::new(false), notice })
    }

    /// True if a page was missing. As long as it is false, all that was copied before is what the file has.
    #[inline]
    pub fn is_set(&self) -> bool {
        // The handler runs in the thread that touched the page.
        compiler_fence(SeqCst);
        self.set.load(Relaxed)
    }

    /// Sets it for another reason than a missing page, which `notice` tells of in the place of its own. Does only what a signal handler may
    /// do.
    pub fn set_for(&self, notice: &str) {
        if !self.set.swap(true, Relaxed) {
            // SAFETY: so many bytes are there.
            unsafe { libc::write(libc::STDERR_FILENO, notice.as_ptr().cast(), notice.len()) };
        }
    }
}

/// A mapping as the signal handler sees it: no lock, no allocation.
struct Place {
    /// 0: free; 1: being set up.
    base: AtomicUsize,
    len: AtomicUsize,
    /// [`Replace::All`].
    whole: AtomicBool,
    mark: AtomicPtr<Mark>,
}

/// As many mappings as there are: blocks of them, which stay.
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
        // SAFETY: blocks are leaked before they are made known.
        std::iter::successors(Some(&PLACES), |places| unsafe { places.next.load(Acquire).as_ref() })
    }

    /// A place that was free.
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

/// The signals of an access that fails.
const SIGNALS: [libc::c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The program's own action for each of them before.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// A mapping that may be touched whether its pages are there or not, as long as this lives.
pub struct Watched {
    place: &'static Place,
    _mark: Arc<Mark>,
}

impl Watched {
    /// Watches `len` bytes at `base`, and sets `mark` when a page of them is missing.
    ///
    /// # Safety
    /// They are a private or shared mapping of the caller's own that stays until the result is dropped, and that nothing is
    /// assumed of beyond what zero pages in its place provide.
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
    /// Puts zero pages in the place of what is missing at `at`. False: it is not ours, or the kernel refuses.
    fn mend(&self, at: usize) -> bool {
        let (base, len) = (self.base.load(Acquire), self.len.load(Relaxed));
        if base <= 1 || !(base..base.saturating_add(len)).contains(&at) {
            return false;
        }
        // SAFETY: the `Watched`, which outlives accesses to the mapping, holds the mark.
        if let Some(mark) = unsafe { self.mark.load(Relaxed).as_ref() } {
            mark.set_for(&mark.notice);
        }
        let (from, bytes) = if self.whole.load(Relaxed) { (base, len) } else { (at & !(PAGE - 1), PAGE) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: within a mapping whose owner agreed to zero pages (`Watched::new`): pointers into it stay good. It is still
        // mapped, for an access to it is under way: the one that faulted.
        let put = unsafe { libc::mmap(from as *mut _, bytes, prot, flags, -1, 0) };
        put != libc::MAP_FAILED
    }
}

/// Sets the handler up, once.
pub(crate) fn watch() {
    BEFORE.get_or_init(|| {
        SIGNALS.map(|signal| {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: plain structures; the handler keeps to what signal handlers may do.
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
    // SAFETY: the kernel's own structure; the address means something where an access raised the signal and no process sent it.
    let (at, is_access) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    // SAFETY: a thread's own variable, which the calls below may change under code that is about to look at it.
    let errno = unsafe { *libc::__errno_location() };
    let mend = || Places::all().flat_map(|places| &places.block).any(|place| place.mend(at));
    // SAFETY: the kernel's own context of this handler.
    let leave = || unsafe { guarded::leave(context, at) };
    let done = is_access && (signal == libc::SIGBUS && mend() || leave());
    // SAFETY: the thread's own variable again, which nobody else can look at while its handler runs.
    unsafe { *libc::__errno_location() = errno };
    if !done {
        pass_on(signal, info, context, is_access);
    }
}

/// Lets the handler that the program had before deal with a signal that is not ours.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_access: bool) {
    // SAFETY: plain structures of integers.
    let none: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let place = SIGNALS.iter().position(|one| *one == signal);
    let before = BEFORE.get().zip(place).map_or(&none, |(before, place)| &before[place]);
    match before.sa_sigaction {
        libc::SIG_IGN if !is_access => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The program ends by this signal, as it would without us: no access that raised it can be ignored. It is done again when
            // this handler returns, so that a core shows where it was.
            // SAFETY: the default action needs nothing; a signal that was sent is delivered when this handler returns.
            unsafe {
                libc::sigaction(signal, &raw const none, ptr::null_mut());
                if !is_access {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the program's own handler, called as the kernel would: with the signals blocked that it asked for, and with
            // the arguments of its kind, which `SA_SIGINFO` tells.
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
        os::{
            fd::{AsRawFd, FromRawFd},
            unix::fs::FileExt,
        },
    };

    /// A file of `pages` pages, mapped, that is then cut short to one.
    fn cut(pages: usize) -> (File, *mut u8) {
        // SAFETY: a new descriptor, and a new mapping at a place that the kernel chooses.
        unsafe {
            let file = File::from_raw_fd(libc::memfd_create(c"missing".as_ptr(), 0));
            file.set_len((pages * PAGE) as u64).unwrap();
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
        // SAFETY: the mapping is the test's own and stays.
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

    /// Pages that the program's own handler mended.
    static MENDED: AtomicUsize = AtomicUsize::new(0);

    /// The result of a child of fork: its exit status, or minus the signal that ended it.
    fn in_child(body: fn()) -> i32 {
        let mut status = 0;
        // SAFETY: the child leaves without running anything else; the parent waits for it alone.
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

    /// Touches a page that nobody watches between two that are. Leaves with 6 and the number of pages that the program's own handler
    /// mended.
    fn touch_all() {
        let ([_one, _two], [first, last]) = {
            let [a, b] = [cut(2), cut(2)];
            ([a.0, b.0], [a.1, b.1])
        };
        let (_another, theirs) = cut(2);
        // SAFETY: mappings of the test's own that stay.
        unsafe {
            // More mappings than a block of places has lie between the two.
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
            // SAFETY: the kernel's structure, and a page of the test's own mapping that is missing.
            unsafe {
                let at = (*info).si_addr().map_addr(|at| at & !(PAGE - 1));
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            }
        }
        extern "C" fn plain(_: libc::c_int) {
            // SAFETY: leaving is all that is done.
            unsafe { libc::_exit(9) };
        }
        fn install(handler: usize, flags: libc::c_int) {
            // SAFETY: plain structures; the handlers only leave.
            unsafe {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                (action.sa_sigaction, action.sa_flags) = (handler, flags);
                libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
            }
            watch();
        }
        // In processes of their own, each a fresh run of this test alone: the handler is set up once.
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
