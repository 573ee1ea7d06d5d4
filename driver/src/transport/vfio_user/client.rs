//! Requests to the server, one at a time.

use crate::transport::{Access, fork::Absence};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use vfio_user_proto::{
    Command, Connection, DEVICE_FLAG_PCI, DEVICE_FLAG_RESET, DMA_READ_ALLOWED, DMA_WRITE_ALLOWED, DeviceInfo,
    DmaMap, DmaUnmap, Error, IRQ_MSIX, IRQ_SET_DATA_EVENTFD, IRQ_SET_TRIGGER, IrqInfo, IrqSet, RegionAccess,
    RegionInfo, Version, zerocopy::IntoBytes,
};

/// Timeout of an answer from the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the first answer. A server has one client at a time, and keeps others waiting.
const FIRST: Duration = Duration::from_secs(3);

/// A connection to a server.
pub struct Client {
    /// Dropped before the socket is closed, since its number may then be reused.
    _absence: Absence,
    connection: Mutex<Connection>,
    generation: u32,
}

/// Converts an error to an I/O error, with the server's errno if it sent one.
pub fn refused(error: Error) -> io::Error {
    match error {
        Error::Refused { errno, .. } => io::Error::from_raw_os_error(errno),
        Error::System(_, source) if source.raw_os_error().is_some() => source,
        Error::Closed => io::Error::from_raw_os_error(libc::ENODEV),
        other => io::Error::other(other.to_string()),
    }
}

impl Client {
    /// Connects and negotiates a version. EBUSY: the server does not answer, because it has another client.
    pub fn connect(path: &Path) -> io::Result<Self> {
        sync::fork::watch();
        let socket = UnixStream::connect(path)?;
        let absence = Absence::of_file(socket.as_fd());
        let mut connection = Connection::new(socket).map_err(refused)?;
        let hello =
            connection.call(Command::VERSION, &[&Version::ours().encode()], &[], FIRST).map_err(|error| {
                match error {
                    Error::Silent(..) => io::Error::from_raw_os_error(libc::EBUSY),
                    other => refused(other),
                }
            })?;
        let version = Version::decode(&hello.payload).map_err(refused)?;
        if version.major != 0 {
            let found = format!("{}.{}", version.major, version.minor);
            return Err(io::Error::other(format!("expected a server of vfio-user 0.x, found {found}")));
        }
        Ok(Self {
            connection: Mutex::new(connection),
            generation: sync::fork::generation(),
            _absence: absence,
        })
    }

    /// The connection. Fails in a child of fork, since it belongs to the parent.
    fn talk(&self) -> io::Result<MutexGuard<'_, Connection>> {
        match self.generation == sync::fork::generation() {
            true => Ok(self.connection.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// True if this is the process that connected.
    pub fn is_ours(&self) -> bool {
        self.generation == sync::fork::generation()
    }

    /// True if the server is gone.
    pub fn is_gone(&self) -> bool {
        self.talk().is_ok_and(|connection| connection.sender.is_closed())
    }

    /// Checks that the device is a PCI device, and returns true if it can be reset.
    pub fn can_reset(&self) -> io::Result<bool> {
        let info = DeviceInfo { argsz: size_of::<DeviceInfo>() as u32, ..Default::default() };
        let (info, _) =
            self.talk()?.ask::<DeviceInfo>(Command::DEVICE_GET_INFO, &info, PATIENCE).map_err(refused)?;
        match info.flags & DEVICE_FLAG_PCI {
            0 => Err(io::Error::other(format!("expected a PCI device, found flags {:#x}", info.flags))),
            _ => Ok(info.flags & DEVICE_FLAG_RESET != 0),
        }
    }

    /// Length of a region in bytes.
    pub fn region_size(&self, index: u32) -> io::Result<u64> {
        /// Room for capabilities, which are ignored, since all accesses are messages.
        const ROOM: u32 = 4096;
        let info = RegionInfo { argsz: ROOM, index, ..Default::default() };
        let answer = self.talk()?.call(Command::DEVICE_GET_REGION_INFO, &[info.as_bytes()], &[], PATIENCE);
        Ok(RegionInfo::decode(&answer.map_err(refused)?.payload).map_err(refused)?.0.size)
    }

    /// Number of MSI-X vectors.
    pub fn vectors(&self) -> io::Result<u32> {
        let info = IrqInfo { argsz: size_of::<IrqInfo>() as u32, index: IRQ_MSIX, ..Default::default() };
        let asked = self.talk()?.ask::<IrqInfo>(Command::DEVICE_GET_IRQ_INFO, &info, PATIENCE);
        Ok(asked.map_err(refused)?.0.count)
    }

    /// Reads from a region.
    pub fn read(&self, region: u32, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        let (_, reply) =
            self.talk()?.ask::<RegionAccess>(Command::REGION_READ, &access, PATIENCE).map_err(refused)?;
        let data = reply.payload.get(size_of::<RegionAccess>()..).unwrap_or_default();
        match data.len() == bytes.len() {
            true => bytes.copy_from_slice(data),
            false => {
                let (expected, found) = (bytes.len(), data.len());
                return Err(io::Error::other(format!(
                    "expected {expected} bytes of a region, found {found}"
                )));
            }
        }
        Ok(())
    }

    /// Writes to a region, and waits for the device to confirm.
    pub fn write(&self, region: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        let call = self.talk()?.call(Command::REGION_WRITE, &[access.as_bytes(), bytes], &[], PATIENCE);
        call.map(drop).map_err(refused)
    }

    /// Writes to a region without waiting.
    pub fn post(&self, region: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        self.talk()?.tell(Command::REGION_WRITE, &[access.as_bytes(), bytes]).map_err(refused)
    }

    /// Maps `len` bytes of `file` at `offset` for the device as `iova`.
    pub fn map(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        let read = if access.read { DMA_READ_ALLOWED } else { 0 };
        let write = if access.write { DMA_WRITE_ALLOWED } else { 0 };
        let argsz = size_of::<DmaMap>() as u32;
        let map = DmaMap { argsz, flags: read | write, offset, address: iova, size: len as u64 };
        let call = self.talk()?.call(Command::DMA_MAP, &[map.as_bytes()], &[file], PATIENCE);
        call.map(drop).map_err(refused)
    }

    /// Ends the device's access to a range.
    pub fn unmap(&self, iova: u64, len: usize) -> io::Result<()> {
        let argsz = size_of::<DmaUnmap>() as u32;
        let unmap = DmaUnmap { argsz, flags: 0, address: iova, size: len as u64 };
        self.talk()?.call(Command::DMA_UNMAP, &[unmap.as_bytes()], &[], PATIENCE).map(drop).map_err(refused)
    }

    /// Connects a vector to an eventfd.
    pub fn connect_vector(&self, vector: u16, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let set = IrqSet {
            argsz: size_of::<IrqSet>() as u32,
            flags: IRQ_SET_DATA_EVENTFD | IRQ_SET_TRIGGER,
            index: IRQ_MSIX,
            start: vector.into(),
            count: 1,
        };
        let call = self.talk()?.call(Command::DEVICE_SET_IRQS, &[set.as_bytes()], &[eventfd], PATIENCE);
        call.map(drop).map_err(refused)
    }

    /// Function level reset.
    pub fn reset(&self) -> io::Result<()> {
        self.talk()?.call(Command::DEVICE_RESET, &[], &[], PATIENCE).map(drop).map_err(refused)
    }
}
