//! Shared receive queues.

use crate::abi::public::{self as abi, ibv_context, ibv_pd, ibv_srq};
use crate::abi::public::{ibv_recv_wr, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::context::Context;
use crate::cq::IronCq;
use crate::events::acknowledged;
use crate::guard::{Birth, guard, guard_int, guard_ptr};
use crate::huge::{self, Queue};
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::post;
use crate::users::{Use, Users};
use crate::xrc::IronXrcd;
use driver::{InPlace, PostError, SrqInit};
use libc::{c_int, c_uint};
use std::sync::Arc;

/// The provider's SRQ. Programs see its first member.
#[repr(C)]
pub struct IronSrq {
    public: ibv_srq,
    /// The driver's SRQ.
    pub inner: Arc<driver::Srq>,
    /// QPs attached to it.
    pub users: Users,
    birth: Birth,
    cookie: u64,
    /// The objects it refers to: its PD, and for XRC the XRC domain and the receive CQ.
    _uses: Vec<Use>,
}

ours!(IronSrq: ibv_srq);

/// `ibv_create_srq`. Writes back the actual sizes.
///
/// # Safety
/// Called by libibverbs with a PD of this provider.
pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: V1 for the PD, V4 for `init`.
    guard_ptr(|| unsafe { create(pd, (*init).srq_context, &mut (*init).attr, None) })
}

/// `ibv_create_srq_ex`, for features beyond `ibv_create_srq`.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const KNOWN: u32 = abi::IBV_SRQ_INIT_ATTR_TYPE
        | abi::IBV_SRQ_INIT_ATTR_PD
        | abi::IBV_SRQ_INIT_ATTR_XRCD
        | abi::IBV_SRQ_INIT_ATTR_CQ;
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `init`: a member is read only if `comp_mask` names it; V6 for the objects it refers to.
        unsafe {
            let init = &mut *init;
            let has = |bit| init.comp_mask & bit != 0;
            let kind = if has(abi::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { abi::IBV_SRQT_BASIC };
            // Tag matching is not supported.
            if init.comp_mask & !KNOWN != 0 || ![abi::IBV_SRQT_BASIC, abi::IBV_SRQT_XRC].contains(&kind) {
                return Err(libc::EOPNOTSUPP);
            }
            if !has(abi::IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() || (*init.pd).context != context {
                return Err(libc::EINVAL);
            }
            let mut xrc = None;
            if kind == abi::IBV_SRQT_XRC {
                let given = has(abi::IBV_SRQ_INIT_ATTR_XRCD) && has(abi::IBV_SRQ_INIT_ATTR_CQ);
                if !given || init.xrcd.is_null() || init.cq.is_null() {
                    return Err(libc::EINVAL);
                }
                xrc = Some((IronXrcd::of(init.xrcd), IronCq::of(init.cq)));
            }
            create(init.pd, init.srq_context, &mut init.attr, xrc)
        }
    })
}

/// Creates an SRQ.
///
/// # Safety
/// All pointers refer to objects of one context; those in `xrc` outlive the SRQ, because they cannot be destroyed before it.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut libc::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&'static IronXrcd, &'static IronCq)>,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: guaranteed by the caller: V1 and V2 for the PD, V3 for its context.
    let (context, ours, owner) = unsafe { ((*pd).context, IronPd::context(pd), IronPd::of(pd)) };
    ours.birth.check()?;
    let cookie = ours.targets.new_cookie();
    let init = SrqInit {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        xrc: xrc.map(|(domain, cq)| (Arc::clone(&domain.inner), Arc::clone(&cq.inner))),
        cookie,
    };
    let domain = huge::domain(&ours.huge, &owner.inner, Queue::Srq)?;
    let inner = driver::Srq::create(&domain, &init).map_err(|e| e.errno())?;
    (attr.max_wr, attr.max_sge) = inner.size();
    // SAFETY: all-zero is a valid SRQ: null pointers; the locks are initialised below.
    let mut public: ibv_srq = unsafe { std::mem::zeroed() };
    public.context = context;
    public.srq_context = srq_context;
    public.pd = pd;
    public.handle = inner.srqn();
    let mut uses = vec![owner.users.hold()];
    uses.extend(xrc.into_iter().flat_map(|(domain, cq)| [domain.users.hold(), cq.users.hold()]));
    let users = Users::default();
    let srq = IronSrq { public, inner, users, birth: ours.birth, cookie, _uses: uses }.into_public();
    // SAFETY: not shared yet.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*srq).mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*srq).cond, std::ptr::null());
    }
    ours.targets.enter(cookie, srq as usize, None);
    Ok(srq)
}

/// `ibv_modify_srq`. Sets the limit; the size is fixed at creation.
///
/// # Safety
/// Called by libibverbs with an SRQ of this provider.
pub unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for the SRQ, V4 for `attr`.
        let (ours, attr) = unsafe { (IronSrq::of(srq), &*attr) };
        ours.birth.check()?;
        let mask = mask as c_uint;
        if mask & !(abi::IBV_SRQ_MAX_WR | abi::IBV_SRQ_LIMIT) != 0 {
            return Err(libc::EINVAL);
        }
        if mask & abi::IBV_SRQ_MAX_WR != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & abi::IBV_SRQ_LIMIT != 0 {
            ours.inner.arm(attr.srq_limit).map_err(|e| e.errno())?;
        }
        Ok(())
    })
}

/// `ibv_query_srq`.
///
/// # Safety
/// Called by libibverbs with an SRQ of this provider and room for the answer.
pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronSrq::of(srq) };
        ours.birth.check()?;
        let found = ours.inner.query().map_err(|e| e.errno())?;
        // SAFETY: V4: `attr` has room.
        unsafe {
            attr.write(ibv_srq_attr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit });
        }
        Ok(())
    })
}

/// `ibv_get_srq_num`: the number by which XRC requests address the SRQ.
///
/// # Safety
/// Called by programs with an SRQ of this provider and room for the answer.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronSrq::of(srq) };
        if !ours.inner.is_xrc() {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: V4: `number` has room.
        unsafe { number.write(ours.inner.srqn()) };
        Ok(())
    })
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// Called by programs with an SRQ of this provider and a list of receive work requests.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: V1 and V2 for the SRQ, V4 for the list and for `bad`.
        unsafe {
            let ours = IronSrq::of(srq);
            post::receives(wr, bad, |walk| match ours.birth.check() {
                Ok(()) => ours.inner.post_recv(walk),
                Err(errno) => Err(PostError { index: 0, errno }),
            })
        }
    })
}

/// `ibv_destroy_srq`. Waits until the program has acknowledged every event of the SRQ that it read.
///
/// # Safety
/// Called by libibverbs with an SRQ of this provider.
pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: V1, V2 and V5 for the SRQ, V3 for its context; once its events are acknowledged it has no other user.
    unsafe {
        let leave = |context: &Context| {
            IronSrq::of(srq).users.none()?;
            let sent = context.targets.leave(IronSrq::of(srq).cookie).errors;
            let counter = (&raw const (*srq).events_completed, sent);
            acknowledged(&raw mut (*srq).mutex, &raw mut (*srq).cond, &[counter]);
            Ok(())
        };
        destroy(srq, leave, |ours: &mut IronSrq| ours.inner.destroy_in_place())
    }
}
