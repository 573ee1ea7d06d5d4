//! Creates the program's mount namespace, as root or through a user namespace.
//!
//! The kernel lets processes of one user copy each other's memory (`process_vm_readv`) only inside one user namespace, so all programs that
//! an unprivileged user runs on one node must share one. The first program creates it and writes its PID into the node directory; later
//! ones join the namespace of any that is still alive.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid};

use super::LaunchError;
use super::sys;

/// File in the node directory that lists the processes in the shared user namespace. It is locked during changes.
const MEMBERS: &str = "userns";

/// How the mount namespace was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The caller had the privilege to create one.
    Privileged,
    /// Inside a new user namespace.
    NewUser,
    /// Inside the user namespace of another program of the node.
    JoinedUser,
}

/// Moves the calling (single-threaded) process into its own mount namespace. No mount propagates from it.
pub fn enter(node: &Path) -> Result<Way, LaunchError> {
    let way = match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => Way::Privileged,
        Err(Errno::EPERM) => unprivileged(node)?,
        Err(e) => return Err(LaunchError::forbidden("unshare(CLONE_NEWNS)", e.into())),
    };
    // Slave, not private, so that the host can unmount file systems later.
    sys::make_mounts_slaves().map_err(|e| LaunchError::forbidden("mount(\"/\", MS_REC | MS_SLAVE)", e))?;
    Ok(way)
}

/// Like [`enter`], with a new user namespace if one is needed; used to find out whether the host permits it.
pub fn enter_fresh() -> io::Result<()> {
    if unshare(CloneFlags::CLONE_NEWNS).is_err() {
        new_user().map_err(LaunchError::into_io)?;
        unshare(CloneFlags::CLONE_NEWNS)?;
    }
    sys::make_mounts_slaves()
}

fn unprivileged(node: &Path) -> Result<Way, LaunchError> {
    let path = node.join(MEMBERS);
    let step = |what: &str| LaunchError::step(format!("{what} {}", path.display()));
    // Another user with access to the file could lock it and block this process.
    let file = node::data::open_or_make(&path).map_err(step("open"))?;
    let mut file = sys::lock(file).map_err(step("lock"))?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(step("read"))?;
    let mut members: Vec<Member> = text.lines().filter_map(Member::parse).filter(Member::alive).collect();

    let way = if members.iter().any(|m| m.join().is_ok()) {
        Way::JoinedUser
    } else {
        new_user()?;
        Way::NewUser
    };
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| LaunchError::forbidden("unshare(CLONE_NEWNS)", e.into()))?;

    // exec keeps the PID and the start time, so this line identifies the program from now on.
    members.extend(Member::of(std::process::id()));
    let text: String = members.iter().map(Member::line).collect();
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(step("write"))?;
    Ok(way)
}

/// Enters a new user namespace in which the caller keeps its user and group IDs.
fn new_user() -> Result<(), LaunchError> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(|e| LaunchError::forbidden("unshare(CLONE_NEWUSER)", e.into()))?;
    // An unprivileged user may write a group map only after setgroups is disabled (user_namespaces(7)).
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| LaunchError::forbidden(&format!("writing /proc/self/{file}"), e))
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("gid_map", format!("{gid} {gid} 1"))
}

/// A process in the shared user namespace. Its start time distinguishes it from a later process with the same PID.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    pid: u32,
    started: u64,
    userns: u64,
}

impl Member {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let userns = fs::metadata(format!("/proc/{pid}/ns/user")).ok()?.ino();
        Some(Self { pid, started: start_time(&stat)?, userns })
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let member = Self {
            pid: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
            userns: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(member)
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", self.pid, self.started, self.userns)
    }

    fn alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    fn join(&self) -> io::Result<()> {
        let user = File::open(format!("/proc/{}/ns/user", self.pid))?;
        Ok(setns(user, CloneFlags::CLONE_NEWUSER)?)
    }
}

/// Field 22 of /proc/PID/stat. The command in field 2 may contain any characters, but its closing parenthesis is the last one.
fn start_time(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_again_and_a_reused_number_is_not() {
        let me = Member::of(std::process::id()).unwrap();
        assert_eq!(Member::parse(me.line().trim()), Some(me.clone()));
        assert!(me.alive());
        assert!(!Member { started: me.started + 1, ..me }.alive());
    }

    #[test]
    fn damaged_lines_are_ignored() {
        for line in ["", "12", "12 x 3", "-1 2 3", "1 2 3 4"] {
            assert_eq!(Member::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_command_with_parentheses_does_not_hide_the_start_time() {
        let stat = "7 (a) b) S 1 1 1 0 -1 4 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(start_time(stat), Some(4242));
    }
}
