//! A thread's place on the board.

use super::{
    board::{Bell, Board, FOUND, FUNCTIONS, Place, State, Written, blocks},
    sys,
};
use std::{
    cell::Cell,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering::*},
    },
    time::Duration,
};

/// Time that a thread sleeps before it checks that the conductor is alive.
const LOOK: Duration = Duration::from_millis(100);

/// The place of a thread.
#[derive(Clone, Copy)]
pub struct Player {
    board: Board,
    number: usize,
}

thread_local! {
    /// The number of the calling thread's place.
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    /// It belongs to a provider.
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as a provider's own. Time stands still while it runs, but an empty poll does not count as a wait. It reads the
/// real counter, because emulation takes signals, which the thread blocks.
pub fn stay_apart() {
    APART.set(true);
    // Code that interrupts it sees that it runs.
    if let Some(player) = FOUND.get().and_then(Board::player) {
        // Other libraries of the process have other thread-locals.
        player.place().apart.store(1, Relaxed);
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes an attribute of the calling thread alone.
    unsafe {
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE);
    }
}

/// The thread of a forked child is a different one and takes its own place.
extern "C" fn forked() {
    MINE.set(None);
}

static WATCHED: Once = Once::new();

impl Player {
    pub(crate) fn new(board: Board, number: usize) -> Self {
        Self { board, number }
    }

    pub(crate) fn of_thread(board: Board) -> Option<Self> {
        if let Some(number) = MINE.get() {
            return Some(Self { board, number });
        }
        // SAFETY: the handler only touches variables of the thread.
        WATCHED.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        let (tid, pid) = sys::thread();
        let places = &board.0.places;
        let number = places.iter().position(|place| place.tid.load(Acquire) == tid).or_else(|| {
            let claim = |place: &Place| place.tid.compare_exchange(0, tid, AcqRel, Relaxed).is_ok();
            let number = places.iter().position(claim)?;
            places[number].begin(pid, board.latest());
            Some(number)
        })?;
        MINE.set(Some(number));
        Some(Self { board, number })
    }

    /// True for a provider's own thread.
    pub fn is_apart(&self) -> bool {
        self.place().apart.load(Relaxed) != 0
    }

    /// True if the thread has posted a request since it last waited.
    pub fn has_posted(&self) -> bool {
        self.place().rested.load(Relaxed) == 0
    }

    fn place(&self) -> &'static Place {
        &self.board.0.places[self.number]
    }

    /// Its number, which orders threads.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The time of this thread, which is the calling one, after it has noticed pending events.
    pub fn now(&self) -> u64 {
        let place = self.place();
        let (spinning, noticed) = (State::Spinning as u32, State::Noticed as u32);
        if place.state.compare_exchange(spinning, noticed, SeqCst, Relaxed).is_ok() {
            self.rest(State::Noticed);
        }
        let mut time = place.time.load(Relaxed);
        let woken = place.woken.load(Relaxed);
        if woken != 0 {
            place.woken.store(0, Relaxed);
            // An event that was visible while it still posted is noticed between two posts, at no extra cost.
            time = time.max(woken + place.notice.swap(0, Relaxed));
        }
        // Time advanced while it waited for something else.
        time = time.max(self.board.now());
        place.time.store(time, Relaxed);
        time
    }

    /// Advances its time by `ps` and returns it.
    pub fn spend(&self, ps: u64) -> u64 {
        let time = self.now() + ps;
        self.place().time.store(time, Relaxed);
        time
    }

    /// Records that it received a message sent at `time`; if that is unknown, at the time of the latest message of all.
    pub fn hear(&self, time: Option<u64>) {
        let said = time.unwrap_or_else(|| self.board.0.sent.load(Acquire));
        self.place().time.store(self.now().max(said), Relaxed);
    }

    /// Records the direction `key` by which it is about to receive; `None` once it no longer is.
    pub fn listen_to(&self, key: Option<u64>) {
        self.place().listens.store(key.unwrap_or(0), SeqCst);
    }

    /// Records that it sends a message by other means than verbs. Returns the time.
    pub fn say(&self) -> u64 {
        let now = self.now();
        self.board.0.sent.fetch_max(now, AcqRel);
        now
    }

    /// The thread writes to a doorbell page of `fid`.
    pub fn ring(&self, fid: u8, offset: u32, value: u64, written: Written) {
        let (place, costs) = (self.place(), self.board.costs());
        place.fid.store(fid.into(), Relaxed);
        let is_send = written == Written::Request;
        let blocks = if is_send { blocks(value) } else { 1 };
        // The first request after a wait costs more than the ones that follow.
        let post = match is_send {
            true if place.rested.swap(0, Relaxed) != 0 => costs.post,
            true => costs.post_rate,
            false => 0,
        };
        let took = post + costs.pio + u64::from(blocks - 1) * costs.pio_block;
        let at = self.spend(took);
        while place.head.load(Relaxed).wrapping_sub(place.tail.load(Acquire)) as usize >= place.ring.len() {
            // The conductor takes them promptly.
            self.board.tell();
            sys::futex_wait(
                &place.tail,
                place.head.load(Relaxed).wrapping_sub(place.ring.len() as u32),
                LOOK,
            );
            if !self.board.is_conducted() {
                return;
            }
        }
        let head = place.head.load(Relaxed);
        let slot = &place.ring[head as usize % place.ring.len()];
        slot.at.store(at, Relaxed);
        slot.value.store(value, Relaxed);
        slot.offset.store(offset, Relaxed);
        let half = u32::from(written == Written::Half);
        slot.what.store(u32::from(fid) | u32::from(blocks) << 8 | half << 16, Relaxed);
        place.head.store(head.wrapping_add(1), Release);
    }

    /// Waits, after the thread found no completion of `fid`, until there is one or something else may have changed.
    pub fn wait(&self, fid: u8) {
        if APART.get() {
            return;
        }
        let place = self.place();
        // The event that woke it was not the one it polls for, so there is nothing to notice yet.
        let woken = place.woken.swap(0, Relaxed);
        if woken != 0 {
            place.time.store(place.time.load(Relaxed).max(woken), Relaxed);
        }
        place.notice.store(0, Relaxed);
        place.fid.store(fid.into(), Relaxed);
        place.rested.store(1, Relaxed);
        // Time advances once the thread is seen to wait, so it checks for news before.
        let (spinning, running) = (State::Spinning as u32, State::Running as u32);
        let _ = place.state.compare_exchange(spinning, running, SeqCst, Relaxed);
        if self.has_news(fid) {
            return;
        }
        self.stay(State::Waiting);
        // News may have come meanwhile from another thread, or from the conductor, if that assumed the thread to poll memory.
        if self.has_news(fid) {
            place.state.store(running, SeqCst);
            return;
        }
        self.rest(State::Waiting);
    }

    /// True if a message was sent, or an entry of `fid` was written, since the calling thread last asked.
    fn has_news(&self, fid: u8) -> bool {
        let entries = self.board.0.entries[usize::from(fid) % FUNCTIONS].load(SeqCst);
        let known = u64::from(fid) << 32 | u64::from(entries);
        let said = self.board.0.said.load(SeqCst);
        let is_new = self.place().known.swap(known, Relaxed) != known;
        self.place().said.swap(said, Relaxed) != said || is_new
    }

    /// Sleeps until `until` or until a signal. Returns the time left.
    pub fn sleep(&self, until: u64) -> u64 {
        self.stay_until(until, State::Sleeping);
        self.rest(State::Sleeping);
        if self.board.is_conducted() { until.saturating_sub(self.now()) } else { 0 }
    }

    fn stay_until(&self, until: u64, how: State) {
        self.now();
        self.place().until.store(until, Relaxed);
        self.place().rested.store(1, Relaxed);
        self.stay(how);
    }

    /// Marks the thread as resting. Notifies the conductor first: a conductor that has already checked other threads, which this one may
    /// have resumed, then checks them again.
    fn stay(&self, how: State) {
        self.board.0.bell.fetch_add(1, SeqCst);
        self.place().state.store(how as u32, SeqCst);
    }

    /// The thread is about to wait in the kernel, at most until `until`.
    pub fn limit(&self, until: u64) -> Limited {
        self.stay_until(until, State::Limited);
        self.board.tell();
        Limited(*self, State::Limited)
    }

    /// The thread is about to [rest](Limited::rest) on the board, at most until `until`.
    pub fn park(&self, until: u64) -> Limited {
        self.stay_until(until, State::Parked);
        Limited(*self, State::Parked)
    }

    /// Sleeps while its state is `how`.
    fn rest(&self, how: State) {
        let word = &self.place().state;
        self.board.tell();
        while word.load(SeqCst) == how as u32 {
            sys::futex_wait(word, how as u32, LOOK);
            if word.load(SeqCst) == how as u32 && !self.board.is_conducted() {
                word.store(State::Running as u32, SeqCst);
            }
        }
    }
}

/// While this lives, the calling thread is in a call that ends by itself: it counts as running even if the kernel makes it wait.
pub struct Call(Option<Player>);

impl Call {
    /// Begins a call.
    #[inline]
    pub fn begin() -> Self {
        Self(FOUND.get().and_then(|board| {
            let player = board.player()?;
            player.place().calls.fetch_add(1, SeqCst);
            Some(player)
        }))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(player) = &self.0 {
            player.place().calls.fetch_sub(1, SeqCst);
        }
    }
}

/// While this lives, the calling thread waits in the kernel or on the board.
pub struct Limited(Player, State);

impl Limited {
    /// True if the limit is reached.
    pub fn is_over(&self) -> bool {
        self.0.state() != self.1 || !self.0.board.is_conducted()
    }

    /// Waits on the board until the limit is reached or another thread [wakes](Player::wake) this one.
    pub fn rest(&self) {
        self.0.rest(self.1);
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let place = self.0.place();
        let _ = place.state.compare_exchange(self.1 as u32, State::Running as u32, SeqCst, Relaxed);
        place.over.store(0, SeqCst);
    }
}

impl Place {
    fn begin(&self, pid: u32, now: u64) {
        self.state.store(State::Running as u32, Relaxed);
        self.fid.store(u32::MAX, Relaxed);
        self.time.store(now, Relaxed);
        self.began.store(now, Relaxed);
        for word in [&self.woken, &self.notice] {
            word.store(0, Relaxed);
        }
        self.rested.store(1, Relaxed);
        self.calls.store(0, Relaxed);
        self.over.store(0, Relaxed);
        self.apart.store(0, Relaxed);
        self.listens.store(0, Relaxed);
        self.known.store(u64::MAX, Relaxed);
        self.tail.store(self.head.load(Relaxed), Relaxed);
        self.pid.store(pid, Release);
    }
}

/// The conductor's view of a player, and its actions on it.
impl Player {
    /// The thread and its process. The process is 0 while the thread joins.
    pub fn thread(&self) -> (u32, u32) {
        (self.place().tid.load(Acquire), self.place().pid.load(Acquire))
    }

    /// The state of the thread.
    pub fn state(&self) -> State {
        State::of(self.place().state.load(SeqCst))
    }

    /// The function it used last.
    pub fn fid(&self) -> Option<u8> {
        u8::try_from(self.place().fid.load(Acquire)).ok()
    }

    /// Its time.
    pub fn time(&self) -> u64 {
        self.place().time.load(Acquire)
    }

    /// True if the thread knows the time: it has used a function or read a clock.
    pub fn knows_time(&self) -> bool {
        self.fid().is_some() || self.time() != self.place().began.load(Relaxed)
    }

    /// True if a message was sent since it began to wait.
    pub fn may_hear(&self) -> bool {
        self.place().said.load(Relaxed) != self.board.0.said.load(SeqCst)
    }

    /// True if it is in a [`Call`], or its wait in the kernel is over.
    pub fn calls(&self) -> bool {
        self.place().calls.load(SeqCst) != 0 || self.place().over.load(SeqCst) != 0
    }

    /// True if a message was sent that it is about to receive: it continues as soon as the kernel resumes it.
    pub fn is_called(&self) -> bool {
        let key = self.place().listens.load(SeqCst);
        key != 0 && self.board.has_unheard(key)
    }

    /// Time until which it sleeps, or waits in the kernel at most.
    pub fn until(&self) -> u64 {
        self.place().until.load(Acquire)
    }

    /// Marks it as polling memory. Returns false if it did something else meanwhile.
    pub fn spins(&self) -> bool {
        let (running, spinning) = (State::Running as u32, State::Spinning as u32);
        self.place().state.compare_exchange(running, spinning, SeqCst, Relaxed).is_ok()
    }

    /// Records that an event that it may wait for became visible at `at`. It notices the event `notice` later.
    pub fn show(&self, at: u64, notice: u64) {
        self.place().notice.store(notice, Relaxed);
        self.place().woken.store(at, Release);
    }

    /// Resumes it after a wait or a sleep.
    pub fn wake(&self) {
        let word: &AtomicU32 = &self.place().state;
        word.store(State::Running as u32, SeqCst);
        sys::futex_wake(word);
    }

    /// Resumes it at `at`, when its sleep is over.
    pub fn rise(&self, at: u64) {
        self.place().time.fetch_max(at, AcqRel);
        self.wake();
    }

    /// Ends its wait in the kernel or on the board at `at`. It counts as running from now on, although the kernel has not resumed it yet.
    pub fn expire(&self, at: u64) {
        let place = self.place();
        let ends = |how: State| {
            place.state.compare_exchange(how as u32, State::Running as u32, SeqCst, Relaxed).is_ok()
        };
        place.time.fetch_max(at, AcqRel);
        place.over.store(1, SeqCst);
        match () {
            () if ends(State::Limited) => {}
            () if ends(State::Parked) => sys::futex_wake(&place.state),
            () => place.over.store(0, SeqCst),
        }
    }

    /// Identifies a thread's wait in virtual time. It differs from the next wait's, unless both end by a completion.
    pub fn wait_of(&self) -> (State, u64) {
        (self.state(), self.until())
    }

    /// Ends its `wait` at `at` because of a signal. A wait begun by the signal's handler is not affected.
    pub fn interrupt(&self, wait: (State, u64), at: u64) {
        let (how, place) = (wait.0, self.place());
        if !matches!(how, State::Sleeping | State::Waiting | State::Spinning) || self.wait_of() != wait {
            return;
        }
        if how == State::Sleeping {
            place.time.fetch_max(at, AcqRel);
        }
        // It may have noticed an event meanwhile, and then waits for the conductor.
        if place.state.compare_exchange(how as u32, State::Running as u32, SeqCst, Relaxed).is_ok() {
            sys::futex_wake(&place.state);
        }
    }

    /// Takes the next doorbell that it wrote.
    pub fn take(&self) -> Option<Bell> {
        let place = self.place();
        let tail = place.tail.load(Relaxed);
        if tail == place.head.load(Acquire) {
            return None;
        }
        let slot = &place.ring[tail as usize % place.ring.len()];
        let what = slot.what.load(Relaxed);
        let bell = Bell {
            at: slot.at.load(Relaxed),
            value: slot.value.load(Relaxed),
            offset: slot.offset.load(Relaxed),
            fid: what as u8,
            blocks: (what >> 8) as u8,
            half: what >> 16 != 0,
        };
        place.tail.store(tail.wrapping_add(1), Release);
        sys::futex_wake(&place.tail);
        Some(bell)
    }

    /// Frees the place of a thread that is gone.
    pub fn free(&self) {
        self.place().pid.store(0, Relaxed);
        self.place().tid.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Costs;
    use std::time::Instant;

    /// A board that this process conducts.
    fn board(name: &str) -> (Board, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("ironverbs-player-{}-{name}", std::process::id()));
        let board = Board::create(&path).unwrap();
        board.open_up(1000, 0, Costs::default(), 1);
        (board, path)
    }

    #[test]
    fn a_thread_that_has_only_sat_down_does_not_know_the_time() {
        let (board, path) = board("time");
        let player = board.player().unwrap();
        assert!(!player.knows_time());
        player.spend(50);
        assert!(player.knows_time());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_thread_that_waits_may_hear_what_is_said_from_then_on() {
        let (board, path) = board("hear");
        let waiter = std::thread::spawn(move || {
            let player = board.player().unwrap();
            // The first poll finds something new, the second one waits.
            (0..2).for_each(|_| player.wait(1));
            // A message sent meanwhile causes one more poll.
            player.wait(1);
        });
        let begin = Instant::now();
        let waits = |player: &Player| player.state() == State::Waiting;
        let waiting = loop {
            if let Some(player) = board.players().find(waits) {
                break player;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no thread waits");
            std::thread::yield_now();
        };
        assert!(!waiting.may_hear());
        board.speak();
        assert!(waiting.may_hear());
        waiting.wake();
        waiter.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_limited_wait_on_the_board_ends_at_its_limit_or_when_another_thread_ends_it() {
        let (board, path) = board("limited");
        let waits = std::thread::spawn(move || {
            let player = board.player().unwrap();
            [5000, 9000].map(|until| {
                let limited = player.park(until);
                limited.rest();
                assert!(limited.is_over());
                let calls = player.calls();
                drop(limited);
                (player.now(), calls, player.calls())
            })
        });
        let begin = Instant::now();
        let until = |at: u64| loop {
            let limited = |player: &Player| player.wait_of() == (State::Parked, at);
            if let Some(player) = board.players().find(limited) {
                break player;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no thread waits");
            std::thread::yield_now();
        };
        until(5000).wake();
        let last = until(9000);
        board.set_now(9000);
        last.expire(9000);
        // At the limit it counts as running even before the kernel resumes it.
        assert_eq!(waits.join().unwrap(), [(1000, false, false), (9000, true, false)]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_signal_ends_the_wait_in_which_it_came_and_no_later_one() {
        let (board, path) = board("interrupt");
        let player = board.player().unwrap();
        let wait = (State::Sleeping, 5000);
        player.stay_until(7000, State::Sleeping);
        player.interrupt(wait, 3000);
        assert_eq!(player.wait_of(), (State::Sleeping, 7000), "the handler's own sleep");
        player.stay_until(5000, State::Sleeping);
        player.interrupt(wait, 3000);
        assert_eq!((player.state(), player.time()), (State::Running, 3000));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_thread_that_finds_news_is_not_seen_to_wait() {
        let (board, path) = board("news");
        let player = board.player().unwrap();
        assert!(player.has_news(1), "it has not asked before");
        assert!(!player.has_news(1));
        board.entry(2);
        assert!(!player.has_news(1), "another function's entry");
        board.entry(1);
        assert!(player.has_news(1) && !player.has_news(1));
        board.speak();
        assert!(player.has_news(1) && !player.has_news(1));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_a_providers_own_thread_writes_is_taken_and_it_waits_for_nothing() {
        let (board, path) = board("apart");
        let thread = std::thread::spawn(move || {
            stay_apart();
            let player = board.player().unwrap();
            // The second time nothing is new.
            (0..3).for_each(|_| player.wait(1));
            player.ring(1, 0x40, 7, Written::Half);
            player.number()
        });
        let number = thread.join().unwrap();
        let bell = Player::new(board, number).take().unwrap();
        assert_eq!((bell.fid, bell.offset, bell.value, bell.half, bell.blocks), (1, 0x40, 7, true, 1));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_thread_is_called_from_when_something_is_said_until_it_has_heard_it() {
        let (board, path) = board("called");
        let player = board.player().unwrap();
        board.say(7, 10, 1000);
        assert!(!player.is_called(), "it does not listen");
        player.listen_to(Some(7));
        assert!(player.is_called());
        assert_eq!(board.hear(7, 4), Some(1000));
        assert!(player.is_called(), "six bytes are left");
        assert_eq!(board.hear(7, 6), Some(1000));
        assert!(!player.is_called());
        board.say(7, 1, 2000);
        player.listen_to(None);
        assert!(!player.is_called());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_thread_is_in_a_call_until_the_call_ends() {
        let (_, path) = board("call");
        let board = Board::find(&path).unwrap().unwrap();
        let player = board.player().unwrap();
        let outer = Call::begin();
        drop(Call::begin());
        assert!(player.calls());
        drop(outer);
        assert!(!player.calls());
        std::fs::remove_file(path).unwrap();
    }
}
