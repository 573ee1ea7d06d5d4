//! Creates, modifies, queries and destroys queue pairs.

use crate::abi::public::ibv_qp_init_attr_ex;
use crate::abi::public::{
    self as abi, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_xrcd,
};
use crate::abi::verbs_types::VERBS_QP_EX;
use crate::convert;
use crate::events::withdraw;
use crate::guard::{answer, verb};
use crate::huge::{self, Queue};
use crate::ours::{Destroy, Of, ends_inner};
use crate::qp::IronQp;
use crate::qp_ex;
use crate::rights;
use driver::{QpAttrMask, QpCap, QpInit, RssInit, RxHash, RxHashFields, Service, XrcDomain};
use libc::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// `ibv_create_qp`.
pub extern "C" fn create_qp(pd: Of<ibv_pd>, attr: &mut ibv_qp_init_attr) -> Option<Of<ibv_qp>> {
    answer(|| create(pd.context(), pd, attr, Extras::default()))
}

/// `ibv_create_qp_ex`.
pub extern "C" fn create_qp_ex(
    context: Of<ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
) -> Option<Of<ibv_qp>> {
    const KNOWN: u32 = abi::IBV_QP_INIT_ATTR_PD
        | abi::IBV_QP_INIT_ATTR_XRCD
        | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | abi::IBV_QP_INIT_ATTR_IND_TABLE
        | abi::IBV_QP_INIT_ATTR_RX_HASH
        | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    answer(|| {
        // A member is read only if `comp_mask` names it.
        let mask = attr.comp_mask;
        let has = |bit| mask & bit != 0;
        let flags = if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
        if mask & !KNOWN != 0 || flags & !CREATE_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let pd = if has(abi::IBV_QP_INIT_ATTR_PD) { attr.pd } else { None };
        if attr.qp_type == abi::IBV_QPT_XRC_RECV {
            let domain = if has(abi::IBV_QP_INIT_ATTR_XRCD) && flags == 0 { attr.xrcd } else { None };
            let domain = domain.ok_or(libc::EINVAL)?;
            attr.cap = convert::caps_to_c(QpCap::default());
            // The QP needs no PD, but librdmacm uses its PD to register a connection's memory.
            return target(context, domain, pd, attr.qp_context, driver::Qp::create_target);
        }
        let pd = pd.ok_or(libc::EINVAL)?;
        if has(abi::IBV_QP_INIT_ATTR_IND_TABLE) || has(abi::IBV_QP_INIT_ATTR_RX_HASH) {
            return spread(context, pd, attr, flags);
        }
        let ops = has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
        let service = convert::service_from_c(attr.qp_type)?;
        if ops.is_some_and(|ops| ops & !qp_ex::send_ops(service) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the members of the shorter structure are the first of the longer one.
        let attr = unsafe { &mut *std::ptr::from_mut(attr).cast::<ibv_qp_init_attr>() };
        create(context, pd, attr, Extras { ops, flags })
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
fn create(
    context: Of<ibv_context>,
    pd: Of<ibv_pd>,
    attr: &mut ibv_qp_init_attr,
    extras: Extras,
) -> Result<Of<ibv_qp>, c_int> {
    context.birth.check()?;
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
        (attr.recv_cq, attr.srq) = (attr.send_cq, None);
    }
    let (Some(send_cq), Some(recv_cq)) = (attr.send_cq, attr.recv_cq) else { return Err(libc::EINVAL) };
    if service == Service::XrcTgt {
        return Err(libc::EINVAL);
    }
    let cookie = context.targets.new_cookie();
    let init = QpInit {
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: attr.cap.max_recv_sge,
        max_inline: attr.cap.max_inline_data,
        sq_sig_all: attr.sq_sig_all != 0,
        cookie,
        srq: attr.srq.map(|srq| Arc::clone(&srq.inner)),
        block_multicast_loopback: blocks,
        strip_vlan,
        ..QpInit::new(service, &send_cq.inner, &recv_cq.inner)
    };
    let domain = huge::domain(&context.huge, &pd.inner, Queue::Qp(service))?;
    let inner = driver::Qp::create(&domain, &init)?;
    attr.cap = convert::caps_to_c(inner.cap());
    let mut uses = vec![pd.users.hold(), send_cq.users.hold(), recv_cq.users.hold()];
    uses.extend(attr.srq.map(|srq| srq.users.hold()));
    let fill = |made: &mut IronQp| {
        made.sq_sig_all = attr.sq_sig_all != 0;
        let qp = made.extended();
        qp.base.qp_context = attr.qp_context;
        qp.base.pd = Some(pd);
        qp.base.send_cq = attr.send_cq;
        qp.base.recv_cq = attr.recv_cq;
        qp.base.srq = attr.srq;
        qp.base.qp_type = attr.qp_type;
        if extras.ops.is_some() {
            qp_ex::install(qp);
            let word = context.registration.layout.qp_comp_mask / 4;
            // SAFETY: any words are valid; this one is behind the functions set here.
            unsafe { made.public.words[word] = VERBS_QP_EX };
        }
    };
    Ok(IronQp::publish(context, inner, cookie, uses, fill))
}

/// Creates an RSS QP: a raw packet QP that spreads packets over the work queues of an indirection table. It has no queues or sizes of its
/// own.
fn spread(
    context: Of<ibv_context>,
    pd: Of<ibv_pd>,
    attr: &mut ibv_qp_init_attr_ex,
    flags: u32,
) -> Result<Of<ibv_qp>, c_int> {
    const BOTH: u32 = abi::IBV_QP_INIT_ATTR_IND_TABLE | abi::IBV_QP_INIT_ATTR_RX_HASH;
    context.birth.check()?;
    if attr.qp_type != abi::IBV_QPT_RAW_PACKET {
        return Err(libc::EOPNOTSUPP);
    }
    rights::raw_packets()?;
    if attr.comp_mask & BOTH != BOTH
        || attr.comp_mask & abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0
        || attr.send_cq.is_some()
        || attr.srq.is_some()
        || attr.cap.max_send_wr | attr.cap.max_recv_wr | attr.cap.max_recv_sge != 0
    {
        return Err(libc::EINVAL);
    }
    let table = attr.rwq_ind_tbl.ok_or(libc::EINVAL)?;
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
    // SAFETY: V4: the key has this length, and needs no alignment.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; RxHash::KEY]>().read() };
    let fields = RxHashFields::from_bits(conf.rx_hash_fields_mask).ok_or(libc::EOPNOTSUPP)?;
    let init = RssInit {
        table: Arc::clone(&table.inner),
        hash: RxHash { key, fields },
        block_multicast_loopback: flags & abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
    };
    let inner = driver::Qp::create_rss(&pd.inner, &init).map_err(convert::not_made)?;
    attr.cap = convert::caps_to_c(inner.cap());
    let cookie = context.targets.new_cookie();
    let fill = |made: &mut IronQp| {
        let qp = &mut made.extended().base;
        qp.qp_context = attr.qp_context;
        qp.pd = Some(pd);
        qp.qp_type = attr.qp_type;
    };
    let uses = vec![pd.users.hold(), table.users.hold()];
    Ok(IronQp::publish(context, inner, cookie, uses, fill))
}

/// Makes a handle of an XRC target QP that `make` creates or opens. The QP refers only to its XRC domain.
pub fn target(
    context: Of<ibv_context>,
    xrcd: Of<ibv_xrcd>,
    pd: Option<Of<ibv_pd>>,
    qp_context: *mut c_void,
    make: impl FnOnce(&Arc<XrcDomain>, u64) -> Result<Arc<driver::Qp>, driver::Error>,
) -> Result<Of<ibv_qp>, c_int> {
    context.birth.check()?;
    let cookie = context.targets.new_cookie();
    let inner = make(&xrcd.inner, cookie)?;
    let fill = |made: &mut IronQp| {
        let qp = &mut made.extended().base;
        qp.qp_context = qp_context;
        qp.pd = pd;
        qp.qp_type = abi::IBV_QPT_XRC_RECV;
    };
    Ok(IronQp::publish(context, inner, cookie, vec![xrcd.users.hold()], fill))
}

/// `ibv_modify_qp`. libibverbs records the new state.
pub extern "C" fn modify_qp(qp: Of<ibv_qp>, attr: &ibv_qp_attr, mask: c_int) -> c_int {
    verb(qp, || {
        let (attr, mask) = convert::attr_from_c(attr, mask as c_uint)?;
        let ports = qp.inner.pd().device().attr().phys_port_cnt;
        if mask.contains(QpAttrMask::AV) && !(1..=ports).contains(&attr.ah.port_num) {
            return Err(libc::EINVAL);
        }
        Ok(qp.inner.modify(&attr, mask)?)
    })
}

/// `ibv_query_qp`.
pub extern "C" fn query_qp(
    qp: Of<ibv_qp>,
    attr: &mut MaybeUninit<ibv_qp_attr>,
    _mask: c_int,
    init: &mut MaybeUninit<ibv_qp_init_attr>,
) -> c_int {
    verb(qp, || {
        let found = qp.inner.query()?;
        let cap: ibv_qp_cap = convert::caps_to_c(qp.inner.cap());
        attr.write(convert::attr_to_c(&found, cap));
        // SAFETY: V1. These members were set when the QP was created.
        let ibv_qp { qp_context, send_cq, recv_cq, srq, qp_type, .. } = unsafe { &*qp.raw() };
        init.write(ibv_qp_init_attr {
            qp_context: *qp_context,
            send_cq: *send_cq,
            recv_cq: *recv_cq,
            srq: *srq,
            cap,
            qp_type: *qp_type,
            sq_sig_all: c_int::from(qp.sq_sig_all),
        });
        Ok(())
    })
}

/// PCI ID of the vendor that ECE options would belong to.
const VENDOR: u32 = 0x15b3;

/// `ibv_query_ece`. The device has no options; as with libmlx5 that is not an error.
pub extern "C" fn query_ece(_qp: Of<ibv_qp>, ece: &mut MaybeUninit<ibv_ece>) -> c_int {
    answer(|| {
        ece.write(ibv_ece { vendor_id: VENDOR, options: 0, comp_mask: 0 });
        Ok(())
    })
}

/// `ibv_set_ece`. Accepts the peer's options and ignores them. Fails with EINVAL for another vendor's.
pub extern "C" fn set_ece(_qp: Of<ibv_qp>, ece: &ibv_ece) -> c_int {
    answer(|| if ece.comp_mask == 0 && ece.vendor_id == VENDOR { Ok(()) } else { Err(libc::EINVAL) })
}

/// `ibv_destroy_qp`. Waits until the program has acknowledged every event of the QP that it read.
impl Destroy for ibv_qp {
    fn leave(qp: Of<Self>) -> Result<(), c_int> {
        if qp.inner.is_member() {
            return Err(libc::EBUSY);
        }
        qp.flows.none()?;
        withdraw!(qp, events_completed: errors);
        Ok(())
    }

    ends_inner!();
}
