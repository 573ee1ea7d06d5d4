//! Locates QEMU and the guest's images; `scripts/guest-image.sh` makes them if they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Outcome, Trouble, failed, tree};

/// The kernels that a guest can boot, oldest first: Debian 12's and Debian 13's.
pub const KERNELS: [&str; 2] = ["6.1", "6.12"];

/// The two folders that every guest uses.
#[derive(Clone, Debug)]
pub struct Images {
    tools: PathBuf,
    guest: PathBuf,
}

impl Images {
    /// Finds the images and makes missing ones (which takes about a minute, and a network).
    pub fn ready() -> Outcome<Self> {
        let paths = made("build")?;
        let [tools, guest] = &paths[..] else {
            return failed(format!("guest-image.sh: expected two folders, found {paths:?}"));
        };
        if Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_err() {
            return Err(Trouble::Cannot("no setpriv (util-linux) here".into()));
        }
        Ok(Self { tools: tools.clone(), guest: guest.clone() })
    }

    /// QEMU, of a release with a vfio-user client.
    pub fn qemu(&self) -> PathBuf {
        self.tools.join("bin/qemu-system-x86_64")
    }

    /// tshark, the command-line version of Wireshark.
    pub fn tshark(&self) -> PathBuf {
        self.tools.join("bin/tshark")
    }

    /// The user space, an ext4 image that guests share.
    pub fn root(&self) -> PathBuf {
        self.guest.join("root.ext4")
    }

    /// The directory of a kernel, with `vmlinuz` and `initramfs`.
    pub fn kernel(&self, name: &str) -> Outcome<PathBuf> {
        let dir = self.guest.join(Path::new(name));
        if KERNELS.contains(&name) && dir.is_dir() {
            return Ok(dir);
        }
        failed(format!("expected a kernel of {}, found {name:?}", KERNELS.join(" and ")))
    }
}

/// The folder with UCX, libfabric and Open MPI; it is made if missing.
pub fn programs() -> Outcome<PathBuf> {
    let mut paths = made("programs")?;
    match (paths.pop(), paths.len()) {
        (Some(folder), 0) => Ok(folder),
        found => failed(format!("guest-image.sh: expected one folder, found {found:?}")),
    }
}

/// Runs `scripts/guest-image.sh` and returns the folders that it prints.
fn made(what: &str) -> Outcome<Vec<PathBuf>> {
    let script = tree().join("scripts/guest-image.sh");
    let output = Command::new("sh").arg(script).arg(what).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(3) => return Err(Trouble::Cannot(said.trim().lines().last().unwrap_or("no images").into())),
        _ => return failed(format!("guest-image.sh: {}", said.trim())),
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}
