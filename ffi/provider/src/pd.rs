//! Protection domains.

use crate::abi::public::{ibv_context, ibv_pd, ibv_td};
use crate::context::Context;
use crate::guard::{guard_int, guard_ptr};
use crate::parent_domain::IronTd;
use crate::users::Users;
use libc::c_int;
use std::sync::Arc;

/// Our PD; the program knows its first member.
#[repr(C)]
pub struct IronPd {
    public: ibv_pd,
    /// The driver's.
    pub inner: Arc<driver::Pd>,
    /// MRs and QPs in it.
    pub users: Users,
    parents: Option<Parents>,
    /// Null, or the domain it was imported from.
    pub origin: *mut ibv_pd,
}

/// The parts of a parent domain.
#[derive(Clone, Copy)]
pub struct Parents {
    /// The domain whose objects it shares.
    pub pd: *mut ibv_pd,
    /// Null, or its thread domain.
    pub td: *mut ibv_td,
}

impl IronPd {
    /// Makes the object that the program knows.
    pub fn publish(
        context: *mut ibv_context,
        inner: Arc<driver::Pd>,
        parents: Option<Parents>,
    ) -> *mut ibv_pd {
        let public = ibv_pd { context, handle: inner.pdn() };
        let origin = std::ptr::null_mut();
        Box::into_raw(Box::new(Self { public, inner, users: Users::default(), parents, origin })).cast()
    }

    /// As [`IronPd::publish`], for a domain of another context.
    pub fn imported(context: *mut ibv_context, inner: Arc<driver::Pd>, origin: *mut ibv_pd) -> *mut ibv_pd {
        let pd = Self::publish(context, inner, None);
        // SAFETY: just made, known to nobody else.
        unsafe { (*pd.cast::<Self>()).origin = origin };
        pd
    }

    /// True if it was made by `ibv_alloc_parent_domain`.
    pub fn is_parent_domain(&self) -> bool {
        self.parents.is_some()
    }

    /// The PD behind what the program holds.
    ///
    /// # Safety
    /// `pd` is one [`alloc_pd`] made, not yet deallocated.
    pub unsafe fn of<'a>(pd: *const ibv_pd) -> &'a Self {
        // SAFETY: V1, V2.
        unsafe { &*pd.cast::<Self>() }
    }
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// Called by libibverbs with an open context of ours.
pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard_ptr(|| {
        // SAFETY: V1.
        let ours = unsafe { Context::of(context) };
        ours.check_birth()?;
        let inner = driver::Pd::alloc(&ours.device).map_err(|e| e.errno())?;
        ours.users.add();
        let pd = IronPd::publish(context, inner, None);
        // SAFETY: just made.
        ours.exports.enter_pd(pd, unsafe { (*pd).handle });
        Ok(pd)
    })
}

/// `ibv_dealloc_pd`, of domains and parent domains; EBUSY while there is anything in it.
///
/// # Safety
/// Called by libibverbs with a PD of ours.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2 and V5 for the PD, V3 for its context; the checks find nobody who uses it.
        let (context, ours) = unsafe {
            let context = Context::of((*pd).context);
            if !context.birth.is_here() {
                return Ok(());
            }
            IronPd::of(pd).users.none()?;
            if !IronPd::of(pd).origin.is_null() {
                // The context that made it still has it.
                return Err(libc::EBUSY);
            }
            if Arc::strong_count(&IronPd::of(pd).inner) > 1 {
                // Objects that were made in an import of it exist, though the import is gone.
                return Err(libc::EBUSY);
            }
            context.exports.leave_pd(pd);
            (context, Box::from_raw(pd.cast::<IronPd>()))
        };
        let parents = ours.parents;
        let result = ours.inner.dealloc().map_err(|e| e.errno());
        if let Some(parents) = parents {
            // SAFETY: they could not go before it.
            unsafe {
                IronPd::of(parents.pd).users.remove();
                if !parents.td.is_null() {
                    IronTd::of(parents.td).users.remove();
                }
            }
        }
        context.users.remove();
        result
    })
}
