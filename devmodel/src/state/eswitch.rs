//! Rows of the e-switch, which the PF's driver manages.

use super::{Head, objects::rows};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

rows! {
    /// Settings of a function's port. The index is the function's number; no reset of that function changes them.
    VportRow {
        /// Node GUID; 0 is none.
        node_guid: u64,
        /// Port GUID; 0 is none.
        port_guid: u64,
        /// Address; zeros are none.
        mac: [u8; 6],
        /// Tag that is inserted.
        tci: u16,
        /// Administrative state plus one; 0 is none.
        admin_state: u32,
        /// Changes of the port's context that the manager wants to hear of, and the flags below.
        events: u32,
        /// `vport_cvlan_insert`: 0 not, 1 where there is no tag, 3 always.
        insert: u32,
        /// Not 0: a tag is taken off before the function gets a frame.
        strip: u32,
        /// First table of what may be sent, index plus one; 0 is none.
        ingress: u32,
        /// First table of what may be received, index plus one; 0 is none.
        egress: u32,
        /// Most it may send, Mb/s; 0 is no limit.
        limit: u32,
        /// Padding.
        reserved: u32,
    }
    /// Entry of the table of addresses that the port takes from the wire.
    L2Row {
        /// Address.
        mac: [u8; 6],
        /// VLAN it counts in, with bit 12 set; 0 is all.
        vlan: u16,
    }
    /// Element of the hierarchy that shares out the bandwidth.
    SchedulingRow {
        /// `element_type`.
        kind: u32,
        /// `element_attributes`.
        attributes: u32,
        /// Element above it.
        parent: u32,
        /// Share among its siblings.
        share: u32,
        /// Most it may send, Mb/s; 0 is no limit.
        limit: u32,
        /// Padding.
        reserved: u32,
    }
}

impl VportRow {
    /// In `events`: the next of the changes is told.
    pub const ARMED: u32 = 1 << 31;
    /// In `events`: there was a change since the last that was told.
    pub const MISSED: u32 = 1 << 30;

    /// True if frames of the function, or for it, are treated otherwise than without these settings.
    pub fn treats_frames(&self) -> bool {
        let down = self.admin_state == 1;
        let tagged = self.insert != 0 || self.strip != 0;
        down || tagged || self.ingress != 0 || self.egress != 0 || self.limit != 0
    }
}
