//! Files below `/sys` that change: counters and port states of the node's functions.

use crate::devices::DeviceInfo;
use crate::launcher::counters::{HARDWARE, Named, PORT};
use crate::runtime::Observer;
use devmodel::state::COUNTERS;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The files of all functions, and what was last written into them.
pub struct Live {
    /// The directory of PCI devices, as one that may write sees it.
    tree: OwnedFd,
    ports: Vec<Port>,
}

struct Port {
    fid: u8,
    /// Its directory below the tree.
    dir: String,
    counters: [u64; COUNTERS],
    up: bool,
}

impl Live {
    /// The files of `devices` in `tree`, which holds their directories with every counter 0.
    pub fn new(tree: OwnedFd, devices: &[DeviceInfo]) -> Self {
        let ports = devices.iter().filter(|d| d.place.is_none()).map(|d| Port {
            fid: d.fid,
            dir: format!("{}/infiniband/{}/ports/1", d.bdf, d.name),
            counters: [0; COUNTERS],
            up: d.active,
        });
        Self { ports: ports.collect(), tree }
    }

    /// Writes what has changed.
    pub fn refresh(&mut self, observer: &Observer) {
        for port in &mut self.ports {
            let now = observer.counters(port.fid);
            if now != port.counters {
                // A file that cannot be written stays as it is; there is nobody to tell.
                let _ = changed(&self.tree, &port.dir, "counters", &PORT, &port.counters, &now);
                let _ = changed(&self.tree, &port.dir, "hw_counters", &HARDWARE, &port.counters, &now);
                port.counters = now;
            }
            let up = observer.port(port.fid).map_or(port.up, |p| p.up);
            if up != port.up {
                port.up = up;
                let (state, physical) = crate::launcher::sysfs::port_states(up);
                let _ = write(&self.tree, &port.dir, "state", state);
                let _ = write(&self.tree, &port.dir, "phys_state", physical);
            }
        }
    }
}

fn changed(
    tree: &OwnedFd,
    port: &str,
    dir: &str,
    names: &[Named],
    old: &[u64; COUNTERS],
    new: &[u64; COUNTERS],
) -> io::Result<()> {
    for (name, value) in names {
        let new = value(new);
        if value(old) != new {
            write(tree, port, &format!("{dir}/{name}"), &new.to_string())?;
        }
    }
    Ok(())
}

/// Puts one line into a file. In place, and in one piece: who holds the file open reads the new value, and nobody an empty
/// file.
fn write(tree: &OwnedFd, port: &str, name: &str, line: &str) -> io::Result<()> {
    let path = PathBuf::from(format!("/proc/self/fd/{}/{port}/{name}", tree.as_raw_fd()));
    let file = File::options().write(true).open(path)?;
    let line = format!("{line}\n");
    let longer = file.metadata()?.len() > line.len() as u64;
    file.write_all_at(line.as_bytes(), 0)?;
    // Only a counter that was cleared gets shorter.
    if longer { file.set_len(line.len() as u64) } else { Ok(()) }
}
