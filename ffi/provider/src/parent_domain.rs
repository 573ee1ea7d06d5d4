//! Thread domains and parent domains. A parent domain is a PD with a thread domain and the program's own allocators.

use crate::abi::public::ibv_parent_domain_init_attr;
use crate::abi::public::{self as abi, AllocBuffer, FreeBuffer, ibv_context, ibv_pd, ibv_td};
use crate::guard::verb;
use crate::ours::{Destroy, Of, ours};
use crate::pd::{IronPd, PdKind};
use crate::users::{Use, Users};
use driver::dma::Buffers;
use libc::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The `resource_type` of every buffer: a queue of work requests or completions.
const QUEUE: u64 = 1;
const MASK: u32 = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;

/// The provider's thread domain: objects in it are used by a single thread. It does not skip locks, which are cheap here.
#[repr(C)]
pub struct IronTd {
    public: ibv_td,
    /// Parent domains that refer to it.
    pub users: Users,
    _context: Use,
}

ours!(IronTd: ibv_td);

/// `ibv_alloc_td`. `attr` is a mask of extensions; none is defined.
pub extern "C" fn alloc_td(context: Of<ibv_context>, attr: Option<&u32>) -> Option<Of<ibv_td>> {
    verb(context, || {
        if attr.is_some_and(|mask| *mask != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let (public, users) = (ibv_td { context: context.raw() }, Users::default());
        Ok(Of::made(IronTd { public, users, _context: context.users.hold() }))
    })
}

/// `ibv_dealloc_td`. Fails with EBUSY while a parent domain refers to it.
impl Destroy for ibv_td {
    fn leave(td: Of<Self>) -> Result<(), c_int> {
        td.users.none()
    }
}

/// The program's allocators.
struct Allocators {
    /// The parent domain to pass to them.
    domain: AtomicPtr<ibv_pd>,
    context: AtomicPtr<c_void>,
    alloc: AllocBuffer,
    free: FreeBuffer,
}

// SAFETY: the program's allocators promise this to ibv_alloc_parent_domain(3).
unsafe impl Buffers for Allocators {
    fn obtain(&self, len: usize, align: usize) -> Result<Option<NonNull<u8>>, driver::Error> {
        let (domain, context) = (self.domain.load(Ordering::Acquire), self.context.load(Ordering::Relaxed));
        // SAFETY: the program's function, called as the interface specifies.
        let got = unsafe { (self.alloc)(domain, context, len, align, QUEUE) };
        if got as usize == abi::IBV_ALLOCATOR_USE_DEFAULT {
            return Ok(None);
        }
        let no_memory = || driver::Error::Invalid {
            what: "the program's allocator has no memory".into(),
            errno: libc::ENOMEM,
        };
        NonNull::new(got.cast()).map(Some).ok_or_else(no_memory)
    }

    fn give_back(&self, ptr: NonNull<u8>) {
        let (domain, context) = (self.domain.load(Ordering::Acquire), self.context.load(Ordering::Relaxed));
        // SAFETY: as above, with memory that its allocator returned.
        unsafe { (self.free)(domain, context, ptr.as_ptr().cast(), QUEUE) }
    }
}

/// `ibv_alloc_parent_domain`. Queues created in it are allocated by its allocators; doorbell records are allocated by the provider.
pub extern "C" fn alloc_parent_domain(
    context: Of<ibv_context>,
    attr: &ibv_parent_domain_init_attr,
) -> Option<Of<ibv_pd>> {
    verb(context, || {
        let has = |bit| attr.comp_mask & bit != 0;
        let pd = attr.pd.filter(|pd| attr.comp_mask & !MASK == 0 && !pd.is_parent_domain());
        let pd = pd.ok_or(libc::EINVAL)?;
        let context_of = match has(abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) {
            true => attr.pd_context,
            false => std::ptr::null_mut(),
        };
        let allocators = match has(abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
            false => None,
            true => Some(Arc::new(Allocators {
                domain: AtomicPtr::default(),
                context: AtomicPtr::new(context_of),
                alloc: attr.alloc.ok_or(libc::EINVAL)?,
                free: attr.free.ok_or(libc::EINVAL)?,
            })),
        };
        let buffers = allocators.clone().map(|allocators| allocators as Arc<dyn Buffers>);
        let inner = driver::Pd::face(&pd.inner, buffers);
        let kind = PdKind::Parent { _pd: pd.users.hold(), _td: attr.td.map(|td| td.users.hold()) };
        let made = IronPd::publish(context, inner, kind);
        if let Some(allocators) = allocators {
            allocators.domain.store(made.raw(), Ordering::Release);
        }
        Ok(made)
    })
}
