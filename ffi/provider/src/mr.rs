//! Memory regions.

use crate::abi::memory::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
};
use crate::abi::public::{self as abi, ibv_mr, ibv_pd, ibv_sge};
use crate::abi::verbs_types::verbs_mr;
use crate::convert;
use crate::guard::{guard_int, guard_ptr};
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::users::Use;
use driver::{AccessFlags, InPlace};
use libc::{c_int, c_uint, c_void, size_t};

/// The provider's MR. libibverbs sees its first member.
#[repr(C)]
pub struct IronMr {
    public: verbs_mr,
    /// The driver's MR; `None` for null MRs and imported ones.
    inner: Option<driver::Mr>,
    /// The address (IOVA) of its first byte.
    hca_va: u64,
    pd: Use,
}

ours!(IronMr: ibv_mr);

impl Drop for IronMr {
    fn drop(&mut self) {
        let mr = &raw mut self.public.mr;
        // SAFETY: V3: the MR keeps its PD, and that its context.
        unsafe { Self::context(mr) }.exports.leave_mr(mr);
    }
}

impl IronMr {
    /// The driver's MR.
    pub fn memory(&self) -> Option<&driver::Mr> {
        self.inner.as_ref()
    }

    /// Allocates the object that the program gets.
    ///
    /// # Safety
    /// `pd` belongs to this provider.
    pub unsafe fn hand_out(
        pd: *mut ibv_pd,
        (addr, length): (*mut c_void, size_t),
        keys: (u32, u32),
        kind: c_int,
        access: c_int,
        inner: Option<driver::Mr>,
    ) -> *mut ibv_mr {
        // SAFETY: guaranteed by the caller: V1 and V2 for the PD, V3 for its context.
        let (context, ours, owner) = unsafe { ((*pd).context, IronPd::context(pd), IronPd::of(pd)) };
        let (lkey, rkey) = keys;
        let mr = ibv_mr { context, pd, addr, length, handle: lkey >> 8, lkey, rkey };
        let public = verbs_mr { mr, mr_type: kind, access };
        let made = Self { public, inner, hca_va: addr as u64, pd: owner.users.hold() }.into_public();
        if kind != TYPE_IMPORTED {
            ours.exports.enter_mr(made, lkey >> 8);
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
/// Called by libibverbs with a PD of this provider and memory that stays allocated while registered.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    guard_ptr(|| {
        // SAFETY: V1 and V2 for the PD, V3 for its context.
        let (context, ours) = unsafe { (IronPd::context(pd), IronPd::of(pd)) };
        context.birth.check()?;
        // SAFETY: the program keeps the memory allocated.
        let inner = unsafe {
            driver::Mr::register(&ours.inner, addr.cast(), length, hca_va, access_flags(access as c_uint)?)
        };
        let inner = inner.map_err(convert::not_made)?;
        let keys = (inner.lkey(), inner.rkey());
        // SAFETY: V1 and V2 for the PD.
        let mr = unsafe { IronMr::hand_out(pd, (addr, length), keys, TYPE_MR, access, Some(inner)) };
        // SAFETY: just created, not shared yet.
        unsafe { (*mr.cast::<IronMr>()).hca_va = hca_va };
        Ok(mr)
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
/// Called by libibverbs with an MR of this provider that no work request uses, and memory that stays allocated while registered.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    guard_int(|| {
        let has = |flag| flags as c_uint & flag != 0;
        if flags as c_uint & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: V1, V2. A program that changes an MR uses it from no other thread meanwhile: this is the only reference.
        let ours = unsafe { &mut *mr.cast::<IronMr>() };
        let (old_pd, old_addr, old_length) = (ours.public.mr.pd, ours.public.mr.addr, ours.public.mr.length);
        // SAFETY: V1 and V2 for the MR, V3 for its context.
        let context = unsafe { IronMr::context(mr.cast()) };
        context.birth.check()?;
        let new_pd = if has(abi::IBV_REREG_MR_CHANGE_PD) { pd } else { old_pd };
        let access = if has(abi::IBV_REREG_MR_CHANGE_ACCESS) { access } else { ours.public.access };
        let moves = has(abi::IBV_REREG_MR_CHANGE_TRANSLATION);
        if new_pd.is_null() || moves && (addr.is_null() || length == 0) {
            return Err(libc::EINVAL);
        }
        let rights = access_flags(access as c_uint)?;
        let Some(inner) = ours.inner.as_mut() else { return Err(libc::EINVAL) };
        // SAFETY: V1, V2 and V6 for the PD, or V3 for the one that it has.
        let new = unsafe { IronPd::of(new_pd) };
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
        // SAFETY: the program keeps the memory allocated.
        let fresh = unsafe { driver::Mr::register(&new.inner, addr.cast(), length, hca_va, rights) };
        let fresh = fresh.map_err(convert::not_made)?;
        // Fails if windows are bound to the old region: it stays, and the new one is dropped.
        inner.try_deregister().map_err(|e| e.errno())?;
        let keys = (fresh.lkey(), fresh.rkey());
        ours.inner = Some(fresh);
        ours.pd = new.users.hold();
        (ours.hca_va, ours.public.access) = (hca_va, access);
        let public = &mut ours.public.mr;
        (public.lkey, public.rkey, public.handle) = (keys.0, keys.1, keys.0 >> 8);
        context.exports.leave_mr(&raw mut *public);
        context.exports.enter_mr(&raw mut *public, keys.0 >> 8);
        Ok(())
    })
}

/// `ibv_dereg_mr`. Fails with EBUSY while memory windows are bound to it.
///
/// # Safety
/// Called by libibverbs as the last use of an MR of this provider, unless the call fails.
pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    let end = |ours: &mut IronMr| ours.inner.as_mut().map_or(Ok(()), InPlace::destroy_in_place);
    // SAFETY: V1, V2 and V5 for the MR, V3 for its PD and context.
    unsafe { destroy(mr.cast(), |_| Ok(()), end) }
}

/// `ibv_advise_mr`. Prefetches synchronously, with or without `IBV_ADVISE_MR_FLAG_FLUSH`. Fails with EOPNOTSUPP for other advice; EINVAL
/// for unknown flags, or if the region is not on-demand paged; ENOENT if no region has the key; EPERM if the region belongs to another PD
/// or is not writable as required; EFAULT if the range is outside the region or has no memory.
///
/// # Safety
/// Called by programs with a PD of this provider and a list of `count` SGEs.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *const ibv_sge,
    count: u32,
) -> c_int {
    guard_int(|| {
        // SAFETY: V1 for the PD, V3 for its context.
        let context = unsafe { IronPd::context(pd) };
        context.birth.check()?;
        let (write, fault) = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => (false, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => (true, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (false, false),
            _ => return Err(libc::EOPNOTSUPP),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 || list.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: V4: `list` has `count` pieces.
        for piece in unsafe { std::slice::from_raw_parts(list, count as usize) } {
            let found = context.exports.with_key(piece.lkey, |public, ours| {
                // SAFETY: both PDs belong to this provider.
                let same = unsafe { IronPd::of(public.pd).inner.is_same(&IronPd::of(pd).inner) };
                let mr = ours.memory().ok_or(libc::ENOENT)?;
                if !same || write && !mr.is_writable() {
                    return Err(libc::EPERM);
                }
                mr.prefetch(piece.addr, piece.length, write, fault)
            });
            found.ok_or(libc::ENOENT)??;
        }
        Ok(())
    })
}
