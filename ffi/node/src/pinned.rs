//! A program's registered memory, limited as the kernel limits memory that a driver pins (`ib_umem_get`).

use super::capabilities;
use nix::sys::resource::{Resource, getrlimit};
use std::{
    env, io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// `CAP_IPC_LOCK` of `linux/capability.h`.
const IPC_LOCK: u32 = 14;

/// Bytes that registrations have pinned.
pub struct Pinned {
    bytes: AtomicU64,
    /// True with `IRONVERBS_MEMLOCK=0`: no limit.
    unlimited: bool,
}

impl Pinned {
    /// Starts with nothing pinned.
    pub fn new() -> Self {
        let unlimited = env::var_os("IRONVERBS_MEMLOCK").is_some_and(|value| value == "0");
        Self { bytes: AtomicU64::new(0), unlimited }
    }

    /// Adds `len` bytes of whole pages. Fails with ENOMEM if the total exceeds RLIMIT_MEMLOCK and the program lacks CAP_IPC_LOCK.
    pub fn add(&self, len: u64) -> io::Result<()> {
        let all = self.bytes.fetch_add(len, Relaxed) + len;
        if self.unlimited || all <= limit() || may_lock() {
            return Ok(());
        }
        self.remove(len);
        tracing::warn!(asked = len, registered = all - len, limit = limit(), "more than RLIMIT_MEMLOCK");
        Err(io::Error::from_raw_os_error(libc::ENOMEM))
    }

    /// Subtracts what [`add`](Self::add) added.
    pub fn remove(&self, len: u64) {
        self.bytes.fetch_sub(len, Relaxed);
    }
}

/// RLIMIT_MEMLOCK in bytes.
fn limit() -> u64 {
    // On failure, which is not known to occur, there is no limit.
    getrlimit(Resource::RLIMIT_MEMLOCK).map_or(libc::RLIM_INFINITY, |(soft, _)| soft)
}

fn may_lock() -> bool {
    capabilities::get().is_ok_and(|[low, _]| low.effective & 1 << IPC_LOCK != 0)
}
