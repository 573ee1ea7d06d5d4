//! The process beside a launched program that answers what the kernel cannot: RDMA netlink, and counters below `/sys`. It also
//! keeps the program's view true when the node's devices change.
//!
//! It is started by the launcher before that becomes the program, is nobody's child and of a session of its own, holds no
//! file of the program's, and ends with the last process under the program's filter.

mod live;
mod process;
mod sockets;
mod sys;
mod umad;

use super::inside;
pub use super::nldev::Follows;
use super::nldev::{Host, Inventory};
use super::notify::Listener;
use super::projection::Projection;
use super::reserved::Reserved;
pub use super::sys::Limit;
use super::{project, seccomp, sys as launcher};
use live::Live;
use node::Observer;
use node::devices::DeviceInfo;
use sockets::Sockets;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};
pub use sys::fork_apart;
use umad::Umads;

/// How old a counter below `/sys` may be while programs are on the node, less the time to write it.
const PERIOD: Duration = Duration::from_millis(80);

/// Most time between opening a node and having a place on it.
const ARRIVAL: Duration = Duration::from_secs(1);

/// The launcher's end of a supervisor that waits for its program.
pub struct Waiting {
    line: UnixStream,
    reserved: Reserved,
    /// True if it was ready before the line was made, and will not say so.
    is_ready: bool,
}

/// The supervisor's end: see [`pair`].
pub struct Supervisor {
    line: OwnedFd,
    reserved: Reserved,
}

/// A supervisor's knowledge of the program's view.
pub struct View {
    /// The devices, numbered as in the view.
    pub devices: Vec<DeviceInfo>,
    /// Says which devices the view shows once a node has others.
    pub follows: Follows,
    /// The projected directories.
    pub projection: Projection,
}

/// Starts a supervisor. The calling process must have one thread.
///
/// # Errors
/// It could not be started, and nothing of it remains.
pub fn start(view: View) -> io::Result<Waiting> {
    let (waiting, supervisor) = pair(None)?;
    fork_apart(|| {
        // Everything else that is open is the program's.
        let Projection { functions, bus, classes, newest_first } = view.projection;
        let [functions, bus, classes, line] = sys::keep_only([functions, bus, classes, supervisor.line])?;
        let projection = Projection { functions, bus, classes, newest_first };
        // A descriptor for each socket that is given: the launched program's soft limit is not made for these.
        launcher::raise_own_limit()?;
        Supervisor { line, ..supervisor }.supervise(View { projection, ..view })
    })?;
    Ok(waiting)
}

/// Starts a supervisor for the container that the calling process, of one thread, is about to make. It hears at `door`, a socket that goes
/// with it, of programs that are started there later. `limit` is what the container says of its programs' descriptors.
///
/// # Errors
/// As [`start`].
pub fn start_for_container(door: &Path, limit: Option<Limit>) -> io::Result<Waiting> {
    // One that was killed has left its own.
    let _ = fs::remove_file(door);
    let listener = UnixListener::bind(door)?;
    let started = pair(limit).and_then(|(waiting, supervisor)| {
        fork_apart(|| {
            let done = sys::keep_only([supervisor.line, listener.into()]).and_then(|[line, listener]| {
                launcher::raise_own_limit()?;
                Supervisor { line, ..supervisor }.supervise_container(&UnixListener::from(listener))
            });
            let _ = fs::remove_file(door);
            done
        })?;
        Ok(waiting)
    });
    started.inspect_err(|_| {
        let _ = fs::remove_file(door);
    })
}

/// Makes both ends of the line between a program and its supervisor, which may then run in any process. The program has the
/// calling process's limits of descriptors, or those `given`.
///
/// # Errors
/// EMFILE, ENFILE: no descriptors are left. [`Unsupported`](ErrorKind::Unsupported): the program may have too few to spare
/// the numbers that a supervisor needs.
pub fn pair(given: Option<Limit>) -> io::Result<(Waiting, Supervisor)> {
    let reserved = Reserved::choose(given)?;
    let (line, its) = UnixStream::pair()?;
    Ok((Waiting { line, reserved, is_ready: false }, Supervisor { line: its.into(), reserved }))
}

impl Waiting {
    /// The end of a line to a supervisor that runs already, and hears at `door`: [`take_over`](Self::take_over) hands it the calling process.
    ///
    /// # Errors
    /// Nobody hears there, or there are no numbers to spare.
    pub fn join(door: &Path) -> io::Result<Self> {
        let mut line = UnixStream::connect(door)?;
        line.set_read_timeout(Some(ARRIVAL))?;
        let mut numbers = [[0; 4]; 2];
        for number in &mut numbers {
            line.read_exact(number)?;
        }
        let [first, end] = numbers.map(u32::from_ne_bytes);
        Ok(Self { line, reserved: Reserved::chosen(first..end)?, is_ready: true })
    }

    /// The soft limit of descriptors that its program is to have: see [`Reserved`].
    pub fn soft_limit(&self) -> u64 {
        self.reserved.soft_limit()
    }

    /// Puts the calling process, and all it starts, under the supervisor.
    ///
    /// # Errors
    /// The kernel does not have it, or the supervisor could not get ready, and may have ended before it said why
    /// ([`UnexpectedEof`](ErrorKind::UnexpectedEof)): it ends, and nothing has changed.
    pub fn take_over(mut self) -> io::Result<()> {
        // A filter cannot be taken back: one without a supervisor fails all calls it is asked about.
        let mut errno = [0; size_of::<i32>()];
        if !self.is_ready {
            self.line.read_exact(&mut errno).map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "it ended before it was ready"),
                _ => e,
            })?;
        }
        match i32::from_ne_bytes(errno) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        let listener = seccomp::watch_rdma_netlink(self.reserved)?;
        sys::send_descriptor(self.line.as_fd(), listener.as_fd())?;
        self.reserved.keep_away()
    }
}

impl Supervisor {
    /// Waits for a program, and answers it in the calling thread until nobody is left of it.
    ///
    /// # Errors
    /// Nobody came, or the program's calls cannot be heard any more.
    pub fn supervise(self, view: View) -> io::Result<()> {
        let sight = Sight::new(view)?;
        let reserved = self.reserved;
        supervise(self.audience()?, reserved, Some(sight), None)
    }

    /// The same for a container that is yet to be made: the hook that shows it our devices calls once it has. Programs that are started there
    /// later hand their listeners in at `door`, see [`Waiting::join`].
    ///
    /// # Errors
    /// As [`supervise`](Self::supervise).
    pub fn supervise_container(self, door: &UnixListener) -> io::Result<()> {
        let reserved = self.reserved;
        supervise(self.audience()?, reserved, None, Some(door))
    }

    /// Tells the launcher that all is ready, and waits for its program.
    fn audience(self) -> io::Result<Audience> {
        let mut line = UnixStream::from(self.line);
        let sockets = Sockets::new(self.reserved);
        let errno = sockets.as_ref().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |_| 0);
        line.write_all(&errno.to_ne_bytes())?;
        let sockets = sockets?;
        Ok(Audience::new(sys::receive_descriptor(line.as_fd())?, sockets))
    }
}

/// The programs under one filter, and the files that the supervisor holds for them.
struct Audience {
    listener: Listener,
    sockets: Sockets,
    umads: Umads,
}

/// A view that is kept true.
struct Sight {
    projection: Projection,
    inventory: Inventory,
    live: Live,
    /// `None` where the host cannot say who comes to a node.
    visits: Option<sys::Visits>,
    /// Since when somebody may be on a node.
    awake: Option<Instant>,
}

impl Sight {
    /// The view. Its files say what the nodes have counted before, from the program's first instruction on.
    fn new(View { devices, follows, projection }: View) -> io::Result<Self> {
        let host = if project::host_has_devices()? { Host::open().ok() } else { None };
        let live = Live::new(&devices);
        let inventory = Inventory::new(devices, follows, host);
        let visits = sys::Visits::of(inventory.dirs()).ok();
        // A program may have come before the first check.
        let mut sight = Self { inventory, projection, live, visits, awake: Some(Instant::now()) };
        sight.inventory.look();
        sight.look();
        Ok(sight)
    }

    /// Shows devices of the nodes that changed, and what changed of their ports. If the system refuses, the view stays
    /// as it is until the devices change again, answers remain those of what it shows, and `ironverbs doctor` says
    /// so. Returns true if another check is needed.
    fn look(&mut self) -> bool {
        if let Some(devices) = self.inventory.changed() {
            if self.projection.change(self.inventory.devices(), &devices).is_ok() {
                self.live.follow(&devices);
                self.inventory.replace(devices);
            }
        }
        let home = self.projection.functions();
        self.live.refresh(&self.inventory, &home)
    }

    /// Brings the view up to date. Returns when to do so again, even if nobody comes to a node.
    fn keep(&mut self) -> Option<Instant> {
        // Read before the check, which sees what programs did that have ended by then.
        let peopled = self.inventory.observers().any(Observer::has_programs);
        let again = self.look();
        self.inventory.observers().next()?;
        // A program that has just opened the node may not have its place yet.
        let arriving = self.awake.is_some_and(|since| since.elapsed() < ARRIVAL);
        self.awake = self.awake.filter(|_| arriving || peopled);
        (self.awake.is_some() || again || self.visits.is_none()).then(|| Instant::now() + PERIOD)
    }

    /// Somebody has come to a node.
    fn visited(&mut self) {
        self.visits.iter().for_each(sys::Visits::clear);
        self.awake = Some(Instant::now());
        self.inventory.look();
    }
}

impl Audience {
    fn new(listener: OwnedFd, sockets: Sockets) -> Self {
        Self { listener: Listener::from_descriptor(listener), sockets, umads: Umads::default() }
    }

    /// Answers the call that waits.
    ///
    /// # Errors
    /// Calls cannot be heard any more.
    fn serve(&mut self, sight: &mut Option<Sight>) -> io::Result<()> {
        let notice = match self.listener.receive() {
            Ok(notice) => notice,
            // The caller was interrupted.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(()),
            Err(e) => return Err(e),
        };
        if sight.is_none() {
            *sight = view_of(notice.thread).and_then(Sight::new).ok();
        }
        match sight {
            None if notice.call == libc::SYS_socket => {
                self.listener.answer(&notice, Err(libc::EPROTONOSUPPORT));
            }
            None => self.listener.pass(&notice),
            Some(sight) if notice.call == libc::SYS_ioctl => {
                self.umads.serve(&self.listener, &sight.inventory, &notice);
            }
            Some(sight) => self.sockets.serve(&self.listener, &sight.inventory, notice),
        }
        Ok(())
    }
}

/// Serves until no program is left. Without a view, that of our hook in the container is taken once it calls. Programs that are started
/// later are handed in at `door`.
fn supervise(
    first: Audience,
    reserved: Reserved,
    mut sight: Option<Sight>,
    door: Option<&UnixListener>,
) -> io::Result<()> {
    let mut audiences = vec![first];
    while !audiences.is_empty() {
        let deadlines = audiences.iter().filter_map(|audience| audience.sockets.next_deadline());
        let until = deadlines.chain(sight.as_mut().and_then(Sight::keep)).min();
        let visits = sight.as_ref().and_then(|sight| sight.visits.as_ref());
        let listeners = audiences.iter().map(|audience| audience.listener.as_fd());
        let umads = audiences.iter().flat_map(|audience| audience.umads.files());
        let files: Vec<_> =
            listeners.chain(visits.map(AsFd::as_fd)).chain(door.map(AsFd::as_fd)).chain(umads).collect();
        let (has_visits, mut ready) = (visits.is_some(), sys::wait(&files, until)?.into_iter());
        let calls: Vec<_> = ready.by_ref().take(audiences.len()).collect();
        let visited = has_visits && ready.next().is_some_and(|ready| ready.readable);
        let knocked = door.filter(|_| ready.next().is_some_and(|ready| ready.readable));
        if let Some(sight) = sight.as_mut().filter(|_| visited) {
            sight.visited();
        }
        for (audience, ready) in audiences.iter_mut().zip(&calls) {
            if ready.readable && !ready.over {
                audience.serve(&mut sight)?;
            }
            audience.sockets.expire(&audience.listener);
            if let Some(sight) = &sight {
                audience.umads.work(&sight.inventory);
            }
        }
        let mut over = calls.iter().map(|ready| ready.over);
        audiences.retain(|_| !over.next().unwrap_or_default());
        if let Some(door) = knocked {
            // A caller that went away before it handed anything over is passed over.
            let guest = admitted(door, reserved).and_then(|listener| Ok((listener, Sockets::new(reserved)?)));
            audiences.extend(guest.ok().map(|(listener, sockets)| Audience::new(listener, sockets)));
        }
    }
    Ok(())
}

/// The view of the container in which `thread`, of our hook, is.
fn view_of(thread: u32) -> io::Result<View> {
    let (devices, projection) = inside::view_of(thread)?;
    Ok(View { devices, follows: Follows::Devices, projection })
}

/// The listener that whoever is at the door hands over, of programs for whom the numbers are `reserved`.
fn admitted(door: &UnixListener, reserved: Reserved) -> io::Result<OwnedFd> {
    let (mut guest, _) = door.accept()?;
    guest.set_read_timeout(Some(ARRIVAL))?;
    let numbers = reserved.numbers();
    guest.write_all(&[numbers.start.to_ne_bytes(), numbers.end.to_ne_bytes()].concat())?;
    sys::receive_descriptor(guest.as_fd())
}
