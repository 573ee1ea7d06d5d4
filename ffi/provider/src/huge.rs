//! Placement of queues according to the environment variables of libmlx5: `MLX_CQ_ALLOC_TYPE`, `MLX_QP_ALLOC_TYPE`, `MLX_SRQ_ALLOC_TYPE`,
//! `MLX_RWQ_ALLOC_TYPE`, and the older `HUGE_CQ`, `HUGE_RC` and so on.
//!
//! Queues in huge pages are allocated in memory of the program, like those from a program's own allocators (`parent_domain.rs`). As in
//! libmlx5 that is System V shared memory, so the same privileges apply: CAP_IPC_LOCK, or membership of the group in
//! `vm.hugetlb_shm_group`.

use crate::guard::lock;
use driver::dma::Buffers;
use driver::{Error, Pd, Service};
use libc::c_int;
use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Size of a huge page.
const HUGE: usize = 2 << 20;
/// Allocation unit within a huge page.
const CHUNK: usize = 4096;
/// `shmget` flag for pages of 2 MiB: the log2 of the page size from bit 26 on.
const SHM_HUGE_2MB: c_int = 21 << 26;

/// A queue with memory that the environment can place.
#[derive(Clone, Copy, Debug)]
pub enum Queue {
    /// Completion queue.
    Cq,
    /// Both queues of a QP.
    Qp(Service),
    /// Shared receive queue.
    Srq,
    /// Work queue.
    Wq,
}

/// The kind of memory that the environment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Any memory.
    Anywhere,
    /// Huge pages only.
    Huge,
    /// Huge pages, with a fallback to any memory.
    PreferHuge,
    /// Physically contiguous memory, which Linux does not provide: EINVAL.
    Contiguous,
}

impl Queue {
    /// The variable for this kind of queue, and the older variable that asks for huge pages.
    fn variables(self) -> (&'static str, &'static str) {
        match self {
            Self::Cq => ("MLX_CQ_ALLOC_TYPE", "HUGE_CQ"),
            Self::Srq => ("MLX_SRQ_ALLOC_TYPE", ""),
            Self::Wq => ("MLX_RWQ_ALLOC_TYPE", ""),
            Self::Qp(service) => (
                "MLX_QP_ALLOC_TYPE",
                match service {
                    Service::Rc => "HUGE_RC",
                    Service::Uc => "HUGE_UC",
                    Service::Ud => "HUGE_UD",
                    Service::RawPacket => "HUGE_RAW_ETH",
                    _ => "HUGE_NA",
                },
            ),
        }
    }

    /// Returns the kind of memory that `environment` asks for. Unknown values are ignored, as by libmlx5.
    fn place(self, environment: impl Fn(&str) -> Option<String>) -> Place {
        let (name, older) = self.variables();
        let of = |name: &str| if name.is_empty() { None } else { environment(name) };
        let usual = if of(older).as_deref() == Some("y") { Place::Huge } else { Place::Anywhere };
        match of(name).unwrap_or_default().to_ascii_uppercase().as_str() {
            // Contiguous memory is not available, so these select their fallback.
            "ANON" | "PREFER_CONTIG" => Place::Anywhere,
            "PREFER_HUGE" | "ALL" => Place::PreferHuge,
            "HUGE" => Place::Huge,
            "CONTIG" => Place::Contiguous,
            _ => usual,
        }
    }
}

/// Selects the buffers of a queue: `own`, if the program brings its own memory, else according to the environment. `None` is ordinary
/// memory. Fails with ENOMEM if the request cannot be met.
pub fn buffers(
    pool: &Arc<HugePool>,
    own: Option<Arc<dyn Buffers>>,
    queue: Queue,
) -> Result<Option<Arc<dyn Buffers>>, c_int> {
    if own.is_some() {
        return Ok(own);
    }
    let pages = |must| Ok(Some(Arc::new(HugePages { pool: pool.clone(), must }) as Arc<dyn Buffers>));
    match queue.place(|name| std::env::var(name).ok()) {
        Place::Anywhere => Ok(None),
        Place::Huge => pages(true),
        Place::PreferHuge => pages(false),
        Place::Contiguous => Err(libc::ENOMEM),
    }
}

/// The PD to create a queue of `pd` in: `pd` itself, or one with other buffers. Fails with ENOMEM like [`buffers`].
pub fn domain(pool: &Arc<HugePool>, pd: &Arc<Pd>, queue: Queue) -> Result<Arc<Pd>, c_int> {
    match (pd.buffers(), buffers(pool, pd.buffers().cloned(), queue)?) {
        (None, Some(buffers)) => Ok(Pd::face(pd, Some(buffers))),
        _ => Ok(pd.clone()),
    }
}

/// The huge pages of one context, which its queues are allocated from.
#[derive(Default)]
pub struct HugePool(Mutex<Vec<Segment>>);

/// A shared memory segment of whole huge pages. Forked children do not inherit it.
struct Segment {
    base: usize,
    /// One flag per chunk: true if allocated.
    given: Vec<bool>,
    /// Length of each allocation in chunks, by address.
    runs: HashMap<usize, usize>,
}

impl Segment {
    fn new(len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(HUGE);
        let flags = libc::SHM_HUGETLB | SHM_HUGE_2MB | 0o600;
        // SAFETY: a new segment, mapped at an address of the kernel's choice. It is marked for removal at once, so it disappears with the
        // mapping even if this process is killed.
        let base = unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, len, flags);
            if id == -1 {
                return Err(io::Error::last_os_error());
            }
            let base = libc::shmat(id, std::ptr::null(), 0);
            let failed = (base as isize == -1).then(io::Error::last_os_error);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            if let Some(error) = failed {
                return Err(error);
            }
            base
        };
        let segment = Self { base: base as usize, given: vec![false; len / CHUNK], runs: HashMap::new() };
        // SAFETY: the whole mapping, which `segment` owns.
        if unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(segment)
    }

    /// Allocates `chunks` adjacent chunks.
    fn give(&mut self, chunks: usize) -> Option<NonNull<u8>> {
        let at = self.given.windows(chunks).position(|run| run.iter().all(|given| !given))?;
        self.given[at..at + chunks].fill(true);
        let address = self.base + at * CHUNK;
        self.runs.insert(address, chunks);
        NonNull::new(address as *mut u8)
    }

    /// Frees the allocation at `address`. Returns false if another segment holds it.
    fn take(&mut self, address: usize) -> bool {
        let Some(chunks) = self.runs.remove(&address) else { return false };
        let at = (address - self.base) / CHUNK;
        self.given[at..at + chunks].fill(false);
        true
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the address is from `shmat`, and the segment has no allocations left.
        unsafe { libc::shmdt(self.base as *const libc::c_void) };
    }
}

impl HugePool {
    /// Allocates `len` bytes, rounded up to whole chunks.
    fn give(&self, len: usize) -> io::Result<NonNull<u8>> {
        let chunks = len.div_ceil(CHUNK).max(1);
        let mut segments = lock(&self.0);
        if let Some(found) = segments.iter_mut().find_map(|segment| segment.give(chunks)) {
            return Ok(found);
        }
        let mut segment = Segment::new(chunks * CHUNK)?;
        let found = segment.give(chunks);
        segments.push(segment);
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    /// Frees an allocation, and unmaps segments without allocations.
    fn take_back(&self, ptr: NonNull<u8>) {
        let mut segments = lock(&self.0);
        let address = ptr.as_ptr() as usize;
        if let Some(at) = segments.iter_mut().position(|segment| segment.take(address)) {
            if segments[at].runs.is_empty() {
                segments.swap_remove(at);
            }
        }
    }
}

/// Allocates queue buffers in the huge pages of a pool.
struct HugePages {
    pool: Arc<HugePool>,
    /// True if no other memory is acceptable.
    must: bool,
}

// SAFETY: the pool gives these pages to no other user until they are taken back.
unsafe impl Buffers for HugePages {
    fn obtain(&self, len: usize, align: usize) -> Result<Option<NonNull<u8>>, Error> {
        debug_assert!(align <= CHUNK);
        match self.pool.give(len) {
            Ok(found) => Ok(Some(found)),
            Err(_) if !self.must => Ok(None),
            Err(error) => Err(Error::Invalid {
                what: format!("{len} bytes of huge pages were asked for: {error}"),
                errno: libc::ENOMEM,
            }),
        }
    }

    fn give_back(&self, ptr: NonNull<u8>) {
        self.pool.take_back(ptr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(queue: Queue, set: &[(&str, &str)]) -> Place {
        queue.place(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_environment_is_read_as_libmlx5_reads_it() {
        let rc = Queue::Qp(Service::Rc);
        assert_eq!(place(rc, &[]), Place::Anywhere);
        for (value, wanted) in [
            ("ANON", Place::Anywhere),
            ("huge", Place::Huge),
            ("Prefer_Huge", Place::PreferHuge),
            ("ALL", Place::PreferHuge),
            ("CONTIG", Place::Contiguous),
            ("PREFER_CONTIG", Place::Anywhere),
            ("HUGEST", Place::Anywhere),
        ] {
            assert_eq!(place(rc, &[("MLX_QP_ALLOC_TYPE", value)]), wanted, "{value}");
            assert_eq!(place(Queue::Cq, &[("MLX_QP_ALLOC_TYPE", value)]), Place::Anywhere, "{value}");
        }
        assert_eq!(place(Queue::Srq, &[("MLX_SRQ_ALLOC_TYPE", "HUGE")]), Place::Huge);
        assert_eq!(place(Queue::Wq, &[("MLX_RWQ_ALLOC_TYPE", "HUGE")]), Place::Huge);
        assert_eq!(place(rc, &[("HUGE_RC", "y")]), Place::Huge);
        assert_eq!(place(rc, &[("HUGE_RC", "yes")]), Place::Anywhere);
        assert_eq!(place(rc, &[("HUGE_UD", "y")]), Place::Anywhere);
        assert_eq!(place(rc, &[("HUGE_RC", "y"), ("MLX_QP_ALLOC_TYPE", "ANON")]), Place::Anywhere);
        assert_eq!(place(rc, &[("HUGE_RC", "y"), ("MLX_QP_ALLOC_TYPE", "else")]), Place::Huge);
    }

    #[test]
    fn runs_are_given_where_they_fit_and_again_when_they_are_back() {
        // The test only compares addresses, so the memory is not mapped.
        let mut segment =
            std::mem::ManuallyDrop::new(Segment { base: HUGE, given: vec![false; 8], runs: HashMap::new() });
        let at = |ptr: Option<NonNull<u8>>| ptr.map(|ptr| (ptr.as_ptr() as usize - HUGE) / CHUNK);
        assert_eq!(at(segment.give(3)), Some(0));
        assert_eq!(at(segment.give(4)), Some(3));
        assert_eq!(at(segment.give(2)), None);
        assert_eq!(at(segment.give(1)), Some(7));
        assert!(segment.take(HUGE) && !segment.take(HUGE) && !segment.take(HUGE + CHUNK));
        assert_eq!(at(segment.give(2)), Some(0));
        assert_eq!(at(segment.give(2)), None);
        assert_eq!(at(segment.give(1)), Some(2));
    }
}
