//! The functions of a guest and their servers: each adapter has one of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::sys::signal::Signal;
use node::{NodeOptions, Observer};

use super::child::Child;
use crate::nodes;
use crate::options::Linux;

/// Slots of the guest's bus (packaging/linux/uml.patch); each function takes one.
const SLOTS: u8 = 32;
/// Maximum number of VFs with a PF.
pub const MOST_VFS: u8 = SLOTS - 1;
/// Default number of VFs of a PF, if there is room: each costs a socket, a thread and some of the guest's startup time.
const USUAL_VFS: u8 = 7;

/// A range of VFs of an adapter, such as `4-6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VfRange {
    first: u8,
    last: u8,
}

impl FromStr for VfRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            // Excludes the PF, which would treat the others as its VFs.
            (Ok(first @ 1..), Ok(last)) if first <= last && last - first < SLOTS => Ok(Self { first, last }),
            _ => {
                Err(format!("expected VFs of the adapter, {SLOTS} at most, such as 4 or 4-6, found '{text}'"))
            }
        }
    }
}

/// Functions of one adapter, in consecutive slots of the guest's bus.
pub struct Adapter {
    node: PathBuf,
    functions: VfRange,
}

/// The adapters that `linux` requests, in the order of the guest's bus. Missing ones are created.
pub fn adapters(linux: &Linux) -> Result<Vec<Adapter>, String> {
    let dir = linux.nodes.path();
    linux.identity.without_plan()?;
    // An existing node keeps its properties, because others may be using it.
    let is_new = Observer::identity(&dir).is_none();
    let asked = linux.functions.map(|functions| functions.last).or(linux.vfs);
    let vfs = asked.filter(|vfs| is_new && *vfs > node::DEFAULT_VFS);
    let options = linux.identity.over(NodeOptions { vfs, ..NodeOptions::default() });
    // This process is a party of the adapters only until this function returns.
    let nodes = nodes::open(&dir, &options, linux.nodes.others())?;
    let count = nodes.len();
    let range = |there| match linux.functions {
        Some(VfRange { last, .. }) if last > there => Err(few_vfs(last, there)),
        Some(functions) => Ok(functions),
        None => Ok(VfRange { first: 0, last: shown(linux.vfs, there, count)? }),
    };
    nodes
        .iter()
        .map(|node| Ok(Adapter { node: node.dir().to_path_buf(), functions: range(node.vfs())? }))
        .collect()
}

fn few_vfs(wanted: u8, there: u8) -> String {
    format!("expected {wanted} VFs, found {there} in the adapter: adapter create --vfs makes more")
}

/// Number of VFs that each of `count` adapters shows, out of the `there` VFs it has.
fn shown(wanted: Option<u8>, there: u8, count: usize) -> Result<u8, String> {
    let room = usize::from(SLOTS).checked_div(count).and_then(|slots| slots.checked_sub(1));
    let Some(room) = room else {
        return Err(format!("expected at most {SLOTS} adapters, found {count}"));
    };
    match wanted {
        Some(wanted) if wanted > there => Err(few_vfs(wanted, there)),
        Some(wanted) if usize::from(wanted) > room => Err(format!(
            "expected at most {room} VFs for each of {count} adapters, for the bus has {SLOTS} slots, found {wanted}"
        )),
        Some(wanted) => Ok(wanted),
        None => Ok(there.min(USUAL_VFS).min(room as u8)),
    }
}

impl Adapter {
    /// The sockets of its functions in `world`, in order; `number` distinguishes adapters.
    pub fn sockets(&self, world: &Path, number: usize) -> Vec<(u8, PathBuf)> {
        let VfRange { first, last } = self.functions;
        (first..=last).map(|fid| (fid, world.join(format!("a{number}f{fid}")))).collect()
    }

    /// Starts the server of its functions at `sockets`, and waits until all sockets exist.
    pub fn serve(&self, sockets: &[(u8, PathBuf)]) -> Result<Child, String> {
        let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(exe);
        command.arg("serve").arg("--adapter").arg(&self.node).stdin(Stdio::null()).stdout(Stdio::piped());
        for (fid, socket) in sockets {
            let mut at = OsString::from(format!("{fid}="));
            at.push(socket);
            command.arg("--plug-virtio").arg(at);
        }
        let mut server = Child::start(&mut command, "the server", Signal::SIGTERM)?;
        let Some(stdout) = server.stdout() else { return Err("the server has no standard output".into()) };
        let (say, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The server's last line tells whether it is in jail; all sockets exist by then.
                if line.starts_with("jailed") || line.starts_with("not jailed") {
                    let _ = say.send(());
                }
            }
        });
        match heard.recv_timeout(Duration::from_secs(60)) {
            Ok(()) => Ok(server),
            // The server has printed the reason on standard error.
            Err(RecvTimeoutError::Disconnected) => Err("the functions cannot be served".into()),
            Err(RecvTimeoutError::Timeout) => Err("the server of the functions is not up after 60 s".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_s_vfs_are_shown_as_far_as_the_bus_has_slots() {
        assert_eq!(shown(None, 8, 1), Ok(7));
        assert_eq!(shown(None, 2, 1), Ok(2));
        assert_eq!(shown(None, 8, 8), Ok(3));
        assert_eq!(shown(None, 8, 32), Ok(0));
        assert_eq!(shown(Some(3), 8, 1), Ok(3));
        assert_eq!(shown(Some(31), 40, 1), Ok(31));
        let why = shown(Some(5), 2, 1).unwrap_err();
        assert!(why.contains("expected 5 VFs, found 2"), "{why}");
        let why = shown(Some(7), 8, 8).unwrap_err();
        assert!(why.contains("at most 3 VFs for each of 8 adapters"), "{why}");
        assert!(shown(None, 8, 33).is_err());
    }

    #[test]
    fn functions_are_one_or_a_range_without_the_pf() {
        assert_eq!("4".parse(), Ok(VfRange { first: 4, last: 4 }));
        assert_eq!("4-6".parse(), Ok(VfRange { first: 4, last: 6 }));
        for text in ["", "0", "0-3", "6-4", "4-", "1-33", "256", "4-6-8", "-1"] {
            let why = text.parse::<VfRange>().unwrap_err();
            assert!(why.contains("expected VFs of the adapter") && why.contains(text), "{why}");
        }
    }
}
