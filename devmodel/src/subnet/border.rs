//! The border of an adapter: frames of other adapters that a link may bring in.

use crate::{Adapter, identity};
use hwspec::{
    layout::prefix,
    wire::{
        Headers,
        lrh::is_multicast,
        mad::{MadHeader, Method, MgmtClass},
    },
};

impl Adapter {
    /// True if an InfiniBand frame that came over a link may enter: it is from another adapter, for one of this adapter's ports or a group,
    /// and changes nothing. From here on the sender's LID is trusted, and decides what the sender may request.
    pub fn admits(&self, frame: &[u8]) -> bool {
        let own = self.config().node_id;
        let Ok(headers) = Headers::parse_route(frame, frame.len()) else { return false };
        let Some(lrh) = headers.lrh() else { return false };
        let Some(from) = identity::node_of_lid(lrh.slid()).filter(|from| *from != own) else { return false };
        let (group, to_switch) = (is_multicast(lrh.dlid()), lrh.dlid() == identity::switch_lid(own));
        if !group && !to_switch && identity::fid_of_lid(own, lrh.dlid()).is_none() {
            return false;
        }
        if headers.bth().dest_qp().0 != 0 {
            return true;
        }
        // Ports are managed by the PF of their own adapter. A directed route goes from switch to switch.
        let mad = headers.payload().and_then(|payload| payload.first_chunk::<{ MadHeader::SIZE }>());
        let Some(header) = mad.map(|mad| MadHeader::from_bytes(prefix(mad))).filter(|_| !group) else {
            return false;
        };
        let directed = header.mgmt_class() == MgmtClass::SubnDirected;
        header.method() != Method::Set && (!directed || to_switch && lrh.slid() == identity::switch_lid(from))
    }
}
