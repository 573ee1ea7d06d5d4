//! The device: one opener's view of one function.

use super::{DeviceAttr, PortAttr};
use crate::{error::Error, events::Events, transport::Transport};
use std::{sync::Arc, time::Duration};

/// How to open a function.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// GIDs in table order, RoCE v2; the first opener programs them.
    pub gids: Vec<[u8; 16]>,
    /// How long one command may take.
    pub command_timeout: Duration,
    /// Entries of the event queue, a power of two.
    pub eq_entries: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { gids: Vec::new(), command_timeout: Duration::from_secs(10), eq_entries: 4096 }
    }
}

/// One opener's view of one function.
pub struct Device {
    attr: DeviceAttr,
    events: Events,
}

impl Device {
    /// Brings the function up, or attaches if another opener did.
    pub fn open(transport: Arc<dyn Transport>, options: OpenOptions) -> Result<Arc<Device>, Error> {
        let _ = (transport, options);
        Err(Error::invalid("not built"))
    }

    /// What the function can do.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// State of port 1.
    pub fn port(&self) -> Result<PortAttr, Error> {
        Err(Error::invalid("not built"))
    }

    /// Entry `index` of the GID table; EINVAL past its end.
    pub fn gid(&self, index: u16) -> Result<[u8; 16], Error> {
        let _ = index;
        Err(Error::invalid("not built"))
    }

    /// This opener's events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Gives everything back; the last opener tears the function down. EBUSY while objects of it live.
    pub fn close(self: Arc<Self>) -> Result<(), Error> {
        Err(Error::invalid("not built"))
    }
}
