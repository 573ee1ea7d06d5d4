//! Memory windows.

use crate::abi::memory::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info};
use crate::abi::public::{ibv_pd, ibv_qp};
use crate::guard::{guard_int, guard_ptr};
use crate::mr::IronMr;
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::qp::IronQp;
use crate::users::Use;
use driver::{AccessFlags, InPlace, MwBind, MwType, SendFlags, SendOp};
use libc::{c_int, c_uint};

/// The provider's memory window. Programs see its first member.
#[repr(C)]
pub struct IronMw {
    public: ibv_mw,
    inner: driver::Mw,
    _pd: Use,
}

ours!(IronMw: ibv_mw);

/// `ibv_alloc_mw`.
///
/// # Safety
/// Called by programs with a PD of this provider.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    guard_ptr(|| {
        // SAFETY: V1 and V2 for the PD, V3 for its context.
        let (context, ours) = unsafe { ((*pd).context, IronPd::of(pd)) };
        // SAFETY: V1, V2.
        unsafe { IronPd::context(pd) }.birth.check()?;
        let of = match kind {
            IBV_MW_TYPE_1 => MwType::One,
            IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(libc::EINVAL),
        };
        let inner = driver::Mw::alloc(&ours.inner, of).map_err(|e| e.errno())?;
        let rkey = inner.rkey();
        let public = ibv_mw { context, pd, rkey, handle: rkey >> 8, kind };
        Ok(IronMw { public, inner, _pd: ours.users.hold() }.into_public())
    })
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// Called by programs as the last use of a window of this provider.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: V1, V2 and V5 for the window, V3 for its PD and context.
    unsafe { destroy(mw, |_| Ok(()), |ours: &mut IronMw| ours.inner.destroy_in_place()) }
}

/// The memory range to bind a window to.
///
/// # Safety
/// The MR in `info` is null or belongs to this provider.
unsafe fn part<'a>(info: &ibv_mw_bind_info) -> Result<MwBind<'a>, c_int> {
    let mr = match info.mr.is_null() {
        true => None,
        // SAFETY: guaranteed by the caller: V1 and V2. A null MR has no memory, and an imported MR's memory belongs to its exporter.
        false => Some(unsafe { IronMr::of(info.mr) }.memory().ok_or(libc::EINVAL)?),
    };
    let access = AccessFlags::from_bits(info.mw_access_flags).ok_or(libc::EINVAL)?;
    Ok(MwBind { mr, addr: info.addr, len: info.length, access })
}

/// `ibv_bind_mw`, for windows of type 1. libibverbs has already checked type and PDs.
///
/// # Safety
/// Called by programs with a QP and a window of this provider.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for QP and window, V4 for `bind`, V1 for the region that it names.
        unsafe {
            let (queue, window) = (IronQp::of(qp), IronMw::of(mw));
            queue.birth.check()?;
            let flags = SendFlags::from_bits((*bind).send_flags).ok_or(libc::EINVAL)?;
            window.inner.bind(&queue.inner, (*bind).wr_id, flags, &part(&(*bind).bind_info)?)?;
            (*mw).rkey = window.inner.rkey();
        }
        Ok(())
    })
}

/// Builds the work request that binds a window of type 2 (`IBV_WR_BIND_MW`, `ibv_wr_bind_mw`).
///
/// # Safety
/// The window and the MR are null or belong to this provider.
#[cold]
pub unsafe fn binding(mw: *const ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, c_int> {
    if mw.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller: V1 and V2 for the window, V1 for the region of `info`.
    unsafe {
        let window = &IronMw::of(mw).inner;
        match window.kind() {
            MwType::One => Err(libc::EINVAL),
            MwType::Two => window.binding(rkey, &part(info)?),
        }
    }
}
