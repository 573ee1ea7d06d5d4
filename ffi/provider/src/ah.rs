//! Address handles.

use crate::abi::public::{ibv_ah, ibv_ah_attr, ibv_pd};
use crate::convert;
use crate::guard::guard_ptr;
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::users::Use;
use libc::c_int;
use std::sync::Arc;

/// The provider's address handle. Programs see its first member.
#[repr(C)]
pub struct IronAh {
    public: ibv_ah,
    /// The driver's address handle.
    pub inner: Arc<driver::Ah>,
    _pd: Use,
}

ours!(IronAh: ibv_ah);

/// `ibv_create_ah`; the library sets the public members afterwards.
///
/// # Safety
/// Called by libibverbs with a PD of this provider.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard_ptr(|| {
        // SAFETY: V1 and V2 for the PD, V3 for its context, V4 for `attr`.
        let (owner, context, attr) = unsafe { (IronPd::of(pd), (*pd).context, &*attr) };
        // SAFETY: V3: the PD holds its context.
        unsafe { IronPd::context(pd) }.birth.check()?;
        let inner = driver::Ah::create(&owner.inner, &convert::ah_from_c(attr)).map_err(|e| e.errno())?;
        let public = ibv_ah { context, pd, handle: 0 };
        Ok(IronAh { public, inner, _pd: owner.users.hold() }.into_public())
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// Called by libibverbs as the last use of an address handle of this provider.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: V1, V2 and V5 for the handle, V3 for its PD and context.
    unsafe { destroy(ah, |_| Ok(()), |_: &mut IronAh| Ok(())) }
}
