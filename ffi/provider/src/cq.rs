//! Completion queues.

use crate::abi::public::{self as abi, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_pd, ibv_wc};
use crate::channel::Channel;
use crate::context::{Context, io_errno};
use crate::events::acknowledged;
use crate::guard::{Birth, guard, guard_int, guard_ptr};
use crate::huge::{self, Queue};
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::poll;
use crate::users::{Use, Users};
use driver::{Completion, CqInit, InPlace, RawCompletion};
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

ours!(IronCq: ibv_cq);

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
pub struct Wanted {
    /// Minimum number of entries.
    pub entries: i64,
    /// The completion channel, or null.
    pub channel: *mut ibv_comp_channel,
    /// Completion vector.
    pub vector: i64,
    /// True if overruns are ignored.
    pub ignore_overrun: bool,
    /// A parent domain, or null.
    pub domain: *mut ibv_pd,
}

impl IronCq {
    /// Creates a CQ. libibverbs sets the channel and context members afterwards; all other members are set here.
    ///
    /// # Safety
    /// `context` is an open context of this provider; `channel` and `domain` are null or belong to it.
    pub unsafe fn create(context: *mut ibv_context, wanted: &Wanted) -> Result<*mut Self, c_int> {
        let &Wanted { entries, channel, vector, ignore_overrun, domain } = wanted;
        // SAFETY: guaranteed by the caller: V1 for the context.
        let (ours, vectors) = unsafe { (Context::of(context), (*context).num_comp_vectors) };
        ours.birth.check()?;
        let vector = u32::try_from(vector).ok().filter(|vector| i64::from(*vector) < i64::from(vectors));
        let vector = vector.ok_or(libc::EINVAL)?;
        let channel: Option<Arc<Channel>> = if channel.is_null() {
            None
        } else {
            // SAFETY: guaranteed by the caller: V1 for the channel, which libibverbs created and which begins with its descriptor.
            Some(ours.channels.get(unsafe { (*channel).fd }).ok_or(libc::EINVAL)?)
        };
        let entries = u32::try_from(entries).ok().filter(|n| *n >= 1 && *n <= ours.device.attr().max_cqe);
        let cookie = ours.targets.new_cookie();
        let init = CqInit { entries: entries.ok_or(libc::EINVAL)?, cookie, vector, ignore_overrun };
        ours.pump.attend(vector).map_err(io_errno)?;
        // SAFETY: guaranteed by the caller: V1 and V2 for the domain.
        let parent = (!domain.is_null()).then(|| unsafe { IronPd::of(domain) });
        let own = parent.and_then(|parent| parent.inner.buffers()).cloned();
        let buffers = huge::buffers(&ours.huge, own, Queue::Cq)?;
        let inner = driver::Cq::create_with(&ours.device, &init, buffers.as_ref()).map_err(|e| e.errno())?;
        // SAFETY: all-zero is a valid CQ: null pointers, no functions; the library initialises the locks.
        let mut public: ibv_cq_ex = unsafe { std::mem::zeroed() };
        public.base.context = context;
        public.base.handle = cookie as u32;
        public.base.cqe = inner.entries().min(i32::MAX as u32) as c_int;
        let cq = Self {
            public,
            inner,
            birth: ours.birth,
            cookie,
            users: Users::default(),
            polling: AtomicBool::new(false),
            current: UnsafeCell::default(),
            _domain: parent.map(|parent| parent.users.hold()),
            _context: ours.users.hold(),
        };
        let cq = cq.into_public().cast::<Self>();
        ours.targets.enter(cookie, cq as usize, channel);
        Ok(cq)
    }
}

/// `ibv_create_cq`.
///
/// # Safety
/// Called by libibverbs with an open context of this provider.
pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    guard_ptr(|| {
        // SAFETY: V1 for the context, V1 and V6 for the channel; `domain` is null.
        let cq = unsafe {
            IronCq::create(
                context,
                &Wanted {
                    entries: i64::from(cqe),
                    channel,
                    vector: i64::from(vector),
                    ignore_overrun: false,
                    domain: std::ptr::null_mut(),
                },
            )
        };
        cq.map(<*mut IronCq>::cast)
    })
}

/// `ibv_destroy_cq`. Waits until the program has acknowledged every event of the CQ that it read.
///
/// # Safety
/// Called by libibverbs with a CQ of this provider.
pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: V1 and V2 for the CQ, V3 for its context, V5: once its events are acknowledged it has no other user.
    unsafe {
        let leave = |context: &Context| {
            IronCq::of(cq).users.none()?;
            let sent = context.targets.leave(IronCq::of(cq).cookie);
            let (of_cq, of_errors) =
                (&raw const (*cq).comp_events_completed, &raw const (*cq).async_events_completed);
            let counters = [(of_cq, sent.completions), (of_errors, sent.errors)];
            acknowledged(&raw mut (*cq).mutex, &raw mut (*cq).cond, &counters);
            Ok(())
        };
        destroy(cq, leave, |ours: &mut IronCq| ours.inner.destroy_in_place())
    }
}

/// `ibv_poll_cq`: returns the number of completions, or a negative value on failure.
///
/// # Safety
/// Called by programs with a CQ of this provider and room for `count` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    guard(-libc::EIO, || {
        // SAFETY: V1, V2.
        let ours = unsafe { IronCq::of(cq) };
        if count <= 0 {
            return if count == 0 { 0 } else { -libc::EINVAL };
        }
        if !ours.birth.is_here() {
            return -libc::EIO;
        }
        // SAFETY: V4: `wc` has room for `count` completions.
        match unsafe { poll::take(&ours.inner, count as usize, wc) } {
            0 if ours.inner.is_gone() => -libc::EIO,
            taken => taken as c_int,
        }
    })
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// Called by programs with a CQ of this provider.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronCq::of(cq) };
        ours.birth.check()?;
        ours.inner.arm(solicited_only != 0);
        Ok(())
    })
}

/// `ibv_resize_cq`. Stores the new size in the CQ.
///
/// # Safety
/// Called by libibverbs with a CQ of this provider.
pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronCq::of(cq) };
        ours.birth.check()?;
        let entries = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        ours.inner.resize(entries).map_err(|e| e.errno())?;
        let entries = ours.inner.entries().min(i32::MAX as u32) as c_int;
        // SAFETY: V1. The store is atomic because another thread may resize the CQ at the same time.
        unsafe { AtomicI32::from_ptr(&raw mut (*cq).cqe) }.store(entries, Ordering::Relaxed);
        Ok(())
    })
}

/// `ibv_modify_cq`: sets event moderation.
///
/// # Safety
/// Called by programs with a CQ of this provider and its new attributes.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *const abi::ibv_modify_cq_attr) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for the CQ, V4 for `attr`.
        let (ours, attr) = unsafe { (IronCq::of(cq), &*attr) };
        ours.birth.check()?;
        if attr.attr_mask & !abi::IBV_CQ_ATTR_MODERATE != 0 {
            return Err(libc::EINVAL);
        }
        if attr.attr_mask == 0 {
            return Ok(());
        }
        let abi::ibv_moderate_cq { cq_count, cq_period } = attr.moderate;
        ours.inner.moderate(cq_count, cq_period).map_err(|e| e.errno())
    })
}
