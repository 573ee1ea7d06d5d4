//! Multicast groups.

use crate::abi::public::{Gid, ibv_qp};
use crate::guard::verb;
use crate::ours::Of;
use libc::c_int;

/// `ibv_attach_mcast`.
pub extern "C" fn attach_mcast(qp: Of<ibv_qp>, gid: Option<&Gid>, lid: u16) -> c_int {
    verb(qp, || Ok(qp.inner.attach_mcast(&gid.ok_or(libc::EINVAL)?.0, lid)?))
}

/// `ibv_detach_mcast`.
pub extern "C" fn detach_mcast(qp: Of<ibv_qp>, gid: Option<&Gid>, lid: u16) -> c_int {
    verb(qp, || Ok(qp.inner.detach_mcast(&gid.ok_or(libc::EINVAL)?.0, lid)?))
}
