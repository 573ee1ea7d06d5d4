//! Runs an arbitrary program so that it sees the simulated devices where the kernel would show real ones.
//!
//! The program gets its own mount namespace. In it, `/sys/devices`, `/sys/class`, `/sys/bus/pci/devices`, `/dev/infiniband` and
//! `/etc/libibverbs.d` are covered with the host's entries plus those of the simulated devices; in virtual time so is `/proc/cpuinfo`,
//! which states the rate of the counter that replaces the processor's. A supervisor answers the program's RDMA netlink requests. The
//! launcher then execs the program, so exit status and signals are the program's own. Supervisor and namespace end with the last process in
//! it: nothing is left behind.
//!
//! ```no_run
//! use ironverbs_launcher::{Launch, provider};
//!
//! let node = node::Node::open(std::path::Path::new("/dev/shm/mine"))?;
//! let launch = Launch {
//!     node: node.dir().into(),
//!     devices: node.devices(),
//!     provider: provider::find(&std::env::current_exe()?)?,
//!     program: "ibv_devinfo".into(),
//!     args: vec!["-v".into()],
//!     memlock: true,
//!     clocks: None,
//! };
//! // From here on this process is the program.
//! let never = launch.exec()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod container;
pub mod counters;
mod cover;
mod error;
mod inside;
mod namespace;
mod netlink;
mod nldev;
mod notify;
mod pci;
pub mod probe;
mod processor;
mod project;
pub mod projection;
pub mod provider;
mod reserved;
pub mod rtnetlink;
mod seccomp;
pub mod supervisor;
mod sys;
pub mod sysfs;
mod tree;

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use error::LaunchError;
pub use project::{place, place_in, places};

use node::devices::DeviceInfo;
use projection::Projection;

/// A program to run on a node.
#[derive(Clone, Debug)]
pub struct Launch {
    /// A node directory, absolute, as [`node::dir::claim`] returns it: the default node of commands in the program's view, and where the
    /// processes that share a user namespace are listed.
    pub node: PathBuf,
    /// The visible devices, grouped by node and in order of function number.
    pub devices: Vec<DeviceInfo>,
    /// The shared objects through which libibverbs accesses the devices.
    pub provider: provider::Provider,
    /// The program, a path or a name to look up in PATH.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// True if registered memory is limited by the program's RLIMIT_MEMLOCK, as in the kernel.
    pub memlock: bool,
    /// In virtual time, the library from [`provider::clocks`] that is preloaded into it.
    pub clocks: Option<PathBuf>,
}

impl Launch {
    /// Execs the program in the calling process, which must have one thread. Returns only on failure.
    pub fn exec(&self) -> Result<Infallible, LaunchError> {
        let program = find_program(&self.program)?;
        if !project::comes_to_show(&self.devices)? {
            namespace::enter(&self.node)?;
            let processor = self.clocks.as_ref().map(|_| processor::told()).transpose()?;
            let (devices, projection) = project::project(self.devices.clone(), &self.provider, processor)?;
            match self.supervise(devices, projection) {
                // A shortage is an error, because it may be temporary. Features that the host lacks are left out.
                Err(e) if error::is_shortage(&e) => {
                    return Err(LaunchError::step("start the supervisor".into())(e));
                }
                Err(_) => {
                    let step = LaunchError::step("install the seccomp filter".into());
                    seccomp::hide_rdma_netlink().map_err(step)?;
                }
                Ok(()) => {}
            }
        }
        let mut command = Command::new(program);
        if let Some(clocks) = &self.clocks {
            let before = env::var_os("LD_PRELOAD").into_iter().flat_map(|list| vec![list, ":".into()]);
            let list: OsString = before.chain([clocks.into()]).collect();
            command.env("LD_PRELOAD", list).env("IRONVERBS_CLOCK", node::timed::board_of(&self.node));
        }
        if !self.memlock {
            command.env("IRONVERBS_MEMLOCK", "0");
        }
        let source = command
            .arg0(&self.program)
            .args(&self.args)
            .env("RDMAV_DRIVERS", provider::drivers(env::var_os("RDMAV_DRIVERS")))
            .env("IRONVERBS_NODE", &self.node)
            .exec();
        Err(LaunchError::NotExecutable { program: in_words(&self.program), source })
    }
}

impl Launch {
    /// Starts a supervisor, and puts the calling process under it.
    fn supervise(&self, devices: Vec<DeviceInfo>, projection: Option<Projection>) -> io::Result<()> {
        let projection = projection.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        supervisor::start(supervisor::View { devices, follows: supervisor::Follows::Nodes, projection })?
            .take_over()
    }
}

fn in_words(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Returns the file that exec will run for `name`, looked up in PATH like in a shell. Called before anything is changed.
pub fn find_program(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let not_found = || LaunchError::NotFound(in_words(name));
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else if name.is_empty() {
        return Err(not_found());
    } else {
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        env::split_paths(&path).map(|dir| dir.join(name)).collect()
    };
    let files: Vec<&PathBuf> = candidates.iter().filter(|c| c.is_file()).collect();
    let first = files.first().ok_or_else(not_found)?;
    let runs = |p: &Path| fs::metadata(p).is_ok_and(|m| m.permissions().mode() & 0o111 != 0);
    files.iter().find(|f| runs(f)).map(|f| f.to_path_buf()).ok_or_else(|| LaunchError::NotExecutable {
        program: first.display().to_string(),
        source: io::Error::from(io::ErrorKind::PermissionDenied),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_would() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        assert_eq!(find_program(OsStr::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        let missing = find_program(OsStr::new("no-such-program")).unwrap_err();
        assert_eq!((missing.exit_code(), missing.to_string().contains("no-such-program")), (127, true));
        assert_eq!(find_program(OsStr::new("/etc/passwd")).unwrap_err().exit_code(), 126);
    }
}
