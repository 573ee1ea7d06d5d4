//! Protection domains.

use crate::abi::public::{ibv_context, ibv_pd};
use crate::guard::verb;
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::users::{Use, Users};
use libc::c_int;
use std::sync::Arc;

/// The provider's PD. Programs see its first member.
#[repr(C)]
pub struct IronPd {
    public: ibv_pd,
    /// The driver's PD.
    pub inner: Arc<driver::Pd>,
    /// MRs and QPs in it.
    pub users: Users,
    pub kind: PdKind,
    pub context: Use,
}

ours!(IronPd: ibv_pd);

/// How a PD was created.
pub enum PdKind {
    /// By `ibv_alloc_pd`.
    Own,
    /// By `ibv_alloc_parent_domain`, from the PD with the shared objects and the thread domain, if any.
    Parent { _pd: Use, _td: Option<Use> },
    /// By `ibv_import_pd`, from another PD.
    Imported { _origin: Use },
}

impl IronPd {
    /// Allocates the object that the program gets.
    pub fn publish(context: Of<ibv_context>, inner: Arc<driver::Pd>, kind: PdKind) -> Of<ibv_pd> {
        let public = ibv_pd { context: context.raw(), handle: inner.pdn() };
        Of::made(Self { public, inner, users: Users::default(), kind, context: context.users.hold() })
    }

    /// True if created by `ibv_alloc_parent_domain`.
    pub fn is_parent_domain(&self) -> bool {
        matches!(self.kind, PdKind::Parent { .. })
    }
}

/// `ibv_alloc_pd`.
pub extern "C" fn alloc_pd(context: Of<ibv_context>) -> Option<Of<ibv_pd>> {
    verb(context, || {
        let inner = driver::Pd::alloc(&context.device)?;
        let handle = inner.pdn();
        let pd = IronPd::publish(context, inner, PdKind::Own);
        context.exports.pds.enter(pd, handle);
        Ok(pd)
    })
}

/// `ibv_dealloc_pd`, for PDs and parent domains. Fails with EBUSY while it contains objects.
impl Destroy for ibv_pd {
    fn leave(pd: Of<Self>) -> Result<(), c_int> {
        pd.users.none()?;
        // An imported PD still belongs to its exporter, and objects may remain from an import that is gone.
        if matches!(pd.kind, PdKind::Imported { .. }) || Arc::strong_count(&pd.inner) > 1 {
            return Err(libc::EBUSY);
        }
        pd.context().exports.pds.leave(pd.raw());
        Ok(())
    }

    ends_inner!();
}
