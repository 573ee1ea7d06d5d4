//! Doorbell records: 8 bytes each, one per cache line, many per page.

use crate::{
    dma::{DmaMem, PAGE_SIZE},
    error::Error,
    transport::{Scope, Transport},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release},
};

/// Distance between records: a cache line, so that two queues never share one.
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
    /// A zeroed record.
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

/// A doorbell record, returned to its pool when dropped.
pub struct Record {
    page: Arc<Page>,
    index: u32,
}

impl Record {
    fn new(page: Arc<Page>, index: u32) -> Self {
        let record = Self { page, index };
        record.set(0, 0);
        record.set(1, 0);
        record
    }

    /// Where the device finds it.
    pub fn iova(&self) -> u64 {
        self.page.mem.iova() + u64::from(self.index) * STRIDE as u64
    }

    #[inline(always)]
    fn half(&self, half: usize) -> &AtomicU32 {
        &self.page.mem.words32()[self.index as usize * (STRIDE / 4) + half]
    }

    /// Writes one half, ordered behind all earlier stores.
    #[inline(always)]
    pub fn set(&self, half: usize, value: u32) {
        self.half(half).store(value.to_be(), Release);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.page.used.fetch_and(!(1 << self.index), Release);
    }
}
