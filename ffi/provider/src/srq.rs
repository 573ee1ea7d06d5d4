//! Shared receive queues.

use crate::abi::public::{self as abi, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq, ibv_xrcd};
use crate::abi::public::{ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::events::{init_locks, withdraw};
use crate::guard::{Birth, answer, verb};
use crate::huge::{self, Queue};
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::post;
use crate::users::{Use, Users};
use driver::SrqInit;
use libc::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The provider's SRQ. Programs see its first member.
#[repr(C)]
pub struct IronSrq {
    public: ibv_srq,
    /// The driver's SRQ.
    pub inner: Arc<driver::Srq>,
    /// QPs attached to it.
    pub users: Users,
    birth: Birth,
    cookie: u64,
    /// The objects it refers to: its PD, and for XRC the XRC domain and the receive CQ.
    _uses: Vec<Use>,
}

ours!(IronSrq: ibv_srq);

/// `ibv_create_srq`. Writes back the actual sizes.
pub extern "C" fn create_srq(pd: Of<ibv_pd>, init: &mut ibv_srq_init_attr) -> Option<Of<ibv_srq>> {
    answer(|| create(pd, init.srq_context, &mut init.attr, None))
}

/// `ibv_create_srq_ex`, for features beyond `ibv_create_srq`.
pub extern "C" fn create_srq_ex(
    context: Of<ibv_context>,
    init: &mut ibv_srq_init_attr_ex,
) -> Option<Of<ibv_srq>> {
    const KNOWN: u32 = abi::IBV_SRQ_INIT_ATTR_TYPE
        | abi::IBV_SRQ_INIT_ATTR_PD
        | abi::IBV_SRQ_INIT_ATTR_XRCD
        | abi::IBV_SRQ_INIT_ATTR_CQ;
    answer(|| {
        // A member is read only if `comp_mask` names it.
        let has = |bit| init.comp_mask & bit != 0;
        let kind = if has(abi::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { abi::IBV_SRQT_BASIC };
        // Tag matching is not supported.
        if init.comp_mask & !KNOWN != 0 || ![abi::IBV_SRQT_BASIC, abi::IBV_SRQT_XRC].contains(&kind) {
            return Err(libc::EOPNOTSUPP);
        }
        let pd = if has(abi::IBV_SRQ_INIT_ATTR_PD) { init.pd } else { None };
        let pd = pd.filter(|pd| pd.context() == context).ok_or(libc::EINVAL)?;
        let mut xrc = None;
        if kind == abi::IBV_SRQT_XRC {
            let given = has(abi::IBV_SRQ_INIT_ATTR_XRCD) && has(abi::IBV_SRQ_INIT_ATTR_CQ);
            xrc = if given { init.xrcd.zip(init.cq) } else { None };
            xrc.ok_or(libc::EINVAL)?;
        }
        create(pd, init.srq_context, &mut init.attr, xrc)
    })
}

/// Creates an SRQ.
fn create(
    pd: Of<ibv_pd>,
    srq_context: *mut libc::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(Of<ibv_xrcd>, Of<ibv_cq>)>,
) -> Result<Of<ibv_srq>, c_int> {
    let context = pd.context();
    context.birth.check()?;
    let cookie = context.targets.new_cookie();
    let init = SrqInit {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        xrc: xrc.map(|(domain, cq)| (Arc::clone(&domain.inner), Arc::clone(&cq.inner))),
        cookie,
    };
    let domain = huge::domain(&context.huge, &pd.inner, Queue::Srq)?;
    let inner = driver::Srq::create(&domain, &init)?;
    (attr.max_wr, attr.max_sge) = inner.size();
    // SAFETY: all-zero is a valid SRQ: null pointers; the locks are initialised below.
    let mut public: ibv_srq = unsafe { std::mem::zeroed() };
    public.context = context.raw();
    public.srq_context = srq_context;
    public.pd = Some(pd);
    public.handle = inner.srqn();
    let mut uses = vec![pd.users.hold()];
    uses.extend(xrc.into_iter().flat_map(|(domain, cq)| [domain.users.hold(), cq.users.hold()]));
    let users = Users::default();
    let mut srq = Box::new(IronSrq { public, inner, users, birth: context.birth, cookie, _uses: uses });
    init_locks(&mut srq.public.mutex, &mut srq.public.cond);
    let srq = Of::<ibv_srq>::of_box(srq);
    context.targets.enter(cookie, srq.raw() as usize, None);
    Ok(srq)
}

/// `ibv_modify_srq`. Sets the limit; the size is fixed at creation.
pub extern "C" fn modify_srq(srq: Of<ibv_srq>, attr: &ibv_srq_attr, mask: c_int) -> c_int {
    verb(srq, || {
        let mask = mask as c_uint;
        if mask & !(abi::IBV_SRQ_MAX_WR | abi::IBV_SRQ_LIMIT) != 0 {
            return Err(libc::EINVAL);
        }
        if mask & abi::IBV_SRQ_MAX_WR != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & abi::IBV_SRQ_LIMIT != 0 {
            srq.inner.arm(attr.srq_limit)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq`.
pub extern "C" fn query_srq(srq: Of<ibv_srq>, attr: &mut MaybeUninit<ibv_srq_attr>) -> c_int {
    verb(srq, || {
        let found = srq.inner.query()?;
        attr.write(ibv_srq_attr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit });
        Ok(())
    })
}

/// `ibv_get_srq_num`: the number by which XRC requests address the SRQ.
pub extern "C" fn get_srq_num(srq: Of<ibv_srq>, number: &mut MaybeUninit<u32>) -> c_int {
    answer(|| {
        if !srq.inner.is_xrc() {
            return Err(libc::EOPNOTSUPP);
        }
        number.write(srq.inner.srqn());
        Ok(())
    })
}

/// `ibv_post_srq_recv`.
pub extern "C" fn post_srq_recv(
    srq: Of<ibv_srq>,
    requests: Option<&ibv_recv_wr>,
    bad: Option<&mut *const ibv_recv_wr>,
) -> c_int {
    post::list(srq.birth, requests, bad, |walk| srq.inner.post_recv(walk))
}

/// `ibv_destroy_srq`. Waits until the program has acknowledged every event of the SRQ that it read.
impl Destroy for ibv_srq {
    fn leave(srq: Of<Self>) -> Result<(), c_int> {
        srq.users.none()?;
        withdraw!(srq, events_completed: errors);
        Ok(())
    }

    ends_inner!();
}
