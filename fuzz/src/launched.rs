//! A launched program and its supervisor: the system calls that the program's seccomp filter forwards, with arbitrary arguments, and
//! arbitrary netlink messages and management datagrams, from a process that may die at any moment.
//!
//! A child installs the filter and does what the input says; its supervisor runs in this process. The supervisor must stay until the child
//! is gone, must not stay longer, and must leave the node alone.
#![allow(unsafe_code)]

use crate::{bytes::Bytes, scratch::Scratch};
use devmodel::{Config, LinkLayer};
use launcher::{
    projection::Projection,
    supervisor::{Follows, View, Waiting, pair},
};
use node::{NodeOptions, Observer, devices::DeviceInfo};
use std::{
    fs::File,
    os::fd::OwnedFd,
    ptr,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Maximum number of calls per input.
const CALLS: usize = 48;
/// Number of sockets and files that a child holds at a time.
const FILES: usize = 6;
/// Bytes of memory that the calls refer to.
const MEMORY: usize = 8192;
/// Maximum lifetime of a child in microseconds: it may wait for something that never comes.
const LIFE: libc::suseconds_t = 40_000;
/// Time limit for a supervisor, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
/// `NETLINK_RDMA`, and its client NLDEV in the type of a message.
const RDMA: libc::c_int = 20;
const NLDEV: u16 = 5 << 10;
/// The ioctls of `umad` files (ib_user_mad.h), and one invalid number.
const UMAD_IOCTLS: [u32; 5] = [0xc01c_1b01, 0x4004_1b02, 0x1b03, 0xc028_1b04, 0x1b05];
/// The system calls that the filter may forward.
const HANDED_OVER: [libc::c_long; 7] = [
    libc::SYS_socket,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_connect,
    libc::SYS_ioctl,
];

/// An InfiniBand node and its devices.
struct Stage {
    scratch: Scratch,
    devices: Vec<DeviceInfo>,
}

impl Stage {
    fn get() -> &'static Self {
        static STAGE: OnceLock<Stage> = OnceLock::new();
        STAGE.get_or_init(|| {
            let config = Config { link_layer: LinkLayer::Infiniband, ..Config::default() };
            let scratch = Scratch::new("launched");
            scratch.make(NodeOptions { config, ..NodeOptions::default() });
            // All devices are listed, so that the supervisor never considers the view outdated: it has no namespace of its own here.
            let devices = Observer::open(scratch.dir()).and_then(|node| node.devices()).expect("the node");
            Self { scratch, devices }
        })
    }

    fn programs(&self) -> usize {
        Observer::open(self.scratch.dir()).expect("the node").status().parties.len()
    }
}

/// Runs a program that does what `data` says.
pub fn launched(data: &[u8]) {
    let stage = Stage::get();
    let (waiting, supervisor) = pair(None).expect("descriptors");
    let child = Child::start(waiting, data);
    let dir = || OwnedFd::from(File::open(stage.scratch.dir()).expect("a directory"));
    let projection = Projection { functions: dir(), bus: dir(), classes: dir(), newest_first: true };
    let view = View { devices: stage.devices.clone(), follows: Follows::Nodes, projection };
    let begin = Instant::now();
    let served = supervisor.supervise(view);
    let ready = child.end();
    // Without a seccomp filter with a listener there is nothing to supervise.
    assert!(served.is_ok() || !ready, "the supervisor ended with {served:?}");
    assert!(begin.elapsed() < LIMIT, "the supervisor took {:?}", begin.elapsed());
    assert_eq!(stage.programs(), 0, "programs on the node");
}

/// The child process that runs the program.
struct Child(libc::pid_t);

/// Exit status of a child that could not install the filter.
const NOT_READY: libc::c_int = 77;

impl Child {
    fn start(waiting: Waiting, data: &[u8]) -> Self {
        // SAFETY: the child only makes system calls and leaves by `_exit`, without returning into our stack; its memory is a copy of ours.
        // It does not outlive us.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::signal(libc::SIGALRM, libc::SIG_DFL);
                    let once = libc::timeval { tv_sec: 0, tv_usec: LIFE };
                    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
                    let life = libc::itimerval { it_interval: never, it_value: once };
                    libc::setitimer(libc::ITIMER_REAL, &raw const life, ptr::null_mut());
                    let files = umads();
                    if waiting.take_over().is_err() {
                        libc::_exit(NOT_READY);
                    }
                    close_others(&files);
                    Program { input: Bytes(data), files, next: 0, memory: [0; MEMORY] }.run();
                    libc::_exit(0)
                }
                child if child > 0 => Self(child),
                _ => panic!("no process: {}", std::io::Error::last_os_error()),
            }
        }
    }

    /// Waits for the child to exit. Returns true if it had installed the filter.
    fn end(self) -> bool {
        let mut status = 0;
        // SAFETY: the process is our own child and is reaped once.
        unsafe {
            while libc::waitpid(self.0, &raw mut status, 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        }
        !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOT_READY)
    }
}

/// Closes all inherited descriptors except `files`.
fn close_others(files: &[libc::c_int]) {
    let mut first: libc::c_uint = 0;
    let last = libc::c_uint::MAX;
    for file in files.iter().filter_map(|file| libc::c_uint::try_from(*file).ok()) {
        if file > first {
            close_range(first, file - 1);
        }
        first = file + 1;
    }
    close_range(first, last);
}

fn close_range(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: the descriptors belong to the child alone, which does not use them again.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Creates stand-ins for `umad` files in a view private to the calling process. The descriptors are invalid if the process may not create a
/// view.
fn umads() -> [libc::c_int; FILES] {
    let mut files = [-1; FILES];
    // SAFETY: the changes affect only the child's view; the paths are C strings.
    unsafe {
        let own = libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                ptr::null(),
                c"/".as_ptr(),
                ptr::null(),
                libc::MS_REC | libc::MS_SLAVE,
                ptr::null(),
            ) == 0
            && libc::mount(c"none".as_ptr(), c"/dev".as_ptr(), c"tmpfs".as_ptr(), 0, ptr::null()) == 0;
        if own {
            libc::mkdir(c"/dev/infiniband".as_ptr(), 0o700);
            for (file, path) in files.iter_mut().zip([c"/dev/infiniband/umad0", c"/dev/infiniband/umad1"]) {
                *file = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK, 0o600);
            }
        }
    }
    files
}

/// The program that the child runs.
struct Program<'a> {
    input: Bytes<'a>,
    files: [libc::c_int; FILES],
    /// Index of the file that the next socket replaces.
    next: usize,
    memory: [u8; MEMORY],
}

impl Program<'_> {
    fn run(&mut self) {
        for _ in 0..CALLS {
            if self.input.is_empty() {
                break;
            }
            self.call();
        }
    }

    /// Picks one of the files, or an arbitrary number.
    fn file(&mut self) -> libc::c_int {
        let which = self.input.u8();
        match usize::from(which) {
            at if at < 240 => self.files[at % FILES],
            _ => i32::from(which) - 242,
        }
    }

    /// Copies input bytes into the memory at `at`. Returns their number.
    fn put(&mut self, at: usize, most: usize) -> usize {
        let bytes = self.input.take(most.min(MEMORY - at));
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }

    /// Picks an address: in the memory, at its end, null or arbitrary.
    fn address(&mut self) -> u64 {
        let base = self.memory.as_ptr() as u64;
        match self.input.u8() {
            0 => 0,
            1 => self.input.u64(),
            2 => base + MEMORY as u64 - 3,
            at => base + u64::from(at) * 16,
        }
    }

    /// Makes a system call with these arguments.
    fn system(&mut self, number: libc::c_long, args: [u64; 6]) -> libc::c_long {
        // SAFETY: the kernel accepts any arguments and writes only to memory of this process. Anything that the kernel or the supervisor
        // overwrites there belongs to the child, which does nothing but make further calls.
        unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
    }

    /// Builds a message header with up to two pieces. Returns its address.
    fn message(&mut self, len: usize) -> u64 {
        const AT: usize = 4096;
        let base = self.memory.as_ptr() as u64;
        let shape = self.input.u8();
        let half = (len / 2) as u64;
        let count = match shape >> 4 {
            15 => self.input.u64(),
            n => u64::from(n % 3),
        };
        let far = if shape & 8 != 0 { self.address() } else { base + half };
        let words = [
            if shape & 1 != 0 { base + 2048 } else { 0 },
            if shape & 2 != 0 { 12 } else { u64::from(shape >> 2) },
            base + AT as u64 + 64,
            count,
            0,
            0,
            0,
            0,
            base,
            half,
            far,
            if shape & 4 != 0 { self.input.u64() } else { len as u64 - half },
        ];
        for (to, word) in self.memory[AT..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        // The address of a netlink socket: the kernel's or another.
        self.memory[2048..2060].fill(0);
        self.memory[2048] = if shape & 2 != 0 { libc::AF_NETLINK as u8 } else { shape };
        base + AT as u64
    }

    /// Writes a well-formed RDMA netlink request to the memory. Returns its length.
    fn request(&mut self) -> usize {
        let (command, flags, attributes) = (self.input.u8(), self.input.u16(), self.input.u8());
        let len = 16 + self.put(16, usize::from(attributes % 96));
        let header = [
            &(len as u32).to_ne_bytes()[..],
            &(NLDEV | u16::from(command)).to_ne_bytes(),
            &(flags | 1).to_ne_bytes(),
            &[7, 0, 0, 0, 0, 0, 0, 0],
        ];
        self.memory[..16].copy_from_slice(&header.concat());
        len
    }

    fn call(&mut self) {
        let base = self.memory.as_ptr() as u64;
        match self.input.u8() % 12 {
            0 => self.open(),
            1 => {
                let (file, len) = (self.file() as u64, self.request());
                self.system(libc::SYS_sendto, [file, base, len as u64, 0, 0, 0]);
            }
            2 => {
                let (file, len) = (self.file() as u64, self.request());
                let message = self.message(len);
                self.system(libc::SYS_sendmsg, [file, message, 0, 0, 0, 0]);
            }
            3 => {
                let (file, most) = (self.file() as u64, self.input.u8());
                let len = self.put(0, usize::from(most)) as u64;
                let (to, to_len) = (self.address(), self.input.u8());
                self.system(libc::SYS_sendto, [file, base, len, 0, to, to_len.into()]);
            }
            4 => {
                let (file, at, len) = (self.file() as u64, self.address(), self.input.u16());
                let (flags, from, from_len) = (self.input.u8(), self.address(), self.address());
                let flags = u64::from(flags) | libc::MSG_DONTWAIT as u64;
                self.system(libc::SYS_recvfrom, [file, at, len.into(), flags, from, from_len]);
            }
            5 => {
                let (file, flags, len) = (self.file() as u64, self.input.u8(), self.input.u8());
                let message = self.message(usize::from(len) * 16);
                self.system(libc::SYS_recvmsg, [file, message, flags.into(), 0, 0, 0]);
            }
            6 => {
                let (file, at, len) = (self.file() as u64, self.address(), self.input.u8());
                self.put(2048, usize::from(len % 16));
                self.system(libc::SYS_connect, [file, at, len.into(), 0, 0, 0]);
            }
            7 => {
                let (file, ioctl) = (self.file() as u64, self.input.u8());
                self.put(0, 40);
                let at = if ioctl >= 250 { self.address() } else { base };
                let ioctl = UMAD_IOCTLS[usize::from(ioctl) % UMAD_IOCTLS.len()];
                self.system(libc::SYS_ioctl, [file, ioctl.into(), at, 0, 0, 0]);
            }
            8 => self.datagram(),
            9 => {
                let file = self.file() as u64;
                self.system(libc::SYS_read, [file, base, 400, 0, 0, 0]);
            }
            10 => {
                let number = HANDED_OVER[usize::from(self.input.u8()) % HANDED_OVER.len()];
                let mut args = [0; 6];
                for arg in &mut args {
                    *arg = match self.input.u8() {
                        kind if kind < 64 => self.file() as u64,
                        kind if kind < 128 => self.address(),
                        kind if kind < 224 => u64::from(kind & 31),
                        _ => self.input.u64(),
                    };
                }
                self.system(number, args);
            }
            _ => self.change(),
        }
    }

    /// Opens a socket as programs do, with a short receive timeout.
    fn open(&mut self) {
        let kind = self.input.u8();
        let flags = match kind >> 4 {
            0..8 => libc::SOCK_NONBLOCK,
            8 => libc::SOCK_CLOEXEC,
            15 => libc::c_int::from(self.input.u16()) << 8,
            _ => 0,
        };
        let bare = if kind & 8 == 0 { libc::SOCK_RAW } else { libc::c_int::from(kind & 7) };
        let got = self
            .system(libc::SYS_socket, [libc::AF_NETLINK as u64, (bare | flags) as u64, RDMA as u64, 0, 0, 0]);
        if got < 0 {
            return;
        }
        let file = got as libc::c_int;
        let soon = libc::timeval { tv_sec: 0, tv_usec: 2000 };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the kernel reads the structure, which lives across the call.
        unsafe { libc::setsockopt(file, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const soon).cast(), len) };
        self.files[self.next % FILES] = file;
        self.next += 1;
    }

    /// Sends a well-formed management datagram with arbitrary contents.
    fn datagram(&mut self) {
        let (file, shape) = (self.file() as u64, self.input.u8());
        let header = if shape & 1 != 0 { 64 } else { 56 };
        self.memory[..400].fill(0);
        let words = [
            u32::from(shape >> 1 & 1),
            0,
            u32::from(shape >> 2 & 1) * 100,
            0,
            0,
            u32::from(shape >> 3 & 1).to_be(),
        ];
        for (to, word) in self.memory.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.memory[29] = self.input.u8() % 6;
        // Class and method come first, then attribute, modifier, and the rest of the MAD.
        let [class, method] = [self.input.u8(), self.input.u8()];
        self.memory[header..header + 4].copy_from_slice(&[1, class, 1 + class / 128, method]);
        self.put(header + 16, 8);
        let most = usize::from(shape >> 4) * 16;
        self.put(header + 24, most);
        let len = if shape & 4 != 0 { header + 256 } else { header + most };
        let base = self.memory.as_ptr() as u64;
        self.system(libc::SYS_write, [file, base, len as u64, 0, 0, 0]);
    }

    /// Changes the process's files or limits, as programs may between calls.
    fn change(&mut self) {
        let (file, how) = (self.file(), self.input.u8());
        // SAFETY: the calls take only numbers, and structures that live across them.
        unsafe {
            match how % 6 {
                0 => _ = libc::close(file),
                1 => self.files[usize::from(how) % FILES] = libc::dup(file),
                2 => _ = libc::shutdown(file, libc::c_int::from(how >> 4) % 3),
                3 => {
                    let limit = libc::rlimit { rlim_cur: u64::from(how), rlim_max: u64::from(how) << 9 };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
                }
                4 => {
                    let one: libc::c_int = 1;
                    let option = libc::c_int::from(how >> 4);
                    libc::setsockopt(file, libc::SOL_NETLINK, option, (&raw const one).cast(), 4);
                }
                _ => {
                    let small: libc::c_int = i32::from(how) * 64;
                    libc::setsockopt(file, libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const small).cast(), 4);
                }
            }
        }
    }
}
