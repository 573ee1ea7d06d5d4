//! Subnet management for observers: the answers of its ports and its switch.

use super::{
    Subnet,
    mad::turned,
    pma::{self, Counted},
    smp::Seen,
    switch::{Neighbour, Way},
};
use crate::{
    Config, identity,
    region::Region,
    state::{COUNTERS, FunctionRow, IbPort},
};
use hwspec::{
    layout::prefix,
    wire::{
        lrh::PERMISSIVE_LID,
        mad::{Mad, MadHeader, Method, MgmtClass, Smp, sa::SaMad, status},
    },
};
use std::mem::offset_of;

/// Vendor classes with an OUI in their packets (IBTA 13.4.4).
const VENDOR_WITH_OUI: std::ops::RangeInclusive<u8> = 0x30..=0x4f;

impl Region {
    /// The answer that function `from` gets to a general management packet (QP1) sent from its port to `dlid` (IBTA 13.4), by the agent of
    /// performance management, with counts since power-on, or by the subnet's administrator, whose tables are in one piece, as Linux
    /// returns them to programs. A request to change something is refused. Without an agent the answer is that of Linux: method and
    /// attribute are not supported together (IBTA 13.4.7). `None`: there is no such port, the packet is no request, or it belongs to a
    /// vendor class with an OUI, whose tools (ibsysstat) take any answer for a success.
    pub fn general(&self, config: &Config, from: u8, dlid: u16, request: &Mad) -> Option<Vec<u8>> {
        let subnet = Subnet { region: self, config };
        let counted = |fid| -> Option<Counted> {
            let downs = offset_of!(FunctionRow, ib) + offset_of!(IbPort, link_downed);
            Some((self.counters(fid), self.look(fid, downs)?))
        };
        let header = MadHeader::from_bytes(prefix(request));
        header.method().answer()?;
        let fid = match dlid {
            lid if lid == subnet.switch_lid() => None,
            _ => Some(identity::fid_of_lid(config.node_id, dlid).filter(|fid| subnet.is_up(*fid))?),
        };
        let answer = match (header.mgmt_class(), fid) {
            (MgmtClass::SubnAdm, None) => {
                let refuse = |_: &SaMad| Err(status::BAD_METHOD);
                return subnet
                    .administer(identity::lid(config.node_id, from), request, refuse)
                    .map(|answer| answer.whole());
            }
            (MgmtClass::Perf, _) if header.method() == Method::Set => {
                Some(turned(request, status::BAD_METHOD))
            }
            (MgmtClass::Perf, Some(fid)) => {
                let counted = counted(fid)?;
                pma::reply(request, pma::is_port(request), |_| counted)
            }
            (MgmtClass::Perf, None) => {
                let port = pma::port_select(request);
                pma::reply(request, port <= subnet.ports(), |_| {
                    // The switch's own port 0 and links count nothing.
                    let of_link = match subnet.neighbour(port) {
                        Some(Neighbour::Function(fid)) => counted(fid),
                        _ => None,
                    };
                    of_link.map_or(([0; COUNTERS], 0), |(counters, downs)| (pma::other_end(&counters), downs))
                })
            }
            (class, _) if VENDOR_WITH_OUI.contains(&class.raw()) => None,
            _ => Some(turned(request, status::BAD_ATTRIBUTE)),
        };
        answer.map(|mad| mad.to_vec())
    }

    /// The answer that function `from` gets to a subnet management request sent from its port to `dlid` (IBTA 14.2), in a region with
    /// behaviour `config`. A request to change something is refused. `None`: there is no answer, or it is no such request.
    pub fn management(&self, config: &Config, from: u8, dlid: u16, request: &Mad) -> Option<Mad> {
        let subnet = Subnet { region: self, config };
        let of_port = |fid: u8, request: &Mad| {
            let ib =
                self.look::<IbPort>(fid, offset_of!(FunctionRow, ib)).filter(|_| self.is_present(fid))?;
            let up = self.look::<u32>(fid, offset_of!(FunctionRow, vport_state))? != 0;
            let [node_guid, _] = self.guids(config, fid);
            Seen { fid, node_guid, ib: &ib, up }.answer(config, request)
        };
        let port = Neighbour::Function(from);
        let mut packet = Smp::from_bytes(*request);
        let mut header = packet.header();
        match header.mgmt_class() {
            MgmtClass::SubnLid if dlid == subnet.switch_lid() => subnet.switch_answer(port, request),
            MgmtClass::SubnLid => of_port(identity::fid_of_lid(config.node_id, dlid)?, request),
            MgmtClass::SubnDirected => {
                let whole = packet.dr_slid() == PERMISSIVE_LID && packet.dr_dlid() == PERMISSIVE_LID;
                if !whole || header.status() & status::DIRECTION != 0 || header.hop_pointer() != 0 {
                    return None;
                }
                // Without hops the packet is for the sender's own port (IBTA 14.2.2.2).
                let answer = if header.hop_count() == 0 {
                    of_port(from, request)
                } else {
                    // A channel adapter here has only port 1.
                    (packet.initial_path()[1] == 1).then_some(())?;
                    header.set().hop_pointer(1);
                    packet.set().header(header);
                    match subnet.switch(port, packet.as_bytes()) {
                        Way::Back(answer) => Some(answer),
                        Way::Out(Neighbour::Function(fid), mad) => {
                            at_the_end(&mad).and_then(|mad| of_port(fid, &mad))
                        }
                        // Other adapters cannot be observed from here.
                        Way::Out(Neighbour::Adapter(_), _) | Way::Lost => None,
                    }
                };
                // It comes back along the return path.
                let mut answer = Smp::from_bytes(answer?);
                let mut header = answer.header();
                header.set().hop_pointer(0);
                answer.set().header(header);
                Some(*answer.as_bytes())
            }
            _ => None,
        }
    }
}

/// A directed packet at the port where its path ends. Channel adapters do not forward.
fn at_the_end(mad: &Mad) -> Option<Mad> {
    let mut packet = Smp::from_bytes(*mad);
    let (pointer, count) = (packet.header().hop_pointer(), packet.header().hop_count());
    let mut path = packet.return_path();
    *path.get_mut(usize::from(pointer)).filter(|_| pointer == count)? = 1;
    packet.set().return_path(path);
    Some(*packet.as_bytes())
}
