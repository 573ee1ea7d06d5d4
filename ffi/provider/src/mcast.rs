//! Multicast groups.

use crate::abi::public::{Gid, ibv_qp};
use crate::guard::guard_int;
use crate::ours::Ours;
use crate::qp::IronQp;
use libc::c_int;

/// `ibv_attach_mcast`.
///
/// # Safety
/// Called by libibverbs with a QP of this provider and a GID.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const Gid, lid: u16) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for the QP, V4 for `gid`.
        let (ours, gid) = unsafe { (IronQp::of(qp), gid.as_ref().ok_or(libc::EINVAL)?) };
        ours.birth.check()?;
        ours.inner.attach_mcast(&gid.0, lid).map_err(|e| e.errno())
    })
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// Called by libibverbs with a QP of this provider and a GID.
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const Gid, lid: u16) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for the QP, V4 for `gid`.
        let (ours, gid) = unsafe { (IronQp::of(qp), gid.as_ref().ok_or(libc::EINVAL)?) };
        ours.birth.check()?;
        ours.inner.detach_mcast(&gid.0, lid).map_err(|e| e.errno())
    })
}
