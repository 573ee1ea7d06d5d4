//! Address handles.

use crate::abi::public::{ibv_ah, ibv_ah_attr, ibv_pd};
use crate::convert;
use crate::guard::verb;
use crate::ours::{Destroy, Of, ours};
use crate::users::Use;
use std::sync::Arc;

/// The provider's address handle. Programs see its first member.
#[repr(C)]
pub struct IronAh {
    public: ibv_ah,
    /// The driver's address handle.
    pub inner: Arc<driver::Ah>,
    _pd: Use,
}

ours!(IronAh: ibv_ah);

/// `ibv_create_ah`; the library sets the public members afterwards.
pub extern "C" fn create_ah(pd: Of<ibv_pd>, attr: &ibv_ah_attr) -> Option<Of<ibv_ah>> {
    verb(pd, || {
        let inner = driver::Ah::create(&pd.inner, &convert::ah_from_c(attr))?;
        let public = ibv_ah { context: pd.context().raw(), pd: Some(pd), handle: 0 };
        Ok(Of::made(IronAh { public, inner, _pd: pd.users.hold() }))
    })
}

/// `ibv_destroy_ah`.
impl Destroy for ibv_ah {}
