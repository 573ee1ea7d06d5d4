//! Memory that peers access: regions, windows on them, and the descriptions by which peers name them.
#![allow(unsafe_code)] // a region is accessed by words, since peers may write at any time

use crate::{
    Device, Error, Result,
    verbs::{AccessFlags, Mr, Mw, MwType, dma::DmaMem, transport::Scope},
};
use std::{
    fmt,
    ops::{Bound, RangeBounds},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

const WORD: usize = 8;

/// Memory that peers read, write and change by atomic operations while this program runs. It is therefore never a slice: bytes are copied in
/// and out, and words are loaded and stored.
///
/// ```
/// # use ironverbs::{Region, verbs::AccessFlags};
/// # let (end, _) = ironverbs::sim::pair()?;
/// let region = Region::new(end.device(), 4096, AccessFlags::REMOTE_READ)?;
/// region.write(3, b"for all to read")?;
/// let remote = region.remote().slice(3..18)?; // sent to the peer, which passes it to `read`
/// assert_eq!(remote.len(), 15);
/// # Ok::<(), ironverbs::Error>(())
/// ```
pub struct Region {
    // The key goes before the memory behind it.
    mr: Mr,
    memory: Arc<DmaMem>,
    len: usize,
}

impl Region {
    /// Registers `len` bytes, zeroed, with these rights of peers (REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC) or of windows (MW_BIND).
    ///
    /// # Errors
    /// The device has no room for them.
    pub fn new(device: &Device, len: usize, rights: AccessFlags) -> Result<Self> {
        let memory = Arc::new(DmaMem::alloc(device.raw().transport(), len, Scope::Opener)?);
        let mr = Mr::over_first(device.pd(), &memory, len, AccessFlags::LOCAL_WRITE | rights)?;
        Ok(Self { mr, memory, len })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The description of the whole region for peers.
    pub fn remote(&self) -> Remote {
        Remote { addr: self.memory.iova(), len: self.len as u64, key: self.mr.rkey() }
    }

    /// Copies `data` to `offset`.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let mut data = data.iter();
        self.each(offset, data.len(), |word, from, to| {
            let (mut keep, mut new) = ([0xff; WORD], [0; WORD]);
            keep[from..to].fill(0);
            new[from..to].iter_mut().zip(&mut data).for_each(|(to, from)| *to = *from);
            let (keep, new) = (u64::from_ne_bytes(keep), u64::from_ne_bytes(new));
            match keep {
                0 => word.store(new, Ordering::Release),
                // A peer's write to the other bytes must not be undone.
                _ => {
                    _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |old| Some(old & keep | new))
                }
            }
        })
    }

    /// Copies bytes from `offset` to `out`. A peer that writes meanwhile leaves a mixture.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let len = out.len();
        let mut out = out.iter_mut();
        self.each(offset, len, |word, from, to| {
            let bytes = word.load(Ordering::Acquire).to_ne_bytes();
            bytes[from..to].iter().zip(&mut out).for_each(|(from, to)| *to = *from);
        })
    }

    /// Loads the word at `offset`, a multiple of 8. Later reads see all that peers wrote before it.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn load(&self, offset: usize) -> Result<u64> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores a word at `offset`, a multiple of 8. A peer that reads it sees all that was written before.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn store(&self, offset: usize, value: u64) -> Result<()> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        let fits = offset % WORD == 0 && offset.checked_add(WORD).is_some_and(|end| end <= self.len);
        let word = self.words().get(offset / WORD).filter(|_| fits);
        word.ok_or(Error::TooLong { len: WORD, room: self.len.saturating_sub(offset) })
    }

    /// Calls `access` for each word of the range, with the range of bytes in it.
    fn each(
        &self,
        offset: usize,
        len: usize,
        mut access: impl FnMut(&AtomicU64, usize, usize),
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let end = end.ok_or(Error::TooLong { len, room: self.len.saturating_sub(offset) })?;
        let words = self.words().iter().enumerate().take(end.div_ceil(WORD)).skip(offset / WORD);
        words.for_each(|(index, word)| {
            let begin = index * WORD;
            access(word, offset.saturating_sub(begin), (end - begin).min(WORD));
        });
        Ok(())
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is aligned to a page, has these words, and lives as long as `self`; in this process only these words access it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.memory.len() / WORD) }
    }

    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("remote", &self.remote()).field("rights", &self.mr.access()).finish()
    }
}

/// A range of a peer's memory: address, length and key. [`to_bytes`](Self::to_bytes) is its form in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
}

impl Remote {
    /// Bytes of a description.
    pub const SIZE: usize = 20;

    /// Number of bytes described.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if it describes no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::TooLong`]: the range is out of bounds.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let from = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(at) => at.saturating_add(1),
            Bound::Excluded(at) => *at,
            Bound::Unbounded => self.len(),
        };
        match from <= to && to <= self.len() {
            true => {
                Ok(Self { addr: self.addr.wrapping_add(from as u64), len: (to - from) as u64, key: self.key })
            }
            false => Err(Error::TooLong { len: to, room: self.len() }),
        }
    }

    /// Its form in a message, the same on every machine.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// Reads the beginning of a message. Bytes that a peer made up do no harm here: the peer's device checks each access.
    ///
    /// # Errors
    /// [`Error::TooLong`]: there are fewer than [`SIZE`](Self::SIZE) bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let short = || Error::TooLong { len: Self::SIZE, room: bytes.len() };
        let (addr, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let key = rest.first_chunk().ok_or_else(short)?;
        Ok(Self {
            addr: u64::from_be_bytes(*addr),
            len: u64::from_be_bytes(*len),
            key: u32::from_be_bytes(*key),
        })
    }
}

/// A window: access to a part of a [`Region`] by one queue pair's peer, under a key of its own that ends when the window is dropped.
/// [`Qp::open_window`](crate::Qp::open_window) opens it.
pub struct Window {
    mw: Mw,
    remote: Remote,
    // The memory outlives the windows on it.
    _region: Arc<Region>,
}

impl Window {
    pub(crate) fn alloc(device: &Device) -> Result<Mw> {
        Ok(Mw::alloc(device.pd(), MwType::Two)?)
    }

    pub(crate) fn bound(mw: Mw, key: u32, part: Remote, region: &Arc<Region>) -> Self {
        Self { mw, remote: Remote { key, ..part }, _region: region.clone() }
    }

    /// Its description for the peer.
    pub fn remote(&self) -> Remote {
        self.remote
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("remote", &self.remote).field("kind", &self.mw.kind()).finish()
    }
}
