//! Files under `/sys` that change: counters and port states.

use crate::counters::{HARDWARE, PORT};
use crate::nldev::Inventory;
use crate::sysfs::port_states;
use crate::tree::{overwrite, swap};
use devmodel::state::COUNTERS;
use node::Observer;
use node::devices::DeviceInfo;
use std::path::{Path, PathBuf};

/// Directory of the twins, below that of the functions.
const TWINS: &str = ".ironverbs-twins";

/// The files of all functions, and their current contents.
pub struct Live(Vec<Port>);

struct Port {
    /// The directory of the function's node.
    node: PathBuf,
    fid: u8,
    counters: [u64; COUNTERS],
    up: bool,
    /// The files of [`PORT`] and [`HARDWARE`], the state, and the physical state.
    files: Vec<Line>,
    /// True if some twin differs from its file.
    settling: bool,
}

/// A file of one line, and its twin: a program that opened the file before the last change may still have the twin open.
struct Line {
    /// Path below the directory of the functions, and below that of the twins.
    path: String,
    /// Contents of the file.
    text: String,
    /// Contents of the twin.
    twin: String,
}

impl Line {
    fn new(path: String, text: impl std::fmt::Display) -> Self {
        let text = format!("{text}\n");
        Self { path, twin: text.clone(), text }
    }

    /// Writes `text` to the file, or updates the twin if the file already contains `text`. Returns false while the twin is out of date or
    /// if a write failed.
    fn show(&mut self, home: &Path, text: impl std::fmt::Display) -> bool {
        let text = format!("{text}\n");
        if text == self.text && self.twin == self.text {
            return true;
        }
        let (at, twin) = (home.join(&self.path), home.join(TWINS).join(&self.path));
        if text == self.text {
            // Enough time has passed since the change that no program still has to read an old file that it opened.
            let written = overwrite(&twin, self.text.as_bytes()).is_ok();
            if written {
                self.twin.clone_from(&self.text);
            }
            return written;
        }
        if swap(&at, &twin, text.as_bytes()).is_ok() {
            self.twin = std::mem::replace(&mut self.text, text);
        }
        false
    }
}

impl Port {
    /// The files of the port of `d`, with every counter 0; `None` if it is not on a node.
    fn new(d: &DeviceInfo) -> Option<Self> {
        let node = d.node()?.to_path_buf();
        let dir = format!("{}/infiniband/{}/ports/1", d.bdf, d.name);
        let counters = PORT.iter().map(|(name, _)| Line::new(format!("{dir}/counters/{name}"), 0));
        let hardware = HARDWARE.iter().map(|(name, _)| Line::new(format!("{dir}/hw_counters/{name}"), 0));
        let (state, physical) = port_states(d.active);
        let states = [("state", state), ("phys_state", physical)];
        let states = states.map(|(name, text)| Line::new(format!("{dir}/{name}"), text));
        let files = counters.chain(hardware).chain(states).collect();
        Some(Self { node, fid: d.fid, counters: [0; COUNTERS], up: d.active, files, settling: false })
    }

    /// Writes the state from `observer` to the files. Returns true if another check is needed even if nothing changes.
    fn refresh(&mut self, observer: &Observer, home: &Path) -> bool {
        let counters = observer.counters(self.fid);
        let up = observer.port(self.fid).map_or(self.up, |port| port.up);
        if (counters, up) == (self.counters, self.up) && !self.settling {
            return false;
        }
        (self.counters, self.up) = (counters, up);
        let numbers = PORT.iter().chain(HARDWARE).map(|(_, value)| value(&counters).to_string());
        let (state, physical) = port_states(up);
        let lines = numbers.chain([state.to_owned(), physical.to_owned()]);
        let settled = self.files.iter_mut().zip(lines).map(|(file, text)| file.show(home, text));
        self.settling = settled.fold(false, |settling, settled| settling | !settled);
        self.settling
    }
}

impl Live {
    /// The files of `devices`, with every counter 0.
    pub fn new(devices: &[DeviceInfo]) -> Self {
        Self(devices.iter().filter_map(Port::new).collect())
    }

    /// Applies a change to `devices`. Files of remaining devices are kept; those of new devices have every counter 0.
    pub fn follow(&mut self, devices: &[DeviceInfo]) {
        let Self(mut now) = Self::new(devices);
        for port in &mut now {
            let is_known = |known: &&mut Port| (known.fid, &known.node) == (port.fid, &port.node);
            if let Some(known) = self.0.iter_mut().find(is_known) {
                std::mem::swap(port, known);
            }
        }
        self.0 = now;
    }

    /// Writes changes to the files below `home`, the directory of the functions. A file that cannot be written is retried at the next
    /// check, because there is no caller to report the failure to. Returns true if another check is needed even if nothing changes.
    pub fn refresh(&mut self, inventory: &Inventory, home: &Path) -> bool {
        self.0.iter_mut().fold(false, |again, port| {
            let observer = inventory.observer(&port.node);
            observer.is_some_and(|observer| port.refresh(observer, home)) || again
        })
    }
}
