//! Sources and destinations of MADs.

/// A port's address.
pub type Gid = [u8; 16];

/// The path of a MAD between the QP1 of two ports. "Local" is this side, for MADs sent and received alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MadAddress {
    /// GID of this port; all zero if a received MAD had no GRH.
    pub local_gid: Gid,
    /// GID of the other port; all zero if a received MAD had no GRH.
    pub remote_gid: Gid,
    /// LID of this port; 0 on Ethernet.
    pub local_lid: u16,
    /// LID of the other port; 0 on Ethernet.
    pub remote_lid: u16,
    /// True if the MAD bears a GRH, as on Ethernet it always does.
    pub grh: bool,
    /// Service level, or priority on Ethernet.
    pub sl: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Flow label of the GRH: 20 bits.
    pub flow_label: u32,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
    /// Partition of the packet.
    pub pkey: u16,
    /// The other side's QP, to which answers go; 1 by the specification.
    pub remote_qpn: u32,
}
