//! Attributes of devices, ports and queue pairs.

bitflags::bitflags! {
    /// Access rights of a memory region or a QP (`ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// Local work requests may write.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may perform atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Addresses under the keys are offsets from 0.
        const ZERO_BASED = 1 << 5;
        /// Pages may be missing (on-demand paging).
        const ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages.
        const HUGETLB = 1 << 7;
        /// PCIe relaxed ordering is allowed (optional access: may be ignored).
        const RELAXED_ORDERING = 1 << 20;
    }
}

#[allow(missing_docs)]
mod mask {
    bitflags::bitflags! {
        /// The fields of a [`QpAttr`](super::QpAttr) that a modify sets (`ibv_qp_attr_mask`).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct QpAttrMask: u32 {
            const STATE = 1;
            const CUR_STATE = 1 << 1;
            const EN_SQD_ASYNC_NOTIFY = 1 << 2;
            const ACCESS_FLAGS = 1 << 3;
            const PKEY_INDEX = 1 << 4;
            const PORT = 1 << 5;
            const QKEY = 1 << 6;
            const AV = 1 << 7;
            const PATH_MTU = 1 << 8;
            const TIMEOUT = 1 << 9;
            const RETRY_CNT = 1 << 10;
            const RNR_RETRY = 1 << 11;
            const RQ_PSN = 1 << 12;
            const MAX_QP_RD_ATOMIC = 1 << 13;
            const ALT_PATH = 1 << 14;
            const MIN_RNR_TIMER = 1 << 15;
            const SQ_PSN = 1 << 16;
            const MAX_DEST_RD_ATOMIC = 1 << 17;
            const PATH_MIG_STATE = 1 << 18;
            const CAP = 1 << 19;
            const DEST_QPN = 1 << 20;
            const RATE_LIMIT = 1 << 25;
        }
    }
}
pub use mask::QpAttrMask;

/// QP state, numbered as `ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpState {
    /// Reset.
    #[default]
    Reset = 0,
    /// Initialised: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error: all work requests are flushed.
    Err = 6,
}

impl QpState {
    /// Converts from `ibv_qp_state`.
    pub fn from_raw(raw: u32) -> Option<Self> {
        let states = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];
        states.into_iter().find(|state| *state as u32 == raw)
    }
}

/// The scope of atomicity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicCap {
    /// Not supported.
    #[default]
    None = 0,
    /// Atomic among the operations of this device.
    Hca = 1,
    /// Atomic with respect to the host's operations too.
    Glob = 2,
}

/// The capabilities of a function (`ibv_device_attr`, `ibv_device_attr_ex`).
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct DeviceAttr {
    /// Firmware version: major, minor, sub.
    pub fw_ver: (u16, u16, u16),
    /// EUI-64, first byte first.
    pub node_guid: [u8; 8],
    /// EUI-64, first byte first.
    pub sys_image_guid: [u8; 8],
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device.
    pub vendor_part_id: u32,
    /// PCI revision.
    pub hw_ver: u32,
    /// IEEE vendor id of `QUERY_ADAPTER`.
    pub ieee_vendor_id: u32,
    /// Parameter set identification (board id).
    pub psid: String,
    pub max_mr_size: u64,
    /// Bit n: pages of 2^n bytes.
    pub page_size_cap: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    /// True if on-demand paging is supported, for ranges or for the whole address space.
    pub on_demand: bool,
    /// Bytes of device memory, 0 for none.
    pub max_dm_size: u64,
    pub max_pd: u32,
    /// Maximum incoming READs and atomics per QP.
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    /// Maximum outgoing READs and atomics per QP.
    pub max_qp_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// Maximum number of multicast groups, and of members per group.
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    /// True if XRC is supported.
    pub xrc: bool,
    /// True if checksums of raw packets are computed on send and verified on receive.
    pub raw_checksums: bool,
    /// True if VLAN tags can be stripped from raw packets.
    pub raw_vlan_stripping: bool,
    /// Maximum number of receive work queues, and of receives per queue; 0 on ports without Ethernet frames.
    pub max_wq: u32,
    pub max_wq_wr: u32,
    /// Maximum number of work queue indirection tables, and of entries per table; 0 for none.
    pub max_rwq_tables: u32,
    pub max_rwq_table_size: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    /// Maximum `max_inline` for a QP with one send work request.
    pub max_inline: u32,
    /// Largest message: 2^n bytes.
    pub log_max_msg: u8,
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
    /// Frequency of the device's clock in kHz, 0 if it has none.
    pub clock_khz: u32,
    /// Maximum number of completions and microseconds for event moderation; 0: no moderation.
    pub max_cq_count: u16,
    /// Goes with `max_cq_count`.
    pub max_cq_period: u16,
}

/// The link layer of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE.
    #[default]
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// State of the port (`ibv_port_attr`).
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct PortAttr {
    /// Link up.
    pub active: bool,
    pub link_layer: LinkLayer,
    /// Largest path MTU in bytes.
    pub max_mtu: u32,
    /// Active path MTU in bytes.
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub max_msg_sz: u32,
    /// `ibv_port_attr.active_speed`: 32 = EDR (25 Gb/s per lane).
    pub active_speed: u8,
    /// `ibv_port_attr.active_width`: 2 = four lanes.
    pub active_width: u8,
    /// MAC of the port.
    pub mac: [u8; 6],
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// LID of the subnet manager; 0 on Ethernet.
    pub sm_lid: u16,
    pub port_cap_flags: u32,
    pub max_vl_num: u8,
}

impl PortAttr {
    /// Speed of all lanes, in units of 100 Mb/s.
    pub fn speed(&self) -> u32 {
        let lane = match self.active_speed {
            1 => 25,
            2 => 50,
            4 | 8 => 100,
            16 => 140,
            32 => 250,
            64 => 500,
            128 => 1000,
            _ => 0,
        };
        let lanes = match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        };
        lane * lanes
    }
}

/// Work queue sizes (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Maximum bytes of inline data.
    pub max_inline: u32,
}

/// Path to a peer (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AddressHandle {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// InfiniBand only.
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: bool,
    pub port_num: u8,
    /// The peer's MAC. `None`: the driver derives it from `dgid`.
    pub dmac: Option<[u8; 6]>,
}

impl AddressHandle {
    /// The hop limit over IP. Programs may leave it at its minimum, which on InfiniBand means the same subnet; the
    /// kernel then substitutes the route's value. This does the same, so that routers do not drop the packets.
    pub(crate) fn hops_over_ip(&self) -> u8 {
        /// Linux's default hop limit (`ip_default_ttl`).
        const USUAL: u8 = 64;
        if self.hop_limit <= 1 { USUAL } else { self.hop_limit }
    }
}

/// Attributes of a QP (`ibv_qp_attr`). `path_mtu` is in bytes; timers and retry counts are IBTA codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    /// 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: AccessFlags,
    pub cap: QpCap,
    pub ah: AddressHandle,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    /// In SQD with outstanding work requests. Only returned by queries, never set.
    pub sq_draining: bool,
    /// A path migration state other than "migrated" is requested.
    pub migrates: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}
