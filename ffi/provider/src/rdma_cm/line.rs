//! A port on which this process communicates: its own opening of the function, QP1, and the protocol.
//!
//! Several processes may use one port, and all of them receive every MAD. A process recognizes its own by the tag in its communication IDs;
//! MADs for no process are answered by the first process to take the port's elder lock.

use super::ports::Port;
use cm::{Agent, Config};
use driver::{Device, Gsi, Mad};
use hwspec::wire::mad::MadAddress;
use libc::c_int;
use node::{Hold, Matter};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A port in use by this process.
pub struct Line {
    /// The protocol.
    pub agent: Agent,
    pub(super) gsi: Gsi,
    pub(super) tag: u16,
    /// True while its outputs are being handled. The same loop handles new ones.
    pub(super) pumping: bool,
}

impl Line {
    /// Its opening of the function.
    pub fn device(&self) -> &Arc<Device> {
        self.gsi.device()
    }

    /// Sends a MAD.
    ///
    /// # Errors
    /// Those of [`Gsi::send`].
    pub fn send(&self, to: &MadAddress, mad: &Mad) -> Result<(), driver::Error> {
        self.gsi.send(to, mad)
    }

    /// Readable when a MAD may have arrived.
    pub fn fd(&self) -> RawFd {
        self.device().events().fd().as_raw_fd()
    }
}

/// Takes a tag that no living process has at this port.
pub(super) fn take_tag(port: &Port, first: u16) -> Option<u16> {
    let binding = |tag: &u16| port.ports.take(Matter::Agent, port.whole(*tag), Hold::Alone).unwrap_or(false);
    (0..=u16::MAX).map(|step| first.wrapping_add(step)).find(binding)
}

/// Opens the line of `port`, with communication IDs that have the tag `tag` and begin with `first`.
///
/// # Errors
/// The errno of opening the function or its QP1.
pub(super) fn open(port: &Port, tag: u16, first: u16) -> Result<Line, c_int> {
    let device = port.place.open().map_err(|error| {
        eprintln!("ironverbs: {error}");
        error.errno()
    })?;
    let gsi = Gsi::open(&device, 0).map_err(|error| {
        eprintln!("ironverbs: queue pair 1 of {}: {error}", port.place);
        error.errno()
    })?;
    gsi.arm();
    let attr = device.attr();
    let ca_guid = u64::from_be_bytes(attr.node_guid);
    let config = Config { tag, first, ca_guid, ack_delay: attr.local_ca_ack_delay };
    Ok(Line { agent: Agent::new(config), gsi, tag, pumping: false })
}
