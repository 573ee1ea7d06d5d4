//! The agents of a function's own port.

use super::{mad::refuse, pma, smp};
use crate::{Config, region::Func};
use hwspec::wire::mad::{self, MAD_SIZE, MadHeader, MgmtClass};

/// The management agents of a function's own port: what `MAD_IFC` asks, and packets to QP0. `None` is no answer.
pub(crate) fn local(
    func: &mut Func<'_>,
    config: &Config,
    request: &[u8; MAD_SIZE],
    keys_checked: bool,
) -> Option<[u8; MAD_SIZE]> {
    let header = MadHeader::from_bytes(hwspec::layout::prefix(request));
    match header.mgmt_class() {
        MgmtClass::SubnLid | MgmtClass::SubnDirected => smp::answer(func, config, request, keys_checked),
        MgmtClass::Perf => pma::answer(func, request),
        _ => {
            header.method().answer()?;
            Some(refuse(request, mad::status::BAD_VERSION))
        }
    }
}
