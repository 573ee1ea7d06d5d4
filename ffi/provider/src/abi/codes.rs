//! Flags and codes of `<infiniband/verbs.h>`, checked against the installed header like the types.

#![allow(missing_docs)]

use super::layout::c_codes;

/// `verbs_device.core_support`: optional access flags are passed on to the provider.
pub const IBV_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;

c_codes! {
    /// Bits 20-29 are optional: a device that does not know one ignores it.
    pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

    pub const IBV_REREG_MR_CHANGE_TRANSLATION: u32 = 1;
    pub const IBV_REREG_MR_CHANGE_PD: u32 = 1 << 1;
    pub const IBV_REREG_MR_CHANGE_ACCESS: u32 = 1 << 2;
    pub const IBV_REREG_MR_FLAGS_SUPPORTED: u32 = 7;

    pub const IBV_DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub const IBV_DEVICE_PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub const IBV_DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
    pub const IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub const IBV_DEVICE_XRC: u32 = 1 << 20;
    pub const IBV_DEVICE_RAW_IP_CSUM: u32 = 1 << 26;
    pub const IBV_RAW_PACKET_CAP_CVLAN_STRIPPING: u32 = 1;
    pub const IBV_RAW_PACKET_CAP_IP_CSUM: u32 = 1 << 2;

    pub const IBV_PORT_DOWN: u32 = 1;
    pub const IBV_PORT_ACTIVE: u32 = 4;
    pub const IBV_MIG_MIGRATED: u32 = 0;
    pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
    pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

    pub const IBV_FLOW_ATTR_NORMAL: u32 = 0;
    pub const IBV_FLOW_ATTR_ALL_DEFAULT: u32 = 1;
    pub const IBV_FLOW_ATTR_MC_DEFAULT: u32 = 2;
    pub const IBV_FLOW_SPEC_ETH: u32 = 0x20;
    pub const IBV_FLOW_SPEC_IPV4: u32 = 0x30;
    pub const IBV_FLOW_SPEC_IPV6: u32 = 0x31;
    pub const IBV_FLOW_SPEC_IPV4_EXT: u32 = 0x32;
    pub const IBV_FLOW_SPEC_TCP: u32 = 0x40;
    pub const IBV_FLOW_SPEC_UDP: u32 = 0x41;
    pub const IBV_FLOW_SPEC_ACTION_DROP: u32 = 0x1001;

    pub const IBV_QPT_RC: u32 = 2;
    pub const IBV_QPT_UC: u32 = 3;
    pub const IBV_QPT_UD: u32 = 4;
    pub const IBV_QPT_RAW_PACKET: u32 = 8;
    pub const IBV_QPT_XRC_SEND: u32 = 9;
    pub const IBV_QPT_XRC_RECV: u32 = 10;
    pub const IBV_QPT_DRIVER: u32 = 0xff;
    pub const IBV_QP_STATE: u32 = 1;
    pub const IBV_QP_PATH_MTU: u32 = 1 << 8;
    pub const IBV_QP_RQ_PSN: u32 = 1 << 12;
    pub const IBV_QPS_RESET: u32 = 0;

    pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
    pub const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
    pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
    pub const IBV_QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
    pub const IBV_QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
    pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

    pub const IBV_WQT_RQ: u32 = 0;
    pub const IBV_WQ_INIT_ATTR_FLAGS: u32 = 1;
    pub const IBV_WQ_FLAGS_CVLAN_STRIPPING: u32 = 1;
    pub const IBV_WQ_ATTR_STATE: u32 = 1;
    pub const IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;
    pub const IBV_WQ_ATTR_FLAGS: u32 = 1 << 2;
    pub const IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1;

    pub const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
    pub const IBV_QP_CREATE_CVLAN_STRIPPING: u32 = 1 << 9;

    pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
    pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
    pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
    pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
    pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub const IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
    pub const IBV_QP_EX_WITH_BIND_MW: u64 = 1 << 8;
    pub const IBV_QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;

    pub const IBV_WR_RDMA_WRITE: u32 = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const IBV_WR_SEND: u32 = 2;
    pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
    pub const IBV_WR_RDMA_READ: u32 = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const IBV_WR_LOCAL_INV: u32 = 7;
    pub const IBV_WR_BIND_MW: u32 = 8;
    pub const IBV_WR_SEND_WITH_INV: u32 = 9;

    /// Byte length, immediate, QP numbers, LIDs, SL: the fields of every completion.
    pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
    pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
    pub const IBV_WC_EX_WITH_CVLAN: u64 = 1 << 8;
    pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
    pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
    pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
    pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
    pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
    pub const IBV_CQ_ATTR_MODERATE: u32 = 1;
    pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

    pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
    pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
    /// Returned by an allocator of a parent domain to leave the allocation to the provider.
    pub const IBV_ALLOCATOR_USE_DEFAULT: usize = usize::MAX;

    pub const IBV_EVENT_CQ_ERR: u32 = 0;
    pub const IBV_EVENT_QP_FATAL: u32 = 1;
    pub const IBV_EVENT_QP_REQ_ERR: u32 = 2;
    pub const IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
    pub const IBV_EVENT_COMM_EST: u32 = 4;
    pub const IBV_EVENT_SQ_DRAINED: u32 = 5;
    pub const IBV_EVENT_PATH_MIG: u32 = 6;
    pub const IBV_EVENT_PATH_MIG_ERR: u32 = 7;
    pub const IBV_EVENT_DEVICE_FATAL: u32 = 8;
    pub const IBV_EVENT_PORT_ACTIVE: u32 = 9;
    pub const IBV_EVENT_PORT_ERR: u32 = 10;
    pub const IBV_EVENT_LID_CHANGE: u32 = 11;
    pub const IBV_EVENT_PKEY_CHANGE: u32 = 12;
    pub const IBV_EVENT_SRQ_ERR: u32 = 14;
    pub const IBV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
    pub const IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
    pub const IBV_EVENT_CLIENT_REREGISTER: u32 = 17;
    pub const IBV_EVENT_GID_CHANGE: u32 = 18;
    pub const IBV_EVENT_WQ_FATAL: u32 = 19;

    pub const IBV_SRQT_BASIC: u32 = 0;
    pub const IBV_SRQT_XRC: u32 = 1;
    pub const IBV_SRQ_MAX_WR: u32 = 1;
    pub const IBV_SRQ_LIMIT: u32 = 1 << 1;
    pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
    pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
    pub const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
    pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
    pub const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
    pub const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;
    pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
    pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
    pub const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
    pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;
}
