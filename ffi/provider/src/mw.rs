//! Memory windows.

use crate::abi::memory::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info};
use crate::abi::public::{ibv_pd, ibv_qp};
use crate::guard::verb;
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::users::Use;
use driver::{AccessFlags, MwBind, MwType, SendFlags, SendOp};
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
pub extern "C" fn alloc_mw(pd: Of<ibv_pd>, kind: c_uint) -> Option<Of<ibv_mw>> {
    verb(pd, || {
        let of = match kind {
            IBV_MW_TYPE_1 => MwType::One,
            IBV_MW_TYPE_2 => MwType::Two,
            _ => return Err(libc::EINVAL),
        };
        let inner = driver::Mw::alloc(&pd.inner, of)?;
        let rkey = inner.rkey();
        let public = ibv_mw { context: pd.context().raw(), pd: Some(pd), rkey, handle: rkey >> 8, kind };
        Ok(Of::made(IronMw { public, inner, _pd: pd.users.hold() }))
    })
}

/// `ibv_dealloc_mw`.
impl Destroy for ibv_mw {
    ends_inner!();
}

/// The memory range to bind a window to. An imported MR's memory belongs to its exporter.
fn part(info: &ibv_mw_bind_info) -> Result<MwBind<'_>, c_int> {
    let mr = info.mr.as_ref().map(|mr| mr.memory().ok_or(libc::EINVAL)).transpose()?;
    let access = AccessFlags::from_bits(info.mw_access_flags).ok_or(libc::EINVAL)?;
    Ok(MwBind { mr, addr: info.addr, len: info.length, access })
}

/// `ibv_bind_mw`, for windows of type 1. libibverbs has already checked type and PDs.
pub extern "C" fn bind_mw(qp: Of<ibv_qp>, mw: Of<ibv_mw>, bind: &ibv_mw_bind) -> c_int {
    verb(qp, || {
        let flags = SendFlags::from_bits(bind.send_flags).ok_or(libc::EINVAL)?;
        mw.inner.bind(&qp.inner, bind.wr_id, flags, &part(&bind.bind_info)?)?;
        // SAFETY: V1: the program reads its window's key after the call.
        unsafe { (*mw.raw()).rkey = mw.inner.rkey() };
        Ok(())
    })
}

/// Builds the work request that binds a window of type 2 (`IBV_WR_BIND_MW`, `ibv_wr_bind_mw`).
#[cold]
pub fn binding(mw: Option<Of<ibv_mw>>, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, c_int> {
    match mw {
        Some(window) if window.inner.kind() == MwType::Two => window.inner.binding(rkey, &part(info)?),
        _ => Err(libc::EINVAL),
    }
}
