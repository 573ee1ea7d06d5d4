//! Receive work queues, and the indirection tables that RSS QPs spread packets over (`qp_verbs.rs`).

use crate::abi::public::{
    self as abi, ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
};
use crate::abi::public::{ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::convert;
use crate::events::withdraw;
use crate::guard::{Birth, verb};
use crate::huge::{self, Queue};
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::post;
use crate::users::{Use, Users};
use driver::{RwqTable, Wq, WqAttr, WqInit, WqState};
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
pub extern "C" fn create_wq(context: Of<ibv_context>, init: &mut ibv_wq_init_attr) -> Option<Of<ibv_wq>> {
    verb(context, || {
        let (Some(pd), Some(cq)) = (init.pd, init.cq) else { return Err(libc::EINVAL) };
        if init.comp_mask & !abi::IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return Err(libc::EINVAL);
        }
        if init.wq_type != abi::IBV_WQT_RQ {
            return Err(libc::EOPNOTSUPP);
        }
        let flags = if init.comp_mask & abi::IBV_WQ_INIT_ATTR_FLAGS != 0 { init.create_flags } else { 0 };
        let strip_vlan = strips_tags(flags, flags)?.unwrap_or(false);
        let cookie = context.targets.new_cookie();
        let wanted = WqInit {
            cq: Arc::clone(&cq.inner),
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            strip_vlan,
            cookie,
        };
        let domain = huge::domain(&context.huge, &pd.inner, Queue::Wq)?;
        let inner = Wq::create(&domain, &wanted).map_err(convert::not_made)?;
        (init.max_wr, init.max_sge) = inner.size();
        // SAFETY: all-zero is a valid work queue: null pointers; the library initialises the locks.
        let mut public: ibv_wq = unsafe { std::mem::zeroed() };
        public.context = context.raw();
        public.pd = init.pd;
        public.cq = init.cq;
        public.wq_num = inner.wqn();
        public.handle = public.wq_num;
        public.state = WqState::Reset as u32;
        public.wq_type = init.wq_type;
        public.post_recv = Some(post_wq_recv);
        let (users, uses) = (Users::default(), [pd.users.hold(), cq.users.hold()]);
        let wq =
            Of::<ibv_wq>::made(IronWq { public, inner, users, birth: context.birth, cookie, _uses: uses });
        context.targets.enter(cookie, wq.raw() as usize, None);
        Ok(wq)
    })
}

/// `ibv_modify_wq`. Also updates the state in the public structure.
pub extern "C" fn modify_wq(wq: Of<ibv_wq>, attr: &ibv_wq_attr) -> c_int {
    const KNOWN: u32 = abi::IBV_WQ_ATTR_STATE | abi::IBV_WQ_ATTR_CURR_STATE | abi::IBV_WQ_ATTR_FLAGS;
    verb(wq, || {
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
        wq.inner.modify(&wanted)?;
        // SAFETY: V1. The store is atomic because another thread may modify the work queue at the same time.
        unsafe { AtomicU32::from_ptr(&raw mut (*wq.raw()).state) }
            .store(wq.inner.state() as u32, Ordering::Relaxed);
        Ok(())
    })
}

/// `ibv_post_wq_recv`.
extern "C" fn post_wq_recv(
    wq: Of<ibv_wq>,
    requests: Option<&ibv_recv_wr>,
    bad: Option<&mut *const ibv_recv_wr>,
) -> c_int {
    post::list(wq.birth, requests, bad, |walk| wq.inner.post_recv(walk))
}

/// `ibv_destroy_wq`. Fails with EBUSY while a table refers to it. Waits until the program has acknowledged every event of it that it read.
impl Destroy for ibv_wq {
    fn leave(wq: Of<Self>) -> Result<(), c_int> {
        wq.users.none()?;
        withdraw!(wq, events_completed: errors);
        Ok(())
    }

    ends_inner!();
}

/// `ibv_create_rwq_ind_table`.
pub extern "C" fn create_rwq_ind_table(
    context: Of<ibv_context>,
    init: &ibv_rwq_ind_table_init_attr,
) -> Option<Of<ibv_rwq_ind_table>> {
    verb(context, || {
        let most = context.device.attr().max_rwq_table_size;
        if most == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let log = init.log_ind_tbl_size;
        if init.comp_mask != 0 || log > MAX_LOG_TABLE || 1 << log > most || init.ind_tbl.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: V4: the list has as many work queues as the size says.
        let wqs = unsafe { std::slice::from_raw_parts(init.ind_tbl, 1 << log) };
        let wqs: Option<Vec<Of<ibv_wq>>> = wqs.iter().copied().collect();
        let wqs = wqs.ok_or(libc::EINVAL)?;
        let entries: Vec<Arc<Wq>> = wqs.iter().map(|wq| Arc::clone(&wq.inner)).collect();
        let inner = RwqTable::create(&context.device, &entries).map_err(convert::not_made)?;
        let uses = wqs.iter().map(|wq| &wq.users).chain([&context.users]).map(Users::hold).collect();
        let number = inner.number() as c_int;
        let public = ibv_rwq_ind_table {
            context: context.raw(),
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        };
        Ok(Of::made(IronRwqTable { public, inner, users: Users::default(), _uses: uses }))
    })
}

/// `ibv_destroy_rwq_ind_table`. Fails with EBUSY while a QP uses it.
impl Destroy for ibv_rwq_ind_table {
    fn leave(table: Of<Self>) -> Result<(), c_int> {
        table.users.none()
    }

    ends_inner!();
}
