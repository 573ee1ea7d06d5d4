//! The permitted system calls, grouped by purpose.
//!
//! Two filters are stacked. The inner one permits the calls listed here and traps all others, which ends the process (see `violation`). The
//! outer one refuses with EPERM those calls that the standard library or the C library make on their own and can do without. Unconditional
//! rules are preferred where possible: the kernel caches those and does not run the filter for them.
//!
//! The lists cover the calls that glibc and musl make for the same function, on x86-64 and on architectures that only have the `at`
//! variants.

use super::role::{Needs, Role};
use libc::c_long;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use std::{collections::BTreeMap, io};

/// A condition: argument number, comparison and value. Arguments are compared as the `int` that the kernel takes.
type Condition = (u8, Op, u64);

/// Calls by which libraries get the status of a file. For `fstat`, glibc 2.36 calls `newfstatat`, glibc 2.41 and musl call `fstat`; the
/// Rust library calls `statx` where available.
const STAT: [c_long; 3] = [libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx];

/// System calls and the cases in which they match; a call without cases always matches.
#[derive(Default)]
struct Rules(BTreeMap<i64, Vec<Vec<Condition>>>);

impl Rules {
    /// Allows these calls unconditionally.
    fn calls(&mut self, numbers: &[c_long]) -> &mut Self {
        numbers.iter().for_each(|number| _ = self.0.insert(*number, Vec::new()));
        self
    }

    /// Allows `number` if all `conditions` hold, in addition to the cases already allowed.
    fn case(&mut self, number: c_long, conditions: &[Condition]) -> &mut Self {
        let known = self.0.get(&number).is_some_and(Vec::is_empty);
        if !known {
            self.0.entry(number).or_default().push(conditions.to_vec());
        }
        self
    }

    /// Allows `number` if its argument `which` is one of `values`.
    fn one_of(&mut self, number: c_long, which: u8, values: &[u64]) -> &mut Self {
        values.iter().for_each(|value| _ = self.case(number, &[(which, Op::Eq, *value)]));
        self
    }

    /// Builds a filter with the action `on_match` for calls that match, and `otherwise` for others.
    fn filter(
        &self,
        on_match: SeccompAction,
        otherwise: SeccompAction,
    ) -> io::Result<Vec<seccompiler::sock_filter>> {
        let mut rules = BTreeMap::new();
        for (number, cases) in &self.0 {
            let mut chain = Vec::new();
            for conditions in cases {
                let compiled = conditions
                    .iter()
                    .map(|(which, how, with)| SeccompCondition::new(*which, Len::Dword, how.clone(), *with));
                let compiled = compiled.collect::<Result<_, _>>().map_err(io::Error::other)?;
                chain.push(SeccompRule::new(compiled).map_err(io::Error::other)?);
            }
            rules.insert(*number, chain);
        }
        let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
        let filter = SeccompFilter::new(rules, otherwise, on_match, arch).map_err(io::Error::other)?;
        filter.try_into().map_err(io::Error::other)
    }

    /// Memory of the allocator and of stacks, and pages that replace missing ones, none of it executable.
    fn memory(&mut self) -> &mut Self {
        let data = (2, Op::MaskedEq(libc::PROT_EXEC as u64), 0);
        self.calls(&[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise])
            .case(libc::SYS_mmap, std::slice::from_ref(&data))
            .case(libc::SYS_mprotect, &[data])
    }

    /// Time, sleep, locks between threads, output on the standard streams, and eventfds.
    fn running(&mut self) -> &mut Self {
        self.calls(&[libc::SYS_write, libc::SYS_writev, libc::SYS_close])
            .calls(&[libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_nanosleep, libc::SYS_clock_nanosleep])
            // For hosts that need a system call to read the clock.
            .calls(&[libc::SYS_clock_gettime, libc::SYS_gettimeofday])
            // The kernel resumes a sleep with this call after the process was stopped.
            .calls(&[libc::SYS_restart_syscall])
            // Keys of hash tables; the number of arenas of glibc's allocator.
            .calls(&[libc::SYS_getrandom, libc::SYS_sched_getaffinity])
            .one_of(
                libc::SYS_prctl,
                0,
                // Naps, and naming of the allocator's memory, which glibc does if configured to.
                &[libc::PR_GET_TIMERSLACK as u64, libc::PR_SET_TIMERSLACK as u64, libc::PR_SET_VMA as u64],
            )
    }

    /// A thread's own signals, and its exit. It cannot signal other threads or replace the SIGSYS handler.
    fn signals(&mut self, (process, thread): (u32, u32)) -> &mut Self {
        let (process, thread) = (u64::from(process), u64::from(thread));
        let handled = [libc::SIGBUS, libc::SIGSEGV, libc::SIGABRT].map(|signal| signal as u64);
        self.calls(&[libc::SYS_rt_sigreturn, libc::SYS_rt_sigprocmask, libc::SYS_sigaltstack])
            .one_of(libc::SYS_rt_sigaction, 0, &handled)
            .calls(&[libc::SYS_getpid, libc::SYS_gettid])
            // abort(), and re-raising a SIGBUS that is unrelated to the node.
            .case(libc::SYS_tgkill, &[(0, Op::Eq, process), (1, Op::Eq, thread)])
            .one_of(libc::SYS_tkill, 0, &[thread])
            .calls(&[libc::SYS_exit, libc::SYS_exit_group, libc::SYS_set_robust_list])
    }

    /// The calls of every party: each thread may run the model, clean up after dead parties, and wait for other parties.
    fn party(&mut self, needs: Needs) -> &mut Self {
        // Allocates and frees memory of the node's file.
        self.calls(&[libc::SYS_fallocate])
            // Memory barriers in all threads of the node's programs, and the count of involuntary context switches.
            .calls(&[libc::SYS_membarrier, libc::SYS_getrusage])
            // Liveness of parties, and the node's lock; whether a client's eventfd would block. F_GETFD is for the standard library, which
            // checks descriptors that it closes.
            .one_of(
                libc::SYS_fcntl,
                1,
                &[libc::F_SETLK, libc::F_GETLK, libc::F_GETFL, libc::F_GETFD].map(|what| what as u64),
            )
            // Checks that a descriptor still refers to the same file.
            .calls(&STAT)
            // The asker's answers.
            .calls(&[libc::SYS_sendto, libc::SYS_recvfrom]);
        if needs.copies {
            // A filter cannot tell programs of the node from other processes of the user: docs/security.md.
            self.calls(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
        }
        self
    }

    /// The client of a vfio-user socket: messages with descriptors, for memory to map and eventfds to signal.
    fn client(&mut self) -> &mut Self {
        self.calls(&[
            libc::SYS_accept4,
            libc::SYS_recvmsg,
            libc::SYS_sendmsg,
            libc::SYS_ppoll,
            libc::SYS_shutdown,
        ])
        // To identify a descriptor: only regular files of local file systems are mapped, and eventfds are recognized by their link in
        // /proc/self/fd.
        .calls(&STAT)
        .calls(&[libc::SYS_fstatfs])
        .calls(&[libc::SYS_readlinkat])
        // musl sets the flag of a duplicated descriptor a second time.
        .one_of(
            libc::SYS_fcntl,
            1,
            &[libc::F_SETFL, libc::F_SETFD, libc::F_DUPFD_CLOEXEC].map(|what| what as u64),
        )
        .one_of(libc::SYS_ioctl, 1, &[libc::FIONBIO as _])
        .case(
            libc::SYS_setsockopt,
            &[(1, Op::Eq, libc::SOL_SOCKET as u64), (2, Op::Eq, libc::SO_SNDTIMEO as u64)],
        );
        #[cfg(target_arch = "x86_64")]
        self.calls(&[libc::SYS_poll, libc::SYS_readlink]);
        self
    }

    /// A link: frames on sockets, and changing peers.
    fn link(&mut self, needs: Needs) -> &mut Self {
        self.calls(&[libc::SYS_ppoll, libc::SYS_read, libc::SYS_readv, libc::SYS_recvmsg, libc::SYS_sendmsg])
            // A stream's peer, and non-blocking mode.
            .calls(&[libc::SYS_accept4])
            .one_of(libc::SYS_ioctl, 1, &[libc::FIONBIO as _]);
        let buffers = [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE];
        let buffers = buffers.map(|option| (libc::SOL_SOCKET, option));
        let packets = [
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            (libc::SOL_UDP, libc::UDP_GRO),
        ];
        for (level, option) in buffers.into_iter().chain(packets) {
            self.case(libc::SYS_setsockopt, &[(1, Op::Eq, level as u64), (2, Op::Eq, option as u64)]);
        }
        // The socket type without the SOCK_CLOEXEC and SOCK_NONBLOCK bits.
        let kind = |kind: libc::c_int| (1, Op::MaskedEq(0xf), kind as u64);
        if needs.unix_peer {
            self.calls(&[libc::SYS_connect]);
        }
        if needs.unix_stream {
            self.case(libc::SYS_socket, &[(0, Op::Eq, libc::AF_UNIX as u64), kind(libc::SOCK_STREAM)]);
        }
        if needs.udp {
            self.calls(&[libc::SYS_bind]);
            for family in [libc::AF_INET, libc::AF_INET6] {
                self.case(libc::SYS_socket, &[(0, Op::Eq, family as u64), kind(libc::SOCK_DGRAM)]);
            }
        }
        #[cfg(target_arch = "x86_64")]
        self.calls(&[libc::SYS_poll]);
        self
    }

    /// The main thread, once everything is running: waits, removes those sockets that are still its own, and waits for the asker to exit.
    fn end(&mut self) -> &mut Self {
        self.calls(&[libc::SYS_rt_sigtimedwait, libc::SYS_shutdown, libc::SYS_wait4, libc::SYS_unlinkat])
            .calls(&STAT);
        #[cfg(target_arch = "x86_64")]
        self.calls(&[libc::SYS_unlink, libc::SYS_lstat]);
        self
    }

    /// The asker: reads small files and writes none.
    fn asker(&mut self) -> &mut Self {
        let writing = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
        let reads = |which| (which, Op::MaskedEq(writing as u64), libc::O_RDONLY as u64);
        self.calls(&[libc::SYS_recvfrom, libc::SYS_sendto])
            .case(libc::SYS_openat, &[reads(2)])
            .calls(&[libc::SYS_read, libc::SYS_lseek])
            .calls(&STAT)
            .one_of(libc::SYS_fcntl, 1, &[libc::F_GETFD as u64, libc::F_SETFD as u64]);
        #[cfg(target_arch = "x86_64")]
        self.case(libc::SYS_open, &[reads(1)]);
        self
    }
}

/// The calls that a thread with `role` may make; `ids` are those of its process and of the thread.
fn allowed(role: Role, needs: Needs, ids: (u32, u32)) -> Rules {
    let mut rules = Rules::default();
    rules.memory().running().signals(ids);
    match role {
        Role::Main => rules.party(needs).end(),
        Role::Client => rules.party(needs).client(),
        Role::Parked => rules.party(needs),
        Role::Link => rules.party(needs).link(needs),
        Role::Asker => rules.asker(),
    };
    rules
}

/// Calls that fail with EPERM, because their callers cope with a refusal.
fn refused(role: Role, needs: Needs) -> Rules {
    let mut rules = Rules::default();
    if role != Role::Asker {
        // The backtrace of a panic, which tries to read the program's own file, and glibc's allocator, which reads the number of
        // processors.
        rules.calls(&[libc::SYS_openat, libc::SYS_getcwd]);
        #[cfg(target_arch = "x86_64")]
        rules.calls(&[libc::SYS_open]);
    }
    if !needs.copies {
        // The check whether a party that seems to be dead is; its lock suffices.
        rules.calls(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
    }
    rules
}

/// Permanently confines the calling thread.
pub fn install(role: Role, needs: Needs, ids: (u32, u32)) -> io::Result<()> {
    let refused = refused(role, needs);
    let mut allowed = allowed(role, needs, ids);
    // With two filters the stricter result applies, and a trap is stricter than an errno.
    refused.0.keys().for_each(|number| _ = allowed.0.insert(*number, Vec::new()));
    let outer = refused.filter(SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?;
    let inner = allowed.filter(SeccompAction::Allow, SeccompAction::Trap)?;
    // The outer filter goes first, because the inner one forbids installing another. Both also prevent gaining privileges by exec.
    seccompiler::apply_filter(&outer).map_err(io::Error::other)?;
    seccompiler::apply_filter(&inner).map_err(io::Error::other)
}

/// Checks that the kernel supports trapping filters.
#[allow(unsafe_code)]
pub fn can_trap() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: the kernel reads one word that lives across the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
