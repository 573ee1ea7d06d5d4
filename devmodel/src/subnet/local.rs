//! The agents of a function's own port.

use super::{mad::turned, pma, smp};
use crate::{Config, region::Func};
use hwspec::{
    layout::prefix,
    wire::mad::{Mad, MadHeader, MgmtClass, status},
};

/// Answers a request for the management agents of a function's own port, by `MAD_IFC` or by a packet to QP0. `None` is no answer.
pub(crate) fn local(func: &mut Func<'_>, config: &Config, request: &Mad, keys_checked: bool) -> Option<Mad> {
    let header = MadHeader::from_bytes(prefix(request));
    match header.mgmt_class() {
        MgmtClass::SubnLid | MgmtClass::SubnDirected => smp::answer(func, config, request, keys_checked),
        MgmtClass::Perf => pma::answer(func, request),
        _ => {
            header.method().answer()?;
            Some(turned(request, status::BAD_VERSION))
        }
    }
}
