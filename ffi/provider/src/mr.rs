//! Memory regions.

use crate::abi::public::{self as abi, ibv_mr, ibv_pd};
use crate::abi::verbs_types::verbs_mr;
use crate::context::Context;
use crate::guard::{guard_int, guard_ptr};
use crate::pd::IronPd;
use driver::AccessFlags;
use libc::{c_int, c_uint, c_void, size_t};

/// Our MR; libibverbs knows its first member.
#[repr(C)]
struct IronMr {
    public: verbs_mr,
    inner: driver::Mr,
    /// What keys address its first byte by.
    hca_va: u64,
}

/// `ibv_reg_mr`, `ibv_reg_mr_iova`.
///
/// # Safety
/// Called by libibverbs with a PD of ours and memory that stays while registered.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    guard_ptr(|| {
        // SAFETY: by contract.
        let (context, ours) = unsafe { ((*pd).context, IronPd::of(pd)) };
        // SAFETY: a PD's context is an open one of ours.
        unsafe { Context::of(context) }.check_birth()?;
        // SAFETY: the program's promise to keep the memory.
        let inner = unsafe {
            driver::Mr::register(&ours.inner, addr.cast(), length, hca_va, access_flags(access as c_uint)?)
        };
        let inner = inner.map_err(|e| e.errno())?;
        ours.users.add();
        let (lkey, rkey) = (inner.lkey(), inner.rkey());
        let mr = ibv_mr { context, pd, addr, length, handle: lkey >> 8, lkey, rkey };
        Ok(Box::into_raw(Box::new(IronMr { public: verbs_mr { mr, mr_type: 0, access }, inner, hca_va }))
            .cast())
    })
}

/// The driver's flags. Optional bits nobody knows are dropped, others refused.
fn access_flags(access: c_uint) -> Result<AccessFlags, c_int> {
    let mandatory =
        AccessFlags::from_bits(access & !abi::IBV_ACCESS_OPTIONAL_RANGE).ok_or(libc::EOPNOTSUPP)?;
    Ok(mandatory | AccessFlags::from_bits_truncate(access & abi::IBV_ACCESS_OPTIONAL_RANGE))
}

/// `ibv_rereg_mr`: a new registration takes the place of the old one, with new keys. Programs expect a change of rights
/// alone to keep the keys, which this cannot: it is refused.
///
/// # Safety
/// Called by libibverbs with an MR of ours that no work request uses, and memory that stays while registered.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    _access: c_int,
) -> c_int {
    guard_int(|| {
        let has = |flag| flags as c_uint & flag != 0;
        if flags as c_uint & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
            return Err(libc::EINVAL);
        }
        if has(abi::IBV_REREG_MR_CHANGE_ACCESS) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: by contract; the program may not use the MR from two threads at once.
        let ours = unsafe { &mut *mr.cast::<IronMr>() };
        let old = &ours.public.mr;
        // SAFETY: by contract.
        unsafe { Context::of(old.context) }.check_birth()?;
        let (old_pd, new_pd) = (old.pd, if has(abi::IBV_REREG_MR_CHANGE_PD) { pd } else { old.pd });
        let (addr, length, hca_va) = if has(abi::IBV_REREG_MR_CHANGE_TRANSLATION) {
            (addr, length, addr as u64)
        } else {
            (old.addr, old.length, ours.hca_va)
        };
        let rights = access_flags(ours.public.access as c_uint)?;
        // SAFETY: PDs of ours; the program's promise to keep the memory.
        let (old_pd, new_pd) = unsafe { (IronPd::of(old_pd), IronPd::of(new_pd)) };
        // SAFETY: as above.
        let inner = unsafe { driver::Mr::register(&new_pd.inner, addr.cast(), length, hca_va, rights) };
        let before = std::mem::replace(&mut ours.inner, inner.map_err(|e| e.errno())?);
        new_pd.users.add();
        old_pd.users.remove();
        ours.hca_va = hca_va;
        ours.public.mr.lkey = ours.inner.lkey();
        ours.public.mr.rkey = ours.inner.rkey();
        ours.public.mr.handle = ours.public.mr.lkey >> 8;
        before.deregister().map_err(|e| e.errno())
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// Called by libibverbs with an MR of ours, for the last time.
pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    guard_int(|| {
        // SAFETY: by contract; its PD cannot have gone before it.
        let (ours, pd) = unsafe {
            if !Context::of((*mr).mr.context).birth.is_here() {
                return Ok(());
            }
            (Box::from_raw(mr.cast::<IronMr>()), IronPd::of((*mr).mr.pd))
        };
        let result = ours.inner.deregister().map_err(|e| e.errno());
        pd.users.remove();
        result
    })
}
