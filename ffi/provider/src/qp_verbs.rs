//! Creates, modifies, queries and destroys queue pairs.

use crate::abi::public::{self as abi, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap};
use crate::abi::public::{ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_xrcd};
use crate::abi::verbs_types::VERBS_QP_EX;
use crate::context::Context;
use crate::convert;
use crate::cq::IronCq;
use crate::events::acknowledged;
use crate::guard::{guard_int, guard_ptr};
use crate::huge::{self, Queue};
use crate::ours::{Ours, destroy};
use crate::pd::IronPd;
use crate::qp::IronQp;
use crate::qp_ex;
use crate::rights;
use crate::srq::IronSrq;
use crate::users::Users;
use crate::wq::IronRwqTable;
use crate::xrc::IronXrcd;
use driver::{InPlace, QpAttrMask, QpCap, QpInit, RssInit, RxHash, RxHashFields, Service, XrcDomain};
use libc::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `ibv_create_qp`.
///
/// # Safety
/// Called by libibverbs with a PD of this provider and CQs of the same context.
pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: V1 for the PD, V3 for its context, V4 for `attr`, V6 for the CQs and the SRQ that it names.
    guard_ptr(|| unsafe { create((*pd).context, pd, &mut *attr, Extras::default()) })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = abi::IBV_QP_INIT_ATTR_PD
        | abi::IBV_QP_INIT_ATTR_XRCD
        | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | abi::IBV_QP_INIT_ATTR_IND_TABLE
        | abi::IBV_QP_INIT_ATTR_RX_HASH
        | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `attr`: a member is read only if `comp_mask` names it; V6 for the objects it refers to.
        unsafe {
            let mask = (*attr).comp_mask;
            let has = |bit| mask & bit != 0;
            let flags = if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) { (*attr).create_flags } else { 0 };
            if mask & !KNOWN != 0 || flags & !CREATE_FLAGS != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if (*attr).qp_type == abi::IBV_QPT_XRC_RECV {
                if !has(abi::IBV_QP_INIT_ATTR_XRCD) || (*attr).xrcd.is_null() || flags != 0 {
                    return Err(libc::EINVAL);
                }
                (*attr).cap = convert::caps_to_c(QpCap::default());
                let made = target(context, (*attr).xrcd, (*attr).qp_context, driver::Qp::create_target)?;
                // The QP needs no PD, but librdmacm uses its PD to register a connection's memory.
                (*made).pd = if has(abi::IBV_QP_INIT_ATTR_PD) { (*attr).pd } else { std::ptr::null_mut() };
                return Ok(made);
            }
            if !has(abi::IBV_QP_INIT_ATTR_PD) || (*attr).pd.is_null() {
                return Err(libc::EINVAL);
            }
            if has(abi::IBV_QP_INIT_ATTR_IND_TABLE) || has(abi::IBV_QP_INIT_ATTR_RX_HASH) {
                return spread(context, &mut *attr, flags);
            }
            let ops = has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*attr).send_ops_flags);
            let service = convert::service_from_c((*attr).qp_type)?;
            if ops.is_some_and(|ops| ops & !qp_ex::send_ops(service) != 0) {
                return Err(libc::EOPNOTSUPP);
            }
            create(context, (*attr).pd, &mut *attr.cast::<ibv_qp_init_attr>(), Extras { ops, flags })
        }
    })
}

/// Attributes that only `ibv_create_qp_ex` has.
#[derive(Default)]
struct Extras {
    /// Operations of the extended post interface, if requested.
    ops: Option<u64>,
    /// `create_flags`.
    flags: u32,
}

/// The supported `create_flags`.
const CREATE_FLAGS: u32 = abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | abi::IBV_QP_CREATE_CVLAN_STRIPPING;

/// Creates a QP. Writes back the actual sizes.
///
/// # Safety
/// All pointers refer to objects of one context.
unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    extras: Extras,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: guaranteed by the caller: V1 for the context, V1 and V2 for the PD.
    let (ours, owner) = unsafe { (Context::of(context), IronPd::of(pd)) };
    ours.birth.check()?;
    let layout = &ours.registration.layout;
    let service = convert::service_from_c(attr.qp_type)?;
    if service == Service::RawPacket {
        rights::raw_packets()?;
    }
    let blocks = extras.flags & abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0;
    let strip_vlan = extras.flags & abi::IBV_QP_CREATE_CVLAN_STRIPPING != 0;
    if blocks && !matches!(service, Service::Ud | Service::RawPacket) {
        return Err(libc::EOPNOTSUPP);
    }
    if service.is_xrc() {
        // An XRC initiator receives nothing.
        (attr.recv_cq, attr.srq) = (attr.send_cq, std::ptr::null_mut());
    }
    if attr.send_cq.is_null() || attr.recv_cq.is_null() || service == Service::XrcTgt {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller: V1, V2 and V6.
    let srq = (!attr.srq.is_null()).then(|| unsafe { IronSrq::of(attr.srq) });
    // SAFETY: guaranteed by the caller: V1, V2 and V6.
    let (send_cq, recv_cq) = unsafe { (IronCq::of(attr.send_cq), IronCq::of(attr.recv_cq)) };
    let cookie = ours.targets.new_cookie();
    let init = QpInit {
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: attr.cap.max_recv_sge,
        max_inline: attr.cap.max_inline_data,
        sq_sig_all: attr.sq_sig_all != 0,
        cookie,
        srq: srq.map(|srq| Arc::clone(&srq.inner)),
        block_multicast_loopback: blocks,
        strip_vlan,
        ..QpInit::new(service, &send_cq.inner, &recv_cq.inner)
    };
    let domain = huge::domain(&ours.huge, &owner.inner, Queue::Qp(service))?;
    let inner = driver::Qp::create(&domain, &init).map_err(|e| e.errno())?;
    attr.cap = convert::caps_to_c(inner.cap());
    let used = [&owner.users, &send_cq.users, &recv_cq.users].into_iter().chain(srq.map(|srq| &srq.users));
    let fill = |made: &mut IronQp| {
        made.sq_sig_all = attr.sq_sig_all != 0;
        let qp = made.base();
        qp.qp_context = attr.qp_context;
        qp.pd = pd;
        qp.send_cq = attr.send_cq;
        qp.recv_cq = attr.recv_cq;
        qp.srq = attr.srq;
        qp.qp_type = attr.qp_type;
        if extras.ops.is_some() {
            // SAFETY: zeroed memory is a valid ibv_qp_ex; the word of comp_mask is behind the functions set here.
            unsafe {
                qp_ex::install(&mut made.public.qp);
                made.public.words[layout.qp_comp_mask / 4] = VERBS_QP_EX;
            }
        }
    };
    // SAFETY: guaranteed by the caller: V1 for the context.
    Ok(unsafe { IronQp::publish(context, inner, cookie, used.map(Users::hold).collect(), fill) })
}

/// Creates an RSS QP: a raw packet QP that spreads packets over the work queues of an indirection table. It has no queues or sizes of its
/// own.
///
/// # Safety
/// All pointers refer to objects of one context; the hash key has the length it states.
unsafe fn spread(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
    flags: u32,
) -> Result<*mut ibv_qp, c_int> {
    const BOTH: u32 = abi::IBV_QP_INIT_ATTR_IND_TABLE | abi::IBV_QP_INIT_ATTR_RX_HASH;
    // SAFETY: guaranteed by the caller: V1 for the context, V1 and V2 for the PD.
    let (ours, owner) = unsafe { (Context::of(context), IronPd::of(attr.pd)) };
    ours.birth.check()?;
    if attr.qp_type != abi::IBV_QPT_RAW_PACKET {
        return Err(libc::EOPNOTSUPP);
    }
    rights::raw_packets()?;
    if attr.comp_mask & BOTH != BOTH
        || attr.comp_mask & abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0
        || attr.rwq_ind_tbl.is_null()
        || !attr.send_cq.is_null()
        || !attr.srq.is_null()
        || attr.cap.max_send_wr | attr.cap.max_recv_wr | attr.cap.max_recv_sge != 0
    {
        return Err(libc::EINVAL);
    }
    // VLAN stripping is a property of the work queues.
    if flags & abi::IBV_QP_CREATE_CVLAN_STRIPPING != 0
        || attr.rx_hash_conf.rx_hash_function != abi::IBV_RX_HASH_FUNC_TOEPLITZ
    {
        return Err(libc::EOPNOTSUPP);
    }
    let conf = &attr.rx_hash_conf;
    if conf.rx_hash_key.is_null() || usize::from(conf.rx_hash_key_len) != RxHash::KEY {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller: V4 for the key, which needs no alignment; V1, V2 and V6 for the table.
    let (key, table) =
        unsafe { (conf.rx_hash_key.cast::<[u8; RxHash::KEY]>().read(), IronRwqTable::of(attr.rwq_ind_tbl)) };
    let fields = RxHashFields::from_bits(conf.rx_hash_fields_mask).ok_or(libc::EOPNOTSUPP)?;
    let init = RssInit {
        table: Arc::clone(&table.inner),
        hash: RxHash { key, fields },
        block_multicast_loopback: flags & abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
    };
    let inner = driver::Qp::create_rss(&owner.inner, &init).map_err(convert::not_made)?;
    attr.cap = convert::caps_to_c(inner.cap());
    let cookie = ours.targets.new_cookie();
    let fill = |made: &mut IronQp| {
        let qp = made.base();
        qp.qp_context = attr.qp_context;
        qp.pd = attr.pd;
        qp.qp_type = attr.qp_type;
    };
    let uses = vec![owner.users.hold(), table.users.hold()];
    // SAFETY: guaranteed by the caller: V1 for the context.
    Ok(unsafe { IronQp::publish(context, inner, cookie, uses, fill) })
}

/// Makes a handle of an XRC target QP that `make` creates or opens. The QP refers only to its XRC domain.
///
/// # Safety
/// `context` is an open context of this provider, and `xrcd` belongs to it.
pub unsafe fn target(
    context: *mut ibv_context,
    xrcd: *mut ibv_xrcd,
    qp_context: *mut c_void,
    make: impl FnOnce(&Arc<XrcDomain>, u64) -> Result<Arc<driver::Qp>, driver::Error>,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: guaranteed by the caller: V1 for the context, V1 and V2 for the domain.
    let (ours, domain) = unsafe { (Context::of(context), IronXrcd::of(xrcd)) };
    ours.birth.check()?;
    let cookie = ours.targets.new_cookie();
    let inner = make(&domain.inner, cookie).map_err(|e| e.errno())?;
    let fill = |made: &mut IronQp| {
        let qp = made.base();
        qp.qp_context = qp_context;
        qp.qp_type = abi::IBV_QPT_XRC_RECV;
    };
    // SAFETY: guaranteed by the caller: V1 for the context.
    Ok(unsafe { IronQp::publish(context, inner, cookie, vec![domain.users.hold()], fill) })
}

/// `ibv_modify_qp`. libibverbs records the new state.
///
/// # Safety
/// Called by libibverbs with a QP of this provider.
pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *const ibv_qp_attr, mask: c_int) -> c_int {
    guard_int(|| {
        // SAFETY: V1 and V2 for the QP, V4 for `attr`.
        let (ours, attr) = unsafe { (IronQp::of(qp), &*attr) };
        ours.birth.check()?;
        let (attr, mask) = convert::attr_from_c(attr, mask as c_uint)?;
        let ports = ours.inner.pd().device().attr().phys_port_cnt;
        if mask.contains(QpAttrMask::AV) && !(1..=ports).contains(&attr.ah.port_num) {
            return Err(libc::EINVAL);
        }
        ours.inner.modify(&attr, mask).map_err(|e| e.errno())
    })
}

/// `ibv_query_qp`.
///
/// # Safety
/// Called by libibverbs with a QP of this provider and room for both answers.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard_int(|| {
        // SAFETY: V1, V2.
        let ours = unsafe { IronQp::of(qp) };
        ours.birth.check()?;
        let found = ours.inner.query().map_err(|e| e.errno())?;
        let cap: ibv_qp_cap = convert::caps_to_c(ours.inner.cap());
        // SAFETY: V4: both answers have room; V1 for the QP.
        unsafe {
            attr.write(convert::attr_to_c(&found, cap));
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: c_int::from(ours.sq_sig_all),
            });
        }
        Ok(())
    })
}

/// PCI ID of the vendor that ECE options would belong to.
const VENDOR: u32 = 0x15b3;

/// `ibv_query_ece`. The device has no options; as with libmlx5 that is not an error.
///
/// # Safety
/// Called by libibverbs with a QP of this provider and room for the answer.
pub unsafe extern "C" fn query_ece(_qp: *mut ibv_qp, answer: *mut ibv_ece) -> c_int {
    guard_int(|| {
        // SAFETY: V4: the answer has room.
        unsafe { answer.write(ibv_ece { vendor_id: VENDOR, options: 0, comp_mask: 0 }) };
        Ok(())
    })
}

/// `ibv_set_ece`. Accepts the peer's options and ignores them. Fails with EINVAL for another vendor's.
///
/// # Safety
/// Called by libibverbs with a QP of this provider and options.
pub unsafe extern "C" fn set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    guard_int(|| {
        // SAFETY: V4.
        let ece = unsafe { *ece };
        if ece.comp_mask == 0 && ece.vendor_id == VENDOR { Ok(()) } else { Err(libc::EINVAL) }
    })
}

/// `ibv_destroy_qp`. Waits until the program has acknowledged every event of the QP that it read.
///
/// # Safety
/// Called by libibverbs as the last use of a QP of this provider.
pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: V1, V2 and V5 for the QP, V3 for its context; once its events are acknowledged it has no other user.
    unsafe {
        let leave = |context: &Context| {
            if IronQp::of(qp).inner.is_member() {
                return Err(libc::EBUSY);
            }
            IronQp::of(qp).flows.none()?;
            let sent = context.targets.leave(IronQp::of(qp).cookie).errors;
            let counter = (&raw const (*qp).events_completed, sent);
            acknowledged(&raw mut (*qp).mutex, &raw mut (*qp).cond, &[counter]);
            Ok(())
        };
        destroy(qp, leave, |ours: &mut IronQp| ours.inner.destroy_in_place())
    }
}
