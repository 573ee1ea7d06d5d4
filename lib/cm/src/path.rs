//! Paths of MADs, and of a connection's packets.
use hwspec::wire::mad::cm::ReqPath;
pub use hwspec::wire::mad::{Gid, MadAddress as Address};

/// The path of a connection's packets, for its QP's address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// GID of this port.
    pub local_gid: Gid,
    /// GID of the other port.
    pub remote_gid: Gid,
    /// LID of this port; 0 on Ethernet.
    pub local_lid: u16,
    /// LID of the other port; 0 on Ethernet.
    pub remote_lid: u16,
    /// True if packets have a GRH.
    pub grh: bool,
    /// Service level, or priority on Ethernet.
    pub sl: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Flow label of the GRH: 20 bits.
    pub flow_label: u32,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
    /// Static rate, encoded as in path records; 0 for unknown.
    pub rate: u8,
    /// 1 to 5: 256 to 4096 bytes.
    pub mtu: u8,
    /// Partition.
    pub pkey: u16,
    /// 4.096 us x 2^n.
    pub packet_life_time: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            local_gid: [0; 16],
            remote_gid: [0; 16],
            local_lid: 0,
            remote_lid: 0,
            grh: true,
            sl: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            rate: 0,
            mtu: 3,
            pkey: 0xffff,
            packet_life_time: crate::default::ETHERNET_PACKET_LIFE_TIME,
        }
    }
}

/// The LID in a REQ that means "as the packet came" (IBTA 12.7.11).
const PERMISSIVE_LID: u16 = 0xffff;

impl Path {
    /// The path of MADs.
    pub fn address(&self) -> Address {
        Address {
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            local_lid: self.local_lid,
            remote_lid: self.remote_lid,
            grh: self.grh,
            sl: self.sl,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            pkey: self.pkey,
            remote_qpn: 1,
        }
    }

    /// The path in the format of a REQ. LIDs mean nothing to a peer in another subnet.
    pub(crate) fn describe(&self, ack_delay: u8) -> ReqPath {
        let subnet_local = self.hop_limit <= 1;
        let lid = |lid| if subnet_local { lid } else { PERMISSIVE_LID };
        let mut path = ReqPath::zeroed();
        path.set()
            .local_lid(lid(self.local_lid))
            .remote_lid(lid(self.remote_lid))
            .local_gid(self.local_gid)
            .remote_gid(self.remote_gid)
            .flow_label(self.flow_label & 0xf_ffff)
            .packet_rate(self.rate & 0x3f)
            .traffic_class(self.traffic_class)
            .hop_limit(self.hop_limit)
            .sl(self.sl & 0xf)
            .subnet_local(subnet_local)
            .local_ack_timeout(crate::ack_timeout(ack_delay, self.packet_life_time & 31));
        path
    }

    /// Converts the path in a REQ to the view of its receiver, which got the REQ on path `from`.
    pub(crate) fn of_request(path: &ReqPath, mtu: u8, pkey: u16, from: &Address) -> Self {
        Self {
            local_gid: path.remote_gid(),
            remote_gid: path.local_gid(),
            local_lid: if path.remote_lid() == PERMISSIVE_LID { from.local_lid } else { path.remote_lid() },
            // Answers go to the LID that the request came from, regardless of the LID named by the sender.
            remote_lid: from.remote_lid,
            grh: from.grh || !path.subnet_local(),
            sl: if path.subnet_local() { path.sl() } else { from.sl },
            traffic_class: path.traffic_class(),
            flow_label: path.flow_label(),
            hop_limit: if from.grh { from.hop_limit } else { path.hop_limit() },
            rate: path.packet_rate(),
            mtu,
            pkey,
            packet_life_time: path.local_ack_timeout().saturating_sub(1),
        }
    }
}
