//! The functions of a guest and their servers, one for each adapter.

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

/// Slots of the guest's bus (packaging/linux/uml.patch); its adapters divide them.
const SLOTS: u8 = 32;
/// Functions of a slot. A PF is the first of one, and its VFs follow.
const FUNCTIONS: u8 = 8;
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
            (Ok(first @ 1..), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!("expected VFs of the adapter, such as 4 or 4-6, found '{text}'")),
        }
    }
}

/// Functions of one adapter, in consecutive slots of the guest's bus.
pub struct Adapter {
    node: PathBuf,
    functions: VfRange,
    /// The first slot.
    slot: u8,
}

/// A function, its socket, and its device and function number on the guest's bus.
pub struct Plug {
    pub fid: u8,
    pub socket: PathBuf,
    pub devfn: u8,
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
    let slots = share(nodes.len())?;
    let range = |there| match linux.functions {
        Some(VfRange { last, .. }) if last > there => Err(few_vfs(last, there)),
        Some(functions) => alone(functions, slots),
        None => Ok(VfRange { first: 0, last: shown(linux.vfs, there, slots)? }),
    };
    nodes
        .iter()
        .zip((0..SLOTS).step_by(slots.into()))
        .map(|(node, slot)| {
            Ok(Adapter { node: node.dir().to_path_buf(), functions: range(node.vfs())?, slot })
        })
        .collect()
}

/// Number of slots of the bus for each of `count` adapters.
fn share(count: usize) -> Result<u8, String> {
    match usize::from(SLOTS).checked_div(count) {
        Some(slots @ 1..) => Ok(slots as u8),
        _ => Err(format!("expected at most {SLOTS} adapters, found {count}")),
    }
}

fn few_vfs(wanted: u8, there: u8) -> String {
    format!("expected {wanted} VFs, found {there} in the adapter: adapter create --vfs makes more")
}

/// Number of VFs that a PF with `slots` slots shows, out of the `there` VFs it has.
fn shown(wanted: Option<u8>, there: u8, slots: u8) -> Result<u8, String> {
    let room = u16::from(slots) * u16::from(FUNCTIONS) - 1;
    match wanted {
        Some(wanted) if wanted > there => Err(few_vfs(wanted, there)),
        Some(wanted) if u16::from(wanted) > room => Err(format!(
            "expected at most {room} VFs for each adapter, which has {slots} of the bus's {SLOTS} slots, found {wanted}"
        )),
        Some(wanted) => Ok(wanted),
        None => Ok(there.min(USUAL_VFS)),
    }
}

/// Checks that VFs without a PF fit into `slots` slots: Linux finds a device only by function 0 of its slot.
fn alone(functions: VfRange, slots: u8) -> Result<VfRange, String> {
    match functions.last - functions.first {
        more if more < slots => Ok(functions),
        more => Err(format!(
            "expected at most {slots} VFs without a PF for each adapter, one for each slot, found {}",
            u16::from(more) + 1
        )),
    }
}

impl Adapter {
    /// Number of its functions that the guest has.
    pub fn functions(&self) -> usize {
        usize::from(self.functions.last - self.functions.first) + 1
    }

    /// Its functions in order, with sockets in `world`.
    pub fn plugs(&self, world: &Path) -> Vec<Plug> {
        let VfRange { first, last } = self.functions;
        let plug = |fid: u8| {
            let after = if first == 0 { fid } else { (fid - first) * FUNCTIONS };
            let devfn = self.slot * FUNCTIONS + after;
            Plug { fid, socket: world.join(format!("f{devfn}")), devfn }
        };
        (first..=last).map(plug).collect()
    }

    /// Starts the server of its functions at `plugs`, and waits until all sockets exist.
    pub fn serve(&self, plugs: &[Plug]) -> Result<Child, String> {
        let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(exe);
        command.arg("serve").arg("--adapter").arg(&self.node).stdin(Stdio::null()).stdout(Stdio::piped());
        for Plug { fid, socket, .. } in plugs {
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
    fn a_node_s_vfs_are_shown_as_far_as_the_bus_has_functions() {
        assert_eq!([1, 3, 8, 32].map(|adapters| share(adapters).unwrap()), [32, 10, 4, 1]);
        assert!(share(33).is_err());
        assert_eq!(shown(None, 8, 32), Ok(7));
        assert_eq!(shown(None, 2, 32), Ok(2));
        assert_eq!(shown(None, 8, 1), Ok(7));
        assert_eq!(shown(Some(3), 8, 32), Ok(3));
        assert_eq!(shown(Some(127), 127, 32), Ok(127));
        let why = shown(Some(5), 2, 32).unwrap_err();
        assert!(why.contains("expected 5 VFs, found 2"), "{why}");
        assert_eq!(shown(Some(31), 127, 4), Ok(31));
        let why = shown(Some(32), 127, 4).unwrap_err();
        assert!(why.contains("at most 31 VFs for each adapter"), "{why}");
    }

    #[test]
    fn vfs_follow_their_pf_and_are_devices_of_their_own_without_it() {
        let devfns = |first, last, slot| {
            let adapter = Adapter { node: PathBuf::new(), functions: VfRange { first, last }, slot };
            adapter.plugs(Path::new("/x")).iter().map(|plug| plug.devfn).collect::<Vec<u8>>()
        };
        assert_eq!(devfns(0, 127, 0), (0..=127).collect::<Vec<u8>>());
        assert_eq!(devfns(0, 3, 28), [224, 225, 226, 227]);
        assert_eq!(devfns(4, 6, 0), [0, 8, 16]);
        let alone = |first, last, slots| alone(VfRange { first, last }, slots);
        assert!(alone(96, 127, 32).is_ok() && alone(1, 4, 4).is_ok());
        let why = alone(1, 33, 32).unwrap_err();
        assert!(why.contains("at most 32 VFs without a PF") && why.contains("found 33"), "{why}");
    }

    #[test]
    fn functions_are_one_or_a_range_without_the_pf() {
        assert_eq!("4".parse(), Ok(VfRange { first: 4, last: 4 }));
        assert_eq!("4-6".parse(), Ok(VfRange { first: 4, last: 6 }));
        for text in ["", "0", "0-3", "6-4", "4-", "256", "4-6-8", "-1"] {
            let why = text.parse::<VfRange>().unwrap_err();
            assert!(why.contains("expected VFs of the adapter") && why.contains(text), "{why}");
        }
    }
}
