//! Device memory, and null memory regions.

use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dm};
use crate::abi::public::{ibv_context, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::convert;
use crate::device::IronDevice;
use crate::guard::{Birth, guard_int, guard_ptr};
use crate::mr::{IronMr, TYPE_NONE, access_flags};
use crate::ours::{Ours, destroy};
use crate::pd::IronPd;
use crate::users::Use;
use driver::InPlace;
use libc::{c_int, c_uint, c_void, size_t};
use node::place::Place;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// `ibv_dm.comp_mask`: the handle is valid.
const HANDLE: u32 = 1;

/// Devices that forked children opened for themselves.
static IN_CHILD: Mutex<Vec<(Birth, String, Arc<driver::Device>)>> = Mutex::new(Vec::new());

/// Opens the device at `place` for a forked child, because the device that its parent opened belongs to the parent. Only device memory is
/// supported this way: it needs no other object of the parent.
#[cold]
fn in_child(place: &Place) -> Result<Arc<driver::Device>, c_int> {
    let mut opened = IN_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    let name = place.to_string();
    if let Some((.., device)) = opened.iter().find(|(birth, at, _)| birth.is_here() && *at == name) {
        return Ok(device.clone());
    }
    let device = place.open().map_err(|error| error.errno())?;
    opened.push((Birth::here(), name, device.clone()));
    Ok(device)
}

/// The provider's device memory. Programs see its first member.
#[repr(C)]
pub struct IronDm {
    public: ibv_dm,
    /// The driver's device memory.
    pub inner: Arc<driver::Dm>,
    /// The process that allocated it; this may be a forked child.
    birth: Birth,
    _context: Use,
}

const _: () = assert!(std::mem::offset_of!(IronDm, public) == 0);

// SAFETY: asserted above; `context` points to an `ibv_context`.
unsafe impl Ours for IronDm {
    type Public = ibv_dm;
    const CONTEXT: usize = std::mem::offset_of!(ibv_dm, context);

    /// A forked child can allocate device memory of its own ([`in_child`]).
    unsafe fn birth(dm: *const ibv_dm) -> Birth {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::of(dm) }.birth
    }
}

impl IronDm {
    /// Allocates the object that the program gets.
    ///
    /// # Safety
    /// `context` is an open context of this provider.
    pub unsafe fn hand_out(context: *mut ibv_context, inner: Arc<driver::Dm>) -> *mut ibv_dm {
        let public = ibv_dm {
            context,
            memcpy_to_dm: Some(to_dm),
            memcpy_from_dm: Some(from_dm),
            comp_mask: HANDLE,
            handle: inner.handle(),
        };
        // SAFETY: guaranteed by the caller: V1.
        let context = unsafe { Context::of(context) }.users.hold();
        Self { public, inner, birth: Birth::here(), _context: context }.into_public()
    }
}

/// `ibv_alloc_dm`.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `attr`.
        let (ours, attr) = unsafe { (Context::of(context), &*attr) };
        if attr.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        let device = match ours.birth.is_here() {
            true => ours.device.clone(),
            // SAFETY: the device of a context is an `IronDevice`.
            false => in_child(unsafe { &(*(*context).device.cast::<IronDevice>()).place })?,
        };
        let inner = driver::Dm::alloc(&device, attr.length as u64, attr.log_align_req);
        let inner = inner.map_err(convert::not_made)?;
        let handle = inner.handle();
        // SAFETY: V1 for the context.
        let dm = unsafe { IronDm::hand_out(context, inner) };
        ours.exports.enter_dm(dm, handle);
        Ok(dm)
    })
}

/// `ibv_free_dm`. Fails with EBUSY while memory regions refer to it.
///
/// # Safety
/// Called by programs as the last use of device memory of this provider, unless the call fails.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let leave = |context: &Context| {
        // SAFETY: V1, V2.
        if Arc::strong_count(&unsafe { IronDm::of(dm) }.inner) > 1 {
            return Err(libc::EBUSY);
        }
        context.exports.leave_dm(dm);
        Ok(())
    };
    // SAFETY: V1, V2 and V5 for the device memory, V3 for its context.
    unsafe { destroy(dm, leave, |ours: &mut IronDm| ours.inner.destroy_in_place()) }
}

/// `ibv_memcpy_to_dm`.
unsafe extern "C" fn to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: size_t) -> c_int {
    guard_int(|| {
        // SAFETY: called by programs with device memory of this provider and `length` readable bytes.
        unsafe {
            IronDm::of(dm).birth.check()?;
            let bytes: &[u8] =
                if length == 0 { &[] } else { std::slice::from_raw_parts(from.cast(), length) };
            IronDm::of(dm).inner.write(offset, bytes)
        }
    })
}

/// `ibv_memcpy_from_dm`.
unsafe extern "C" fn from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: size_t) -> c_int {
    guard_int(|| {
        // SAFETY: called by programs with device memory of this provider and room for `length` bytes.
        unsafe {
            IronDm::of(dm).birth.check()?;
            let inner = &IronDm::of(dm).inner;
            let bytes: &mut [u8] =
                if length == 0 { &mut [] } else { std::slice::from_raw_parts_mut(to.cast(), length) };
            inner.read(offset, bytes)
        }
    })
}

/// `ibv_reg_dm_mr`.
///
/// # Safety
/// Called by programs with a PD and device memory of one context of this provider.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    guard_ptr(|| {
        // SAFETY: V1 and V2 for PD and device memory, V3 for the PD's context.
        let (ours, memory) = unsafe {
            IronPd::context(pd).birth.check()?;
            (IronPd::of(pd), IronDm::of(dm))
        };
        let rights = access_flags(access)?;
        let inner = driver::Mr::of_device(&ours.inner, &memory.inner, offset, length, rights);
        let inner = inner.map_err(convert::not_made)?;
        let keys = (inner.lkey(), inner.rkey());
        let bytes = (null_mut(), length);
        // SAFETY: V1 and V2 for the PD.
        Ok(unsafe { IronMr::hand_out(pd, bytes, keys, TYPE_NONE, access as c_int, Some(inner)) })
    })
}

/// `ibv_alloc_null_mr`.
///
/// # Safety
/// Called by programs with a PD of this provider.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    guard_ptr(|| {
        // SAFETY: V1 for the PD, V3 for its context.
        let context = unsafe { IronPd::context(pd) };
        context.birth.check()?;
        let key = context.device.null_key().map_err(|e| e.errno())?;
        // SAFETY: V1 and V2 for the PD.
        Ok(unsafe { IronMr::hand_out(pd, (null_mut(), 0), (key, 0), TYPE_NONE, 0, None) })
    })
}
