//! Files below `/sys` that change: counters and port states of the node's functions.

use crate::counters::{HARDWARE, Named, PORT};
use crate::{sysfs::port_states, tree::overwrite};
use devmodel::state::COUNTERS;
use node::Observer;
use node::devices::DeviceInfo;
use std::io;
use std::path::Path;

/// The files of all functions, and what was last written into them.
pub struct Live(Vec<Port>);

struct Port {
    fid: u8,
    /// Its directory below that of PCI devices.
    dir: String,
    counters: [u64; COUNTERS],
    up: bool,
}

impl Port {
    /// The port of `d`, whose directory has every counter 0.
    fn new(d: &DeviceInfo) -> Self {
        let dir = format!("{}/infiniband/{}/ports/1", d.bdf, d.name);
        Self { fid: d.fid, dir, counters: [0; COUNTERS], up: d.active }
    }
}

impl Live {
    /// The files of `devices`, which have every counter 0.
    pub fn new(devices: &[DeviceInfo]) -> Self {
        Self(devices.iter().filter(|d| d.place.is_none()).map(Port::new).collect())
    }

    /// The devices are `devices` now. Files of those that were there are as they were, those of others have every counter 0.
    pub fn follow(&mut self, devices: &[DeviceInfo]) {
        let Self(mut now) = Self::new(devices);
        for port in &mut now {
            if let Some(known) = self.0.iter_mut().find(|known| known.fid == port.fid) {
                std::mem::swap(port, known);
            }
        }
        self.0 = now;
    }

    /// Writes what has changed below `home`, the directory of the functions.
    pub fn refresh(&mut self, observer: &Observer, home: &Path) {
        for port in &mut self.0 {
            let now = observer.counters(port.fid);
            if now != port.counters {
                let dir = home.join(&port.dir);
                // A file that cannot be written stays as it is; there is nobody to tell.
                let _ = changed(&dir.join("counters"), &PORT, &port.counters, &now);
                let _ = changed(&dir.join("hw_counters"), &HARDWARE, &port.counters, &now);
                port.counters = now;
            }
            let up = observer.port(port.fid).map_or(port.up, |p| p.up);
            if up != port.up {
                port.up = up;
                let dir = home.join(&port.dir);
                let (state, physical) = port_states(up);
                let _ = write(&dir.join("state"), state);
                let _ = write(&dir.join("phys_state"), physical);
            }
        }
    }
}

fn changed(dir: &Path, names: &[Named], old: &[u64; COUNTERS], new: &[u64; COUNTERS]) -> io::Result<()> {
    for (name, value) in names {
        let new = value(new);
        if value(old) != new {
            write(&dir.join(name), &new.to_string())?;
        }
    }
    Ok(())
}

/// Puts one line into a file.
fn write(at: &Path, line: &str) -> io::Result<()> {
    overwrite(at, format!("{line}\n").as_bytes())
}
