//! Virtual port commands.
use crate::context::vport::{HcaVportContext, NicVportContext, RoceAddr, TrafficCounter};

cmd_in! {
    /// `QUERY_VPORT_STATE` input.
    pub struct QueryVportStateIn: 0x10, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
    }
}

cmd_out! {
    /// `QUERY_VPORT_STATE` output.
    pub struct QueryVportStateOut: 0x10 {
        0x00c [ 7: 4] admin_state: u8,
        0x00c [ 3: 0] state: u8,
    }
}

cmd_in! {
    /// `MODIFY_VPORT_STATE` input.
    pub struct ModifyVportStateIn: 0x10 {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x00c [ 7: 4] admin_state: u8,
    }
}

cmd_out! {
    /// `MODIFY_VPORT_STATE` output.
    pub struct ModifyVportStateOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_NIC_VPORT_CONTEXT` input.
    pub struct QueryNicVportContextIn: 0x10, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x00c [26:24] allowed_list_type: u8,
    }
}

cmd_out! {
    /// `QUERY_NIC_VPORT_CONTEXT` output.
    pub struct QueryNicVportContextOut: 0x110 {
        0x010         nic_vport_context: NicVportContext,
    }
}

cmd_in! {
    /// `MODIFY_NIC_VPORT_CONTEXT` input.
    pub struct ModifyNicVportContextIn: 0x200 {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x00c         field_select: [u8; 0x4],
        0x100         nic_vport_context: NicVportContext,
    }
}

cmd_out! {
    /// `MODIFY_NIC_VPORT_CONTEXT` output.
    pub struct ModifyNicVportContextOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_HCA_VPORT_CONTEXT` input.
    pub struct QueryHcaVportContextIn: 0x10, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [19:16] port_num: u8,
        0x008 [15: 0] vport_number: u16,
    }
}

cmd_out! {
    /// `QUERY_HCA_VPORT_CONTEXT` output.
    pub struct QueryHcaVportContextOut: 0x210 {
        0x010         hca_vport_context: HcaVportContext,
    }
}

cmd_in! {
    /// `MODIFY_HCA_VPORT_CONTEXT` input; `field_select` of the context says which fields count.
    pub struct ModifyHcaVportContextIn: 0x210 {
        0x008 [31:31] other_vport: bool,
        0x008 [19:16] port_num: u8,
        0x008 [15: 0] vport_number: u16,
        0x010         hca_vport_context: HcaVportContext,
    }
}

cmd_out! {
    /// `MODIFY_HCA_VPORT_CONTEXT` output.
    pub struct ModifyHcaVportContextOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_HCA_VPORT_GID` input.
    pub struct QueryHcaVportGidIn: 0x10 {
        0x008 [31:31] other_vport: bool,
        0x008 [19:16] port_num: u8,
        0x008 [15: 0] vport_number: u16,
        0x00c [15: 0] gid_index: u16,
    }
}

cmd_out! {
    /// `QUERY_HCA_VPORT_GID` output.
    pub struct QueryHcaVportGidOut: 0x10 {
        0x00c [31:16] gids_num: u16,
    }
}

cmd_in! {
    /// `QUERY_HCA_VPORT_PKEY` input.
    pub struct QueryHcaVportPkeyIn: 0x10 {
        0x008 [31:31] other_vport: bool,
        0x008 [19:16] port_num: u8,
        0x008 [15: 0] vport_number: u16,
        0x00c [15: 0] pkey_index: u16,
    }
}

cmd_out! {
    /// `QUERY_HCA_VPORT_PKEY` output.
    pub struct QueryHcaVportPkeyOut: 0x10 {}
}

cmd_in! {
    /// `SET_ROCE_ADDRESS` input.
    pub struct SetRoceAddressIn: 0x30 {
        0x008 [31:16] roce_address_index: u16,
        0x008 [ 3: 0] vhca_port_num: u8,
        0x010         roce_address: RoceAddr,
    }
}

cmd_out! {
    /// `SET_ROCE_ADDRESS` output.
    pub struct SetRoceAddressOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_ROCE_ADDRESS` input.
    pub struct QueryRoceAddressIn: 0x10, uid {
        0x008 [31:16] roce_address_index: u16,
        0x008 [ 3: 0] vhca_port_num: u8,
    }
}

cmd_out! {
    /// `QUERY_ROCE_ADDRESS` output.
    pub struct QueryRoceAddressOut: 0x30 {
        0x010         roce_address: RoceAddr,
    }
}

cmd_in! {
    /// `QUERY_VPORT_COUNTER` input.
    pub struct QueryVportCounterIn: 0x20, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [19:16] port_num: u8,
        0x008 [15: 0] vport_number: u16,
        0x018 [31:31] clear: bool,
    }
}

cmd_out! {
    /// `QUERY_VPORT_COUNTER` output.
    pub struct QueryVportCounterOut: 0x210 {
        0x010         received_errors: TrafficCounter,
        0x020         transmit_errors: TrafficCounter,
        0x030         received_ib_unicast: TrafficCounter,
        0x040         transmitted_ib_unicast: TrafficCounter,
        0x050         received_ib_multicast: TrafficCounter,
        0x060         transmitted_ib_multicast: TrafficCounter,
        0x070         received_eth_broadcast: TrafficCounter,
        0x080         transmitted_eth_broadcast: TrafficCounter,
        0x090         received_eth_unicast: TrafficCounter,
        0x0a0         transmitted_eth_unicast: TrafficCounter,
        0x0b0         received_eth_multicast: TrafficCounter,
        0x0c0         transmitted_eth_multicast: TrafficCounter,
    }
}

cmd_in! {
    /// `MAD_IFC` input.
    pub struct MadIfcIn: 0x110 {
        0x008 [31:16] remote_lid: u16,
        0x008 [ 7: 0] port: u8,
        0x010         mad: [u8; 0x100],
    }
}

cmd_out! {
    /// `MAD_IFC` output.
    pub struct MadIfcOut: 0x110 {
        0x010         response_mad_packet: [u8; 0x100],
    }
}
