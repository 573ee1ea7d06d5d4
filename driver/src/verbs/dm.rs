//! Device memory: memory in the adapter, accessed through BAR0 (`ibv_alloc_dm`).

use super::{Device, OF_FUNCTION, ends::ends};
use crate::{error::Error, inline::put_in_device};
use hwspec::cmd::{Opcode, memic::*};
use std::sync::Arc;

/// Access size of device memory in bytes.
const WORD: u64 = 4;
/// Granularity of allocations.
const PAGE: u32 = 4096;

/// Memory in the adapter.
pub struct Dm {
    device: Arc<Device>,
    /// Offset in BAR0.
    at: u64,
    len: u64,
    live: bool,
}

impl Dm {
    /// Allocates `len` bytes of zeroed memory, aligned to `1 << log_align`. EOPNOTSUPP: the device has no memory;
    /// EINVAL: zero bytes, more than the device has, or an unsupported alignment; ENOMEM: all memory is in use.
    pub fn alloc(device: &Arc<Device>, len: u64, log_align: u32) -> Result<Arc<Dm>, Error> {
        let caps = &device.function.caps.device_mem;
        if !caps.memic() {
            return Err(Error::unsupported("no device memory"));
        }
        if len == 0 || len > caps.max_memic_size().into() {
            return Err(Error::invalid(format!(
                "{len} bytes of device memory, of {}",
                caps.max_memic_size()
            )));
        }
        let units = log_align.saturating_sub(LOG_ALIGNMENT_UNIT);
        if units > caps.log_max_memic_addr_alignment().into() {
            return Err(Error::invalid(format!("device memory cannot be aligned to 2^{log_align}")));
        }
        let input = AllocMemicIn::with(|s| {
            s.log_memic_addr_alignment(units as u8)
                .range_start_addr(caps.memic_bar_start_addr())
                .range_size(caps.memic_bar_size())
                .memic_size(whole(len))
        });
        let answer = device.function.call(Opcode::AllocMemic, OF_FUNCTION, &input);
        let out: AllocMemicOut = answer.map_err(|error| match error.errno() {
            libc::EAGAIN => Error::no_memory("the device memory is taken"),
            _ => error,
        })?;
        let at = out.memic_start_addr();
        let memory = Dm { device: device.clone(), at, len, live: true };
        match device.function.bar.reach(at, whole(len).into()) {
            true => Ok(Arc::new(memory)),
            false => Err(Error::device("device memory within BAR0", format!("{len} bytes at {at:#x}"))),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A number that is unique among the device memory of the function.
    pub fn handle(&self) -> u32 {
        (self.at / u64::from(PAGE)) as u32
    }

    /// Its offset in BAR0.
    pub(crate) fn place(&self) -> u64 {
        self.at
    }

    /// The offset in BAR0 of `len` bytes at `offset`. EFAULT: out of bounds; EINVAL: not whole words.
    fn words(&self, offset: u64, len: usize) -> Result<u32, i32> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(libc::EFAULT);
        }
        if offset % WORD != 0 || len as u64 % WORD != 0 {
            return Err(libc::EINVAL);
        }
        Ok((self.at + offset) as u32)
    }

    /// Copies `bytes` to `offset`; both are in units of 4 bytes. EFAULT: out of bounds; EINVAL: not whole words.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        let at = self.words(offset, bytes.len())?;
        put_in_device(&self.device.function.bar, at, bytes);
        Ok(())
    }

    /// Copies from `offset`, with the errors of [`Dm::write`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), i32> {
        let at = self.words(offset, into.len())?;
        for (word, four) in (at..).step_by(WORD as usize).zip(into.chunks_mut(WORD as usize)) {
            four.copy_from_slice(&self.device.function.bar.read32(word).to_be_bytes()[..four.len()]);
        }
        Ok(())
    }

    fn release(&mut self) -> Result<(), Error> {
        let input = DeallocMemicIn::with(|s| s.memic_start_addr(self.at).memic_size(whole(self.len)));
        self.device.function.order(Opcode::DeallocMemic, OF_FUNCTION, &input)
    }
}

ends! {
    /// Frees the memory. EBUSY while memory regions use it. Dropping the last reference does the same without
    /// reporting errors.
    Dm.free: "the device memory is in use", "device memory could not be given back"
}

/// Bytes requested from the device for `len` bytes: whole pages, so that no two allocations share one.
fn whole(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX - PAGE).next_multiple_of(PAGE)
}
