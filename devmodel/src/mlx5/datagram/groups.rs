//! Multicast groups on the sending function (IBTA 10.5).

use super::address::MULTICAST_QPN;
use crate::{
    LinkLayer, identity,
    mlx5::{step::Payload, work::Work},
    region::Func,
    state::{GroupRow, QpFlags},
};
use hwspec::wire::Packet;

/// QPs of the group with this GID, in the order they joined.
pub(super) fn members(func: &Func<'_>, gid: [u8; 16]) -> Vec<u32> {
    if func.used::<GroupRow>() == 0 {
        return Vec::new();
    }
    let rows = func.live::<GroupRow>();
    rows.iter()
        .filter_map(|i| func.row::<GroupRow>(*i).filter(|row| row.gid == gid).map(|row| row.qp))
        .collect()
}

/// A multicast also comes to members on the sending function: the wire does not bring it back, so the port does.
#[cold]
pub(super) fn loop_back(w: &mut Work<'_, '_, '_>, packet: &Packet, payload: Payload) {
    debug_assert_eq!(w.q.remote_qpn, MULTICAST_QPN);
    if w.q.has(QpFlags::BLOCK_MULTICAST_LOOPBACK) || members(w.func, w.q.dgid).is_empty() {
        return;
    }
    match w.step.config.link_layer {
        LinkLayer::Ethernet => w.q.dmac = w.func.function().mac,
        LinkLayer::Infiniband => w.q.rlid = identity::lid(w.func.fid()),
    }
    w.send(packet, &payload);
}
