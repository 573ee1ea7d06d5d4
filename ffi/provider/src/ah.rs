//! Address handles.

use crate::abi::public::{ibv_ah, ibv_ah_attr, ibv_pd};
use crate::context::Context;
use crate::convert;
use crate::guard::{guard_int, guard_ptr};
use crate::pd::IronPd;
use libc::c_int;
use std::sync::Arc;

/// Our address handle; the program knows its first member.
#[repr(C)]
pub struct IronAh {
    public: ibv_ah,
    /// The driver's.
    pub inner: Arc<driver::Ah>,
}

impl IronAh {
    /// The address handle behind what the program holds.
    ///
    /// # Safety
    /// `ah` is one [`create_ah`] made, not yet destroyed.
    #[inline]
    pub unsafe fn of<'a>(ah: *const ibv_ah) -> &'a Self {
        // SAFETY: V1, V2.
        unsafe { &*ah.cast::<Self>() }
    }
}

/// `ibv_create_ah`; the library sets the public members afterwards.
///
/// # Safety
/// Called by libibverbs with a PD of ours.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard_ptr(|| {
        // SAFETY: V1 and V2 for the PD, V3 for its context, V4 for `attr`.
        let (owner, context, attr) = unsafe { (IronPd::of(pd), (*pd).context, &*attr) };
        // SAFETY: V3: the PD keeps its context.
        unsafe { Context::of(context) }.check_birth()?;
        let inner = driver::Ah::create(&owner.inner, &convert::ah_from_c(attr)).map_err(|e| e.errno())?;
        owner.users.add();
        let public = ibv_ah { context, pd, handle: 0 };
        Ok(Box::into_raw(Box::new(IronAh { public, inner })).cast())
    })
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// Called by libibverbs with an address handle of ours, for the last time.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2 and V5 for the handle, V3 for its PD and context.
        unsafe {
            let pd = IronPd::of((*ah).pd);
            if Context::of((*ah).context).birth.is_here() {
                drop(Box::from_raw(ah.cast::<IronAh>()));
                pd.users.remove();
            }
        }
        Ok(())
    })
}
