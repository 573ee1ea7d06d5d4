//! Queue pairs.

use crate::abi::probe::QP_ROOM;
use crate::abi::public::{self as abi, ibv_qp, ibv_qp_ex, ibv_rwq_ind_table, ibv_xrcd};
use crate::context::Context;
use crate::guard::Birth;
use crate::posting::Posting;
use crate::users::Users;
use driver::Service;
use libc::c_int;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The public part of a QP, with room for `struct verbs_qp` of any release.
#[repr(C)]
pub union Public {
    pub qp: std::mem::ManuallyDrop<ibv_qp_ex>,
    pub words: [u32; QP_ROOM / 4],
}

/// Our QP; the program knows its first member, as `ibv_qp` or as `ibv_qp_ex`.
#[repr(C)]
pub struct IronQp {
    pub public: Public,
    /// The driver's.
    pub inner: Arc<driver::Qp>,
    /// Its kind.
    pub service: Service,
    pub birth: Birth,
    pub cookie: u64,
    pub sq_sig_all: bool,
    /// The domain of an XRC target, else null.
    pub xrcd: *mut ibv_xrcd,
    /// The table of work queues over which it spreads frames, else null.
    pub table: *mut ibv_rwq_ind_table,
    /// Flows that steer frames to it.
    pub flows: Users,
    /// The work requests between `ibv_wr_start` and `ibv_wr_complete`; belongs to the thread between them.
    pub posting: UnsafeCell<Posting>,
}

impl IronQp {
    /// The QP behind what the program holds.
    ///
    /// # Safety
    /// `qp` is one of ours, not yet destroyed.
    #[inline]
    pub unsafe fn of<'a>(qp: *const ibv_qp) -> &'a Self {
        // SAFETY: V1, V2.
        unsafe { &*qp.cast::<Self>() }
    }

    /// Makes the object that the program knows, as far as all types share it.
    pub fn boxed(context: &Context, inner: Arc<driver::Qp>, cookie: u64) -> Box<Self> {
        let mut made = Box::new(Self {
            public: Public { words: [0; QP_ROOM / 4] },
            service: inner.service(),
            posting: UnsafeCell::new(Posting::of(inner.service())),
            inner,
            birth: context.birth,
            cookie,
            sq_sig_all: false,
            xrcd: std::ptr::null_mut(),
            table: std::ptr::null_mut(),
            flows: Users::default(),
        });
        // SAFETY: zeroed memory is a valid ibv_qp_ex.
        unsafe {
            let public = &mut made.public.qp;
            let qp = &mut public.base;
            qp.qp_num = made.inner.qpn();
            qp.handle = qp.qp_num;
            qp.state = abi::IBV_QPS_RESET;
            libc::pthread_mutex_init(&raw mut qp.mutex, std::ptr::null());
            libc::pthread_cond_init(&raw mut qp.cond, std::ptr::null());
        }
        made
    }

    /// Refuses work in a forked child.
    #[inline]
    pub fn check_birth(&self) -> Result<(), c_int> {
        if self.birth.is_here() { Ok(()) } else { Err(libc::EIO) }
    }
}
