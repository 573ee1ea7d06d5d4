//! Timers in the node's time: timer files (timerfd_create(2)), POSIX timers (timer_create(2)), and the process's alarm.
//!
//! The kernel has all of these timers and delivers their expirations, but they do not run by themselves. Once one is set, a thread of this
//! library waits on the board until the first of them is due, like any thread with a limit, and has the kernel let it expire.

use super::{
    Errno, PS, nanoseconds,
    own::own,
    player,
    threads::{Begin, pthread_create},
    time_of,
    waits::{after, deadline},
};
use clock::{Board, Call, Player};
use libc::{CLOCK_MONOTONIC, c_int, c_void, clockid_t, itimerspec, sigevent, timer_t};
use std::{
    mem::zeroed,
    ptr::null_mut,
    sync::{
        Once,
        atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
};

/// TFD_IOC_SET_TICKS: sets the number of expirations of a timer file.
const SET_TICKS: libc::Ioctl = 0x4008_5400;
/// Nanoseconds in which the kernel lets a POSIX timer expire that is due.
const SOON: u64 = 20_000;
/// Maximum number of timers of a process in virtual time.
const MOST: usize = 256;

/// The kind of a timer, or the state of a place without one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    None,
    /// A thread is about to use the place.
    Taken,
    Alarm,
    File,
    /// A POSIX timer, which sends a signal to the process or a thread, creates a thread, or does neither.
    Posix,
}

/// A timer.
struct Timer {
    kind: AtomicU32,
    /// The kernel's file descriptor, or libc's timer id.
    id: AtomicU64,
    /// The clock of its absolute times.
    clock: AtomicI32,
    /// The thread that gets its signal; 0 is none.
    tid: AtomicU32,
    /// Function and argument of the thread that is created instead of a signal; 0 is none.
    notifies: [AtomicUsize; 2],
    /// When it rings, in the node's picoseconds; 0 is never.
    at: AtomicU64,
    /// Picoseconds from then to the next time, and so on; 0 is once.
    interval: AtomicU64,
    /// Expirations of a timer file since it was last read.
    unread: AtomicU64,
}

static TIMERS: [Timer; MOST] = [const {
    Timer {
        kind: AtomicU32::new(Kind::None as u32),
        id: AtomicU64::new(0),
        clock: AtomicI32::new(CLOCK_MONOTONIC),
        tid: AtomicU32::new(0),
        notifies: [const { AtomicUsize::new(0) }; 2],
        at: AtomicU64::new(0),
        interval: AtomicU64::new(0),
        unread: AtomicU64::new(0),
    }
}; MOST];

/// The earliest time at which a timer may be due.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Number of times that timers were set.
static SETS: AtomicU32 = AtomicU32::new(0);
/// The place of the thread that waits for timers, counted from 1; 0 is none yet.
static KEEPER: AtomicUsize = AtomicUsize::new(0);
/// Value of [`KEEPER`] while the thread is being created.
const BEGINS: usize = usize::MAX;
static FORKS: Once = Once::new();

/// A forked child has no timers except inherited files, which the parent's thread lets ring.
extern "C" fn forked() {
    TIMERS.iter().for_each(|timer| timer.kind.store(Kind::None as u32, Relaxed));
    NEXT.store(u64::MAX, Relaxed);
    KEEPER.store(0, Relaxed);
}

impl Timer {
    /// The timer of this kind and number.
    fn find(kind: Kind, id: u64) -> Option<&'static Self> {
        TIMERS.iter().find(|timer| timer.kind.load(Acquire) == kind as u32 && timer.id.load(Relaxed) == id)
    }

    /// Adds a timer. Returns `None` if there are too many, or if the program is not in virtual time.
    fn new(
        kind: Kind,
        id: u64,
        clock: clockid_t,
        (tid, notifies): (u32, [usize; 2]),
    ) -> Option<&'static Self> {
        player()?;
        // SAFETY: the handler only touches this library's statics.
        FORKS.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        let free = |timer: &&Self| {
            timer.kind.compare_exchange(Kind::None as u32, Kind::Taken as u32, AcqRel, Relaxed).is_ok()
        };
        // A closed file leaves its place to the next one with its descriptor.
        let timer = Self::find(kind, id).or_else(|| TIMERS.iter().find(free))?;
        timer.id.store(id, Relaxed);
        timer.clock.store(clock, Relaxed);
        timer.tid.store(tid, Relaxed);
        timer.notifies.iter().zip(notifies).for_each(|(word, value)| word.store(value, Relaxed));
        for word in [&timer.at, &timer.interval, &timer.unread] {
            word.store(0, Relaxed);
        }
        timer.kind.store(kind as u32, Release);
        Some(timer)
    }

    /// Rings at `at`, and every `interval` from then on.
    fn set(&self, at: u64, interval: u64) {
        self.at.store(0, SeqCst);
        self.interval.store(interval, SeqCst);
        self.at.store(at, SeqCst);
        let Some((board, player)) = player().filter(|_| at != 0) else { return };
        NEXT.fetch_min(at, SeqCst);
        ring_due(player.now());
        keep(board);
    }

    /// Sets the timer to `new`, a time of its clock if `is_absolute`, else from now. Returns `None` if that is no valid time.
    fn change(&self, new: &itimerspec, is_absolute: bool) -> Option<()> {
        let (value, interval) = (nanoseconds(&new.it_value)?, nanoseconds(&new.it_interval)?);
        let at = match value {
            0 => 0,
            _ if is_absolute => deadline(self.clock.load(Relaxed), value)?.max(1),
            _ => after(value)?,
        };
        self.set(at, interval.saturating_mul(PS));
        Some(())
    }

    /// The remaining time, which is not zero while the timer is set, and the interval.
    fn says(&self) -> itimerspec {
        let (at, interval) = (self.at.load(SeqCst), self.interval.load(SeqCst));
        let now = player().map_or(0, |(_, player)| player.now());
        let left = if at == 0 { 0 } else { at.saturating_sub(now).max(1) };
        itimerspec { it_interval: time_of(interval / PS), it_value: time_of(left.div_ceil(PS)) }
    }

    /// Rings if it is due at `now`. Returns the time at which it is due next.
    fn ring(&self, now: u64) -> u64 {
        let (at, interval) = (self.at.load(SeqCst), self.interval.load(SeqCst));
        if at == 0 || at > now {
            return if at == 0 { u64::MAX } else { at };
        }
        let times = 1 + (now - at).checked_div(interval).unwrap_or(0);
        let next = if interval == 0 { 0 } else { at.saturating_add(times.saturating_mul(interval)) };
        if self.at.compare_exchange(at, next, SeqCst, Relaxed).is_ok() {
            self.sound(times);
        }
        if next == 0 { u64::MAX } else { next }
    }

    /// Has the kernel deliver `times` expirations. If a thread that waits in virtual time gets a signal by that, its wait ends.
    fn sound(&self, times: u64) {
        let tid = self.tid.load(Relaxed);
        let gets = player().and_then(|(board, me)| {
            let is = |other: &Player| other.thread().0 == tid && other.number() != me.number();
            board.players().find(is).map(|thread| (thread, thread.state(), me.now()))
        });
        let (kind, id) = (self.kind.load(Acquire), self.id.load(Relaxed));
        if kind == Kind::File as u32 {
            let mut file = libc::pollfd { fd: id as c_int, events: libc::POLLIN, revents: 0 };
            let now = time_of(0);
            // SAFETY: the kernel reads and writes what is ours, and refuses a file that is no timer.
            unsafe {
                let unread =
                    libc::syscall(libc::SYS_ppoll, &raw mut file, 1, &raw const now, null_mut::<c_void>())
                        > 0;
                let ticks = times + if unread { self.unread.load(Relaxed) } else { 0 };
                self.unread.store(ticks, Relaxed);
                libc::syscall(libc::SYS_ioctl, id, SET_TICKS, &raw const ticks);
            }
        } else if kind == Kind::Alarm as u32 {
            // SAFETY: it takes nothing of ours.
            unsafe { libc::kill(libc::getpid(), libc::SIGALRM) };
        } else if self.notifies[0].load(Relaxed) != 0 {
            self.notify();
        } else if kind == Kind::Posix as u32 {
            posix_ring(id as timer_t);
        }
        // If its state has changed meanwhile, it no longer waits for what this signal interrupts.
        if let Some((thread, _, now)) = gets.filter(|(thread, waited, _)| thread.state() == *waited) {
            thread.interrupt(now);
        }
    }
}

/// A [`sigevent`] with SIGEV_THREAD; the declaration in the libc crate lacks the function.
#[repr(C)]
struct ThreadEvent {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: usize,
}

impl Timer {
    /// Creates a thread for the timer's function. It inherits this thread's mask, so it takes no signals.
    fn notify(&self) {
        let [function, value] = self.notifies.each_ref().map(|word| word.load(Relaxed));
        // SAFETY: the program gave this function for threads with this argument, a word that may be an address. The thread is detached, so
        // its return value is not read.
        unsafe {
            let mut thread = zeroed();
            let begin: Begin = std::mem::transmute(function);
            if pthread_create(&raw mut thread, std::ptr::null(), begin, value as *mut c_void) == 0 {
                libc::pthread_detach(thread);
            }
        }
    }
}

/// Lets a POSIX timer ring, and returns once it has.
fn posix_ring(id: timer_t) {
    let (soon, mut left) = (itimerspec { it_interval: time_of(0), it_value: time_of(SOON) }, SOON);
    // This thread counts as computing, and sleeps: the kernel prefers to deliver the signal to a thread that is running.
    let _call = Call::begin();
    // SAFETY: libc's functions are of these types; they read and write what is ours, and refuse a timer that was deleted. All bytes zero
    // are a time.
    unsafe {
        let none: *mut itimerspec = null_mut();
        let mut failed = own!(timer_settime(id => timer_t, 0 => c_int, &raw const soon => *const itimerspec, none => *mut itimerspec) -> c_int,
                else -1);
        while failed == 0 && left > 0 {
            let nap = time_of(SOON);
            libc::syscall(libc::SYS_nanosleep, &raw const nap, none);
            let mut says: itimerspec = zeroed();
            failed = own!(timer_gettime(id => timer_t, &raw mut says => *mut itimerspec) -> c_int, else -1);
            left = nanoseconds(&says.it_value).unwrap_or(0);
        }
    }
}

/// Rings all timers that are due at `now`.
pub fn ring_due(now: u64) {
    if NEXT.load(SeqCst) > now {
        return;
    }
    let _errno = Errno::keep();
    NEXT.store(u64::MAX, SeqCst);
    let next = TIMERS.iter().map(|timer| timer.ring(now)).min();
    NEXT.fetch_min(next.unwrap_or(u64::MAX), SeqCst);
}

/// Creates the thread that waits for timers if there is none yet, and tells it that a timer was set.
fn keep(board: Board) {
    if KEEPER.compare_exchange(0, BEGINS, SeqCst, Relaxed).is_ok() {
        // SAFETY: the thread has no argument and only touches this library's statics; the signal masks are ours, and the old one is
        // restored. The thread blocks all signals, because they are for the program's threads.
        unsafe {
            let (mut all, mut before, mut thread) = (zeroed(), zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let made = libc::pthread_create(&raw mut thread, std::ptr::null(), keeper, null_mut());
            if made == 0 {
                libc::pthread_detach(thread);
            } else {
                KEEPER.store(0, SeqCst);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        }
    }
    while KEEPER.load(SeqCst) == BEGINS {
        std::hint::spin_loop();
    }
    SETS.fetch_add(1, SeqCst);
    if let Some(number) = KEEPER.load(SeqCst).checked_sub(1) {
        board.at(number).wake();
    }
}

/// The thread that waits for timers.
extern "C" fn keeper(_: *mut c_void) -> *mut c_void {
    let Some((board, player)) = player() else {
        KEEPER.store(0, SeqCst);
        return null_mut();
    };
    KEEPER.store(player.number() + 1, SeqCst);
    while board.is_conducted() {
        let sets = SETS.load(SeqCst);
        ring_due(player.now());
        let parked = player.park(NEXT.load(SeqCst));
        // The wait begins before this check, so a thread that sets a timer after the check ends the wait.
        if SETS.load(SeqCst) == sets {
            parked.rest();
        }
    }
    KEEPER.store(0, SeqCst);
    null_mut()
}

/// True if the alarm of this process is set. After vfork(2), the alarm in the shared memory is the parent's.
pub fn has_alarm() -> bool {
    // SAFETY: it takes nothing.
    let first = unsafe { libc::getpid() } as u32;
    let is_set = |alarm: &Timer| alarm.at.load(SeqCst) != 0 && alarm.tid.load(Relaxed) == first;
    Timer::find(Kind::Alarm, 0).is_some_and(is_set)
}

/// Sets the process's alarm to `new`, if given, and returns its previous remaining time and interval. Returns `None` if the alarm is the
/// kernel's.
pub fn alarm(new: Option<&itimerspec>) -> Option<itimerspec> {
    let _errno = Errno::keep();
    // SAFETY: it takes nothing.
    let first = unsafe { libc::getpid() } as u32;
    let alarm = Timer::find(Kind::Alarm, 0)
        .or_else(|| Timer::new(Kind::Alarm, 0, CLOCK_MONOTONIC, (first, [0; 2])))?;
    let before = alarm.says();
    new.map_or(Some(()), |new| alarm.change(new, false))?;
    Some(before)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
    // SAFETY: it takes no addresses.
    let fd = unsafe { libc::syscall(libc::SYS_timerfd_create, clock, flags) } as c_int;
    let zero = 0u64;
    let _errno = Errno::keep();
    // SAFETY: the kernel reads the number.
    let counts = || unsafe { libc::syscall(libc::SYS_ioctl, fd, SET_TICKS, &raw const zero) };
    // The kernel refuses zero expirations with EINVAL, and with another error if it lacks this call.
    if fd >= 0 && counts() < 0 && errno() == libc::EINVAL {
        let _ = Timer::new(Kind::File, fd as u64, clock, (0, [0; 2]));
    }
    fd
}

fn errno() -> c_int {
    // SAFETY: it is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timerfd_settime(
    fd: c_int,
    flags: c_int,
    new: *const itimerspec,
    old: *mut itimerspec,
) -> c_int {
    let timer = Timer::find(Kind::File, fd as u64);
    let before = timer.map(Timer::says);
    let (never, nothing) =
        (itimerspec { it_interval: time_of(0), it_value: time_of(0) }, null_mut::<itimerspec>());
    // The kernel's timer is stopped, which also clears its expirations.
    // SAFETY: the caller's promise: it can be read, if the kernel does not refuse it.
    let wanted = unsafe { new.as_ref() }
        .filter(|new| nanoseconds(&new.it_value).and(nanoseconds(&new.it_interval)).is_some());
    let (set, tell) = if timer.and(wanted).is_some() { (&raw const never, nothing) } else { (new, old) };
    // SAFETY: the kernel checks what it is given.
    let failed = unsafe { libc::syscall(libc::SYS_timerfd_settime, fd, flags, set, tell) } as c_int;
    if let (0, Some(timer), Some(before), Some(wanted)) = (failed, timer, before, wanted) {
        let _ = timer.change(wanted, flags & libc::TFD_TIMER_ABSTIME != 0);
        if !old.is_null() {
            // SAFETY: the caller's promise.
            unsafe { old.write(before) };
        }
    }
    failed
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timerfd_gettime(fd: c_int, now: *mut itimerspec) -> c_int {
    // SAFETY: the kernel checks what it is given.
    let failed = unsafe { libc::syscall(libc::SYS_timerfd_gettime, fd, now) } as c_int;
    if let (0, Some(timer)) = (failed, Timer::find(Kind::File, fd as u64)) {
        // SAFETY: the kernel has written to it.
        unsafe { now.write(timer.says()) };
    }
    failed
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_create(clock: clockid_t, event: *mut sigevent, id: *mut timer_t) -> c_int {
    let ours =
        matches!(clock, libc::CLOCK_REALTIME | CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_TAI);
    // SAFETY: all bytes zero are an event.
    let mut silent: sigevent = unsafe { zeroed() };
    silent.sigev_notify = libc::SIGEV_NONE;
    // SAFETY: it takes nothing.
    let first = unsafe { libc::getpid() } as u32;
    // SAFETY: the caller's promise: it is null, or an event; one with SIGEV_THREAD has the members of a `ThreadEvent`.
    let (gets, event) = unsafe {
        match event.as_ref().map(|event| event.sigev_notify) {
            None | Some(libc::SIGEV_SIGNAL) => ((first, [0; 2]), event),
            Some(libc::SIGEV_THREAD_ID) => (((*event).sigev_notify_thread_id as u32, [0; 2]), event),
            Some(libc::SIGEV_THREAD) if ours && player().is_some() => {
                let thread = &*event.cast::<ThreadEvent>();
                ((0, [thread.function, thread.value]), &raw mut silent)
            }
            Some(_) => ((0, [0; 2]), event),
        }
    };
    // SAFETY: the caller's promise; libc's function is of this type.
    let failed = unsafe {
        own!(timer_create(clock => clockid_t, event => *mut sigevent, id => *mut timer_t) -> c_int, else super::fail(libc::ENOSYS))
    };
    if failed == 0 && ours {
        // SAFETY: libc has written the number.
        let timer = unsafe { id.read() };
        if Timer::new(Kind::Posix, timer as u64, clock, gets).is_none() && gets.1[0] != 0 {
            // Without a place no thread would be created for it.
            // SAFETY: it was made above, and the caller does not learn of it.
            unsafe { timer_delete(timer) };
            return super::fail(libc::EAGAIN);
        }
    }
    failed
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_settime(
    id: timer_t,
    flags: c_int,
    new: *const itimerspec,
    old: *mut itimerspec,
) -> c_int {
    // SAFETY: the caller's promise: it can be read.
    let wanted = unsafe { new.as_ref() };
    let ours = Timer::find(Kind::Posix, id as u64).zip(wanted).and_then(|(timer, wanted)| {
        let before = timer.says();
        timer.change(wanted, flags & libc::TIMER_ABSTIME != 0).map(|()| before)
    });
    match ours {
        Some(before) if !old.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { old.write(before) };
            0
        }
        Some(_) => 0,
        // SAFETY: the caller's promise; libc's function is of this type.
        None => unsafe {
            own!(timer_settime(id => timer_t, flags => c_int, new => *const itimerspec, old => *mut itimerspec) -> c_int,
                else super::fail(libc::ENOSYS))
        },
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_gettime(id: timer_t, now: *mut itimerspec) -> c_int {
    match Timer::find(Kind::Posix, id as u64) {
        Some(timer) => {
            // SAFETY: the caller's promise.
            unsafe { now.write(timer.says()) };
            0
        }
        // SAFETY: the caller's promise; libc's function is of this type.
        None => unsafe {
            own!(timer_gettime(id => timer_t, now => *mut itimerspec) -> c_int, else super::fail(libc::ENOSYS))
        },
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_delete(id: timer_t) -> c_int {
    if let Some(timer) = Timer::find(Kind::Posix, id as u64) {
        timer.at.store(0, SeqCst);
        timer.kind.store(Kind::None as u32, Release);
    }
    // SAFETY: the caller's promise; libc's function is of this type.
    unsafe { own!(timer_delete(id => timer_t) -> c_int, else super::fail(libc::ENOSYS)) }
}
