//! Pools of registered buffers.
#![allow(unsafe_code)] // buffers are slices of memory that is shared with the device

use crate::{
    Device, Error, Result,
    verbs::{AccessFlags, Mr, Sge, dma::DmaMem, transport::Scope},
};
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Distance of buffers is a multiple of a cache line.
const LINE: usize = 64;

/// Buffers of one size, in memory registered once for local use. Peers have no access; [`Region`](crate::Region) is for them.
///
/// ```
/// # let (end, _) = ironverbs::sim::pair()?;
/// let pool = ironverbs::Pool::new(end.device(), 2, 1024)?;
/// let mut buffer = pool.take(b"hello")?;
/// buffer[0] = b'j';
/// assert_eq!((&*buffer, pool.free()), (&b"jello"[..], 1));
/// drop(buffer);
/// assert_eq!(pool.free(), 2);
/// # Ok::<(), ironverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    slots: Mutex<Slots>,
    count: usize,
    size: usize,
    stride: usize,
    // The key goes before the memory behind it.
    mr: Mr,
    memory: Arc<DmaMem>,
}

/// The free buffers and those who wait for one.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

impl Pool {
    /// Registers `count` buffers of `size` bytes.
    ///
    /// # Errors
    /// The device has no room for them.
    pub fn new(device: &Device, count: usize, size: usize) -> Result<Self> {
        let stride = size.max(1).next_multiple_of(LINE);
        let too_long = || Error::TooLong { len: size, room: (1 << 31) / count.max(1) };
        let len =
            stride.checked_mul(count).filter(|_| size <= 1 << 30 && count <= 1 << 31).ok_or_else(too_long)?;
        let memory = Arc::new(DmaMem::alloc(device.raw().transport(), len, Scope::Opener)?);
        let mr = Mr::over(device.pd(), &memory, AccessFlags::LOCAL_WRITE)?;
        let slots = Slots { free: (0..count as u32).rev().collect(), ..Slots::default() };
        Ok(Self(Arc::new(Inner { slots: Mutex::new(slots), count, size, stride, mr, memory })))
    }

    /// Takes a buffer and fills it with `data`.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::PoolEmpty`].
    pub fn take(&self, data: &[u8]) -> Result<Buf> {
        let mut buffer = self.empty()?;
        buffer.fill(data)?;
        Ok(buffer)
    }

    /// Takes a buffer of length 0, as for a receive.
    ///
    /// # Errors
    /// [`Error::PoolEmpty`].
    pub fn empty(&self) -> Result<Buf> {
        let slot = self.0.lock().free.pop().ok_or(Error::PoolEmpty)?;
        Ok(self.buffer(slot))
    }

    /// Waits for a buffer of length 0. Waiters are served in order.
    pub fn acquire(&self) -> Acquire {
        Acquire { pool: self.clone(), ticket: None }
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// True if the pool has no buffers at all.
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// Number of buffers that are not in use.
    pub fn free(&self) -> usize {
        self.0.lock().free.len()
    }

    /// Bytes of a buffer.
    pub fn size(&self) -> usize {
        self.0.size
    }

    fn buffer(&self, slot: u32) -> Buf {
        Buf { pool: self.0.clone(), slot, len: 0 }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, size, free) = (self.len(), self.size(), self.free());
        f.debug_struct("Pool").field("len", &len).field("size", &size).field("free", &free).finish()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a buffer back and wakes the next in line.
    fn put(&self, slot: u32) {
        let mut slots = self.lock();
        slots.free.push(slot);
        let next = slots.waiting.front().map(|(_, waker)| waker.clone());
        drop(slots);
        next.into_iter().for_each(Waker::wake);
    }
}

/// A future of a free buffer, by [`Pool::acquire`].
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited"]
pub struct Acquire {
    pool: Pool,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Buf;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buf> {
        let inner = self.pool.0.clone();
        let mut slots = inner.lock();
        let ticket = *self.ticket.get_or_insert_with(|| slots.draw());
        // Those who came earlier go first.
        if slots.waiting.front().is_none_or(|(first, _)| *first >= ticket) {
            if let Some(slot) = slots.free.pop() {
                let next = slots.leave(ticket);
                self.ticket = None;
                drop(slots);
                next.into_iter().for_each(Waker::wake);
                return Poll::Ready(self.pool.buffer(slot));
            }
        }
        slots.enter(ticket, cx.waker());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let next = self.pool.0.lock().leave(ticket);
        next.into_iter().for_each(Waker::wake);
    }
}

impl Slots {
    fn draw(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn enter(&mut self, ticket: u64, waker: &Waker) {
        match self.waiting.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, known)) => known.clone_from(waker),
            None => self.waiting.push_back((ticket, waker.clone())),
        }
    }

    /// Ends a wait. Returns the next in line if there is a buffer for it.
    fn leave(&mut self, ticket: u64) -> Option<Waker> {
        self.waiting.retain(|(other, _)| *other != ticket);
        let next = self.waiting.front().filter(|_| !self.free.is_empty())?;
        Some(next.1.clone())
    }
}

/// A buffer of a [`Pool`], owned by whoever holds it: the program, or a queue until its request has completed. Dropped, it goes back to its
/// pool.
pub struct Buf {
    pool: Arc<Inner>,
    slot: u32,
    len: u32,
}

impl Buf {
    /// Bytes that fit.
    pub fn capacity(&self) -> usize {
        self.pool.size
    }

    /// Replaces the contents by `data`.
    ///
    /// # Errors
    /// [`Error::TooLong`]; the contents are unchanged.
    pub fn fill(&mut self, data: &[u8]) -> Result<()> {
        self.resize(data.len())?;
        self.copy_from_slice(data);
        Ok(())
    }

    /// Changes the length. Bytes that were not part of the contents have any value.
    ///
    /// # Errors
    /// [`Error::TooLong`]; the length is unchanged.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len > self.pool.size {
            return Err(Error::TooLong { len, room: self.pool.size });
        }
        self.len = len as u32;
        Ok(())
    }

    fn offset(&self) -> usize {
        self.slot as usize * self.pool.stride
    }

    /// The first `len` bytes, for a work request.
    pub(crate) fn sge(&self, len: usize) -> Sge {
        let addr = self.pool.memory.iova() + self.offset() as u64;
        Sge { addr, length: len as u32, lkey: self.pool.mr.lkey() }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot lies in memory that lives as long as the pool, was zeroed at its allocation, and `len` bytes fit into it (`resize`).
        // Only one `Buf` has the slot (`Slots::free`). The device accesses it only while a queue owns the `Buf`, since peers have no rights.
        unsafe { std::slice::from_raw_parts(self.pool.memory.as_ptr().add(self.offset()), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.pool.memory.as_ptr().add(self.offset()), self.len as usize)
        }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pool.put(self.slot);
    }
}
