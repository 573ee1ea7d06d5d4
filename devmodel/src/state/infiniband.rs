//! The port on InfiniBand, and the multicast groups of its subnet.

use super::{Head, objects::rows};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of a port's P_Key table.
pub const PKEYS: usize = 128;
/// Entries of a port's GID table: one for each GUID.
pub const PORT_GUIDS: usize = 8;
/// Entries of one of a port's two VL arbitration tables: lane and weight.
pub const ARBITRATION: usize = 8;
/// Maximum number of ports of other adapters on the subnet.
pub const SUBNET_PORTS: usize = 1024;
/// Multicast groups a subnet may have.
pub const SUBNET_GROUPS: usize = 1024;
/// Maximum number of tables that the administrator sends at a time.
pub const SUBNET_SENDS: usize = 128;

/// Link-local GID prefix, which every subnet has (IBTA 4.1.1).
pub(crate) const DEFAULT_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// The values of a port that subnet management reads and may change (IBTA 14.2.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IbPort {
    /// `NodeDescription`, padded with zeros.
    pub node_description: [u8; 64],
    /// P_Key table; 0 is an empty entry.
    pub pkeys: [u16; PKEYS],
    /// Port GUIDs: the first is the port's own, the others are aliases; zeros are empty entries.
    pub guids: [[u8; 8]; PORT_GUIDS],
    /// VL arbitration: low priority table, then high: lane and weight.
    pub arbitration: [[[u8; 2]; ARBITRATION]; 2],
    /// Lane of each service level, four bits each.
    pub sl_to_vl: [u8; 8],
    /// Management key.
    pub m_key: u64,
    /// GID prefix.
    pub gid_prefix: [u8; 8],
    /// `capability_mask` of `PortInfo`.
    pub capability_mask: u32,
    /// Management key lease period, s.
    pub m_key_lease: u16,
    /// Packets with a P_Key that does not match.
    pub pkey_violations: u16,
    /// Datagrams with a Q_Key that does not match.
    pub qkey_violations: u16,
    /// Management packets with an M_Key that does not match.
    pub m_key_violations: u16,
    /// Management key protection level.
    pub m_key_protect: u8,
    /// Subnet timeout exponent.
    pub subnet_timeout: u8,
    /// Limit of high priority packets in arbitration.
    pub vl_high_limit: u8,
    /// Number of times the link went down.
    pub link_downed: u8,
    /// Padding to whole cache lines.
    pub reserved: [u8; 56],
}

const _: () = assert!(size_of::<IbPort>() % 64 == 0);

rows! {
    /// A port of the subnet as its administrator knows it. The PF keeps those of other adapters, as reported by the link; those of its own
    /// adapter follow from their functions.
    SubnetPortRow {
        /// Node and port GUID.
        guids: [[u8; 8]; 2],
        /// P_Key table.
        pkeys: [u16; PKEYS],
        /// LID, from which adapter and function follow.
        lid: u16,
        /// PCI device ID of its function; that of the switch if it is one.
        device_id: u16,
        /// Number of ports of its node.
        ports: u32,
    }
    /// A multicast group of the subnet, kept by the PF of each adapter with members.
    SubnetGroupRow {
        /// The group's GID.
        mgid: [u8; 16],
        /// Full members, one bit per function.
        full: [u64; 2],
        /// Send-only full members.
        send_only: [u64; 2],
        /// Non-members: they receive, but do not keep the group alive.
        non: [u64; 2],
        /// Q_Key.
        qkey: u32,
        /// Flow label.
        flow_label: u32,
        /// P_Key.
        pkey: u16,
        /// Path MTU code.
        mtu: u8,
        /// Rate code.
        rate: u8,
        /// Packet lifetime exponent.
        life_time: u8,
        /// Service level.
        sl: u8,
        /// Traffic class.
        traffic_class: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Multicast LID.
        mlid: u16,
        /// 1: ports of other adapters are members.
        elsewhere: u16,
        /// Padding.
        reserved: u32,
    }
    /// A table that the administrator sends in several segments (IBTA 13.6), kept by the PF: its receiver and progress. Segments are not
    /// stored; they are built from the records each time they are sent.
    SubnetSendRow {
        /// Time limit for the receiver's response, ps.
        due: u64,
        /// Hash of the table, so that all segments are of the same records.
        digest: u64,
        /// The query.
        query: [u8; 256],
        /// Source GID of the response, if it has a GRH.
        sgid: [u8; 16],
        /// Destination GID of the response, if it has a GRH.
        dgid: [u8; 16],
        /// The QP that sent the query.
        peer: u32,
        /// Number of segments acknowledged.
        acked: u32,
        /// Number of segments sent.
        sent: u32,
        /// The last segment in the receiver's window.
        window: u32,
        /// LID of the port that sent the query.
        lid: u16,
        /// P_Key of the query.
        pkey: u16,
        /// Service level of the query.
        sl: u8,
        /// 1: the response has a GRH.
        has_grh: u8,
        /// Number of timeouts since a segment was acknowledged.
        silences: u8,
        /// 1: a timer is armed.
        timed: u8,
    }
}

impl IbPort {
    /// GID `index` of the port: its prefix and the GUID at that index; `None` for an empty entry (IBTA 4.1.1).
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let guid = self.guids.get(index).filter(|guid| **guid != [0; 8])?;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&self.gid_prefix);
        gid[8..].copy_from_slice(guid);
        Some(gid)
    }

    /// True if `gid` is a GID of the port, with its own prefix or the link-local one (IBTA 4.1.1).
    pub fn has_gid(&self, gid: &[u8; 16]) -> bool {
        (0..self.guids.len()).any(|index| self.is_gid(index, gid))
    }

    /// True if `gid` is the port's GID at `index`, with its own prefix or the link-local one (IBTA 4.1.1).
    pub fn is_gid(&self, index: usize, gid: &[u8; 16]) -> bool {
        let (prefix, guid) = gid.split_at(8);
        let near = prefix == self.gid_prefix || prefix == DEFAULT_PREFIX;
        near && guid != [0; 8] && self.guids.get(index).is_some_and(|own| own == guid)
    }

    /// The port's own P_Key by which it accepts a packet with `pkey`.
    pub fn pkey_for(&self, pkey: u16) -> Option<u16> {
        self.pkeys.iter().copied().find(|own| Self::is_same_partition(*own, pkey))
    }

    /// True if a member with P_Key `own` accepts a packet with `pkey`: both are in the same partition and not
    /// both limited members (IBTA 10.9.3).
    pub fn is_same_partition(own: u16, pkey: u16) -> bool {
        own & 0x7fff == pkey & 0x7fff && own & 0x7fff != 0 && (own | pkey) & 0x8000 != 0
    }
}
