//! Changes of a region's key, made by the driver on its own queue.

use super::*;
use crate::{error::Error, umr::Change};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Timeout of a key change.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the device apply `change` to `key`, through a temporary queue, since this is rare. EBUSY: the device
/// refuses, as it does while windows are bound to the region.
pub(super) fn change_key(device: &Arc<Device>, key: u32, change: &Change) -> Result<(), Error> {
    let (pd, cq) = (Pd::alloc(device)?, Cq::create(device, 1, 0)?);
    let init =
        QpInit { max_send_wr: 2, max_send_sge: 1, sq_sig_all: true, ..QpInit::new(Service::Keys, &cq, &cq) };
    let qp = Qp::create(&pd, &init)?;
    qp.advance_to(QpState::Rts, &QpAttr { port_num: 1, ..QpAttr::default() })?;
    let mut batch = qp.begin();
    batch
        .change(key, change)
        .map_err(|errno| Error::Invalid { what: "the key cannot be changed".into(), errno })?;
    batch.commit();
    let mut wc = [Completion::default()];
    let begun = Instant::now();
    while cq.poll(&mut wc) == 0 {
        if begun.elapsed() > PATIENCE {
            return Err(Error::Timeout { what: "the change of a memory key".into(), waited: PATIENCE });
        }
        std::hint::spin_loop();
    }
    match wc[0].status {
        WcStatus::Success => Ok(()),
        status => Err(Error::busy(format!("the change of memory key {key:#x} was refused: {status:?}"))),
    }
}
