//! Multicast groups on the sending function (IBTA 10.5).

use super::{address::source_qpn, send::send};
use crate::{
    LinkLayer, identity,
    mlx5::{received, step::Payload, work::Work},
    region::Func,
    state::{GroupRow, Path, QpFlags, QpRow},
};
use hwspec::wire::Packet;

/// QPs of the group with this GID, in the order of their joining.
pub(super) fn members(func: &Func<'_>, gid: [u8; 16]) -> Vec<u32> {
    if func.used::<GroupRow>() == 0 {
        return Vec::new();
    }
    let rows = func.live::<GroupRow>();
    rows.iter()
        .filter_map(|i| func.row::<GroupRow>(*i).filter(|row| row.gid == gid).map(|row| row.qp))
        .collect()
}

/// True if QP `qp` sent this packet itself and blocks its loopback. Other QPs of its function receive the packet, which Linux relies on
/// for IPoIB devices, all of which block their own.
pub(super) fn blocks(func: &Func<'_>, packet: &received::Packet<'_>, qp: u32) -> bool {
    let Some(row) = func.row::<QpRow>(qp).filter(|row| row.has(QpFlags::BLOCK_MULTICAST_LOOPBACK)) else {
        return false;
    };
    let h = &packet.headers;
    let from_here = match h.lrh() {
        Some(lrh) => lrh.slid() == identity::lid(func.fid()),
        None => h.ethernet().src() == func.function().mac,
    };
    from_here && h.deth().is_some_and(|deth| deth.src_qp().0 == source_qpn(row, func.number::<QpRow>(qp)))
}

/// Delivers a multicast packet to members on the sending function: the wire does not loop it back, so the port does.
#[cold]
pub(super) fn loop_back(w: &mut Work<'_, '_, '_>, path: &Path, packet: &Packet, payload: Payload) {
    if members(w.func, path.dgid).is_empty() {
        return;
    }
    let here = match w.step.config.link_layer {
        LinkLayer::Ethernet => Path { dmac: w.func.function().mac, ..*path },
        LinkLayer::Infiniband => Path { rlid: identity::lid(w.func.fid()), ..*path },
    };
    send(w, &here, packet, &payload);
}
