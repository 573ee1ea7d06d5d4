//! What the kernel's RDMA netlink (client NLDEV) would say of the devices a program sees.
//!
//! [`answer`] takes a datagram a program sent and gives the datagrams it is to read: no socket is touched here. Commands that
//! change something are refused as the kernel refuses them for devices of the mlx5 driver.

mod codes;
mod devices;
mod host;
mod message;
mod resources;
mod statistics;

pub use host::Host;
pub use message::{Asker, Replies};

use super::counters;
use codes::*;
use message::{Attributes, Malformed, Request, requests};
use node::devices::DeviceInfo;
use node::{FunctionAddress, NodeError, Observer};
use std::path::Path;
use std::time::{Duration, Instant};

/// Index of our first device where the host has devices of its own; else it is 0.
const BEHIND_HOST: u32 = 1 << 16;
/// Number of the only port.
const PORT: u32 = 1;

/// What there is to tell of.
pub struct Inventory {
    /// Our devices, numbered as in the program's view.
    devices: Vec<DeviceInfo>,
    /// The node they are on; none if they are no node's.
    observer: Option<Observer>,
    /// The node that could not be looked at.
    refused: Option<Refusal>,
    /// What was last asked of the node's devices: the addresses that were set for them.
    addresses: Option<Vec<Option<FunctionAddress>>>,
    /// The kernel, if it has devices of its own.
    host: Option<Host>,
}

/// A node that could not be looked at.
struct Refusal {
    /// Its file.
    node: (u64, u64),
    /// Until when it is not tried again: for ever if that would not help.
    until: Option<Instant>,
}

/// After how long a node is tried again that could not be opened for want of a descriptor or of memory.
const AGAIN: Duration = Duration::from_secs(1);

/// A refusal: the errno, and a sentence for those who take one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(i32, Option<&'static str>);

impl Refused {
    const INVALID: Self = Self(libc::EINVAL, None);
    const UNSUPPORTED: Self =
        Self(libc::EOPNOTSUPP, Some("a simulated device is configured with the ironverbs command"));
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::INVALID
    }
}

type Done = Result<(), Refused>;

/// A request with all that goes into its answer.
struct Call<'a> {
    inventory: &'a Inventory,
    request: Request<'a>,
    asker: &'a Asker,
    out: &'a mut Replies,
}

impl Inventory {
    /// A inventory of these devices, and of the kernel's if it has any.
    pub fn new(devices: Vec<DeviceInfo>, host: Option<Host>) -> Self {
        Self { devices, observer: None, refused: None, addresses: None, host }
    }

    /// Looks at the node in `dir`, if there is one: also when another has come into its place.
    pub fn look_at(&mut self, dir: &Path) {
        if self.observer.as_ref().is_some_and(|observer| observer.is_of(dir)) {
            return;
        }
        let there = Observer::identity(dir);
        // Opening it again would be one more visit to look after.
        let holds = |refusal: &Refusal| refusal.until.is_none_or(|until| Instant::now() < until);
        if self.refused.as_ref().is_some_and(|refusal| Some(refusal.node) == there && holds(refusal)) {
            return;
        }
        let opened = Observer::open(dir);
        let until = matches!(opened, Err(NodeError::System { .. })).then(|| Instant::now() + AGAIN);
        self.observer = opened.ok();
        self.addresses = None;
        self.refused = there.filter(|_| self.observer.is_none()).map(|node| Refusal { node, until });
    }

    /// The devices the node has now, numbered as in the program's view, if they are others than ours: told once.
    pub fn changed(&mut self) -> Option<Vec<DeviceInfo>> {
        let observer = self.observer.as_ref()?;
        let first = self.devices.first().filter(|d| d.is_pf())?.uverbs;
        let addresses = observer.addresses();
        if self.addresses.as_ref() == Some(&addresses) {
            return None;
        }
        self.addresses = Some(addresses);
        // A node that is damaged has no devices to follow.
        let mut now = observer.devices().ok()?;
        now.iter_mut().for_each(|d| d.uverbs += first);
        (now != self.devices).then_some(now)
    }

    /// Our devices are `devices` from now on.
    pub fn replace(&mut self, devices: Vec<DeviceInfo>) {
        self.devices = devices;
    }

    /// Our devices.
    pub fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// The node, if the devices are on one.
    pub fn observer(&self) -> Option<&Observer> {
        self.observer.as_ref()
    }

    fn first(&self) -> u32 {
        if self.host.is_some() { BEHIND_HOST } else { 0 }
    }

    /// Our devices with their indices.
    fn indexed(&self) -> impl Iterator<Item = (u32, &DeviceInfo)> {
        (self.first()..).zip(&self.devices)
    }

    /// The device of an index.
    fn device(&self, index: u32) -> Option<&DeviceInfo> {
        self.devices.get(index.checked_sub(self.first())? as usize)
    }

    /// The node and the function on it, if `device` is a node's.
    fn on_node(&self, device: &DeviceInfo) -> Option<(&Observer, u8)> {
        self.observer.as_ref().filter(|_| device.place.is_none()).map(|o| (o, device.fid))
    }
}

/// The answers to the requests in `datagram`.
pub fn answer(inventory: &Inventory, datagram: &[u8], asker: &Asker) -> Replies {
    let mut out = Replies::default();
    for request in requests(datagram) {
        // Without the bit, and of netlink's own types: nothing but an acknowledgement is given.
        let silent = request.header.flags & NLM_F_REQUEST == 0 || request.header.kind < NLMSG_MIN_TYPE;
        let result = match silent {
            true => Ok(Ended::Answered),
            false => one(inventory, request, asker, &mut out),
        };
        match result {
            Err(Refused(errno, why)) => out.error(&request, asker, errno, why),
            Ok(Ended::Answered) if request.header.flags & NLM_F_ACK != 0 => {
                out.error(&request, asker, 0, None)
            }
            Ok(_) => {}
        }
    }
    out
}

/// How a request that was not refused ended.
enum Ended {
    /// An acknowledgement may follow.
    Answered,
    /// Nothing may follow: a dump ends by itself.
    Dumped,
}

fn one(
    inventory: &Inventory,
    request: Request<'_>,
    asker: &Asker,
    out: &mut Replies,
) -> Result<Ended, Refused> {
    let header = request.header;
    if header.client() != CLIENT_NLDEV {
        return Err(Refused::INVALID);
    }
    let (command, dump) = (header.command(), header.flags & NLM_F_DUMP != 0);
    let changes = matches!(
        command,
        cmd::SET | cmd::NEWLINK | cmd::DELLINK | cmd::SYS_SET | cmd::STAT_SET | cmd::STAT_DEL
    );
    let raw = matches!(command, cmd::RES_QP_GET_RAW | cmd::RES_CQ_GET_RAW | cmd::RES_MR_GET_RAW);
    if (changes || raw) && !asker.admin {
        return Err(Refused(libc::EPERM, None));
    }
    let mut call = Call { inventory, request, asker, out };
    if changes && call.ordered_of_host()? {
        return Ok(Ended::Answered);
    }
    if let Some(answers) = call.of_host()? {
        call.out.datagrams.extend(answers);
        return Ok(Ended::Dumped);
    }
    if dump {
        let result = match command {
            cmd::GET => devices::dump(&mut call),
            cmd::PORT_GET => devices::dump_ports(&mut call),
            cmd::RES_GET => resources::dump_summary(&mut call),
            cmd::RES_QP_GET..=cmd::RES_PD_GET | cmd::RES_CTX_GET | cmd::RES_SRQ_GET => {
                resources::dump(&mut call, command)
            }
            cmd::STAT_GET => statistics::dump(&mut call),
            _ if raw => Err(Refused::INVALID),
            // No such dump.
            _ => return Err(Refused::INVALID),
        };
        call.out.done(&request, asker, result.err().map_or(0, |refused| refused.0));
        return Ok(Ended::Dumped);
    }
    match command {
        cmd::GET => devices::get(&mut call),
        cmd::PORT_GET => devices::get_port(&mut call),
        cmd::GET_CHARDEV => devices::get_chardev(&mut call),
        cmd::SYS_GET => devices::get_system(&mut call),
        cmd::SET | cmd::DELLINK | cmd::NEWLINK | cmd::SYS_SET => devices::change(&call, command),
        cmd::RES_GET => resources::get_summary(&mut call),
        cmd::RES_QP_GET..=cmd::RES_PD_GET | cmd::RES_CTX_GET | cmd::RES_SRQ_GET => {
            resources::get(&mut call, command)
        }
        cmd::STAT_GET => statistics::get(&mut call),
        cmd::STAT_GET_STATUS => statistics::get_status(&mut call),
        cmd::STAT_SET | cmd::STAT_DEL => {
            call.port()?;
            Err(Refused::UNSUPPORTED)
        }
        _ => Err(Refused::INVALID),
    }?;
    Ok(Ended::Answered)
}

impl<'a> Call<'a> {
    /// The device the request names.
    fn device(&self) -> Result<(u32, &'a DeviceInfo), Refused> {
        let index = self.request.u32(attr::DEV_INDEX)?.ok_or(Refused::INVALID)?;
        Ok((index, self.inventory.device(index).ok_or(Refused::INVALID)?))
    }

    /// The device and its port, which the request must name.
    fn port(&self) -> Result<(u32, &'a DeviceInfo), Refused> {
        match self.request.u32(attr::PORT_INDEX)? {
            Some(PORT) => self.device(),
            _ => Err(Refused::INVALID),
        }
    }

    /// One message of the command asked for.
    fn reply(&mut self, attributes: &Attributes) {
        self.reply_as(self.request.header.command(), attributes);
    }

    fn reply_as(&mut self, command: u16, attributes: &Attributes) {
        self.out.one(&self.request, self.asker, command, attributes);
    }

    /// One message of a dump.
    fn part(&mut self, attributes: &Attributes) {
        let command = self.request.header.command();
        self.out.part(&self.request, self.asker, command, attributes);
    }

    /// Whether the kernel has done what was asked: of a device of its own, or to make one.
    fn ordered_of_host(&self) -> Result<bool, Refused> {
        let (Some(host), command) = (&self.inventory.host, self.request.header.command()) else {
            return Ok(false);
        };
        let theirs = match self.request.u32(attr::DEV_INDEX)? {
            Some(index) => index < BEHIND_HOST,
            None => command == cmd::NEWLINK,
        };
        // Its answer has more in it than whether it was done.
        if !theirs || matches!(command, cmd::STAT_SET | cmd::STAT_DEL) {
            return Ok(false);
        }
        match host.order(&self.request, self.asker) {
            Ok(0) => Ok(true),
            Ok(errno) => Err(Refused(errno, None)),
            Err(e) => Err(Refused(e.raw_os_error().unwrap_or(libc::EIO), None)),
        }
    }

    /// What the kernel answers, if a device of its own is named. Of dumps that name none, its messages become the first of
    /// ours.
    fn of_host(&mut self) -> Result<Option<Vec<Vec<u8>>>, Refused> {
        let Some(host) = &self.inventory.host else { return Ok(None) };
        let lost = |e: std::io::Error| Refused(e.raw_os_error().unwrap_or(libc::EIO), None);
        match self.request.u32(attr::DEV_INDEX)? {
            Some(index) if index < BEHIND_HOST => {
                host.relay(&self.request, self.asker).map(Some).map_err(lost)
            }
            None if self.request.header.flags & NLM_F_DUMP != 0 => {
                let theirs = host.messages(&self.request, self.asker).map_err(lost)?;
                self.out.datagrams.extend(theirs);
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// How every message of a device begins.
fn handle(out: &mut Attributes, index: u32, device: &DeviceInfo) {
    out.u32(attr::DEV_INDEX, index).text(attr::DEV_NAME, &device.name);
}

#[cfg(test)]
mod tests;
