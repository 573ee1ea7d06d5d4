//! Rows of the e-switch, which the PF's driver manages.

use super::{Head, objects::rows};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

rows! {
    /// Settings of a function's port. The index is the function's number; resets of the function do not change
    /// the settings.
    VportRow {
        /// Node GUID; 0 if not set.
        node_guid: u64,
        /// Port GUID; 0 if not set.
        port_guid: u64,
        /// MAC address; zeros if not set.
        mac: [u8; 6],
        /// VLAN tag to insert.
        tci: u16,
        /// Administrative state plus one; 0 if not set.
        admin_state: u32,
        /// Changes of the vport context that the manager subscribed to, and the flags below.
        events: u32,
        /// `vport_cvlan_insert`: 0 never, 1 if there is no tag, 3 always.
        insert: u32,
        /// Nonzero: the tag is stripped before the function receives a frame.
        strip: u32,
        /// Root table for frames that the function sends, index plus one; 0 is none.
        ingress: u32,
        /// Root table of frames to the function, index plus one; 0 is none.
        egress: u32,
        /// Rate limit of transmission, Mb/s; 0 is no limit.
        limit: u32,
        /// Padding.
        reserved: u32,
    }
    /// Entry of the table of MAC addresses that the port accepts from the wire.
    L2Row {
        /// Address.
        mac: [u8; 6],
        /// VLAN it applies to, with bit 12 set; 0 is all.
        vlan: u16,
    }
    /// Element of the scheduling hierarchy that divides the bandwidth.
    SchedulingRow {
        /// `element_type`.
        kind: u32,
        /// `element_attributes`.
        attributes: u32,
        /// Parent element.
        parent: u32,
        /// Share among its siblings.
        share: u32,
        /// Rate limit, Mb/s; 0 is no limit.
        limit: u32,
        /// Padding.
        reserved: u32,
    }
}

impl VportRow {
    /// In `events`: the next change is reported.
    pub const ARMED: u32 = 1 << 31;
    /// In `events`: a change occurred after the last reported one.
    pub const MISSED: u32 = 1 << 30;

    /// True if these settings affect frames from or to the function.
    pub fn treats_frames(&self) -> bool {
        let down = self.admin_state == 1;
        let tagged = self.insert != 0 || self.strip != 0;
        down || tagged || self.ingress != 0 || self.egress != 0 || self.limit != 0
    }
}
