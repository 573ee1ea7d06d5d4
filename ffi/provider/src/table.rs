//! The provider's operations. Operations that are not listed, such as counters and flow actions, keep the library's stub, which fails with
//! EOPNOTSUPP.

use crate::abi::memory::{ibv_dm, ibv_mw};
use crate::abi::ops::{MAX_OPS, OpsTable};
use crate::abi::public::{ibv_ah, ibv_cq, ibv_flow, ibv_mr, ibv_pd, ibv_qp, ibv_rwq_ind_table};
use crate::abi::public::{ibv_srq, ibv_td, ibv_wq, ibv_xrcd};
use crate::ours::Last;
use crate::{
    ah, clock, cq, cq_ex, dm, flow, import, mcast, mr, mw, open, parent_domain, pd, post, qp_verbs, query,
    srq, wq, xrc,
};
use libc::c_void;

type Op = *const c_void;

/// Functions by module, each under the name of its operation.
macro_rules! functions {
    ($($module:ident: $($name:ident)+;)+) => { [$($((stringify!($name), $module::$name as Op),)+)+] };
}

/// Operations that end an object, by its structure.
macro_rules! ends {
    ($how:ident: $($name:ident($object:ident))+) => {
        [$((stringify!($name), Last::<$object>::$how as Op),)+]
    };
}

/// Fills in the operations at the slots of this library.
///
/// # Errors
/// The name of an operation that the library has no slot for.
pub fn fill(slots: &OpsTable) -> Result<[Op; MAX_OPS], &'static str> {
    let functions = functions! {
        ah: create_ah;
        clock: query_rt_values;
        cq: create_cq modify_cq poll_cq req_notify_cq resize_cq;
        cq_ex: create_cq_ex;
        dm: alloc_dm alloc_null_mr reg_dm_mr;
        flow: create_flow;
        import: import_dm import_mr import_pd unimport_pd;
        mcast: attach_mcast detach_mcast;
        mr: advise_mr reg_mr rereg_mr;
        mw: alloc_mw bind_mw;
        open: free_context;
        parent_domain: alloc_parent_domain alloc_td;
        pd: alloc_pd;
        post: post_recv post_send;
        qp_verbs: create_qp create_qp_ex modify_qp query_qp;
        query: query_device_ex query_port;
        srq: create_srq create_srq_ex get_srq_num modify_srq post_srq_recv query_srq;
        wq: create_rwq_ind_table create_wq modify_wq;
        xrc: open_qp open_xrcd;
    };
    let destroy = ends! {
        destroy: close_xrcd(ibv_xrcd) dealloc_mw(ibv_mw) dealloc_pd(ibv_pd) dealloc_td(ibv_td)
        dereg_mr(ibv_mr) destroy_ah(ibv_ah) destroy_cq(ibv_cq) destroy_flow(ibv_flow)
        destroy_qp(ibv_qp) destroy_rwq_ind_table(ibv_rwq_ind_table) destroy_srq(ibv_srq)
        destroy_wq(ibv_wq) free_dm(ibv_dm)
    };
    let free = ends! { free: unimport_dm(ibv_dm) unimport_mr(ibv_mr) };
    // Operations of newer releases. An older library has no slot for them and never calls them.
    let newer = functions! {
        qp_verbs: query_ece set_ece;
        query: query_port_speed;
    };
    let mut table: [Op; MAX_OPS] = [std::ptr::null(); MAX_OPS];
    for (name, op) in functions.into_iter().chain(destroy).chain(free) {
        table[slots.slot(name).ok_or(name)?] = op;
    }
    for (name, op) in newer {
        if let Some(slot) = slots.slot(name) {
            table[slot] = op;
        }
    }
    Ok(table)
}
