//! Protection domains.

use crate::abi::public::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::guard::guard_ptr;
use crate::ours::{Ours, destroy, ours};
use crate::users::{Use, Users};
use driver::InPlace;
use libc::c_int;
use std::sync::Arc;

/// The provider's PD. Programs see its first member.
#[repr(C)]
pub struct IronPd {
    public: ibv_pd,
    /// The driver's PD.
    pub inner: Arc<driver::Pd>,
    /// MRs and QPs in it.
    pub users: Users,
    pub kind: PdKind,
    pub context: Use,
}

ours!(IronPd: ibv_pd);

/// How a PD was created.
pub enum PdKind {
    /// By `ibv_alloc_pd`.
    Own,
    /// By `ibv_alloc_parent_domain`, from the PD with the shared objects and the thread domain, if any.
    Parent { _pd: Use, _td: Option<Use> },
    /// By `ibv_import_pd`, from another PD.
    Imported { _origin: Use },
}

impl IronPd {
    /// Allocates the object that the program gets.
    ///
    /// # Safety
    /// `context` is an open context of this provider.
    pub unsafe fn publish(context: *mut ibv_context, inner: Arc<driver::Pd>, kind: PdKind) -> *mut ibv_pd {
        let public = ibv_pd { context, handle: inner.pdn() };
        // SAFETY: guaranteed by the caller: V1.
        let context = unsafe { Context::of(context) }.users.hold();
        Self { public, inner, users: Users::default(), kind, context }.into_public()
    }

    /// True if created by `ibv_alloc_parent_domain`.
    pub fn is_parent_domain(&self) -> bool {
        matches!(self.kind, PdKind::Parent { .. })
    }
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// Called by libibverbs with an open context of this provider.
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

/// `ibv_dealloc_pd`, for PDs and parent domains. Fails with EBUSY while it contains objects.
///
/// # Safety
/// Called by libibverbs with a PD of this provider.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let leave = |context: &Context| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronPd::of(pd) };
        ours.users.none()?;
        // An imported PD still belongs to its exporter, and objects may remain from an import that is gone.
        if matches!(ours.kind, PdKind::Imported { .. }) || Arc::strong_count(&ours.inner) > 1 {
            return Err(libc::EBUSY);
        }
        context.exports.leave_pd(pd);
        Ok(())
    };
    // SAFETY: V1, V2 and V5 for the PD, V3 for its context; the checks ensure that it has no users.
    unsafe { destroy(pd, leave, |ours: &mut IronPd| ours.inner.destroy_in_place()) }
}
