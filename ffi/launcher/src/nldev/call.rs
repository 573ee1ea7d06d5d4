//! A request being answered, and how it can be refused.

use super::codes::*;
use super::inventory::{BEHIND_HOST, Inventory};
use super::message::{Asker, Attributes, Malformed, Replies, Request};
use node::devices::DeviceInfo;

/// Number of the only port.
pub(super) const PORT: u32 = 1;

/// A refusal: the errno, and an explanation for readers that want one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) i32, pub(super) Option<&'static str>);

impl Refused {
    pub(super) const INVALID: Self = Self(libc::EINVAL, None);
    pub(super) const UNSUPPORTED: Self =
        Self(libc::EOPNOTSUPP, Some("a simulated device is configured with the ironverbs command"));
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::INVALID
    }
}

pub(super) type Done = Result<(), Refused>;

/// A request, and everything that its answer needs.
pub(super) struct Call<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) request: Request<'a>,
    pub(super) asker: &'a Asker,
    pub(super) out: &'a mut Replies,
}

impl<'a> Call<'a> {
    /// The device the request names.
    pub(super) fn device(&self) -> Result<(u32, &'a DeviceInfo), Refused> {
        let index = self.request.u32(attr::DEV_INDEX)?.ok_or(Refused::INVALID)?;
        Ok((index, self.inventory.device(index).ok_or(Refused::INVALID)?))
    }

    /// The device and its port, which the request must name.
    pub(super) fn port(&self) -> Result<(u32, &'a DeviceInfo), Refused> {
        match self.request.u32(attr::PORT_INDEX)? {
            Some(PORT) => self.device(),
            _ => Err(Refused::INVALID),
        }
    }

    /// Sends a message of the requested command.
    pub(super) fn reply(&mut self, attributes: &Attributes) {
        self.reply_as(self.request.header.command(), attributes);
    }

    pub(super) fn reply_as(&mut self, command: u16, attributes: &Attributes) {
        self.out.one(&self.request, self.asker, command, attributes);
    }

    /// Sends a message of a dump.
    pub(super) fn part(&mut self, attributes: &Attributes) {
        let command = self.request.header.command();
        self.out.part(&self.request, self.asker, command, attributes);
    }

    /// Has the kernel execute a request about one of its devices, or one to make a device. Returns whether it did.
    pub(super) fn ordered_of_host(&self) -> Result<bool, Refused> {
        let (Some(host), command) = (&self.inventory.host, self.request.header.command()) else {
            return Ok(false);
        };
        let theirs = match self.request.u32(attr::DEV_INDEX)? {
            Some(index) => index < BEHIND_HOST,
            None => command == cmd::NEWLINK,
        };
        // The answers to these commands contain more than a result.
        if !theirs || matches!(command, cmd::STAT_SET | cmd::STAT_DEL) {
            return Ok(false);
        }
        match host.order(&self.request, self.asker) {
            Ok(0) => Ok(true),
            Ok(errno) => Err(Refused(errno, None)),
            Err(e) => Err(Refused(e.raw_os_error().unwrap_or(libc::EIO), None)),
        }
    }

    /// The kernel's answer to a request about one of its devices. Its messages of a dump of all devices are put
    /// before ours.
    pub(super) fn of_host(&mut self) -> Result<Option<Vec<Vec<u8>>>, Refused> {
        let Some(host) = &self.inventory.host else { return Ok(None) };
        let lost = |e: std::io::Error| Refused(e.raw_os_error().unwrap_or(libc::EIO), None);
        match self.request.u32(attr::DEV_INDEX)? {
            Some(index) if index < BEHIND_HOST => host.ask(&self.request, self.asker).map(Some).map_err(lost),
            None if self.request.header.flags & NLM_F_DUMP != 0 => {
                let theirs = host.messages(&self.request, self.asker).map_err(lost)?;
                self.out.datagrams.extend(theirs);
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Writes the attributes with which every message about a device begins.
pub(super) fn handle(out: &mut Attributes, index: u32, device: &DeviceInfo) {
    out.u32(attr::DEV_INDEX, index).text(attr::DEV_NAME, &device.name);
}
