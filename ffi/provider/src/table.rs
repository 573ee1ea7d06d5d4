//! The provider's operations. Operations that are not listed, such as counters and flow actions, keep the library's stub, which fails with
//! EOPNOTSUPP.

use crate::abi::ops::{MAX_OPS, OpsTable};
use crate::{
    ah, clock, cq, cq_ex, dm, flow, import, mcast, mr, mw, open, parent_domain, pd, post, qp_verbs, query,
    srq, wq, xrc,
};
use libc::c_void;

type Op = *const c_void;

/// Fills in the operations at the slots of this library.
///
/// # Errors
/// The name of an operation that the library has no slot for.
pub fn fill(slots: &OpsTable) -> Result<[Op; MAX_OPS], &'static str> {
    let offered = [
        ("free_context", open::free_context as Op),
        ("query_device_ex", query::query_device_ex as Op),
        ("query_port", query::query_port as Op),
        ("alloc_pd", pd::alloc_pd as Op),
        ("dealloc_pd", pd::dealloc_pd as Op),
        ("reg_mr", mr::reg_mr as Op),
        ("rereg_mr", mr::rereg_mr as Op),
        ("dereg_mr", mr::dereg_mr as Op),
        ("advise_mr", mr::advise_mr as Op),
        ("alloc_mw", mw::alloc_mw as Op),
        ("bind_mw", mw::bind_mw as Op),
        ("dealloc_mw", mw::dealloc_mw as Op),
        ("alloc_dm", dm::alloc_dm as Op),
        ("free_dm", dm::free_dm as Op),
        ("reg_dm_mr", dm::reg_dm_mr as Op),
        ("alloc_null_mr", dm::alloc_null_mr as Op),
        ("import_pd", import::import_pd as Op),
        ("unimport_pd", import::unimport_pd as Op),
        ("import_mr", import::import_mr as Op),
        ("unimport_mr", import::unimport_mr as Op),
        ("import_dm", import::import_dm as Op),
        ("unimport_dm", import::unimport_dm as Op),
        ("create_ah", ah::create_ah as Op),
        ("destroy_ah", ah::destroy_ah as Op),
        ("attach_mcast", mcast::attach_mcast as Op),
        ("detach_mcast", mcast::detach_mcast as Op),
        ("create_flow", flow::create_flow as Op),
        ("destroy_flow", flow::destroy_flow as Op),
        ("create_cq", cq::create_cq as Op),
        ("create_cq_ex", cq_ex::create_cq_ex as Op),
        ("destroy_cq", cq::destroy_cq as Op),
        ("resize_cq", cq::resize_cq as Op),
        ("modify_cq", cq::modify_cq as Op),
        ("query_rt_values", clock::query_rt_values as Op),
        ("alloc_td", parent_domain::alloc_td as Op),
        ("dealloc_td", parent_domain::dealloc_td as Op),
        ("alloc_parent_domain", parent_domain::alloc_parent_domain as Op),
        ("poll_cq", cq::poll_cq as Op),
        ("req_notify_cq", cq::req_notify_cq as Op),
        ("create_srq", srq::create_srq as Op),
        ("create_srq_ex", srq::create_srq_ex as Op),
        ("modify_srq", srq::modify_srq as Op),
        ("query_srq", srq::query_srq as Op),
        ("get_srq_num", srq::get_srq_num as Op),
        ("post_srq_recv", srq::post_srq_recv as Op),
        ("destroy_srq", srq::destroy_srq as Op),
        ("open_xrcd", xrc::open_xrcd as Op),
        ("close_xrcd", xrc::close_xrcd as Op),
        ("open_qp", xrc::open_qp as Op),
        ("create_qp", qp_verbs::create_qp as Op),
        ("create_qp_ex", qp_verbs::create_qp_ex as Op),
        ("modify_qp", qp_verbs::modify_qp as Op),
        ("query_qp", qp_verbs::query_qp as Op),
        ("destroy_qp", qp_verbs::destroy_qp as Op),
        ("post_send", post::post_send as Op),
        ("post_recv", post::post_recv as Op),
        ("create_wq", wq::create_wq as Op),
        ("modify_wq", wq::modify_wq as Op),
        ("destroy_wq", wq::destroy_wq as Op),
        ("create_rwq_ind_table", wq::create_rwq_ind_table as Op),
        ("destroy_rwq_ind_table", wq::destroy_rwq_ind_table as Op),
    ];
    // Operations of newer releases. An older library has no slot for them and never calls them.
    let newer = [
        ("query_port_speed", query::query_port_speed as Op),
        ("query_ece", qp_verbs::query_ece as Op),
        ("set_ece", qp_verbs::set_ece as Op),
    ];
    let mut table: [Op; MAX_OPS] = [std::ptr::null(); MAX_OPS];
    for (name, op) in offered {
        table[slots.slot(name).ok_or(name)?] = op;
    }
    for (name, op) in newer {
        if let Some(slot) = slots.slot(name) {
            table[slot] = op;
        }
    }
    Ok(table)
}
