//! A split virtqueue (Virtual I/O Device 1.2, 2.7) in a client's memory. None of its contents is trusted.

use crate::serve::GuestMemory;
use std::sync::atomic::{Ordering::SeqCst, fence};
use vfio_user_proto::{Error, Result};

/// Maximum number of entries.
const MAX_SIZE: u16 = 1024;
/// Maximum buffers of a chain: a command, its data, its answer, and some more in case they are split.
const MAX_CHAIN: usize = 8;
/// Descriptor flags: another one follows; written by the device; table of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the available ring: the driver wants no notification of used buffers.
const NO_INTERRUPT: u16 = 1;

/// A virtqueue.
#[derive(Default)]
pub struct Queue {
    /// Number of entries; 0 if not set up.
    size: u16,
    desc: u64,
    available: u64,
    used: u64,
    /// Chains taken and returned so far.
    taken: u16,
    given: u16,
    enabled: bool,
}

/// A buffer of a chain.
pub struct Buffer {
    pub at: u64,
    pub len: u32,
    /// True if the device writes it, false if it reads it.
    pub write: bool,
}

/// Buffers of one request.
pub struct Chain {
    head: u16,
    pub buffers: Vec<Buffer>,
}

fn outside(what: &str) -> Error {
    Error::Malformed(format!("{what} of a queue lies outside of the client's memory"))
}

fn read<const N: usize>(memory: &GuestMemory, at: u64, skip: u64, what: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let at = at.checked_add(skip).ok_or_else(|| outside(what))?;
    memory.read(at, &mut bytes).map_err(|_| outside(what))?;
    Ok(bytes)
}

fn write(memory: &GuestMemory, at: u64, skip: u64, bytes: &[u8], what: &str) -> Result<()> {
    let at = at.checked_add(skip).ok_or_else(|| outside(what))?;
    memory.write(at, bytes).map_err(|_| outside(what))
}

impl Queue {
    /// Sets the number of entries.
    pub fn set_size(&mut self, size: u32) -> Result<()> {
        match u16::try_from(size) {
            Ok(size) if size.is_power_of_two() && size <= MAX_SIZE => self.size = size,
            _ => {
                return Err(Error::Malformed(format!(
                    "a queue of {size} entries, expected a power of 2, {MAX_SIZE} at most"
                )));
            }
        }
        Ok(())
    }

    /// Number of entries; 0 if not set up.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Sets the bus addresses of descriptor table, available ring and used ring.
    pub fn set_addresses(&mut self, desc: u64, available: u64, used: u64) {
        (self.desc, self.available, self.used) = (desc, available, used);
    }

    /// Sets the number of chains taken and returned so far.
    pub fn set_base(&mut self, base: u16) {
        (self.taken, self.given) = (base, base);
    }

    /// Number of chains taken.
    pub fn base(&self) -> u16 {
        self.taken
    }

    /// Enables or disables the queue.
    pub fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Takes the next chain, if the driver has made one available.
    pub fn take(&mut self, memory: &GuestMemory) -> Result<Option<Chain>> {
        if !self.enabled || self.size == 0 {
            return Ok(None);
        }
        let index = u16::from_le_bytes(read(memory, self.available, 2, "the available ring")?);
        let waiting = index.wrapping_sub(self.taken);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.size {
            return Err(Error::Malformed(format!("{waiting} chains in a queue of {} entries", self.size)));
        }
        let slot = u64::from(self.taken % self.size);
        let head = u16::from_le_bytes(read(memory, self.available, 4 + 2 * slot, "the available ring")?);
        self.taken = self.taken.wrapping_add(1);
        let mut buffers = Vec::with_capacity(3);
        let mut at = head;
        loop {
            if at >= self.size {
                return Err(Error::Malformed(format!("descriptor {at} in a queue of {} entries", self.size)));
            }
            let entry: [u8; 16] = read(memory, self.desc, 16 * u64::from(at), "the descriptors")?;
            let [address @ .., l0, l1, l2, l3, f0, f1, n0, n1] = entry;
            let flags = u16::from_le_bytes([f0, f1]);
            if flags & INDIRECT != 0 || buffers.len() == MAX_CHAIN {
                return Err(Error::Malformed(format!(
                    "a chain of more than {MAX_CHAIN} descriptors, or an indirect one"
                )));
            }
            let len = u32::from_le_bytes([l0, l1, l2, l3]);
            buffers.push(Buffer { at: u64::from_le_bytes(address), len, write: flags & WRITE != 0 });
            if flags & NEXT == 0 {
                return Ok(Some(Chain { head, buffers }));
            }
            at = u16::from_le_bytes([n0, n1]);
        }
    }

    /// Returns a chain, with `written` bytes written.
    pub fn give(&mut self, memory: &GuestMemory, chain: &Chain, written: usize) -> Result<()> {
        let slot = u64::from(self.given % self.size.max(1));
        let entry = u64::from(chain.head) | (written as u64) << 32;
        write(memory, self.used, 4 + 8 * slot, &entry.to_le_bytes(), "the used ring")?;
        self.given = self.given.wrapping_add(1);
        write(memory, self.used, 2, &self.given.to_le_bytes(), "the used ring")
    }

    /// True if the driver wants to be notified of used buffers.
    pub fn wants_call(&self, memory: &GuestMemory) -> Result<bool> {
        // Orders the used index before the flag: the driver may be about to sleep.
        fence(SeqCst);
        let flags = u16::from_le_bytes(read(memory, self.available, 0, "the available ring")?);
        Ok(flags & NO_INTERRUPT == 0)
    }
}
