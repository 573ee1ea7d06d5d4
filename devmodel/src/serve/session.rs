//! Handles a client's vfio-user requests, message by message.

use super::{Function, access, irqs::VECTORS};
use crate::identity::BAR0_SIZE;
use hwspec::pcie::{CONFIG_SIZE, EXTENDED_CONFIG_SIZE};
use std::os::fd::OwnedFd;
use vfio_user_proto::{
    Command, Connection, DEVICE_FLAG_PCI, DEVICE_FLAG_RESET, DMA_READ_ALLOWED, DMA_UNMAP_ALL,
    DMA_WRITE_ALLOWED, DeviceInfo, DmaMap, DmaUnmap, Error, Header, IRQ_ERR, IRQ_FLAG_EVENTFD,
    IRQ_FLAG_MASKABLE, IRQ_FLAG_NORESIZE, IRQ_MSIX, IRQ_SET_DATA_BOOL, IRQ_SET_DATA_EVENTFD,
    IRQ_SET_DATA_NONE, IRQ_SET_MASK, IRQ_SET_TRIGGER, IRQ_SET_UNMASK, IRQS, IrqInfo, IrqSet, Kind,
    MAX_TRANSFER, PATIENCE, REGION_BAR0, REGION_CONFIG, REGION_FLAG_READ, REGION_FLAG_WRITE, REGIONS,
    RegionAccess, RegionInfo, SmallWrite, Version, read, zerocopy::IntoBytes,
};

/// Error code of a refused request.
struct Errno(i32);

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Self(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Error> for Errno {
    fn from(_: Error) -> Self {
        Self(libc::EINVAL)
    }
}

/// Serves a client until it disconnects or violates the protocol.
pub fn serve(connection: Connection, function: &dyn Function) -> Result<(), Error> {
    let Connection { mut receiver, sender, .. } = connection;
    let mut session = Session { function, agreed: false, out: Vec::new() };
    loop {
        // A client that connects without negotiating would keep the function from others.
        let within = (!session.agreed).then_some(PATIENCE);
        let message = match receiver.receive(within) {
            Ok(message) => message,
            Err(Error::Closed) => return Ok(()),
            Err(e) => return Err(e),
        };
        let header = message.header;
        match header.kind() {
            Some(Kind::Request) => {}
            // We send no requests, so a reply is ignored.
            Some(Kind::Reply) => continue,
            None => return Err(Error::Malformed(format!("a message has flags {:#x}", header.flags))),
        }
        session.out.clear();
        match session.answer(&header, message.payload, message.fds) {
            Ok(()) => sender.reply(&header, &[&session.out], &[])?,
            Err(Errno(errno)) => {
                tracing::debug!(command = ?header.command(), errno, "request refused");
                sender.refuse(&header, errno)?;
                if !session.agreed {
                    return Err(Error::Malformed("the session did not begin with a version of ours".into()));
                }
            }
        }
    }
}

struct Session<'a> {
    function: &'a dyn Function,
    /// A version has been negotiated.
    agreed: bool,
    /// Payload of the reply.
    out: Vec<u8>,
}

impl Session<'_> {
    /// Handles a request and leaves the reply's payload in `out`.
    fn answer(&mut self, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let command = header.command();
        if !self.agreed && command != Command::VERSION {
            return Err(Errno(libc::EPROTO));
        }
        match command {
            Command::REGION_WRITE => {
                let (access, data): (RegionAccess, _) = read(payload)?;
                let data = data.get(..access.count as usize).ok_or(Errno(libc::EINVAL))?;
                self.region_write(&access, data)?;
                self.out.extend_from_slice(access.as_bytes());
            }
            Command::REGION_READ => {
                let (access, _): (RegionAccess, _) = read(payload)?;
                self.out.extend_from_slice(access.as_bytes());
                self.region_read(&access)?;
            }
            Command::REGION_WRITE_MULTI => {
                for write in SmallWrite::decode(payload)? {
                    let data = write.data.get(..write.access.count as usize).ok_or(Errno(libc::EINVAL))?;
                    self.region_write(&write.access, data)?;
                }
            }
            Command::DMA_MAP => self.dma_map(read(payload)?.0, fds)?,
            Command::DMA_UNMAP => self.dma_unmap(read(payload)?.0)?,
            Command::DEVICE_SET_IRQS => self.set_irqs(payload, fds)?,
            Command::DEVICE_RESET => self.reset(),
            Command::VERSION => {
                if self.agreed {
                    return Err(Errno(libc::EINVAL));
                }
                let answer = Version::decode(payload)?.answer()?;
                self.out = answer.encode();
                self.agreed = true;
            }
            Command::DEVICE_GET_INFO => {
                let (asked, _): (DeviceInfo, _) = read(payload)?;
                enough(asked.argsz, size_of::<DeviceInfo>())?;
                let info = DeviceInfo {
                    argsz: size_of::<DeviceInfo>() as u32,
                    flags: DEVICE_FLAG_RESET | DEVICE_FLAG_PCI,
                    num_regions: REGIONS,
                    num_irqs: IRQS,
                };
                self.out.extend_from_slice(info.as_bytes());
            }
            Command::DEVICE_GET_REGION_INFO => {
                let (asked, _): (RegionInfo, _) = read(payload)?;
                enough(asked.argsz, size_of::<RegionInfo>())?;
                let size = region_size(asked.index).ok_or(Errno(libc::EINVAL))?;
                let flags = if size == 0 { 0 } else { REGION_FLAG_READ | REGION_FLAG_WRITE };
                // All of BAR0 is trapped: a doorbell takes effect when it is written, without polling.
                self.out =
                    RegionInfo { index: asked.index, flags, size, ..RegionInfo::default() }.encode(&[]);
            }
            Command::DEVICE_GET_IRQ_INFO => {
                let (asked, _): (IrqInfo, _) = read(payload)?;
                enough(asked.argsz, size_of::<IrqInfo>())?;
                let (flags, count) = match asked.index {
                    IRQ_MSIX => (IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE, VECTORS as u32),
                    IRQ_ERR => (IRQ_FLAG_EVENTFD | IRQ_FLAG_NORESIZE, 1),
                    0..IRQS => (0, 0),
                    _ => return Err(Errno(libc::EINVAL)),
                };
                let info = IrqInfo { argsz: size_of::<IrqInfo>() as u32, flags, index: asked.index, count };
                self.out.extend_from_slice(info.as_bytes());
            }
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap, mut fds: Vec<OwnedFd>) -> Result<(), Errno> {
        if map.flags & !(DMA_READ_ALLOWED | DMA_WRITE_ALLOWED) != 0 || fds.len() > 1 {
            return Err(Errno(libc::EINVAL));
        }
        let fd = fds.pop().map(|fd| (fd, map.offset));
        self.function.guest().memory.map(map.address, map.size, map.flags, fd)?;
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        let memory = &self.function.guest().memory;
        match (unmap.flags, unmap.address, unmap.size) {
            (DMA_UNMAP_ALL, 0, 0) => memory.unmap_all(),
            (0, at, len) => memory.unmap(at, len)?,
            _ => return Err(Errno(libc::EINVAL)),
        }
        self.out.extend_from_slice(unmap.as_bytes());
        Ok(())
    }

    fn set_irqs(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let (set, data): (IrqSet, _) = read(payload)?;
        let Some(end) = set.start.checked_add(set.count) else { return Err(Errno(libc::EINVAL)) };
        let vectors = match set.index {
            IRQ_MSIX => VECTORS as u32,
            IRQ_ERR => 1,
            0..IRQS => 0,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let action = set.flags & (IRQ_SET_MASK | IRQ_SET_UNMASK | IRQ_SET_TRIGGER);
        let with = set.flags & (IRQ_SET_DATA_NONE | IRQ_SET_DATA_BOOL | IRQ_SET_DATA_EVENTFD);
        if end > vectors || set.flags != action | with || !action.is_power_of_two() {
            return Err(Errno(libc::EINVAL));
        }
        let irqs = &self.function.guest().irqs;
        if set.index == IRQ_ERR {
            return match (with, action) {
                (IRQ_SET_DATA_EVENTFD | IRQ_SET_DATA_NONE, IRQ_SET_TRIGGER) if fds.len() <= 1 => {
                    Ok(irqs.set_failure(fds.into_iter().next())?)
                }
                _ => Err(Errno(libc::EINVAL)),
            };
        }
        let (start, end) = (set.start as u16, end as u16);
        if set.count == 0 {
            if (with, action, start) != (IRQ_SET_DATA_NONE, IRQ_SET_TRIGGER, 0) {
                return Err(Errno(libc::EINVAL));
            }
            // The client disables all vectors.
            for vector in 0..vectors as u16 {
                self.function.vector(vector, false);
            }
            irqs.clear();
            return Ok(());
        }
        match with {
            IRQ_SET_DATA_EVENTFD => {
                if action != IRQ_SET_TRIGGER || !(fds.is_empty() || fds.len() == set.count as usize) {
                    return Err(Errno(libc::EINVAL));
                }
                let mut fds = fds.into_iter();
                for vector in start..end {
                    let fd = fds.next();
                    let sends = fd.is_some();
                    if !sends {
                        self.function.vector(vector, false);
                    }
                    irqs.set(vector, fd)?;
                    if sends {
                        // An interrupt that became pending in the meantime is sent now.
                        self.function.vector(vector, true);
                    }
                }
            }
            IRQ_SET_DATA_NONE => (start..end).for_each(|vector| self.act(vector, action)),
            IRQ_SET_DATA_BOOL => {
                let picked = data.get(..set.count as usize).ok_or(Errno(libc::EINVAL))?;
                let picked = (start..end).zip(picked).filter(|(_, yes)| **yes != 0);
                picked.for_each(|(vector, _)| self.act(vector, action));
            }
            _ => return Err(Errno(libc::EINVAL)),
        }
        Ok(())
    }

    fn act(&self, vector: u16, action: u32) {
        match action {
            IRQ_SET_TRIGGER => self.function.guest().irqs.raise(vector, 0),
            action => self.function.vector(vector, action == IRQ_SET_UNMASK),
        }
    }

    /// Resets the function. Eventfds stay, as with VFIO: they belong to the client.
    fn reset(&self) {
        self.function.reset();
        let connected = self.function.guest().irqs.connected();
        (0..VECTORS as u16)
            .filter(|vector| connected >> vector & 1 != 0)
            .for_each(|vector| self.function.vector(vector, true));
    }

    fn region_read(&mut self, access: &RegionAccess) -> Result<(), Errno> {
        let (offset, len) = within(access)?;
        let function = self.function;
        access::read(offset, len, &mut self.out, |register| match access.region {
            REGION_BAR0 => function.bar_read32(register).to_be_bytes(),
            // The SR-IOV capability is the node's: a client sees no extended capabilities.
            _ if register >= CONFIG_SIZE as u64 => [0; 4],
            _ => function.config_read(register as usize, 4).to_le_bytes(),
        });
        Ok(())
    }

    fn region_write(&self, access: &RegionAccess, data: &[u8]) -> Result<(), Errno> {
        let (at, len) = within(access)?;
        let data = data.get(..len).ok_or(Errno(libc::EINVAL))?;
        if access.region == REGION_BAR0 {
            access::bar_write(self.function, at, data);
            return Ok(());
        }
        access::config_write(at as usize, data, |at, width, value| match at {
            CONFIG_SIZE.. => {}
            // On the PF an FLR would reset the adapter as a whole; a client owns only this function.
            _ if access::resets(at, value) => self.reset(),
            _ => self.function.config_write(at, width, value),
        });
        Ok(())
    }
}

fn enough(argsz: u32, needed: usize) -> Result<(), Errno> {
    if (argsz as usize) < needed { Err(Errno(libc::EINVAL)) } else { Ok(()) }
}

/// Bytes of a region; 0 if it is absent, `None` for an invalid index.
fn region_size(index: u32) -> Option<u64> {
    match index {
        REGION_BAR0 => Some(BAR0_SIZE),
        REGION_CONFIG => Some(EXTENDED_CONFIG_SIZE as u64),
        index if index < REGIONS => Some(0),
        _ => None,
    }
}

/// Offset and length of an access, checked to be within its region.
fn within(access: &RegionAccess) -> Result<(u64, usize), Errno> {
    let size = region_size(access.region).ok_or(Errno(libc::EINVAL))?;
    let len = access.count as usize;
    if len > MAX_TRANSFER {
        return Err(Errno(libc::E2BIG));
    }
    match access.offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok((access.offset, len)),
        _ => Err(Errno(libc::EINVAL)),
    }
}
