//! Timers in the adapter's time: timerfd_create(2), timer_create(2), the process's alarm, and limits of waits for condition variables.
//!
//! The kernel's timers do not run. When a process first sets a timer, this library creates a thread, the keeper. It waits on the board
//! until the first timer is due, like any thread whose wait has a limit, and then delivers the expiration. Time stands still while it does
//! so.

use super::{
    Errno, PS, errno, fail, nanoseconds,
    own::instead,
    player,
    threads::{Begin, pthread_create},
    time_of,
    waits::{after, deadline},
};
use clock::{Board, Player};
use libc::{
    CLOCK_MONOTONIC, ENOSYS, ETIMEDOUT, c_int, c_void, clockid_t, itimerspec, pthread_cond_t, sigevent,
    timer_t,
};
use std::{
    mem::zeroed,
    ptr::{null, null_mut},
    sync::{
        Once,
        atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
};

/// TFD_IOC_SET_TICKS: sets the number of expirations of a timer file.
const SET_TICKS: libc::Ioctl = 0x4008_5400;
/// PTHREAD_CANCEL_DISABLE.
const NO_CANCEL: c_int = 1;
/// Maximum number of timers of a process in virtual time.
const MOST: usize = 256;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The kind of a timer, or the state of a place without one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    None,
    /// Claimed by a thread that is about to use the place.
    Taken,
    Alarm,
    File,
    Posix,
    /// The limit of a thread's wait for a condition variable.
    Condition,
}

/// A timer.
struct Timer {
    kind: AtomicU32,
    /// The kernel's file descriptor, libc's timer id, or the condition variable's address.
    id: AtomicU64,
    /// The clock of its absolute times.
    clock: AtomicI32,
    /// The thread that gets its signal, or the process, given by its first thread; 0 for none.
    tid: AtomicU32,
    /// The signal's number and value, or function and argument of a thread that is created.
    call: [AtomicUsize; 2],
    /// Time of its next expiration in the adapter's picoseconds; 0 for never.
    at: AtomicU64,
    /// Interval between expirations in picoseconds; 0 for a single one.
    interval: AtomicU64,
    /// Expirations of a timer file since it was last read; for a wait, 1 once it has been ended.
    unread: AtomicU64,
}

static TIMERS: [Timer; MOST] = [const {
    Timer {
        kind: AtomicU32::new(Kind::None as u32),
        id: AtomicU64::new(0),
        clock: AtomicI32::new(CLOCK_MONOTONIC),
        tid: AtomicU32::new(0),
        call: [const { AtomicUsize::new(0) }; 2],
        at: AtomicU64::new(0),
        interval: AtomicU64::new(0),
        unread: AtomicU64::new(0),
    }
}; MOST];

/// The earliest time at which a timer may be due.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Number of times that timers were set.
static SETS: AtomicU32 = AtomicU32::new(0);
/// Place of the keeper on the board, counted from 1; 0 before it exists.
static KEEPER: AtomicUsize = AtomicUsize::new(0);
/// Value of [`KEEPER`] while the thread is being created.
const BEGINS: usize = usize::MAX;
static FORKS: Once = Once::new();

/// A forked child has no timers except inherited files, whose expirations the parent's keeper delivers.
extern "C" fn forked() {
    TIMERS.iter().for_each(|timer| timer.kind.store(Kind::None as u32, Relaxed));
    NEXT.store(u64::MAX, Relaxed);
    KEEPER.store(0, Relaxed);
}

/// The calling thread's process.
fn process() -> u32 {
    // SAFETY: it takes nothing.
    unsafe { libc::getpid() as u32 }
}

/// The arguments of `rt_sigqueueinfo` (2) for a signal of a timer.
#[repr(C)]
struct Info {
    signal: c_int,
    error: c_int,
    code: c_int,
    unused: c_int,
    timer: c_int,
    overrun: c_int,
    value: usize,
    more: [u64; 12],
}

impl Timer {
    fn is(&self, kind: Kind) -> bool {
        self.kind.load(Acquire) == kind as u32
    }

    /// The timer of this kind and number.
    fn find(kind: Kind, id: u64) -> Option<&'static Self> {
        TIMERS.iter().find(|timer| timer.is(kind) && timer.id.load(Relaxed) == id)
    }

    /// Adds a timer. Returns `None` if there are too many or the program is not in virtual time.
    fn new(kind: Kind, id: u64, clock: clockid_t, (tid, call): (u32, [usize; 2])) -> Option<&'static Self> {
        player()?;
        // SAFETY: the handler only touches this library's statics.
        FORKS.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        let free = |timer: &&Self| {
            timer.kind.compare_exchange(Kind::None as u32, Kind::Taken as u32, AcqRel, Relaxed).is_ok()
        };
        // A closed file's place passes to the next file with its descriptor; several threads may wait for one condition variable.
        let same = if kind == Kind::Condition { None } else { Self::find(kind, id) };
        let timer = same.or_else(|| TIMERS.iter().find(free))?;
        timer.id.store(id, Relaxed);
        timer.clock.store(clock, Relaxed);
        timer.tid.store(tid, Relaxed);
        timer.call.iter().zip(call).for_each(|(word, value)| word.store(value, Relaxed));
        for word in [&timer.at, &timer.interval, &timer.unread] {
            word.store(0, Relaxed);
        }
        timer.kind.store(kind as u32, Release);
        Some(timer)
    }

    /// Expires at `at` and then every `interval`. Returns false if the keeper cannot be created.
    fn set(&self, at: u64, interval: u64) -> bool {
        self.at.store(0, SeqCst);
        self.interval.store(interval, SeqCst);
        self.at.store(at, SeqCst);
        let Some((board, player)) = player().filter(|_| at != 0) else { return true };
        NEXT.fetch_min(at, SeqCst);
        ring_due(player.now(), false);
        let kept = keep(board);
        if !kept {
            self.at.store(0, SeqCst);
        }
        kept
    }

    /// Sets the timer to `new`, which is a time of its clock if `is_absolute`, and otherwise relative. Returns `None` if the time is
    /// invalid or there is no keeper.
    fn change(&self, new: &itimerspec, is_absolute: bool) -> Option<()> {
        let (value, interval) = (nanoseconds(&new.it_value)?, nanoseconds(&new.it_interval)?);
        let at = match value {
            0 => 0,
            _ if is_absolute => deadline(self.clock.load(Relaxed), value)?.max(1),
            _ => after(value)?,
        };
        self.set(at, interval.saturating_mul(PS)).then_some(())
    }

    /// The remaining time, which is not zero while the timer is set, and the interval.
    fn says(&self) -> itimerspec {
        let (at, interval) = (self.at.load(SeqCst), self.interval.load(SeqCst));
        let now = player().map_or(0, |(_, player)| player.now());
        let left = if at == 0 { 0 } else { at.saturating_sub(now).max(1) };
        itimerspec { it_interval: time_of(interval / PS), it_value: time_of(left.div_ceil(PS)) }
    }

    /// Expires if it is due at `now`. Returns the time of the next expiration. Only the keeper knows that a thread has begun to wait for
    /// its [condition](Kind::Condition), because no thread runs in the keeper's time.
    fn ring(&self, now: u64, keeper: bool) -> u64 {
        let (at, interval) = (self.at.load(SeqCst), self.interval.load(SeqCst));
        if at == 0 || at > now || (!keeper && self.is(Kind::Condition)) {
            return if at == 0 { u64::MAX } else { at };
        }
        let times = 1 + (now - at).checked_div(interval).unwrap_or(0);
        let next = if interval == 0 { 0 } else { at.saturating_add(times.saturating_mul(interval)) };
        if self.at.compare_exchange(at, next, SeqCst, Relaxed).is_ok() {
            self.sound(times);
        }
        if next == 0 { u64::MAX } else { next }
    }

    /// Delivers `times` expirations.
    fn sound(&self, times: u64) {
        let ([first, second], id) =
            (self.call.each_ref().map(|word| word.load(Relaxed)), self.id.load(Relaxed));
        let tid = self.tid.load(Relaxed);
        if self.is(Kind::File) {
            self.expire(id, times);
        } else if self.is(Kind::Condition) {
            // SAFETY: the thread that waits for it does so until `unread` shows that this is done.
            unsafe { libc::pthread_cond_broadcast(id as *mut pthread_cond_t) };
            self.unread.store(1, SeqCst);
        } else if tid != 0 {
            signal(tid, first as c_int, second);
        } else if first != 0 {
            // It inherits this thread's mask, so it takes no signals.
            // SAFETY: the program gave this function for threads with this argument, a word that may be an address. The thread is detached, so
            // its return value is not read.
            unsafe {
                let mut thread = zeroed();
                let begin: Begin = std::mem::transmute(first);
                if pthread_create(&raw mut thread, null(), begin, second as *mut c_void) == 0 {
                    libc::pthread_detach(thread);
                }
            }
        }
    }

    /// Adds `times` expirations to the timer file `fd`.
    fn expire(&self, fd: u64, times: u64) {
        let mut file = libc::pollfd { fd: fd as c_int, events: libc::POLLIN, revents: 0 };
        let (now, none) = (time_of(0), null_mut::<c_void>());
        // SAFETY: the kernel accesses only memory of ours, and refuses a file that is not a timer.
        unsafe {
            let unread = libc::syscall(libc::SYS_ppoll, &raw mut file, 1, &raw const now, none) > 0;
            let ticks = times + if unread { self.unread.load(Relaxed) } else { 0 };
            self.unread.store(ticks, Relaxed);
            libc::syscall(libc::SYS_ioctl, fd, SET_TICKS, &raw const ticks);
        }
    }
}

/// Sends `signal` to a thread, or to the process if the thread is its first one. A wait of the thread in virtual time ends after the
/// signal's handler.
fn signal(tid: u32, signal: c_int, value: usize) {
    let waits = player().and_then(|(board, me)| {
        let is = |other: &Player| other.thread().0 == tid && other.number() != me.number();
        board.players().find(is).map(|thread| (thread, thread.wait_of(), me.now()))
    });
    let info = Info {
        signal,
        error: 0,
        code: libc::SI_TIMER,
        unused: 0,
        timer: 0,
        overrun: 0,
        value,
        more: [0; 12],
    };
    let pid = process();
    // SAFETY: the kernel reads what is ours.
    unsafe {
        match tid == pid {
            true => libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, &raw const info),
            false => libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info),
        }
    };
    if let Some((thread, wait, now)) = waits {
        thread.interrupt(wait, now);
    }
}

/// Expires all timers that are due at `now`. Waits are left to the keeper, which always checks all timers, because another thread that is
/// checking them sets [`NEXT`] to `u64::MAX` meanwhile. Returns the time of the next expiration, as far as the caller knows.
pub fn ring_due(now: u64, keeper: bool) -> u64 {
    let next = NEXT.load(SeqCst);
    if !keeper && next > now {
        return next;
    }
    let _errno = Errno::keep();
    NEXT.store(u64::MAX, SeqCst);
    let next = TIMERS.iter().map(|timer| timer.ring(now, keeper)).min().unwrap_or(u64::MAX);
    NEXT.fetch_min(next, SeqCst);
    next
}

/// Creates the keeper if it does not exist, and tells it that a timer was set. Returns false if it cannot be created.
fn keep(board: Board) -> bool {
    if KEEPER.compare_exchange(0, BEGINS, SeqCst, Relaxed).is_ok() {
        // SAFETY: the thread has no argument and only touches this library's statics; the signal masks are ours, and the old one is
        // restored. The thread blocks all signals, because they are for the program's threads.
        unsafe {
            let (mut all, mut before, mut thread) = (zeroed(), zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            if pthread_create(&raw mut thread, null(), keeper, null_mut()) == 0 {
                libc::pthread_detach(thread);
            } else {
                KEEPER.store(0, SeqCst);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        }
    }
    while KEEPER.load(SeqCst) == BEGINS {
        // SAFETY: it takes no arguments. The keeper runs, so time stands still, though this thread yields.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
    }
    SETS.fetch_add(1, SeqCst);
    let place = KEEPER.load(SeqCst).checked_sub(1);
    place.map(|number| board.at(number).wake()).is_some()
}

/// The keeper's thread.
unsafe extern "C-unwind" fn keeper(_: *mut c_void) -> *mut c_void {
    let Some((board, player)) = player() else {
        KEEPER.store(0, SeqCst);
        return null_mut();
    };
    KEEPER.store(player.number() + 1, SeqCst);
    while board.is_conducted() {
        let sets = SETS.load(SeqCst);
        let waits = player.park(ring_due(player.now(), true));
        // The keeper waits before this check, so a thread that sets a timer after the check ends the wait.
        if SETS.load(SeqCst) == sets {
            waits.rest();
        }
    }
    KEEPER.store(0, SeqCst);
    null_mut()
}

/// Calls `wait`, an unlimited wait for a condition variable, and ends it with ETIMEDOUT when the adapter's time is `until`. Returns `None`
/// without waiting if there are too many timers.
pub fn wait_limited(
    condition: *mut pthread_cond_t,
    until: u64,
    wait: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let timer = Timer::new(Kind::Condition, condition.addr() as u64, CLOCK_MONOTONIC, (0, [0; 2]))?;
    let cancels = |state| {
        let mut before = 0;
        // SAFETY: it writes to a variable of ours. A thread that was cancelled while it waits would leave the timer behind.
        unsafe { pthread_setcancelstate(state, &raw mut before) };
        before
    };
    let before = cancels(NO_CANCEL);
    let result = timer.set(until, 0).then(wait);
    cancels(before);
    let is_over = timer.at.swap(0, SeqCst) == 0;
    // The condition variable may not be destroyed before the keeper has used it.
    while is_over && timer.unread.load(SeqCst) == 0 {
        std::hint::spin_loop();
    }
    timer.kind.store(Kind::None as u32, Release);
    // A signal that ended the wait before the limit counts. One that came at the limit wakes another thread, since all are awake.
    result.map(|result| if is_over && result == 0 { ETIMEDOUT } else { result })
}

/// True if the alarm of this process is set. After vfork(2), the alarm in the shared memory is the parent's.
pub fn has_alarm() -> bool {
    let is_set = |alarm: &Timer| alarm.at.load(SeqCst) != 0 && alarm.tid.load(Relaxed) == process();
    Timer::find(Kind::Alarm, 0).is_some_and(is_set)
}

/// Sets the process's alarm to `new`, if given. Returns its previous remaining time and interval, or `None` if the alarm is the kernel's.
pub fn alarm(new: Option<&itimerspec>) -> Option<itimerspec> {
    let _errno = Errno::keep();
    let signal = (process(), [libc::SIGALRM as usize, 0]);
    let alarm =
        Timer::find(Kind::Alarm, 0).or_else(|| Timer::new(Kind::Alarm, 0, CLOCK_MONOTONIC, signal))?;
    let before = alarm.says();
    new.map_or(Some(()), |new| alarm.change(new, false))?;
    Some(before)
}

/// A [`sigevent`] with SIGEV_THREAD; the declaration in the libc crate lacks the function.
#[repr(C)]
struct ThreadEvent {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: usize,
}

instead! {
    fn timerfd_create(clock: clockid_t, flags: c_int) -> c_int {
        let fd = libc::syscall(libc::SYS_timerfd_create, clock, flags) as c_int;
        let (zero, _errno) = (0u64, Errno::keep());
        // For zero expirations the kernel returns EINVAL if it has this call, and another error if it lacks it.
        if fd >= 0 && libc::syscall(libc::SYS_ioctl, fd, SET_TICKS, &raw const zero) < 0 && errno() == libc::EINVAL {
            let _ = Timer::new(Kind::File, fd as u64, clock, (0, [0; 2]));
        }
        fd
    }

    fn timerfd_settime(fd: c_int, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int {
        let timer = Timer::find(Kind::File, fd as u64);
        let before = timer.map(Timer::says);
        let never = itimerspec { it_interval: time_of(0), it_value: time_of(0) };
        let is_valid = |new: &&itimerspec| nanoseconds(&new.it_value).and(nanoseconds(&new.it_interval)).is_some();
        let wanted = new.as_ref().filter(is_valid);
        // The kernel's timer is stopped, which also clears its expirations.
        let (set, tell) = if timer.and(wanted).is_some() { (&raw const never, null_mut()) } else { (new, old) };
        let failed = libc::syscall(libc::SYS_timerfd_settime, fd, flags, set, tell) as c_int;
        if let (0, Some(timer), Some(before), Some(wanted)) = (failed, timer, before, wanted) {
            if timer.change(wanted, flags & libc::TFD_TIMER_ABSTIME != 0).is_none() {
                return fail(libc::EAGAIN);
            }
            if !old.is_null() {
                old.write(before);
            }
        }
        failed
    }

    fn timerfd_gettime(fd: c_int, now: *mut itimerspec) -> c_int {
        let failed = libc::syscall(libc::SYS_timerfd_gettime, fd, now) as c_int;
        if let (0, Some(timer)) = (failed, Timer::find(Kind::File, fd as u64)) {
            now.write(timer.says());
        }
        failed
    }

    fn timer_create(clock: clockid_t, event: *mut sigevent, id: *mut timer_t) -> c_int, or fail(ENOSYS); {
        let ours = matches!(clock, libc::CLOCK_REALTIME | CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_TAI);
        // All zero bytes are a valid event.
        let mut silent: sigevent = zeroed();
        silent.sigev_notify = libc::SIGEV_NONE;
        let signal = |event: &sigevent| [event.sigev_signo as usize, event.sigev_value.sival_ptr.addr()];
        // libc would create a thread for its own timer.
        let (call, kernels) = match event.as_ref() {
            None => ((process(), [libc::SIGALRM as usize, 0]), event),
            Some(with) if with.sigev_notify == libc::SIGEV_SIGNAL => ((process(), signal(with)), event),
            Some(with) if with.sigev_notify == libc::SIGEV_THREAD_ID => ((with.sigev_notify_thread_id as u32, signal(with)), event),
            Some(with) if with.sigev_notify == libc::SIGEV_THREAD && ours && player().is_some() => {
                let thread = &*event.cast::<ThreadEvent>();
                ((0, [thread.function, thread.value]), &raw mut silent)
            }
            Some(_) => ((0, [0; 2]), event),
        };
        let failed = own(clock, kernels, id);
        // Without a place no thread would be created for it.
        if failed == 0 && ours && Timer::new(Kind::Posix, id.read() as u64, clock, call).is_none() && kernels != event {
            timer_delete(id.read());
            return fail(libc::EAGAIN);
        }
        failed
    }

    fn timer_settime(id: timer_t, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int, or fail(ENOSYS); {
        let ours = Timer::find(Kind::Posix, id as u64).zip(new.as_ref()).and_then(|(timer, new)| {
            let before = timer.says();
            timer.change(new, flags & libc::TIMER_ABSTIME != 0).map(|()| before)
        });
        let Some(before) = ours else { return own(id, flags, new, old) };
        if !old.is_null() {
            old.write(before);
        }
        0
    }

    fn timer_gettime(id: timer_t, now: *mut itimerspec) -> c_int, or fail(ENOSYS); {
        let Some(timer) = Timer::find(Kind::Posix, id as u64) else { return own(id, now) };
        now.write(timer.says());
        0
    }

    fn timer_delete(id: timer_t) -> c_int, or fail(ENOSYS); {
        if let Some(timer) = Timer::find(Kind::Posix, id as u64) {
            timer.at.store(0, SeqCst);
            timer.kind.store(Kind::None as u32, Release);
        }
        own(id)
    }
}
