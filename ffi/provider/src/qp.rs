//! Queue pairs.

use crate::abi::probe::QP_ROOM;
use crate::abi::public::{self as abi, ibv_context, ibv_qp, ibv_qp_ex};
use crate::events::init_locks;
use crate::guard::Birth;
use crate::ours::{Of, ours};
use crate::posting::Posting;
use crate::users::{Use, Users};
use driver::Service;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The public part of a QP, with room for `struct verbs_qp` of any release.
#[repr(C)]
pub union Public {
    pub qp: std::mem::ManuallyDrop<ibv_qp_ex>,
    pub words: [u32; QP_ROOM / 4],
}

/// The provider's QP. Programs see its first member, as `ibv_qp` or `ibv_qp_ex`.
#[repr(C)]
pub struct IronQp {
    pub public: Public,
    /// The driver's QP.
    pub inner: Arc<driver::Qp>,
    /// The transport service.
    pub service: Service,
    pub birth: Birth,
    pub cookie: u64,
    pub sq_sig_all: bool,
    /// Flow rules that steer packets to it.
    pub flows: Users,
    /// The work requests between `ibv_wr_start` and `ibv_wr_complete`. Owned by the thread between the two calls.
    pub posting: UnsafeCell<Posting>,
    /// The objects it refers to: PD, CQs and SRQ; for an XRC target its XRC domain; for RSS its PD and indirection table.
    _uses: Vec<Use>,
}

ours!(IronQp: ibv_qp, |qp: Of<ibv_qp>| qp.birth);

impl IronQp {
    /// Allocates the object that the program gets. `fill` sets the members that depend on the type; the QP refers to the objects in `uses`.
    pub fn publish(
        context: Of<ibv_context>,
        inner: Arc<driver::Qp>,
        cookie: u64,
        uses: Vec<Use>,
        fill: impl FnOnce(&mut Self),
    ) -> Of<ibv_qp> {
        let mut made = Box::new(Self {
            public: Public { words: [0; QP_ROOM / 4] },
            service: inner.service(),
            posting: UnsafeCell::new(Posting::of(inner.service())),
            inner,
            birth: context.birth,
            cookie,
            sq_sig_all: false,
            flows: Users::default(),
            _uses: uses,
        });
        let number = made.inner.qpn();
        let qp = &mut made.extended().base;
        qp.context = context.raw();
        (qp.qp_num, qp.handle) = (number, number);
        qp.state = abi::IBV_QPS_RESET;
        init_locks(&mut qp.mutex, &mut qp.cond);
        fill(&mut made);
        let qp = Of::<ibv_qp>::of_box(made);
        context.targets.enter(cookie, qp.raw() as usize, None);
        qp
    }

    /// The members that programs access.
    pub fn extended(&mut self) -> &mut ibv_qp_ex {
        // SAFETY: zeroed memory is a valid ibv_qp_ex, and words behind its members are only set in libraries where it is shorter.
        unsafe { &mut self.public.qp }
    }
}
