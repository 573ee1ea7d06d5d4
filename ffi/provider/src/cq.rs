//! Completion queues.

use crate::abi::public::{self as abi, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_pd, ibv_wc};
use crate::context::io_errno;
use crate::events::withdraw;
use crate::guard::{Birth, answer, guard, verb};
use crate::huge::{self, Queue};
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::poll;
use crate::users::{Use, Users};
use driver::{Completion, CqInit, RawCompletion};
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The provider's CQ. Programs see its first member, as `ibv_cq` or `ibv_cq_ex`.
#[repr(C)]
pub struct IronCq {
    /// The fields and functions that programs access.
    pub public: ibv_cq_ex,
    /// The driver's CQ.
    pub inner: Arc<driver::Cq>,
    birth: Birth,
    cookie: u64,
    /// QPs that complete to it.
    pub users: Users,
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub polling: AtomicBool,
    /// The completion that the readers of `ibv_cq_ex` return. Owned by the thread that holds `polling`.
    pub current: UnsafeCell<Current>,
    /// The parent domain it was created in, if any.
    _domain: Option<Use>,
    _context: Use,
}

ours!(IronCq: ibv_cq, |cq: Of<ibv_cq>| cq.birth);

/// A completion: as converted by the driver, and as the device wrote it.
#[derive(Default)]
pub struct Current {
    /// The fields that every completion has.
    pub completion: Completion,
    /// True if some reader needs fields that only the CQE has.
    pub reads_raw: bool,
    /// The CQE, if `reads_raw` is set.
    pub raw: RawCompletion,
}

/// The attributes of a CQ to create.
pub struct Wanted<'a> {
    /// Minimum number of entries.
    pub entries: i64,
    /// The completion channel.
    pub channel: Option<&'a ibv_comp_channel>,
    /// Completion vector.
    pub vector: i64,
    /// True if overruns are ignored.
    pub ignore_overrun: bool,
    /// A parent domain.
    pub domain: Option<Of<ibv_pd>>,
}

impl IronCq {
    /// Creates a CQ. libibverbs sets the channel and context members afterwards; all other members are set here, or by `fill`.
    pub fn create(
        context: Of<ibv_context>,
        wanted: &Wanted<'_>,
        fill: impl FnOnce(&mut Self),
    ) -> Result<Of<ibv_cq>, c_int> {
        let &Wanted { entries, channel, vector, ignore_overrun, domain } = wanted;
        context.birth.check()?;
        let vectors = i64::from(context.completion_vectors());
        let vector = u32::try_from(vector).ok().filter(|vector| i64::from(*vector) < vectors);
        let vector = vector.ok_or(libc::EINVAL)?;
        let channel =
            channel.map(|channel| context.channels.get(channel.fd).ok_or(libc::EINVAL)).transpose()?;
        let most = context.device.attr().max_cqe;
        let entries = u32::try_from(entries).ok().filter(|n| (1..=most).contains(n));
        let cookie = context.targets.new_cookie();
        let init = CqInit { entries: entries.ok_or(libc::EINVAL)?, cookie, vector, ignore_overrun };
        context.pump.attend(vector).map_err(io_errno)?;
        let own = domain.and_then(|domain| domain.inner.buffers().cloned());
        let buffers = huge::buffers(&context.huge, own, Queue::Cq)?;
        let inner = driver::Cq::create_with(&context.device, &init, buffers.as_ref())?;
        // SAFETY: all-zero is a valid CQ: null pointers, no functions; the library initialises the locks.
        let mut public: ibv_cq_ex = unsafe { std::mem::zeroed() };
        public.base.context = context.raw();
        public.base.handle = cookie as u32;
        public.base.cqe = inner.entries().min(i32::MAX as u32) as c_int;
        let mut cq = Self {
            public,
            inner,
            birth: context.birth,
            cookie,
            users: Users::default(),
            polling: AtomicBool::new(false),
            current: UnsafeCell::default(),
            _domain: domain.map(|domain| domain.users.hold()),
            _context: context.users.hold(),
        };
        fill(&mut cq);
        let cq = Of::<ibv_cq>::made(cq);
        context.targets.enter(cookie, cq.raw() as usize, channel);
        Ok(cq)
    }
}

/// `ibv_create_cq`.
pub extern "C" fn create_cq(
    context: Of<ibv_context>,
    cqe: c_int,
    channel: Option<&ibv_comp_channel>,
    vector: c_int,
) -> Option<Of<ibv_cq>> {
    let (entries, vector) = (i64::from(cqe), i64::from(vector));
    let wanted = Wanted { entries, channel, vector, ignore_overrun: false, domain: None };
    answer(|| IronCq::create(context, &wanted, |_| {}))
}

/// `ibv_destroy_cq`. Waits until the program has acknowledged every event of the CQ that it read.
impl Destroy for ibv_cq {
    fn leave(cq: Of<Self>) -> Result<(), c_int> {
        cq.users.none()?;
        withdraw!(cq, comp_events_completed: completions, async_events_completed: errors);
        Ok(())
    }

    ends_inner!();
}

/// `ibv_poll_cq`: returns the number of completions, or a negative value on failure.
///
/// # Safety
/// Called by programs with room for `count` completions (V4).
pub unsafe extern "C" fn poll_cq(cq: Of<ibv_cq>, count: c_int, wc: *mut ibv_wc) -> c_int {
    guard(-libc::EIO, || {
        if count <= 0 {
            return if count == 0 { 0 } else { -libc::EINVAL };
        }
        if !cq.birth.is_here() {
            return -libc::EIO;
        }
        // SAFETY: guaranteed by the caller.
        match unsafe { poll::take(&cq.inner, count as usize, wc) } {
            0 if cq.inner.is_gone() => -libc::EIO,
            taken => taken as c_int,
        }
    })
}

/// `ibv_req_notify_cq`.
pub extern "C" fn req_notify_cq(cq: Of<ibv_cq>, solicited_only: c_int) -> c_int {
    verb(cq, || {
        cq.inner.arm(solicited_only != 0);
        Ok(())
    })
}

/// `ibv_resize_cq`. Stores the new size in the CQ.
pub extern "C" fn resize_cq(cq: Of<ibv_cq>, cqe: c_int) -> c_int {
    verb(cq, || {
        let entries = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        cq.inner.resize(entries)?;
        let entries = cq.inner.entries().min(i32::MAX as u32) as c_int;
        // SAFETY: V1. The store is atomic because another thread may resize the CQ at the same time.
        unsafe { AtomicI32::from_ptr(&raw mut (*cq.raw()).cqe) }.store(entries, Ordering::Relaxed);
        Ok(())
    })
}

/// `ibv_modify_cq`: sets event moderation.
pub extern "C" fn modify_cq(cq: Of<ibv_cq>, attr: &abi::ibv_modify_cq_attr) -> c_int {
    verb(cq, || {
        if attr.attr_mask & !abi::IBV_CQ_ATTR_MODERATE != 0 {
            return Err(libc::EINVAL);
        }
        if attr.attr_mask == 0 {
            return Ok(());
        }
        let abi::ibv_moderate_cq { cq_count, cq_period } = attr.moderate;
        Ok(cq.inner.moderate(cq_count, cq_period)?)
    })
}
