//! Memory regions.

use crate::abi::memory::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
};
use crate::abi::public::{self as abi, ibv_mr, ibv_pd, ibv_sge};
use crate::abi::verbs_types::verbs_mr;
use crate::convert;
use crate::exports::Exports;
use crate::guard::{answer, verb};
use crate::ours::{self, Destroy, Of, ours};
use crate::users::Use;
use driver::{AccessFlags, InPlace};
use libc::{c_int, c_uint, c_void, size_t};
use std::sync::Arc;

/// The provider's MR. libibverbs sees its first member.
#[repr(C)]
pub struct IronMr {
    public: verbs_mr,
    /// The driver's MR; `None` for null MRs and imported ones.
    inner: Option<driver::Mr>,
    /// The address (IOVA) of its first byte.
    hca_va: u64,
    /// Where others can find it.
    exports: Arc<Exports>,
    pd: Use,
}

ours!(IronMr: ibv_mr);

impl Drop for IronMr {
    fn drop(&mut self) {
        self.exports.mrs.leave(&raw const self.public.mr);
    }
}

impl IronMr {
    /// The driver's MR.
    pub fn memory(&self) -> Option<&driver::Mr> {
        self.inner.as_ref()
    }

    /// Local and remote key.
    pub fn keys(&self) -> (u32, u32) {
        (self.public.mr.lkey, self.public.mr.rkey)
    }

    /// Size in bytes.
    pub fn length(&self) -> usize {
        self.public.mr.length
    }

    /// Allocates the object that the program gets.
    pub fn publish(
        pd: Of<ibv_pd>,
        (addr, length): (*mut c_void, size_t),
        hca_va: u64,
        (lkey, rkey): (u32, u32),
        mr_type: c_int,
        access: c_int,
        inner: Option<driver::Mr>,
    ) -> Of<ibv_mr> {
        let context = pd.context();
        let mr = ibv_mr { context: context.raw(), pd: Some(pd), addr, length, handle: lkey >> 8, lkey, rkey };
        let public = verbs_mr { mr, mr_type, access };
        let made =
            Of::made(Self { public, inner, hca_va, exports: context.exports.clone(), pd: pd.users.hold() });
        if mr_type != TYPE_IMPORTED {
            context.exports.mrs.enter(made, lkey >> 8);
        }
        made
    }
}

/// `ibv_mr_type`, which libibverbs reads: program memory, or memory that need not be tracked for forks.
const TYPE_MR: c_int = 0;
pub const TYPE_NONE: c_int = 1;
/// A region imported from another context.
pub const TYPE_IMPORTED: c_int = 2;

/// `ibv_reg_mr`, `ibv_reg_mr_iova`.
///
/// # Safety
/// Called by libibverbs with memory that stays allocated while registered.
pub unsafe extern "C" fn reg_mr(
    pd: Of<ibv_pd>,
    addr: *mut c_void,
    length: size_t,
    hca_va: u64,
    access: c_int,
) -> Option<Of<ibv_mr>> {
    verb(pd, || {
        let rights = access_flags(access as c_uint)?;
        // SAFETY: guaranteed by the caller.
        let inner = unsafe { driver::Mr::register(&pd.inner, addr.cast(), length, hca_va, rights) };
        let inner = inner.map_err(convert::not_made)?;
        let keys = (inner.lkey(), inner.rkey());
        Ok(IronMr::publish(pd, (addr, length), hca_va, keys, TYPE_MR, access, Some(inner)))
    })
}

/// Converts access flags. Unknown optional flags are ignored, other unknown flags fail with EINVAL (`ib_check_mr_access`).
pub fn access_flags(access: c_uint) -> Result<AccessFlags, c_int> {
    let mandatory = AccessFlags::from_bits(access & !abi::IBV_ACCESS_OPTIONAL_RANGE).ok_or(libc::EINVAL)?;
    Ok(mandatory | AccessFlags::from_bits_truncate(access & abi::IBV_ACCESS_OPTIONAL_RANGE))
}

/// `ibv_rereg_mr`. Access rights and PD change in place, and the keys stay. A change of memory, or of memory that becomes remotely
/// writable, creates a new registration with new keys in place of the old one. On failure nothing changes.
///
/// # Safety
/// Called by libibverbs with an MR that no work request and no other thread uses, and memory that stays allocated while registered.
pub unsafe extern "C" fn rereg_mr(
    mr: Of<ibv_mr>,
    flags: c_int,
    pd: Option<Of<ibv_pd>>,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    let has = |flag| flags as c_uint & flag != 0;
    answer(|| {
        if flags as c_uint & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return Err(libc::EINVAL);
        }
        mr.context().birth.check()?;
        // SAFETY: V1, V2; guaranteed by the caller: this is the only reference.
        let ours = unsafe { &mut *mr.raw().cast::<IronMr>() };
        let (old_addr, old_length) = (ours.public.mr.addr, ours.public.mr.length);
        let new = if has(abi::IBV_REREG_MR_CHANGE_PD) { pd } else { ours.public.mr.pd };
        let access = if has(abi::IBV_REREG_MR_CHANGE_ACCESS) { access } else { ours.public.access };
        let moves = has(abi::IBV_REREG_MR_CHANGE_TRANSLATION);
        if moves && (addr.is_null() || length == 0) {
            return Err(libc::EINVAL);
        }
        let new = new.ok_or(libc::EINVAL)?;
        let rights = access_flags(access as c_uint)?;
        let inner = ours.inner.as_mut().ok_or(libc::EINVAL)?;
        let changed = match moves {
            true => Err(libc::EAGAIN),
            false => inner.change(Some(&new.inner), Some(rights)).map_err(|e| e.errno()),
        };
        match changed {
            Err(libc::EAGAIN) => {}
            Ok(()) => {
                (ours.public.access, ours.pd) = (access, new.users.hold());
                return Ok(());
            }
            Err(errno) => return Err(errno),
        }
        let (addr, length, hca_va) =
            if moves { (addr, length, addr as u64) } else { (old_addr, old_length, ours.hca_va) };
        // SAFETY: guaranteed by the caller.
        let fresh = unsafe { driver::Mr::register(&new.inner, addr.cast(), length, hca_va, rights) };
        let fresh = fresh.map_err(convert::not_made)?;
        // Fails if windows are bound to the old region: it stays, and the new one is dropped.
        inner.try_deregister()?;
        let keys = (fresh.lkey(), fresh.rkey());
        ours.inner = Some(fresh);
        ours.pd = new.users.hold();
        (ours.hca_va, ours.public.access) = (hca_va, access);
        let public = &mut ours.public.mr;
        (public.lkey, public.rkey, public.handle) = (keys.0, keys.1, keys.0 >> 8);
        ours.exports.mrs.enter(mr, keys.0 >> 8);
        Ok(())
    })
}

/// `ibv_dereg_mr`. Fails with EBUSY while memory windows are bound to it.
impl Destroy for ibv_mr {
    fn end(mr: &mut IronMr) -> Result<(), driver::Error> {
        mr.inner.as_mut().map_or(Ok(()), InPlace::destroy_in_place)
    }
}

/// `ibv_advise_mr`. Prefetches synchronously, with or without `IBV_ADVISE_MR_FLAG_FLUSH`. Fails with EOPNOTSUPP for other advice; EINVAL
/// for unknown flags, or if the region is not on-demand paged; ENOENT if no region has the key; EPERM if the region belongs to another PD
/// or is not writable as required; EFAULT if the range is outside the region or has no memory.
///
/// # Safety
/// Called by programs with a list of `count` SGEs (V4).
pub unsafe extern "C" fn advise_mr(
    pd: Of<ibv_pd>,
    advice: c_uint,
    flags: u32,
    list: *const ibv_sge,
    count: u32,
) -> c_int {
    verb(pd, || {
        let (write, fault) = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => (false, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => (true, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (false, false),
            _ => return Err(libc::EOPNOTSUPP),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 || list.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: guaranteed by the caller.
        for piece in unsafe { ours::list(list, count as usize) } {
            let found = pd.context().exports.with_key(piece.lkey, |mr| {
                let same = mr.public.mr.pd.is_some_and(|theirs| theirs.inner.is_same(&pd.inner));
                let memory = mr.memory().ok_or(libc::ENOENT)?;
                if !same || write && !memory.is_writable() {
                    return Err(libc::EPERM);
                }
                memory.prefetch(piece.addr, piece.length, write, fault)
            });
            found.ok_or(libc::ENOENT)??;
        }
        Ok(())
    })
}
