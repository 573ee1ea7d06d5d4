//! Waits for messages and timers, in a separate thread.

use super::id::State;
use super::manager::{Manager, Shared};
use crate::guard::guard;
use cm::Time;
use libc::c_int;
use node::timed::spawn_apart;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The connection manager's thread, one per process: started when the process first communicates, stopped when it exits.
pub struct Thread {
    pub(super) handle: JoinHandle<()>,
    pub(super) wake: OwnedFd,
    /// When it wakes if nothing happens.
    pub(super) until: Option<Time>,
}

/// Interval of liveness checks of peers on this node.
const LOOK: Duration = Duration::from_millis(500);

/// Number of tries, 10 ms apart, of an exiting process to lock the manager: longer than it takes to find out that a neighbour does not
/// respond.
const PATIENCE: u32 = 300;

/// Time limit for an exiting process to notify its peers. Each peer on a dead machine may take a second or more.
const FAREWELL: Duration = Duration::from_secs(5);

static STOP: AtomicBool = AtomicBool::new(false);

impl Manager {
    /// Starts the thread, once.
    ///
    /// # Errors
    /// EAGAIN or EMFILE.
    pub fn start_thread(&mut self) -> Result<(), c_int> {
        if self.thread.is_some() {
            self.rouse();
            return Ok(());
        }
        // SAFETY: accesses no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(libc::EMFILE);
        }
        // SAFETY: a fresh descriptor that this function owns.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let run = move || guard((), || run(fd));
        let handle = spawn_apart("ironverbs-rdma_cm", 256 << 10, run).map_err(|_| libc::EAGAIN)?;
        self.thread = Some(Thread { handle, wake, until: None });
        Ok(())
    }

    /// Wakes the thread if something falls due before it would wake by itself.
    pub fn wake(&self) {
        let due = self.due();
        let Some(thread) = &self.thread else { return };
        if due.is_some_and(|due| thread.until.is_none_or(|until| due < until)) {
            self.rouse();
        }
    }

    fn rouse(&self) {
        if let Some(thread) = &self.thread {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes of a local; a full counter wakes the thread as well.
            unsafe { libc::write(thread.wake.as_raw_fd(), one.as_ptr().cast(), 8) };
        }
    }

    /// Time of the next deadline.
    fn due(&self) -> Option<Time> {
        let protocol = self.lines.values().filter_map(|line| line.agent.deadline());
        protocol.chain(self.sa_queries.iter().map(|query| query.again)).min()
    }

    /// Records when the thread wakes, and returns the descriptors and the timeout to wait for.
    fn sleep(&mut self, watched: bool) -> (Vec<RawFd>, c_int) {
        let now = self.now();
        let look = watched.then(|| now + LOOK);
        let until = self.due().into_iter().chain(look).min();
        if let Some(thread) = &mut self.thread {
            thread.until = until;
        }
        let millis = until.map_or(-1, |until| until.saturating_sub(now).as_micros().div_ceil(1000) as c_int);
        (self.lines.values().map(super::line::Line::fd).collect(), millis)
    }

    /// Ends connections to peers on this node that have died. Returns true if there are any to watch.
    fn look_for_the_dead(&mut self) -> bool {
        let mut watched = false;
        let mut dead = Vec::new();
        for (_, id) in self.ids.iter().filter(|(_, id)| id.state == State::Connect && !id.is_datagram()) {
            let Some(conn) = id.conn else { continue };
            match self.peer_lives(conn, &id.remote_gid) {
                Some(true) => watched = true,
                Some(false) => dead.push(conn),
                None => {}
            }
        }
        for conn in dead {
            let _ = self.command(conn, cm::Command::PeerGone);
        }
        watched
    }

    /// Called when the process exits: notifies peers, for at most [`FAREWELL`], and takes the thread so that it is not woken any more.
    fn finish(&mut self) -> Option<Thread> {
        let numbers: Vec<u32> = self.ids.iter().map(|(number, _)| number).collect();
        let begun = Instant::now();
        for number in numbers.into_iter().take_while(|_| begun.elapsed() < FAREWELL) {
            let _ = self.destroy(number);
        }
        self.rouse();
        self.thread.take()
    }
}

fn run(wake: RawFd) {
    let mut last_look = Time::ZERO;
    let mut watched = false;
    while !STOP.load(Acquire) {
        let (fds, millis) = {
            let mut manager = Shared::here().lock();
            manager.work();
            let now = manager.now();
            if now >= last_look + LOOK || !watched {
                watched = manager.look_for_the_dead();
                last_look = now;
            }
            manager.sleep(watched)
        };
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries: Vec<_> = std::iter::once(wake).chain(fds).map(entry).collect();
        let mut count = [0u8; 8];
        // SAFETY: the entries and eight bytes live across the calls.
        unsafe {
            libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, millis);
            libc::read(wake, count.as_mut_ptr().cast(), 8);
        }
    }
}

/// Run by the loader after all the program's exit code: atexit(3) handlers and destructors of C++ objects may still end connections, and
/// wait for that.
#[used]
// SAFETY: this section consists of pointers to functions without arguments.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    guard((), || {
        let Some(shared) = Shared::if_any() else { return };
        STOP.store(true, Release);
        // A process that exits from a signal handler in the middle of a call would wait for itself. Its peers then notice its death as for
        // a killed process.
        let Some(mut manager) = (0..PATIENCE).find_map(|_| shared.try_lock()) else { return };
        let thread = manager.finish();
        drop(manager);
        if let Some(Thread { handle, wake, .. }) = thread {
            let _ = handle.join();
            drop(wake);
        }
    });
}
