//! Protection domains.

use crate::abi::public::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::guard::guard_ptr;
use crate::ours::{Ours, destroy, ours};
use crate::users::{Use, Users};
use driver::InPlace;
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
    pub kind: PdKind,
    pub context: Use,
}

ours!(IronPd: ibv_pd);

/// How a PD came to be.
pub enum PdKind {
    /// By `ibv_alloc_pd`.
    Own,
    /// By `ibv_alloc_parent_domain`, of the domain whose objects it shares and of its thread domain, if any.
    Parent { _pd: Use, _td: Option<Use> },
    /// By `ibv_import_pd`, from another.
    Imported { _origin: Use },
}

impl IronPd {
    /// Makes the object that the program knows.
    ///
    /// # Safety
    /// `context` is an open one of ours.
    pub unsafe fn publish(context: *mut ibv_context, inner: Arc<driver::Pd>, kind: PdKind) -> *mut ibv_pd {
        let public = ibv_pd { context, handle: inner.pdn() };
        // SAFETY: the caller's promise: V1.
        let context = unsafe { Context::of(context) }.users.hold();
        Self { public, inner, users: Users::default(), kind, context }.into_public()
    }

    /// True if it was made by `ibv_alloc_parent_domain`.
    pub fn is_parent_domain(&self) -> bool {
        matches!(self.kind, PdKind::Parent { .. })
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
        ours.birth.check()?;
        let inner = driver::Pd::alloc(&ours.device).map_err(|e| e.errno())?;
        let handle = inner.pdn();
        // SAFETY: V1.
        let pd = unsafe { IronPd::publish(context, inner, PdKind::Own) };
        ours.exports.enter_pd(pd, handle);
        Ok(pd)
    })
}

/// `ibv_dealloc_pd`, of domains and parent domains; EBUSY while there is anything in it.
///
/// # Safety
/// Called by libibverbs with a PD of ours.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let leave = |context: &Context| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronPd::of(pd) };
        ours.users.none()?;
        // The context that made an import still has it, and objects may exist that were made in an import of it that is gone.
        if matches!(ours.kind, PdKind::Imported { .. }) || Arc::strong_count(&ours.inner) > 1 {
            return Err(libc::EBUSY);
        }
        context.exports.leave_pd(pd);
        Ok(())
    };
    // SAFETY: V1, V2 and V5 for the PD, V3 for its context; the checks find nobody who uses it.
    unsafe { destroy(pd, leave, |ours: &mut IronPd| ours.inner.destroy_in_place()) }
}
