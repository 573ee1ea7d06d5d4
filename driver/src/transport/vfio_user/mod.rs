//! A function served by another process on a vfio-user socket (a device model, `ironverbs serve`).
//!
//! A server has one client. All openers of the socket in this process share one [`VfioUserTransport`].

mod client;
mod memory;
mod window;

use super::{
    Access, BARS, Bar, DmaBlock, Interrupt, Iova, SHARED, Scope, Transport, Width,
    iova::IovaSpace,
    pool::{Piece, Pool, Source},
};
use crate::{common::Common, config::STATUS_COMMAND};
use client::Client;
use memory::Store;
use migration::Pages;
use std::{
    collections::HashMap,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};
use vfio_user_proto::{REGION_BAR0, REGION_CONFIG};
use window::Window;

/// Number of empty polls after which the thread yields the processor.
const IDLES_PER_YIELD: u32 = 64;
/// Alignment of addresses.
const PAGE: u64 = 4096;
/// Device addresses, excluding the window of interrupt messages, in case the server puts the device on a bus.
const ADDRESSES: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 47) - 1)];

/// A function on a vfio-user socket.
pub struct VfioUserTransport {
    path: PathBuf,
    reach: Reach,
    can_reset: bool,
    vectors: u32,
    idles: AtomicU32,
    pool: Pool,
    shared: Pages,
}

/// The server, and the memory accessible to it.
struct Reach {
    client: Arc<Client>,
    state: Mutex<State>,
}

struct State {
    store: Store,
    space: IovaSpace,
    /// DMA windows of the device into our file, by address: place and length.
    windows: HashMap<Iova, Vec<(u64, u64)>>,
    /// The driver's own memory, by address.
    own: HashMap<Iova, (Pages, u64)>,
}

/// Sockets that this process is connected to.
static OPEN: Common<PathBuf, VfioUserTransport> = Common::new();

impl VfioUserTransport {
    /// Connects to the server at `path`, or shares the connection of other openers in this process. EBUSY: another
    /// process is connected.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let path = std::path::absolute(path)?;
        // An opener may still hold the connection to a server that is gone. The next server is a different
        // function.
        let good = |known: &Self| known.reach.client.is_ours() && !known.reach.client.is_gone();
        OPEN.get(path.clone(), good, || Self::fresh(&path))
    }

    fn fresh(path: &Path) -> io::Result<Self> {
        let client = Client::connect(path)?;
        let state = State {
            store: Store::new()?,
            space: IovaSpace::new(PAGE, ADDRESSES),
            windows: HashMap::new(),
            own: HashMap::new(),
        };
        Ok(Self {
            path: path.to_path_buf(),
            can_reset: client.can_reset()?,
            vectors: client.vectors()?,
            reach: Reach { client: Arc::new(client), state: Mutex::new(state) },
            idles: AtomicU32::new(0),
            pool: Pool::default(),
            shared: Pages::memory(SHARED)?,
        })
    }
}

impl Reach {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps memory of the program for the device.
    /// # Safety
    /// As for [`Transport::dma_map`].
    unsafe fn map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        let mut state = self.state();
        let used: Vec<_> = state.windows.values().flatten().copied().collect();
        // SAFETY: the caller's guarantee.
        let stretches = unsafe { state.store.find(base, len, &used)? };
        let full = || io::Error::new(io::ErrorKind::OutOfMemory, "no addresses are left for the device");
        let iova = state.space.alloc(len as u64, base as u64).ok_or_else(full)?;
        let mut at = iova;
        let mut places = Vec::new();
        for stretch in &stretches {
            let file = match &stretch.file {
                Some(file) => file.as_fd(),
                None => {
                    places.push((stretch.offset, stretch.len as u64));
                    state.store.file().as_fd()
                }
            };
            if let Err(error) = self.client.map(at, stretch.len, access, file, stretch.offset) {
                if at > iova {
                    self.client.unmap(iova, (at - iova) as usize)?;
                }
                state.space.free(iova, len as u64);
                return Err(error);
            }
            at += stretch.len as u64;
        }
        state.windows.insert(iova, places);
        Ok(iova)
    }

    fn unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        let mut state = self.state();
        self.client.unmap(iova, len)?;
        state.windows.remove(&iova);
        state.space.free(iova, len as u64);
        Ok(())
    }
}

impl Source for Reach {
    fn obtain(&self, len: usize) -> io::Result<Piece> {
        let mut state = self.state();
        let (memory, place) = state.store.alloc(len)?;
        let full = || io::Error::new(io::ErrorKind::OutOfMemory, "no addresses are left for the device");
        let ptr = memory.ptr();
        let Some(iova) = state.space.alloc(len as u64, 0) else {
            drop(memory);
            state.store.free(place, len);
            return Err(full());
        };
        if let Err(error) = self.client.map(iova, len, Access::BOTH, state.store.file().as_fd(), place) {
            state.space.free(iova, len as u64);
            drop(memory);
            state.store.free(place, len);
            return Err(error);
        }
        state.own.insert(iova, (memory, place));
        Ok(Piece { ptr, iova, len })
    }

    fn release(&self, piece: Piece) {
        if let Err(error) = self.unmap(piece.iova, piece.len) {
            // Kept even if the server is gone, since it may still have the memory mapped.
            tracing::debug!(iova = piece.iova, %error, "memory of the device could not be unmapped");
            return;
        }
        let mut state = self.state();
        if let Some((memory, place)) = state.own.remove(&piece.iova) {
            drop(memory);
            state.store.free(place, piece.len);
        }
    }
}

// SAFETY: blocks are pieces of this type's own memory, and the server confirms each unmapping.
unsafe impl Transport for VfioUserTransport {
    fn name(&self) -> Option<String> {
        Some(self.path.to_string_lossy().into_owned())
    }

    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.reach.client.read(REGION_CONFIG, offset.into(), &mut bytes[..width.bytes()])?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        self.reach.client.write(REGION_CONFIG, offset.into(), &value.to_le_bytes()[..width.bytes()])
    }

    fn bar(&self, index: u8) -> io::Result<Bar> {
        let region = REGION_BAR0 + u32::from(index);
        if index >= BARS || self.reach.client.region_size(region)? == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        Ok(Bar::Trapped(Arc::new(Window { client: self.reach.client.clone(), region })))
    }

    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee.
        unsafe { self.reach.map(base, len, access) }
    }

    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.reach.unmap(iova, len)
    }

    fn dma_alloc(&self, len: usize, _: Scope) -> io::Result<DmaBlock> {
        self.pool.alloc(len, &self.reach)
    }

    fn dma_free(&self, block: DmaBlock) {
        if self.reach.client.is_ours() && !self.pool.free(block.iova, &self.reach) {
            tracing::warn!(iova = block.iova, "a block that was never given out was to be freed");
        }
    }

    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        self.pool.find(iova, len).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        if u32::from(vector) >= self.vectors {
            let why = format!("vector {vector} was asked for, the function has {}", self.vectors);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let interrupt = Interrupt::new()?;
        self.reach.client.connect_vector(vector, interrupt.as_fd())?;
        Ok(interrupt)
    }

    fn reset(&self) -> io::Result<()> {
        if !self.can_reset {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // Kernel VFIO restores configuration space after a reset. Over the socket that is up to the client.
        let command = self.config_read(STATUS_COMMAND, Width::B2)?;
        self.reach.client.reset()?;
        self.config_write(STATUS_COMMAND, Width::B2, command)
    }

    fn shared(&self) -> io::Result<DmaBlock> {
        Ok(DmaBlock { ptr: self.shared.ptr(), iova: 0, len: SHARED })
    }

    fn idle(&self) {
        // The device is another process, which needs to get the processor.
        if self.idles.fetch_add(1, Relaxed) % IDLES_PER_YIELD == 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for VfioUserTransport {
    fn drop(&mut self) {
        if self.reach.client.is_ours() {
            self.pool.clear(&self.reach);
        }
    }
}
