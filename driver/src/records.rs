//! Doorbell records: 8 bytes each, one per cache line, many per page.
#![allow(unsafe_code)] // every post writes one, at a precomputed address

use crate::{
    dma::{DmaMem, PAGE_SIZE, order::before_device_looks},
    error::Error,
    transport::{Scope, Transport},
};
use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release},
    },
};

/// Distance between records: one cache line, so that queues never share one.
const STRIDE: usize = 64;
const _: () = assert!(PAGE_SIZE / STRIDE == u64::BITS as usize);

struct Page {
    mem: DmaMem,
    used: AtomicU64,
}

impl Page {
    fn claim(&self) -> Option<u32> {
        let taken =
            self.used.fetch_update(Relaxed, Relaxed, |used| (used != u64::MAX).then(|| used | (used + 1)));
        taken.ok().map(u64::trailing_ones)
    }
}

/// The records of one opener.
#[derive(Default)]
pub struct RecordPool(Mutex<Vec<Arc<Page>>>);

impl RecordPool {
    /// Allocates a zeroed record.
    pub fn alloc(&self, transport: &Arc<dyn Transport>) -> Result<Record, Error> {
        let mut pages = self.0.lock().unwrap_or_else(|e| e.into_inner());
        for page in pages.iter().rev() {
            if let Some(index) = page.claim() {
                return Ok(Record::new(page.clone(), index));
            }
        }
        let mem = DmaMem::alloc(transport, PAGE_SIZE, Scope::Opener)?;
        let page = Arc::new(Page { mem, used: AtomicU64::new(1) });
        pages.push(page.clone());
        Ok(Record::new(page, 0))
    }
}

/// A doorbell record, returned to its pool on drop.
pub struct Record {
    page: Arc<Page>,
    index: u32,
    /// Its halves, in `page`.
    halves: NonNull<[AtomicU32; 2]>,
}
// SAFETY: `halves` points into `page`, which is Send and Sync, and the words there are atomics.
unsafe impl Send for Record {}
// SAFETY: as for Send.
unsafe impl Sync for Record {}

impl Record {
    fn new(page: Arc<Page>, index: u32) -> Self {
        let words = &page.mem.words32()[index as usize * (STRIDE / 4)..][..2];
        let halves = NonNull::from(words).cast();
        let record = Self { page, index, halves };
        record.set(0, 0);
        record.set(1, 0);
        record
    }

    /// Its address as seen by the device.
    pub fn iova(&self) -> u64 {
        self.page.mem.iova() + u64::from(self.index) * STRIDE as u64
    }

    /// Writes one half, ordered after all earlier stores.
    #[inline(always)]
    pub fn set(&self, half: usize, value: u32) {
        before_device_looks();
        // SAFETY: `new` has checked that both halves lie in the memory of `page`, which `self` keeps alive.
        let halves = unsafe { self.halves.as_ref() };
        halves[half].store(value.to_be(), Relaxed);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.page.used.fetch_and(!(1 << self.index), Release);
    }
}
