//! One port at which this process speaks: its own opening of the function, QP1, and the protocol.
//!
//! Several processes may speak at one port. All of them hear everything; a process knows by the tag in its communication
//! ids what is for it, and what is for nobody is answered by whoever gets hold of the port's elder lock first.

use super::ports::Port;
use cm::{Agent, Config};
use driver::{Device, Gsi, Mad};
use hwspec::wire::mad::MadAddress;
use libc::c_int;
use node::{Hold, Matter};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// See above.
pub struct Line {
    /// The protocol.
    pub agent: Agent,
    pub(super) gsi: Gsi,
    pub(super) tag: u16,
    /// Its outputs are being handled. New ones are handled by the same loop.
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

/// Opens the line of `port`, whose communication ids bear `tag` and begin with `first`.
///
/// # Errors
/// The errno with which the function or its queue pair 1 did not open.
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
