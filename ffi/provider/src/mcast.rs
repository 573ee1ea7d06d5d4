//! Multicast groups.

use crate::abi::public::Gid;
use crate::guard::verb;
use crate::ours::Of;
use crate::qp::IronQp;
use libc::c_int;

/// `ibv_attach_mcast`.
pub extern "C" fn attach_mcast(qp: Of<IronQp>, gid: Option<&Gid>, lid: u16) -> c_int {
    verb(qp, || Ok(qp.inner.attach_mcast(&gid.ok_or(libc::EINVAL)?.0, lid)?))
}

/// `ibv_detach_mcast`.
pub extern "C" fn detach_mcast(qp: Of<IronQp>, gid: Option<&Gid>, lid: u16) -> c_int {
    verb(qp, || Ok(qp.inner.detach_mcast(&gid.ok_or(libc::EINVAL)?.0, lid)?))
}
