//! A function as a device on the PCI bus of user-mode Linux: "PCI over virtio", with the device at a vhost-user socket.
//!
//! One queue carries the client's commands, which access configuration space and BAR0; the other carries interrupt messages
//! back. DMA goes to the memory that the client shares. The client is not trusted (docs/serve.md).

mod queue;
mod sriov;
mod wire;

use super::{Function, access, irqs::Messages};
use crate::identity::BAR0_SIZE;
use ::sync::Eager;
use hwspec::pcie::EXTENDED_CONFIG_SIZE;
use queue::{Chain, Queue};
pub use sriov::Sriov;
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};
use vfio_user_proto::{DMA_READ_ALLOWED, DMA_WRITE_ALLOWED, Error, MAX_TRANSFER, PATIENCE, Result, sys};
use wire::{Message, request};

/// Feature bits: virtio 1, protocol features.
const FEATURES: u64 = 1 << 32 | 1 << 30;
/// Protocol features: number of queues, requests by the back-end, in-band notifications.
const QUEUES: u64 = 1 << 0;
const OUR_REQUESTS: u64 = 1 << 5;
const IN_BAND: u64 = 1 << 14;

/// Queue numbers.
const COMMANDS: u32 = 0;
const INTERRUPTS: u32 = 1;

/// A command begins with operation, BAR, size and address, in the client's byte order (linux/virtio_pcidev.h), followed by its data.
const HEADER: usize = 16;
const CONFIG_READ: u8 = 1;
const CONFIG_WRITE: u8 = 2;
const MEMORY_READ: u8 = 3;
const MEMORY_WRITE: u8 = 4;
const MEMORY_SET: u8 = 5;
/// Operation of an interrupt message.
const MSI: u8 = 7;

/// A function at a vhost-user socket.
pub struct Device {
    function: Arc<dyn Function>,
    fid: u8,
    sriov: Option<Arc<Sriov>>,
    messages: Arc<Messages>,
}

impl Device {
    /// Function `fid`. With `sriov` it is the PF or one of those VFs; without, it is a single device.
    pub fn new(function: Arc<dyn Function>, fid: u8, sriov: Option<Arc<Sriov>>) -> io::Result<Self> {
        Ok(Self { function, fid, sriov, messages: Messages::new()? })
    }

    /// Serves a client until it disconnects or violates the protocol.
    pub(super) fn serve(&self, socket: &UnixStream) -> Result<()> {
        let irqs = &self.function.guest().irqs;
        irqs.leave_to(self.messages.clone());
        // Discard interrupts of the previous client.
        self.messages.take();
        let mut session = Session {
            device: self,
            socket,
            agreed: false,
            calls: None,
            regions: Vec::new(),
            queues: [Queue::default(), Queue::default()],
            due: 0,
        };
        match session.run() {
            Err(Error::Closed) => Ok(()),
            other => other,
        }
    }

    /// Called when the client has disconnected, after the caller has dropped its memory and interrupts.
    pub(super) fn leave(&self) {
        if let (0, Some(sriov)) = (self.fid, &self.sriov) {
            sriov.reset();
        }
    }

    fn is_there(&self) -> bool {
        self.sriov.as_ref().is_none_or(|sriov| sriov.shows(self.fid))
    }

    fn is_vf(&self) -> bool {
        self.sriov.is_some() && self.fid != 0
    }

    fn config_dword(&self, at: usize) -> [u8; 4] {
        // The PF provides vendor and device ID of a VF (PCI Express Base 5.0, 9.3.4.1.1).
        if at == 0 && self.is_vf() || !self.is_there() {
            return [0xff; 4];
        }
        let view = self.sriov.as_ref().filter(|_| self.fid == 0).and_then(|sriov| sriov.read(at));
        view.unwrap_or_else(|| self.function.config_read(at, 4).to_le_bytes())
    }

    fn config_write(&self, at: usize, width: usize, value: u32) {
        let sriov = self.sriov.as_ref().filter(|_| self.fid == 0);
        if access::resets(at, value) {
            self.function.reset();
            if let Some(sriov) = sriov {
                sriov.reset();
            }
        } else if !sriov.is_some_and(|sriov| sriov.write(at, width, value)) {
            self.function.config_write(at, width, value);
        }
    }

    /// Executes a command and leaves the answer in `out`. A read where there is no device returns all ones.
    fn command(&self, input: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let Some((header, data)) = input.split_first_chunk::<HEADER>() else {
            return Err(Error::Malformed(format!(
                "a command of {} bytes, expected {HEADER} at least",
                input.len()
            )));
        };
        let [operation, bar, _, _, s0, s1, s2, s3, address @ ..] = *header;
        let (size, at) = (u32::from_ne_bytes([s0, s1, s2, s3]) as usize, u64::from_ne_bytes(address));
        if size > MAX_TRANSFER {
            return Err(Error::Malformed(format!(
                "a command about {size} bytes, expected {MAX_TRANSFER} at most"
            )));
        }
        let room = match operation {
            CONFIG_READ | CONFIG_WRITE => EXTENDED_CONFIG_SIZE as u64,
            _ if bar == 0 => BAR0_SIZE,
            _ => 0,
        };
        let lies_within = at.checked_add(size as u64).is_some_and(|end| end <= room);
        let there = lies_within && self.is_there();
        let short =
            || Error::Malformed(format!("a command about {size} bytes with {} bytes of data", data.len()));
        match operation {
            CONFIG_READ if there => access::read(at, size, out, |at| self.config_dword(at as usize)),
            MEMORY_READ if there => {
                access::read(at, size, out, |at| self.function.bar_read32(at).to_be_bytes());
            }
            CONFIG_READ | MEMORY_READ => out.resize(size, 0xff),
            CONFIG_WRITE | MEMORY_WRITE | MEMORY_SET if !there => {}
            CONFIG_WRITE => {
                let data = data.get(..size).ok_or_else(short)?;
                access::config_write(at as usize, data, |at, width, value| {
                    self.config_write(at, width, value)
                });
            }
            MEMORY_WRITE => {
                access::bar_write(&*self.function, at, data.get(..size).ok_or_else(short)?);
            }
            MEMORY_SET => {
                let value = *data.first().ok_or_else(short)?;
                access::bar_write(&*self.function, at, &vec![value; size]);
            }
            other => return Err(Error::Malformed(format!("operation {other} of a PCI device over virtio"))),
        }
        Ok(())
    }
}

/// A region of the client's memory.
struct Region {
    /// Address in the client's own address space, which queue addresses refer to.
    own: u64,
    /// Address on its bus.
    bus: u64,
    len: u64,
}

struct Session<'a> {
    device: &'a Device,
    socket: &'a UnixStream,
    /// The client has negotiated features.
    agreed: bool,
    /// Socket on which the client is notified of used buffers.
    calls: Option<OwnedFd>,
    regions: Vec<Region>,
    queues: [Queue; 2],
    /// Bitmap of vectors with messages that wait for buffers.
    due: u64,
}

impl Session<'_> {
    fn run(&mut self) -> Result<()> {
        let mut eager = Eager::default();
        loop {
            // A client that connects without negotiating would keep the function from others.
            let within = (!self.agreed).then_some(PATIENCE);
            let sockets = [self.socket.as_fd(), self.device.messages.woken()];
            let ready = |within| sys::any_readable(sockets, within);
            let look = || ready(Some(Duration::ZERO)).ok().filter(|[asked, woken]| *asked || *woken);
            let found = if self.agreed { eager.look(look).map(Ok) } else { None };
            let found = found.unwrap_or_else(|| ready(within));
            eager.end();
            let [asked, woken] = match found {
                Ok([false, false]) => return Err(Error::Silent(PATIENCE.as_millis(), "a message")),
                Ok(ready) => ready,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::System("wait for a message", e)),
            };
            if woken {
                self.due |= self.device.messages.take();
                self.deliver()?;
            }
            if asked {
                let message = wire::receive(self.socket)?;
                self.answer(message)?;
            }
        }
    }

    fn answer(&mut self, mut message: Message) -> Result<()> {
        match message.request {
            request::GET_FEATURES => self.reply(&message, FEATURES)?,
            request::SET_FEATURES => subset("features", message.u64(0)?, FEATURES)?,
            request::GET_PROTOCOL_FEATURES => self.reply(&message, QUEUES | OUR_REQUESTS | IN_BAND)?,
            request::SET_PROTOCOL_FEATURES => {
                let asked = message.u64(0)?;
                subset("protocol features", asked, QUEUES | OUR_REQUESTS | IN_BAND)?;
                if asked & (OUR_REQUESTS | IN_BAND) != OUR_REQUESTS | IN_BAND {
                    return Err(Error::Malformed(format!(
                        "protocol features {asked:#x}, expected in-band notifications ({:#x})",
                        OUR_REQUESTS | IN_BAND
                    )));
                }
                self.agreed = true;
            }
            request::GET_QUEUE_NUM => self.reply(&message, self.queues.len() as u64)?,
            request::SET_OWNER => {}
            request::SET_BACKEND_REQ_FD => self.calls = message.fds.pop(),
            request::SET_MEM_TABLE => self.memory_table(&mut message)?,
            request::SET_VRING_NUM => {
                let entries = message.u32(4)?;
                self.queue(message.u32(0)?)?.set_size(entries)?;
            }
            request::SET_VRING_BASE => {
                let base = message.u32(4)? as u16;
                self.queue(message.u32(0)?)?.set_base(base);
            }
            request::GET_VRING_BASE => {
                let index = message.u32(0)?;
                let queue = self.queue(index)?;
                queue.enable(false);
                let base = u64::from(index) | u64::from(queue.base()) << 32;
                wire::reply(self.socket, message.request, &base.to_le_bytes())?;
            }
            request::SET_VRING_ADDR => {
                let [desc, used, available] = [8, 16, 24].map(|at| self.on_bus(message.u64(at)?));
                self.queue(message.u32(0)?)?.set_addresses(desc?, available?, used?);
            }
            request::SET_VRING_ENABLE => {
                let enabled = message.u32(4)? != 0;
                let index = message.u32(0)?;
                self.queue(index)?.enable(enabled);
                self.kicked(index)?;
            }
            request::VRING_KICK => self.kicked(message.u32(0)?)?,
            other => {
                return Err(Error::Malformed(format!("vhost-user request {other}, which is not known here")));
            }
        }
        Ok(())
    }

    fn reply(&self, message: &Message, value: u64) -> Result<()> {
        wire::reply(self.socket, message.request, &value.to_ne_bytes())
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let queue = usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index));
        queue.ok_or_else(|| Error::Malformed(format!("queue {index}, expected 0 or 1")))
    }

    /// Bus address of the client's address `own`.
    fn on_bus(&self, own: u64) -> Result<u64> {
        let at = |region: &Region| {
            own.checked_sub(region.own).filter(|skip| *skip < region.len).map(|skip| region.bus + skip)
        };
        self.regions
            .iter()
            .find_map(at)
            .ok_or_else(|| Error::Malformed(format!("a queue at {own:#x}, which is not in the memory table")))
    }

    /// Replaces the client's memory regions.
    fn memory_table(&mut self, message: &mut Message) -> Result<()> {
        let count = message.u32(0)? as usize;
        if count != message.fds.len() {
            return Err(Error::Malformed(format!(
                "a memory table of {count} regions with {} descriptors",
                message.fds.len()
            )));
        }
        let memory = &self.device.function.guest().memory;
        memory.unmap_all();
        self.regions.clear();
        for (index, fd) in std::mem::take(&mut message.fds).into_iter().enumerate() {
            let number = |skip| message.u64(8 + 32 * index + skip);
            let (bus, len, own, offset) = (number(0)?, number(8)?, number(16)?, number(24)?);
            memory
                .map(bus, len, DMA_READ_ALLOWED | DMA_WRITE_ALLOWED, Some((fd, offset)))
                .map_err(|e| Error::System("map a region of the memory table", e))?;
            self.regions.push(Region { own, bus, len });
        }
        Ok(())
    }

    fn kicked(&mut self, index: u32) -> Result<()> {
        match index {
            COMMANDS => self.commands(),
            INTERRUPTS => self.deliver(),
            other => Err(Error::Malformed(format!("queue {other}, expected 0 or 1"))),
        }
    }

    /// Executes the pending commands.
    ///
    /// Sends no notification: Linux polls for the commands that it waits for, and reclaims the others when it runs short of
    /// buffers. A notification would be an interrupt of the client for every doorbell.
    fn commands(&mut self) -> Result<()> {
        let device = self.device;
        let memory = &device.function.guest().memory;
        let queue = &mut self.queues[COMMANDS as usize];
        let (mut input, mut out) = (Vec::new(), Vec::new());
        // At most as many as one kick can announce. A client that keeps adding commands sends a kick for each.
        for _ in 0..queue.size() {
            let Some(chain) = queue.take(memory)? else { break };
            input.clear();
            out.clear();
            for buffer in chain.buffers.iter().filter(|buffer| !buffer.write) {
                let from = input.len();
                let len = from.saturating_add(buffer.len as usize);
                if len > HEADER + MAX_TRANSFER {
                    return Err(Error::Malformed(format!("a command of {len} bytes")));
                }
                input.resize(len, 0);
                memory.read(buffer.at, &mut input[from..]).map_err(|_| outside())?;
            }
            device.command(&input, &mut out)?;
            let written = answer(device, &chain, &out)?;
            queue.give(memory, &chain, written)?;
        }
        Ok(())
    }

    /// Sends the pending interrupt messages while there are buffers.
    fn deliver(&mut self) -> Result<()> {
        let device = self.device;
        let memory = &device.function.guest().memory;
        let queue = &mut self.queues[INTERRUPTS as usize];
        let mut given = false;
        while self.due != 0 {
            let Some(chain) = queue.take(memory)? else { break };
            let vector = self.due.trailing_zeros() as usize;
            self.due &= self.due - 1;
            let data = device.messages.data(vector).to_le_bytes();
            let mut message = [0; HEADER + 4];
            message[0] = MSI;
            message[4..8].copy_from_slice(&4u32.to_ne_bytes());
            message[HEADER..].copy_from_slice(&data);
            let written = answer(device, &chain, &message)?;
            queue.give(memory, &chain, written)?;
            given = true;
        }
        match &self.calls {
            Some(calls) if given && queue.wants_call(memory)? => wire::call(calls, INTERRUPTS),
            _ => Ok(()),
        }
    }
}

fn outside() -> Error {
    Error::Malformed("a buffer lies outside of the client's memory".into())
}

fn subset(what: &str, asked: u64, offered: u64) -> Result<()> {
    match asked & !offered {
        0 => Ok(()),
        _ => Err(Error::Malformed(format!("{what} {asked:#x}, expected some of {offered:#x}"))),
    }
}

/// Writes `bytes` into the writable buffers of `chain`; returns the number of bytes written.
fn answer(device: &Device, chain: &Chain, bytes: &[u8]) -> Result<usize> {
    let mut written = 0;
    for buffer in chain.buffers.iter().filter(|buffer| buffer.write) {
        let n = (buffer.len as usize).min(bytes.len() - written);
        let part = &bytes[written..written + n];
        device.function.guest().memory.write(buffer.at, part).map_err(|_| outside())?;
        written += n;
    }
    Ok(written)
}
