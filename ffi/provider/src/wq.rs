//! Receive work queues, and the indirection tables that RSS QPs spread packets over (`qp_verbs.rs`).

use crate::abi::public::{self as abi, ibv_context, ibv_recv_wr, ibv_rwq_ind_table};
use crate::abi::public::{ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::context::Context;
use crate::convert;
use crate::cq::IronCq;
use crate::events::acknowledged;
use crate::guard::{Birth, guard, guard_int, guard_ptr};
use crate::huge::{self, Queue};
use crate::ours::{Ours, destroy, ours};
use crate::pd::IronPd;
use crate::post;
use crate::users::{Use, Users};
use driver::{InPlace, PostError, RwqTable, Wq, WqAttr, WqInit, WqState};
use libc::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum log2 of a table's size on any device (`IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE`).
const MAX_LOG_TABLE: u32 = 13;

/// The provider's work queue. Programs see its first member.
#[repr(C)]
pub struct IronWq {
    public: ibv_wq,
    inner: Arc<Wq>,
    /// Tables that contain it.
    users: Users,
    birth: Birth,
    /// Identifies it in events.
    cookie: u64,
    _uses: [Use; 2],
}

ours!(IronWq: ibv_wq);

/// The provider's indirection table. Programs see its first member.
#[repr(C)]
pub struct IronRwqTable {
    public: ibv_rwq_ind_table,
    /// The driver's table.
    pub inner: Arc<RwqTable>,
    /// QPs that use it.
    pub users: Users,
    /// The objects it refers to: its work queues, once for each entry, and its context.
    _uses: Vec<Use>,
}

ours!(IronRwqTable: ibv_rwq_ind_table);

/// True if VLAN tags are to be stripped. Fails with EOPNOTSUPP for other flags.
fn strips_tags(flags: u32, mask: u32) -> Result<Option<bool>, c_int> {
    if mask & !abi::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok((mask != 0).then_some(flags & abi::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0))
}

/// `ibv_create_wq`. Writes back the actual sizes.
///
/// # Safety
/// Called by programs with an open context of this provider, and a PD and a CQ of it.
pub unsafe extern "C" fn create_wq(context: *mut ibv_context, init: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `init`.
        let (ours, init) = unsafe { (Context::of(context), &mut *init) };
        ours.birth.check()?;
        if init.comp_mask & !abi::IBV_WQ_INIT_ATTR_FLAGS != 0 || init.pd.is_null() || init.cq.is_null() {
            return Err(libc::EINVAL);
        }
        if init.wq_type != abi::IBV_WQT_RQ {
            return Err(libc::EOPNOTSUPP);
        }
        let flags = if init.comp_mask & abi::IBV_WQ_INIT_ATTR_FLAGS != 0 { init.create_flags } else { 0 };
        let strip_vlan = strips_tags(flags, flags)?.unwrap_or(false);
        // SAFETY: V1, V2 and V6 for PD and CQ.
        let (owner, cq) = unsafe { (IronPd::of(init.pd), IronCq::of(init.cq)) };
        let cookie = ours.targets.new_cookie();
        let wanted = WqInit {
            cq: Arc::clone(&cq.inner),
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            strip_vlan,
            cookie,
        };
        let domain = huge::domain(&ours.huge, &owner.inner, Queue::Wq)?;
        let inner = Wq::create(&domain, &wanted).map_err(convert::not_made)?;
        (init.max_wr, init.max_sge) = inner.size();
        // SAFETY: all-zero is a valid work queue: null pointers; the library initialises the locks.
        let mut public: ibv_wq = unsafe { std::mem::zeroed() };
        public.context = context;
        public.pd = init.pd;
        public.cq = init.cq;
        public.wq_num = inner.wqn();
        public.handle = public.wq_num;
        public.state = WqState::Reset as u32;
        public.wq_type = init.wq_type;
        public.post_recv = Some(post_wq_recv);
        let (users, uses) = (Users::default(), [owner.users.hold(), cq.users.hold()]);
        let wq = IronWq { public, inner, users, birth: ours.birth, cookie, _uses: uses }.into_public();
        ours.targets.enter(cookie, wq as usize, None);
        Ok(wq)
    })
}

/// `ibv_modify_wq`. Also updates the state in the public structure.
///
/// # Safety
/// Called by programs with a work queue of this provider and its new attributes.
pub unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    const KNOWN: u32 = abi::IBV_WQ_ATTR_STATE | abi::IBV_WQ_ATTR_CURR_STATE | abi::IBV_WQ_ATTR_FLAGS;
    guard_int(|| {
        // SAFETY: V1 and V2 for the work queue, V4 for `attr`.
        let (ours, attr) = unsafe { (IronWq::of(wq), &*attr) };
        ours.birth.check()?;
        if attr.attr_mask == 0 || attr.attr_mask & !KNOWN != 0 {
            return Err(libc::EINVAL);
        }
        let has = |bit| attr.attr_mask & bit != 0;
        let state = |bit, raw| match has(bit) {
            true => WqState::from_raw(raw).map(Some).ok_or(libc::EINVAL),
            false => Ok(None),
        };
        let wanted = WqAttr {
            state: state(abi::IBV_WQ_ATTR_STATE, attr.wq_state)?,
            current: state(abi::IBV_WQ_ATTR_CURR_STATE, attr.curr_wq_state)?,
            strip_vlan: match has(abi::IBV_WQ_ATTR_FLAGS) {
                true => strips_tags(attr.flags, attr.flags_mask)?,
                false => None,
            },
        };
        ours.inner.modify(&wanted).map_err(|e| e.errno())?;
        // SAFETY: V1. The store is atomic because another thread may modify the work queue at the same time.
        unsafe { AtomicU32::from_ptr(&raw mut (*wq).state) }
            .store(ours.inner.state() as u32, Ordering::Relaxed);
        Ok(())
    })
}

/// `ibv_post_wq_recv`.
///
/// # Safety
/// Called by programs with a work queue of this provider and a list of receive work requests.
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: V1 and V2 for the work queue, V4 for the list and for `bad`.
        unsafe {
            let ours = IronWq::of(wq);
            post::receives(wr, bad, |walk| match ours.birth.check() {
                Ok(()) => ours.inner.post_recv(walk),
                Err(errno) => Err(PostError { index: 0, errno }),
            })
        }
    })
}

/// `ibv_destroy_wq`. Fails with EBUSY while a table refers to it. Waits until the program has acknowledged every event of it that it read.
///
/// # Safety
/// Called by programs as the last use of a work queue of this provider, unless it is in use.
pub unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: V1, V2 and V5 for the work queue, V3 for its context; the check ensures that no table uses it, and once its events are
    // acknowledged it has no other user.
    unsafe {
        let leave = |context: &Context| {
            IronWq::of(wq).users.none()?;
            let sent = context.targets.leave(IronWq::of(wq).cookie).errors;
            let counter = (&raw const (*wq).events_completed, sent);
            acknowledged(&raw mut (*wq).mutex, &raw mut (*wq).cond, &[counter]);
            Ok(())
        };
        destroy(wq, leave, |ours: &mut IronWq| ours.inner.destroy_in_place())
    }
}

/// `ibv_create_rwq_ind_table`.
///
/// # Safety
/// Called by programs with an open context of this provider, and as many of its work queues as the size says.
pub unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *const ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `init`.
        let (ours, init) = unsafe { (Context::of(context), &*init) };
        ours.birth.check()?;
        let most = ours.device.attr().max_rwq_table_size;
        if most == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let log = init.log_ind_tbl_size;
        if init.comp_mask != 0 || log > MAX_LOG_TABLE || 1 << log > most || init.ind_tbl.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: V4: the list has as many work queues as the size says.
        let wqs = unsafe { std::slice::from_raw_parts(init.ind_tbl, 1 << log) };
        if wqs.iter().any(|wq| wq.is_null()) {
            return Err(libc::EINVAL);
        }
        // SAFETY: V1, V2 and V6 for the work queues, which the table keeps (V3).
        let queues: Vec<&'static IronWq> = wqs.iter().map(|wq| unsafe { IronWq::of(*wq) }).collect();
        let entries: Vec<Arc<Wq>> = queues.iter().map(|wq| Arc::clone(&wq.inner)).collect();
        let inner = RwqTable::create(&ours.device, &entries).map_err(convert::not_made)?;
        let uses = queues.iter().map(|wq| &wq.users).chain([&ours.users]).map(Users::hold).collect();
        let number = inner.number() as c_int;
        let public = ibv_rwq_ind_table { context, ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 };
        Ok(IronRwqTable { public, inner, users: Users::default(), _uses: uses }.into_public())
    })
}

/// `ibv_destroy_rwq_ind_table`. Fails with EBUSY while a QP uses it.
///
/// # Safety
/// Called by programs as the last use of a table of this provider, unless it is in use.
pub unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: V1, V2 and V5 for the table, V3 for its context; the check ensures that it has no users.
    unsafe {
        let leave = |_: &Context| IronRwqTable::of(table).users.none();
        destroy(table, leave, |ours: &mut IronRwqTable| ours.inner.destroy_in_place())
    }
}
