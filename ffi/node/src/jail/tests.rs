//! Threads in jail, each in its own process: a refused call ends the process with a message, and permitted calls work.
#![allow(unsafe_code)]

use super::*;
use crate::{holder::Holder, sys};
use std::{
    fs::File,
    io::Read,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::process::ExitStatusExt,
    },
    process::{Command, ExitStatus},
};

const ROLES: [Role; 4] = [Role::Main, Role::Client, Role::Parked, Role::Link];
const ALL: Needs = Needs { copies: true, unix_peer: true, unix_stream: true, udp: true };

/// The exit status of a forked child that ran `body`, and its output on stderr. Status 0: `body` returned true.
fn in_child(body: impl FnOnce() -> bool) -> (ExitStatus, String) {
    let mut ends = [0; 2];
    let mut status = 0;
    let mut said = String::new();
    // SAFETY: the child exits without running anything else; only the parent waits for it.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let child = libc::fork();
        if child == 0 {
            libc::dup2(ends[1], libc::STDERR_FILENO);
            libc::_exit(libc::c_int::from(!body()));
        }
        libc::close(ends[1]);
        File::from_raw_fd(ends[0]).read_to_string(&mut said).unwrap();
        libc::waitpid(child, &raw mut status, 0);
    }
    (ExitStatus::from_raw(status), said)
}

/// [`in_child`], in the jail for `role`.
fn jailed(role: Role, needs: Needs, body: impl FnOnce() -> bool) -> (ExitStatus, String) {
    in_child(|| {
        violation::watch().and_then(|()| confine(role, needs)).unwrap();
        body()
    })
}

/// A system call with integer arguments that bypasses the C library, as an attacker would make it.
fn call(number: libc::c_long, args: [libc::c_long; 4]) -> bool {
    // SAFETY: refused before the kernel reads an argument, or harmless with these.
    unsafe { libc::syscall(number, args[0], args[1], args[2], args[3]) != -1 }
}

fn errno() -> Option<i32> {
    io::Error::last_os_error().raw_os_error()
}

#[track_caller]
fn is_refused(role: Role, needs: Needs, number: libc::c_long, args: [libc::c_long; 4]) {
    let (status, said) = jailed(role, needs, || call(number, args));
    assert_eq!(status.code(), Some(violation::STATUS), "{role}, {number} {args:?}: {status} {said}");
    let expected = format!("the jail of the {role} thread refuses system call {number}");
    assert!(said.contains(&expected) && said.lines().count() == 1, "{said}");
}

#[track_caller]
fn is_fine(role: Role, needs: Needs, body: impl FnOnce() -> bool) {
    let (status, said) = jailed(role, needs, body);
    assert!(status.success(), "{role}: {status} {said}");
}

#[test]
fn what_no_server_needs_ends_it_with_a_line() {
    testkit::alone!();
    let us = i64::from(std::process::id());
    let exec = i64::from(libc::PROT_READ | libc::PROT_EXEC);
    let (inet, unix) = (i64::from(libc::AF_INET), i64::from(libc::AF_UNIX));
    let (stream, raw) = (i64::from(libc::SOCK_STREAM), i64::from(libc::SOCK_RAW));
    for role in ROLES {
        for (number, args) in [
            (libc::SYS_execve, [0; 4]),
            (libc::SYS_execveat, [0; 4]),
            (libc::SYS_ptrace, [libc::PTRACE_ATTACH as libc::c_long, us, 0, 0]),
            (libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0]),
            (libc::SYS_clone3, [0; 4]),
            (libc::SYS_kill, [us, libc::SIGTERM.into(), 0, 0]),
            (libc::SYS_tgkill, [us, us, libc::SIGTERM.into(), 0]),
            (libc::SYS_tkill, [us, libc::SIGTERM.into(), 0, 0]),
            (libc::SYS_pidfd_open, [us, 0, 0, 0]),
            (libc::SYS_socket, [inet, stream, 0, 0]),
            (libc::SYS_socket, [inet, raw, 0, 0]),
            (libc::SYS_socket, [i64::from(libc::AF_NETLINK), raw, 0, 0]),
            (libc::SYS_socket, [unix, i64::from(libc::SOCK_DGRAM), 0, 0]),
            (libc::SYS_mmap, [0, 4096, exec, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into()]),
            (libc::SYS_mprotect, [0, 4096, exec, 0]),
            (libc::SYS_openat2, [0; 4]),
            (libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0, 0]),
            (libc::SYS_prctl, [libc::PR_SET_SECCOMP.into(), 0, 0, 0]),
            (libc::SYS_rt_sigaction, [libc::SIGSYS.into(), 0, 0, 8]),
            (libc::SYS_fcntl, [0, libc::F_SETOWN.into(), us, 0]),
            (libc::SYS_ioctl, [0, libc::TIOCSTI as libc::c_long, 0, 0]),
            (libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]),
            (libc::SYS_memfd_create, [0; 4]),
            (libc::SYS_io_uring_setup, [1, 0, 0, 0]),
            (libc::SYS_userfaultfd, [0; 4]),
            (libc::SYS_bpf, [0; 4]),
            (libc::SYS_renameat2, [0; 4]),
        ] {
            is_refused(role, ALL, number, args);
        }
    }
}

#[test]
fn a_thread_has_what_its_role_needs_and_no_more() {
    testkit::alone!();
    let unix = [i64::from(libc::AF_UNIX), i64::from(libc::SOCK_STREAM | libc::SOCK_CLOEXEC), 0, 0];
    let udp = [i64::from(libc::AF_INET), i64::from(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC), 0, 0];
    is_fine(Role::Link, ALL, || call(libc::SYS_socket, unix) && call(libc::SYS_socket, udp));
    for role in [Role::Main, Role::Client, Role::Parked] {
        is_refused(role, ALL, libc::SYS_socket, unix);
        is_refused(role, ALL, libc::SYS_socket, udp);
        is_refused(role, ALL, libc::SYS_connect, [0; 4]);
    }
    // Needs without any link.
    let none = Needs { copies: true, ..Needs::default() };
    is_refused(Role::Link, none, libc::SYS_socket, unix);
    is_refused(Role::Link, none, libc::SYS_socket, udp);
    is_refused(Role::Link, none, libc::SYS_connect, [0; 4]);
    // Files are removed only at the end, and descriptors are received only from clients.
    for role in [Role::Client, Role::Parked, Role::Link] {
        is_refused(role, ALL, libc::SYS_unlinkat, [0; 4]);
    }
    for role in [Role::Main, Role::Parked] {
        is_refused(role, ALL, libc::SYS_recvmsg, [0; 4]);
    }
}

#[test]
fn a_server_may_look_at_its_standard_output_by_whichever_call_its_c_library_makes() {
    testkit::alone!();
    // Larger than the kernel's struct stat, which both calls fill in.
    let mut room = [0_u64; 32];
    let (room, empty) = (room.as_mut_ptr() as libc::c_long, c"".as_ptr() as libc::c_long);
    let at_empty = libc::AT_EMPTY_PATH.into();
    is_fine(Role::Main, ALL, || call(libc::SYS_fstat, [1, room, 0, 0]));
    is_fine(Role::Main, ALL, || call(libc::SYS_newfstatat, [1, empty, room, at_empty]));
}

#[test]
fn files_are_not_opened_and_that_is_an_error_like_others() {
    testkit::alone!();
    for role in ROLES {
        is_fine(role, ALL, || File::open("/dev/null").is_err_and(|e| e.raw_os_error() == Some(libc::EPERM)));
    }
}

#[test]
fn memory_of_programs_is_reached_only_where_the_node_copies() {
    testkit::alone!();
    let word = 7u64;
    let copies = || sys::peek(std::process::id(), &raw const word as u64).is_ok_and(|found| found == 7);
    for role in ROLES {
        is_fine(role, ALL, copies);
        is_fine(role, Needs { copies: false, ..ALL }, || !copies() && errno() == Some(libc::EPERM));
    }
}

#[test]
fn a_party_of_the_node_works_in_jail() {
    testkit::alone!();
    let file = testkit::memfd(0);
    let event = sys::eventfd().unwrap();
    for role in ROLES {
        is_fine(role, ALL, || {
            let mut memory = vec![1u8; 8 << 20];
            memory.resize(16 << 20, 2);
            sys::signal(event.as_raw_fd());
            sys::yield_now();
            sys::nap(1000);
            std::thread::sleep(Duration::from_millis(1));
            let _ = (sys::barrier_everywhere(), sys::involuntary_switches(), sys::monotonic_ns());
            let word = std::sync::atomic::AtomicU32::new(0);
            sys::futex_wake(&word);
            sys::allocate(&file, 0, 1 << 16).is_ok()
                && sys::punch(&file, 0, 1 << 16).is_ok()
                && sys::lock_range(&file, (1, 1), true).is_ok_and(|locked| locked)
                && sys::range_holder(&file, (1, 1)).is_ok_and(|holder| holder.is_none())
                && !sys::futex_wait(&word, 0, Some(1000))
                && memory.iter().rev().take(4096).all(|byte| *byte == 2)
        });
    }
}

#[test]
fn a_panic_in_jail_is_caught_as_outside() {
    testkit::alone!();
    let (status, said) =
        jailed(Role::Client, ALL, || std::panic::catch_unwind(|| panic!("on purpose")).is_err());
    assert!(status.success() && said.contains("on purpose"), "{status} {said}");
}

#[test]
fn an_abort_in_jail_is_an_abort() {
    testkit::alone!();
    let (status, said) = jailed(Role::Parked, ALL, || std::process::abort());
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status} {said}");
}

#[test]
fn the_asker_tells_of_stopped_programs() {
    testkit::alone!();
    let mut program = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = program.id();
    let found = |stopped: Option<&str>| {
        in_child(|| {
            // SAFETY: a forked child has one thread.
            let _asker = unsafe { asker::start() }.unwrap();
            violation::watch().and_then(|()| confine(Role::Main, Needs::default())).unwrap();
            let mut looks = (0..500).map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                Holder::of(pid)
            });
            looks.any(|found| found.pid == pid && found.program == "sleep" && found.stopped == stopped)
        })
    };
    let running = found(None);
    // SAFETY: sends a signal to a child of this test.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGSTOP) };
    let stopped = found(Some("stopped by a signal"));
    program.kill().unwrap();
    program.wait().unwrap();
    for (status, said) in [running, stopped] {
        assert!(status.success() && said.is_empty(), "{status} {said}");
    }
}

#[test]
fn an_asker_that_is_stopped_or_gone_is_not_waited_for() {
    testkit::alone!();
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        let (status, said) = in_child(|| {
            // SAFETY: a forked child has one thread.
            let asker = unsafe { asker::start() }.unwrap();
            // SAFETY: sends a signal to the process's own child.
            unsafe { libc::kill(asker.pid(), signal) };
            let begun = Instant::now();
            let found = Holder::of(std::process::id());
            // SAFETY: sends a signal to the process's own child, which has not been waited for.
            unsafe { libc::kill(asker.pid(), libc::SIGKILL) };
            found.program.is_empty() && found.stopped.is_none() && begun.elapsed() < Duration::from_secs(2)
        });
        assert!(status.success(), "{signal}: {status} {said}");
    }
}
