//! Protection domains.

use crate::abi::public::{ibv_context, ibv_pd};
use crate::context::Context;
use crate::guard::{guard_int, guard_ptr};
use libc::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts the objects that use another, which can only be destroyed when there are none left.
#[derive(Default)]
pub struct Users(AtomicU32);

impl Users {
    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// EBUSY while there are any.
    pub fn none(&self) -> Result<(), c_int> {
        if self.0.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(libc::EBUSY) }
    }
}

/// Our PD; the program knows its first member.
#[repr(C)]
pub struct IronPd {
    public: ibv_pd,
    /// The driver's.
    pub inner: Arc<driver::Pd>,
    /// MRs and QPs in it.
    pub users: Users,
}

impl IronPd {
    /// The PD behind what the program holds.
    ///
    /// # Safety
    /// `pd` is one [`alloc_pd`] made, not yet deallocated.
    pub unsafe fn of<'a>(pd: *const ibv_pd) -> &'a Self {
        // SAFETY: by contract; it is our first member.
        unsafe { &*pd.cast::<Self>() }
    }
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// Called by libibverbs with an open context of ours.
pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard_ptr(|| {
        // SAFETY: by contract.
        let ours = unsafe { Context::of(context) };
        ours.check_birth()?;
        let inner = driver::Pd::alloc(&ours.device).map_err(|e| e.errno())?;
        ours.users.add();
        let public = ibv_pd { context, handle: 0 };
        Ok(Box::into_raw(Box::new(IronPd { public, inner, users: Users::default() })).cast())
    })
}

/// `ibv_dealloc_pd`.
///
/// # Safety
/// Called by libibverbs with a PD of ours.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard_int(|| {
        // SAFETY: by contract; after the checks this is its last use.
        let (context, ours) = unsafe {
            let context = Context::of((*pd).context);
            if !context.birth.is_here() {
                return Ok(());
            }
            IronPd::of(pd).users.none()?;
            (context, Box::from_raw(pd.cast::<IronPd>()))
        };
        let result = ours.inner.dealloc().map_err(|e| e.errno());
        context.users.remove();
        result
    })
}
