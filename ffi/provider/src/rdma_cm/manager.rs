//! The connection manager's state in one process, under one lock.

use super::cm_board::{CmBoardRows, Ids};
use super::file::{EventFile, Pending};
use super::group::{Group, SaQuery};
use super::id::{Conn, Id};
use super::line::Line;
use super::open_files;
use super::ports::{self, Port};
use super::slab::Slab;
use super::uapi::{Ece, EventResp, Plain};
use super::waiting::Thread;
use crate::guard::Birth;
use cm::{ConnId, Time};
use libc::c_int;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// The connection manager of a process. A forked child gets a new one, because the parent's may be in any state.
pub struct Shared {
    birth: Birth,
    manager: Mutex<Manager>,
}

static HERE: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

impl Shared {
    /// Returns the one of this process.
    pub fn here() -> &'static Self {
        let known = HERE.load(Acquire);
        // SAFETY: a manager in `HERE` is never freed.
        if let Some(shared) = unsafe { known.as_ref() }.filter(|shared| shared.birth.is_here()) {
            return shared;
        }
        let fresh =
            Box::into_raw(Box::new(Self { birth: Birth::here(), manager: Mutex::new(Manager::new()) }));
        match HERE.compare_exchange(known, fresh, AcqRel, Acquire) {
            // SAFETY: a manager in `HERE` is never freed.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: `fresh` was not published; another thread of this process has stored `other` meanwhile.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*other
                }
            }
        }
    }

    /// Returns the one of this process, if there is one yet.
    pub fn if_any() -> Option<&'static Self> {
        // SAFETY: a manager in `HERE` is never freed.
        unsafe { HERE.load(Acquire).as_ref() }.filter(|shared| shared.birth.is_here())
    }

    /// Locks it.
    pub fn lock(&self) -> Turn<'_> {
        Turn(self.manager.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks it, or fails after 10 ms.
    pub fn try_lock(&self) -> Option<Turn<'_>> {
        match self.manager.try_lock() {
            Ok(manager) => Some(Turn(manager)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Turn(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
                None
            }
        }
    }
}

/// The locked manager. Changes are published when this is dropped.
pub struct Turn<'a>(MutexGuard<'a, Manager>);

impl Deref for Turn<'_> {
    type Target = Manager;

    fn deref(&self) -> &Manager {
        &self.0
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Manager {
        &mut self.0
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.show();
        }
    }
}

/// IDs of this process that listen for the same service at the same port of the fabric.
pub struct Listening {
    /// The protocol's listener.
    pub conn: ConnId,
    /// The IDs.
    pub ids: Vec<u32>,
}

/// The state behind [`Shared`].
pub struct Manager {
    /// IDs by handle.
    pub ids: Ids,
    /// Their rows on the connection-manager boards.
    pub cm_board: CmBoardRows,
    /// Memberships by handle.
    pub groups: Slab<Group>,
    /// Queries without a response from the subnet administrator yet.
    pub sa_queries: Vec<SaQuery>,
    /// The ports of the fabric.
    pub ports: Vec<Port>,
    /// Ports with a device that was reported to an ID before the program opened it ([`super::source`]).
    pub announced: BTreeSet<usize>,
    /// Ports in use, by their index in `ports`.
    pub lines: BTreeMap<usize, Line>,
    /// The ID of each connection.
    pub conns: HashMap<Conn, u32>,
    /// Listeners by port of the fabric and service id.
    pub listening: BTreeMap<(usize, u64), Listening>,
    /// Number of address resolutions so far.
    pub searches: u64,
    /// The thread that waits for messages and timers.
    pub thread: Option<Thread>,
    files: HashMap<RawFd, EventFile>,
    start: Instant,
}

impl Manager {
    fn new() -> Self {
        Self {
            ids: Ids::default(),
            cm_board: CmBoardRows::default(),
            groups: Slab::default(),
            sa_queries: Vec::new(),
            ports: Vec::new(),
            announced: BTreeSet::new(),
            lines: BTreeMap::new(),
            conns: HashMap::new(),
            listening: BTreeMap::new(),
            searches: 0,
            thread: None,
            files: HashMap::new(),
            start: Instant::now(),
        }
    }

    /// The protocol's time.
    pub fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// A random number.
    pub fn random(&self) -> u32 {
        let mut bytes = [0; 4];
        // SAFETY: four bytes to fill. If there is no randomness, the time suffices: the number is not a secret.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 4, libc::GRND_NONBLOCK) };
        if got == 4 { u32::from_ne_bytes(bytes) } else { self.start.elapsed().subsec_nanos().rotate_left(9) }
    }

    /// Creates a channel. Returns the program's descriptor.
    ///
    /// # Errors
    /// Those of socketpair(2); EMFILE.
    pub fn open(&mut self, nonblock: bool) -> Result<RawFd, c_int> {
        let file = EventFile::new(nonblock).map_err(crate::context::io_errno)?;
        let fd = file.reader();
        if !open_files::fits(fd) {
            // SAFETY: the program's end, which it has not got yet.
            unsafe { libc::close(fd) };
            return Err(libc::EMFILE);
        }
        if self.ports.is_empty() {
            self.ports = ports::visible(&[]);
        }
        // The program has closed a channel with that number unnoticed.
        self.close(fd);
        self.files.insert(fd, file);
        Ok(fd)
    }

    /// Closes a channel, and destroys its IDs.
    pub fn close(&mut self, fd: RawFd) {
        let of_it: Vec<u32> =
            self.ids.iter().filter(|(_, id)| id.file == fd).map(|(number, _)| number).collect();
        for number in of_it {
            let _ = self.destroy(number);
        }
        self.files.remove(&fd);
    }

    /// Returns the channel of a descriptor.
    ///
    /// # Errors
    /// EIO for a channel of the process this one was forked from.
    pub fn file(&mut self, fd: RawFd) -> Result<&mut EventFile, c_int> {
        self.files.get_mut(&fd).ok_or(libc::EIO)
    }

    /// Returns ID `number`, which must belong to channel `fd`.
    ///
    /// # Errors
    /// ENOENT: it does not exist; EINVAL: it belongs to another channel.
    pub fn id(&mut self, fd: RawFd, number: u32) -> Result<&mut Id, c_int> {
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        if id.file == fd { Ok(id) } else { Err(libc::EINVAL) }
    }

    /// Like [`Manager::id`], for commands on IDs that are bound to a port of the fabric. EINVAL for others.
    pub fn bound_id(&mut self, fd: RawFd, number: u32) -> Result<&mut Id, c_int> {
        let id = self.id(fd, number)?;
        if id.at.is_some() { Ok(id) } else { Err(libc::EINVAL) }
    }

    /// Reports an event of ID `number`, unless the program has not named the ID yet.
    pub fn report(&mut self, number: u32, event: u32, status: i32, param: &[u8], ece: (u32, u32)) {
        let Some(id) = self.ids.get(number).filter(|id| id.uid != 0) else { return };
        let response = response(id.uid, number, event, status, param, ece);
        let file = id.file;
        self.deliver(file, Pending { about: number, child: None, group: None, response });
    }

    /// Appends an event to a channel.
    pub fn deliver(&mut self, fd: RawFd, event: Pending) {
        if let Some(file) = self.files.get_mut(&fd) {
            file.push(event);
        }
    }

    /// Destroys an ID. Returns the number of its events that the program has fetched.
    ///
    /// # Errors
    /// ENOENT.
    pub fn destroy(&mut self, number: u32) -> Result<u32, c_int> {
        self.leave_all(number);
        let Some(id) = self.ids.remove(number) else { return Err(libc::ENOENT) };
        let unread = match self.files.get_mut(&id.file) {
            Some(file) => file.withdraw(|event| event.about == number),
            None => Vec::new(),
        };
        self.stop_listening(number);
        if let Some(binding) = &id.binding {
            self.release_port(binding, id.state == super::id::State::Listen);
        }
        if let Some(conn) = id.conn {
            self.hang_up(conn);
        }
        // Destroys requests that were not fetched.
        for child in unread.into_iter().filter_map(|event| event.child) {
            let _ = self.destroy(child);
        }
        Ok(id.reported)
    }

    /// Moves an ID and its events to another channel, as for rdma_migrate_id(3). Returns the number of events fetched.
    ///
    /// # Errors
    /// ENOENT, EINVAL, EIO.
    pub fn migrate(&mut self, number: u32, from: RawFd, to: RawFd) -> Result<u32, c_int> {
        self.file(to)?;
        let id = self.id(from, number)?;
        id.file = to;
        let reported = id.reported;
        let events = self.file(from)?.withdraw(|event| event.about == number);
        self.file(to)?.extend(events);
        Ok(reported)
    }
}

/// The event in the program's format.
pub fn response(uid: u64, id: u32, event: u32, status: i32, param: &[u8], ece: (u32, u32)) -> EventResp {
    let mut response = EventResp::zero();
    response.uid = uid.to_ne_bytes();
    (response.id, response.event, response.status) = (id, event, status);
    let len = param.len().min(response.param.len());
    response.param[..len].copy_from_slice(&param[..len]);
    response.ece = Ece { vendor_id: ece.0, attr_mod: ece.1 };
    response
}
