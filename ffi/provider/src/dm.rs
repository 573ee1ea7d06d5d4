//! Device memory, and null memory regions.

use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dm};
use crate::abi::public::{ibv_context, ibv_mr, ibv_pd};
use crate::convert;
use crate::guard::{Birth, answer, lock, verb};
use crate::mr::{IronMr, TYPE_NONE, access_flags};
use crate::ours::{Destroy, Of, ends_inner, list, ours};
use crate::users::Use;
use libc::{c_int, c_uint, size_t};
use node::place::Place;
use std::ptr::null_mut;
use std::slice;
use std::sync::{Arc, Mutex};

/// `ibv_dm.comp_mask`: the handle is valid.
const HANDLE: u32 = 1;

/// Devices that forked children opened for themselves.
static IN_CHILD: Mutex<Vec<(Birth, String, Arc<driver::Device>)>> = Mutex::new(Vec::new());

/// Opens the device at `place` for a forked child, because the device that its parent opened belongs to the parent. Only device memory is
/// supported this way: it needs no other object of the parent.
#[cold]
fn in_child(place: &Place) -> Result<Arc<driver::Device>, c_int> {
    let mut opened = lock(&IN_CHILD);
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

// A forked child can allocate its own device memory ([`in_child`]).
ours!(IronDm: ibv_dm, |dm: Of<ibv_dm>| dm.birth);

impl IronDm {
    /// Allocates the object that the program gets.
    pub fn publish(context: Of<ibv_context>, inner: Arc<driver::Dm>) -> Of<ibv_dm> {
        let public = ibv_dm {
            context: context.raw(),
            memcpy_to_dm: Some(to_dm),
            memcpy_from_dm: Some(from_dm),
            comp_mask: HANDLE,
            handle: inner.handle(),
        };
        Of::made(Self { public, inner, birth: Birth::here(), _context: context.users.hold() })
    }
}

/// `ibv_alloc_dm`.
pub extern "C" fn alloc_dm(context: Of<ibv_context>, attr: &ibv_alloc_dm_attr) -> Option<Of<ibv_dm>> {
    answer(|| {
        if attr.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        let device = match context.birth.is_here() {
            true => context.device.clone(),
            false => in_child(&context.library_device().place)?,
        };
        let inner = driver::Dm::alloc(&device, attr.length as u64, attr.log_align_req);
        let inner = inner.map_err(convert::not_made)?;
        let handle = inner.handle();
        let dm = IronDm::publish(context, inner);
        context.exports.dms.enter(dm, handle);
        Ok(dm)
    })
}

/// `ibv_free_dm`. Fails with EBUSY while memory regions refer to it.
impl Destroy for ibv_dm {
    fn leave(dm: Of<Self>) -> Result<(), c_int> {
        if Arc::strong_count(&dm.inner) > 1 {
            return Err(libc::EBUSY);
        }
        dm.context().exports.dms.leave(dm.raw());
        Ok(())
    }

    ends_inner!();
}

/// `ibv_memcpy_to_dm`.
///
/// # Safety
/// Called by programs with `length` readable bytes (V4).
unsafe extern "C" fn to_dm(dm: Of<ibv_dm>, offset: u64, from: *const u8, length: size_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    verb(dm, || dm.inner.write(offset, unsafe { list(from, length) }))
}

/// `ibv_memcpy_from_dm`.
///
/// # Safety
/// Called by programs with room for `length` bytes (V4).
unsafe extern "C" fn from_dm(to: *mut u8, dm: Of<ibv_dm>, offset: u64, length: size_t) -> c_int {
    verb(dm, || {
        // SAFETY: guaranteed by the caller.
        let bytes = if length == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(to, length) } };
        dm.inner.read(offset, bytes)
    })
}

/// `ibv_reg_dm_mr`.
pub extern "C" fn reg_dm_mr(
    pd: Of<ibv_pd>,
    dm: Of<ibv_dm>,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> Option<Of<ibv_mr>> {
    verb(pd, || {
        let rights = access_flags(access)?;
        let inner = driver::Mr::of_device(&pd.inner, &dm.inner, offset, length, rights);
        let inner = inner.map_err(convert::not_made)?;
        let keys = (inner.lkey(), inner.rkey());
        Ok(IronMr::publish(pd, (null_mut(), length), 0, keys, TYPE_NONE, access as c_int, Some(inner)))
    })
}

/// `ibv_alloc_null_mr`.
pub extern "C" fn alloc_null_mr(pd: Of<ibv_pd>) -> Option<Of<ibv_mr>> {
    verb(pd, || {
        let key = pd.context().device.null_key()?;
        Ok(IronMr::publish(pd, (null_mut(), 0), 0, (key, 0), TYPE_NONE, 0, None))
    })
}
