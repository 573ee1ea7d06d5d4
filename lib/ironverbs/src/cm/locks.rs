//! The ports and roles that programs on one function share, each held by one of them.

use crate::{Device, Error, Place, Result};
use cm::Wanted;
use hwspec::wire::mad::cm::{PortSpace, port_of};
use node::{Hold, Matter, PortAt, Ports, TCP};
use std::hash::{BuildHasher, RandomState};

/// The GID of a function's IP address.
const IP: u8 = 1;

/// This program's part. Functions that belong to no adapter have no other programs.
pub(super) struct Locks {
    ports: Option<(&'static Ports, u8)>,
    /// The tag of this program's communication ids, which tells its messages from those of others.
    pub tag: u16,
}

impl Locks {
    pub fn open(device: &Device) -> Result<Self> {
        let Some(Place::Node { dir, fid }) = device.place() else {
            return Ok(Self { ports: None, tag: 1 });
        };
        let ports = Ports::open(dir).map_err(|error| Error::Open(error.into()))?;
        let this = Self { ports: Some((ports, *fid)), tag: 0 };
        let first = RandomState::new().hash_one(fid) as u16;
        let tags = (0..=u16::MAX).map(|step| first.wrapping_add(step));
        let mut free = tags.filter(|tag| this.take(Matter::Agent, this.whole(*tag), Hold::Alone));
        let tag = free.next().ok_or_else(|| Error::Protocol("too many programs use the device".into()))?;
        Ok(Self { tag, ..this })
    }

    fn fid(&self) -> u8 {
        self.ports.map_or(0, |(_, fid)| fid)
    }

    /// The lock of something that belongs to the function as a whole.
    fn whole(&self, port: u16) -> PortAt {
        PortAt::of_function(self.fid(), port)
    }

    /// The lock of a port at the function's IP address.
    fn port(&self, port: u16) -> PortAt {
        PortAt { space: TCP, port, address: Some(PortAt::address_of(self.fid(), IP)) }
    }

    fn take(&self, matter: Matter, at: PortAt, hold: Hold) -> bool {
        self.ports.is_none_or(|(ports, _)| ports.take(matter, at, hold).unwrap_or(false))
    }

    /// Takes a port to listen on. Returns false if another program has it.
    pub fn listen(&self, port: u16) -> bool {
        let at = self.port(port);
        self.take(Matter::Bound, at, Hold::Alone) && self.take(Matter::Listening, at, Hold::Shared)
    }

    /// Gives a port back.
    pub fn release(&self, port: u16) {
        if let Some((ports, _)) = self.ports {
            ports.release(Matter::Listening, self.port(port));
            ports.release(Matter::Bound, self.port(port));
        }
    }

    /// True if this program is the one to answer a message that is not for it: no other program wants it, and this one has the role.
    pub fn answers(&self, wanted: &Wanted) -> bool {
        let Some((ports, _)) = self.ports else { return true };
        let elsewhere = match *wanted {
            Wanted::Service(service) => port_of(service).is_some_and(|(space, port)| {
                space == PortSpace::Tcp && ports.held_elsewhere(Matter::Listening, self.port(port))
            }),
            Wanted::Connection(id) => ports.held_elsewhere(Matter::Agent, self.whole((id >> 16) as u16)),
        };
        !elsewhere && self.take(Matter::Elder, self.whole(0), Hold::Alone)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        if let Some((ports, _)) = self.ports {
            ports.release(Matter::Agent, self.whole(self.tag));
        }
    }
}
