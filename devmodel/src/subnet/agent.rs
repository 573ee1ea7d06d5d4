//! Management packets that no queue pair takes: those to the switch, and those to QP0 of a port without one.

use super::{
    Subnet,
    mad::DEFAULT_PKEY,
    rmpp,
    switch::{self, Neighbour},
};
use crate::{
    Config, identity,
    mlx5::{Frame, Packet, Payload, Step, bytes_of},
    region::Func,
    state::{Counters, IbPort},
};
use hwspec::{
    handle::Qpn,
    layout::prefix,
    wire::{
        self, BthOpcode, Deth, Grh, IpPair, Route,
        lrh::{Lrh, PERMISSIVE_LID},
        mad::{MAD_SIZE, Mad, MadHeader, Method, MgmtClass, QP1_QKEY, Smp, status},
        write_route,
    },
};

/// The virtual lane of subnet management (IBTA 7.6.3).
const MANAGEMENT_LANE: u8 = 15;
/// Hop limit of a packet that stays in the subnet.
pub(super) const HOP_LIMIT: u8 = 0xff;

/// Handles a packet that came to the port of `func`. Returns false if it is not for the agents of the port.
#[cold]
pub(crate) fn arrive(func: &mut Func<'_>, step: &mut Step<'_>, packet: &Packet<'_>) -> bool {
    let Some(lrh) = packet.headers.lrh() else { return false };
    let node_id = step.config.node_id;
    let to_switch =
        func.fid() == 0 && (lrh.dlid() == identity::switch_lid(node_id) || lrh.dlid() == PERMISSIVE_LID);
    let qpn = packet.headers.bth().dest_qp().0;
    if !to_switch && qpn > 1 {
        return false;
    }
    let deth = packet.headers.deth().filter(|_| packet.headers.bth().opcode() == BthOpcode::UdSendOnly);
    let mut mad = [0; MAD_SIZE];
    let complete = packet.len as usize == MAD_SIZE && bytes_of(step, &packet.data, &mut mad).is_ok();
    let header = MadHeader::from_bytes(prefix(&mad));
    let own = match qpn {
        0 => func.function().special_qp[0] == 0,
        // The chip does performance management: a driver's QP1 gets only answers of that class.
        _ => complete && header.mgmt_class() == MgmtClass::Perf && header.method().answer().is_some(),
    };
    if !to_switch && !own {
        return false;
    }
    let Some(deth) = deth.filter(|_| complete) else {
        func.count(Counters::RxMalformed, 1);
        return true;
    };
    // IBTA 9.6.1.5: QP1 has a well-known Q_Key.
    if qpn == 1 && deth.qkey() != QP1_QKEY {
        func.count(Counters::RxDroppedQkey, 1);
        return true;
    }
    let asked = packet.headers.bth().pkey();
    // IBTA 9.6.1.4: QP1 is in the partitions of its port. An answer has the port's own P_Key, because limited members accept only full
    // members.
    let pkey = match qpn {
        1 if to_switch => Some(DEFAULT_PKEY).filter(|own| IbPort::is_same_partition(*own, asked)),
        1 => func.function().ib.pkey_for(asked),
        _ => Some(asked),
    };
    let Some(pkey) = pkey else {
        func.count(Counters::RxDroppedPkey, 1);
        return true;
    };
    let back = Back { route: back(packet, &lrh), qpn, peer: deth.src_qp().0, pkey };
    let config = *step.config;
    match qpn {
        0 if to_switch => {
            let subnet = Subnet { region: func.region(), config: &config };
            let Some(from) = subnet.neighbour_to(lrh.slid()) else { return true };
            match subnet.switch(from, &mad) {
                switch::Way::Back(answer) => back.send(func, step, &answer),
                switch::Way::Out(to, mad) => {
                    let mut on = back;
                    (on.route.dlid, on.route.slid) = match to {
                        Neighbour::Function(fid) => (identity::lid(node_id, fid), PERMISSIVE_LID),
                        // Links carry frames by LID.
                        Neighbour::Adapter(id) => (identity::switch_lid(id), identity::switch_lid(node_id)),
                    };
                    on.peer = 0;
                    on.send(func, step, &mad);
                }
                switch::Way::Lost => {}
            }
        }
        0 => {
            // The switch has already checked packets that it forwarded along a directed route.
            let from = identity::fid_of_lid(node_id, lrh.slid()).map(Neighbour::Function);
            let may_set = lrh.slid() == PERMISSIVE_LID || switch::may_set(from, func.fid());
            if header.method() == Method::Set && !may_set {
                return true;
            }
            if let Some(answer) = own_smp(func, &config, &mad) {
                back.send(func, step, &answer);
            }
        }
        1 if to_switch && header.mgmt_class() == MgmtClass::SubnAdm => rmpp::arrive(func, step, &back, &mad),
        1 if to_switch => {}
        1 => {
            if let Some(answer) = super::local::local(func, &config, &mad, true) {
                back.send(func, step, &answer);
            }
        }
        _ => func.count(Counters::RxDroppedQp, 1),
    }
    true
}

/// A subnet management packet to a port whose program has no QP0: the port answers itself (IBTA 14.2.2.2).
fn own_smp(func: &mut Func<'_>, config: &Config, request: &Mad) -> Option<Mad> {
    let mut packet = Smp::from_bytes(*request);
    let header = packet.header();
    if header.mgmt_class() == MgmtClass::SubnDirected {
        let (pointer, count) = (header.hop_pointer(), header.hop_count());
        let returning = header.status() & status::DIRECTION != 0;
        if returning || pointer != count || packet.dr_dlid() != PERMISSIVE_LID {
            return None;
        }
        let mut path = packet.return_path();
        *path.get_mut(usize::from(pointer))? = 1;
        packet.set().return_path(path);
    }
    super::local::local(func, config, packet.as_bytes(), false)
}

/// The path and the addresses of an answer.
pub(super) struct Back {
    pub route: Route,
    /// The special QP that answers.
    pub qpn: u32,
    /// The QP that asked.
    pub peer: u32,
    /// P_Key of the answer.
    pub pkey: u16,
}

fn back(packet: &Packet<'_>, lrh: &Lrh) -> Route {
    let grh = packet.headers.ipv6().map(|_| {
        let (sgid, dgid) = match packet.headers.addresses() {
            IpPair::V6 { src, dst } => (dst, src),
            IpPair::V4 { .. } => ([0; 16], [0; 16]),
        };
        Grh { sgid, dgid, hop_limit: HOP_LIMIT, ..Grh::default() }
    });
    let vl = if lrh.vl() == MANAGEMENT_LANE { MANAGEMENT_LANE } else { 0 };
    Route { vl, sl: lrh.sl(), dlid: lrh.slid(), slid: lrh.dlid(), grh }
}

impl Back {
    pub fn send(&self, func: &mut Func<'_>, step: &mut Step<'_>, mad: &Mad) {
        let mut bth = wire::Bth::zeroed();
        bth.set().opcode(BthOpcode::UdSendOnly).mig_req(true).pkey(self.pkey).dest_qp(Qpn(self.peer));
        let deth = Deth::with(|s| s.qkey(if self.qpn == 0 { 0 } else { QP1_QKEY }).src_qp(Qpn(self.qpn)));
        let packet = wire::Packet { bth, deth, ..wire::Packet::default() };
        let payload = Payload::Staged(step.stage(mad), MAD_SIZE as u32);
        let mut frame = Frame::new(payload);
        let Some(len) = write_route(&mut frame.headers, &self.route, &packet, MAD_SIZE) else { return };
        frame.header_len = len as u16;
        step.send(frame);
        // The switch counts nothing.
        if self.route.slid == identity::lid(step.config.node_id, func.fid()) {
            func.count(Counters::TxPackets, 1);
            func.count(Counters::TxBytes, (len + MAD_SIZE + wire::ICRC_SIZE) as u64);
        }
    }
}
