//! The public verbs types of `<infiniband/verbs.h>`, as applications see them.
//!
//! Enumerations are plain integers here: they come from foreign memory, and an unknown value must be refused rather than be undefined
//! behaviour. Structures that grew over the releases are in their newest known form (rdma-core 65); those that the library or the
//! application passes with a size are only filled up to that size. Pointers to this provider's objects are [`Of`] or [`Held`], also in the
//! functions that the provider sets and programs call. `tests/abi/public_layout.rs` checks sizes and offsets against the installed header.

#![allow(missing_docs, non_camel_case_types)]

pub use super::codes::*;
use super::layout::c_structs;
use super::memory::{ibv_mw, ibv_mw_bind_info, ibv_wr_bind_mw};
use crate::ours::{Held, Of};
use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, size_t};
use std::sync::atomic::AtomicI32;

/// 16 bytes of a GID, network order.
pub type ibv_gid = [u8; 16];
/// A function pointer slot that the provider does not call.
pub type Slot = *const c_void;

pub type AllocBuffer = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, size_t, size_t, u64) -> *mut c_void;
pub type FreeBuffer = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// A GID with the alignment of the C union.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Gid(pub ibv_gid);

pub type PostReceives =
    extern "C" fn(Of<ibv_wq>, Option<&ibv_recv_wr>, Option<&mut *const ibv_recv_wr>) -> c_int;

/// Fields of particular operations.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_wr_extra {
    pub bind_mw: ibv_wr_bind_mw,
    pub words: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_wr_body {
    pub rdma: ibv_wr_rdma,
    pub atomic: ibv_wr_atomic,
    pub ud: ibv_wr_ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_ud {
    pub ah: Option<Of<ibv_ah>>,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

pub type StartPoll = extern "C" fn(Of<ibv_cq>, Option<&u32>) -> c_int;

/// A CQ between start and end of polling; the thread that polls it holds its lock, or is the only one that polls, as the program declared
/// (ibv_create_cq_ex(3)).
pub type Polled = Held<ibv_cq>;
/// A QP that `ibv_wr_start` was called for, or in that call; the batch in it holds the send queue's lock (ibv_wr_post(3)).
pub type Posted = Held<ibv_qp>;

c_structs! {
    pub struct ibv_device {
        pub _ops: [Slot; 2],
        pub node_type: c_int,
        pub transport_type: c_int,
        pub name: [c_char; 64],
        pub dev_name: [c_char; 64],
        pub dev_path: [c_char; 256],
        pub ibdev_path: [c_char; 256],
    }

    pub struct ibv_context {
        pub device: Of<ibv_device>,
        pub ops: [Slot; 32],
        pub cmd_fd: c_int,
        pub async_fd: c_int,
        pub num_comp_vectors: c_int,
        pub mutex: pthread_mutex_t,
        pub abi_compat: *mut c_void,
    }

    pub struct ibv_device_attr {
        pub fw_ver: [c_char; 64],
        /// Network order.
        pub node_guid: u64,
        pub sys_image_guid: u64,
        pub max_mr_size: u64,
        pub page_size_cap: u64,
        pub vendor_id: u32,
        pub vendor_part_id: u32,
        pub hw_ver: u32,
        pub max_qp: c_int,
        pub max_qp_wr: c_int,
        pub device_cap_flags: c_uint,
        pub max_sge: c_int,
        pub max_sge_rd: c_int,
        pub max_cq: c_int,
        pub max_cqe: c_int,
        pub max_mr: c_int,
        pub max_pd: c_int,
        pub max_qp_rd_atom: c_int,
        pub max_ee_rd_atom: c_int,
        pub max_res_rd_atom: c_int,
        pub max_qp_init_rd_atom: c_int,
        pub max_ee_init_rd_atom: c_int,
        pub atomic_cap: c_uint,
        pub max_ee: c_int,
        pub max_rdd: c_int,
        pub max_mw: c_int,
        pub max_raw_ipv6_qp: c_int,
        pub max_raw_ethy_qp: c_int,
        pub max_mcast_grp: c_int,
        pub max_mcast_qp_attach: c_int,
        pub max_total_mcast_qp_attach: c_int,
        pub max_ah: c_int,
        pub max_fmr: c_int,
        pub max_map_per_fmr: c_int,
        pub max_srq: c_int,
        pub max_srq_wr: c_int,
        pub max_srq_sge: c_int,
        pub max_pkeys: u16,
        pub local_ca_ack_delay: u8,
        pub phys_port_cnt: u8,
    }

    /// Only the members up to the last one that this device sets are named.
    pub struct ibv_device_attr_ex {
        pub orig_attr: ibv_device_attr,
        pub comp_mask: u32,
        pub odp_general_caps: u64,
        pub odp_transport_caps: [u32; 3],
        pub completion_timestamp_mask: u64,
        pub hca_core_clock: u64,
        pub device_cap_flags_ex: u64,
        /// Maximum message size, and QP types.
        pub tso_caps: [u32; 2],
        pub rss_caps: ibv_rss_caps,
        pub max_wq_type_rq: u32,
        /// Minimum and maximum rate in kb/s, and a bitmap of QP types.
        pub packet_pacing_caps: [u32; 3],
        pub raw_packet_caps: u32,
        pub tm_caps: [u32; 5],
        pub cq_mod_caps: ibv_moderate_cq,
        pub max_dm_size: u64,
        /// Sizes for which fetch-and-add, swap and compare-and-swap are atomic with respect to the host, too.
        pub pci_atomic_caps: [u16; 3],
        pub xrc_odp_caps: u32,
        pub phys_port_cnt_ex: u32,
    }

    /// RSS capabilities: supported QP types as a bitmap, maximum number of tables and their maximum size.
    #[derive(Clone, Copy)]
    pub struct ibv_rss_caps {
        pub supported_qpts: u32,
        pub max_rwq_indirection_tables: u32,
        pub max_rwq_indirection_table_size: u32,
        pub rx_hash_fields_mask: u64,
        pub rx_hash_function: u8,
    }

    /// A number of completions, and microseconds.
    #[derive(Clone, Copy)]
    pub struct ibv_moderate_cq {
        pub cq_count: u16,
        pub cq_period: u16,
    }

    /// Enhanced connection establishment: options of both ends beyond the standard.
    #[derive(Clone, Copy)]
    pub struct ibv_ece {
        pub vendor_id: u32,
        pub options: u32,
        pub comp_mask: u32,
    }

    pub struct ibv_modify_cq_attr {
        pub attr_mask: u32,
        pub moderate: ibv_moderate_cq,
    }

    pub struct ibv_values_ex {
        pub comp_mask: u32,
        pub raw_clock: libc::timespec,
    }

    pub struct ibv_td {
        pub context: *mut ibv_context,
    }

    pub struct ibv_parent_domain_init_attr {
        pub pd: Option<Of<ibv_pd>>,
        pub td: Option<Of<ibv_td>>,
        pub comp_mask: u32,
        pub alloc: Option<AllocBuffer>,
        pub free: Option<FreeBuffer>,
        pub pd_context: *mut c_void,
    }

    /// Without `active_speed_ex` (v58 and later), which the library has zeroed.
    pub struct ibv_port_attr {
        pub state: c_uint,
        pub max_mtu: c_uint,
        pub active_mtu: c_uint,
        pub gid_tbl_len: c_int,
        pub port_cap_flags: u32,
        pub max_msg_sz: u32,
        pub bad_pkey_cntr: u32,
        pub qkey_viol_cntr: u32,
        pub pkey_tbl_len: u16,
        pub lid: u16,
        pub sm_lid: u16,
        pub lmc: u8,
        pub max_vl_num: u8,
        pub sm_sl: u8,
        pub subnet_timeout: u8,
        pub init_type_reply: u8,
        pub active_width: u8,
        pub active_speed: u8,
        pub phys_state: u8,
        pub link_layer: u8,
        pub flags: u8,
        pub port_cap_flags2: u16,
    }

    pub struct ibv_flow {
        pub comp_mask: u32,
        pub context: *mut ibv_context,
        pub handle: u32,
    }

    /// Followed by the specs of the flow.
    pub struct ibv_flow_attr {
        pub comp_mask: u32,
        /// `type`
        pub kind: c_uint,
        pub size: u16,
        pub priority: u16,
        pub num_of_specs: u8,
        pub port: u8,
        pub flags: u32,
    }

    pub struct ibv_ah {
        pub context: *mut ibv_context,
        pub pd: Option<Of<ibv_pd>>,
        pub handle: u32,
    }

    pub struct ibv_pd {
        pub context: *mut ibv_context,
        pub handle: u32,
    }

    pub struct ibv_mr {
        pub context: *mut ibv_context,
        pub pd: Option<Of<ibv_pd>>,
        pub addr: *mut c_void,
        pub length: size_t,
        pub handle: u32,
        pub lkey: u32,
        pub rkey: u32,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_global_route {
        pub dgid: Gid,
        pub flow_label: u32,
        pub sgid_index: u8,
        pub hop_limit: u8,
        pub traffic_class: u8,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_ah_attr {
        pub grh: ibv_global_route,
        pub dlid: u16,
        pub sl: u8,
        pub src_path_bits: u8,
        pub static_rate: u8,
        pub is_global: u8,
        pub port_num: u8,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_qp_cap {
        pub max_send_wr: u32,
        pub max_recv_wr: u32,
        pub max_send_sge: u32,
        pub max_recv_sge: u32,
        pub max_inline_data: u32,
    }

    pub struct ibv_qp_init_attr {
        pub qp_context: *mut c_void,
        pub send_cq: Option<Of<ibv_cq>>,
        pub recv_cq: Option<Of<ibv_cq>>,
        pub srq: Option<Of<ibv_srq>>,
        pub cap: ibv_qp_cap,
        pub qp_type: c_uint,
        pub sq_sig_all: c_int,
    }

    pub struct ibv_qp_init_attr_ex {
        /// As in `ibv_qp_init_attr`, except that its padding holds `comp_mask`.
        pub qp_context: *mut c_void,
        pub send_cq: Option<Of<ibv_cq>>,
        pub recv_cq: Option<Of<ibv_cq>>,
        pub srq: Option<Of<ibv_srq>>,
        pub cap: ibv_qp_cap,
        pub qp_type: c_uint,
        pub sq_sig_all: c_int,
        pub comp_mask: u32,
        pub pd: Option<Of<ibv_pd>>,
        pub xrcd: Option<Of<ibv_xrcd>>,
        pub create_flags: u32,
        pub max_tso_header: u16,
        pub rwq_ind_tbl: Option<Of<ibv_rwq_ind_table>>,
        pub rx_hash_conf: ibv_rx_hash_conf,
        pub source_qpn: u32,
        pub send_ops_flags: u64,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_rx_hash_conf {
        pub rx_hash_function: u8,
        pub rx_hash_key_len: u8,
        pub rx_hash_key: *const u8,
        pub rx_hash_fields_mask: u64,
    }

    /// The library sets `wq_context`, `events_completed` and the locks after the call.
    pub struct ibv_wq {
        pub context: *mut ibv_context,
        pub wq_context: *mut c_void,
        pub pd: Option<Of<ibv_pd>>,
        pub cq: Option<Of<ibv_cq>>,
        pub wq_num: u32,
        pub handle: u32,
        pub state: c_uint,
        pub wq_type: c_uint,
        pub post_recv: Option<PostReceives>,
        pub mutex: pthread_mutex_t,
        pub cond: pthread_cond_t,
        pub events_completed: u32,
        pub comp_mask: u32,
    }

    pub struct ibv_wq_init_attr {
        pub wq_context: *mut c_void,
        pub wq_type: c_uint,
        pub max_wr: u32,
        pub max_sge: u32,
        pub pd: Option<Of<ibv_pd>>,
        pub cq: Option<Of<ibv_cq>>,
        pub comp_mask: u32,
        pub create_flags: u32,
    }

    pub struct ibv_wq_attr {
        pub attr_mask: u32,
        pub wq_state: c_uint,
        pub curr_wq_state: c_uint,
        pub flags: u32,
        pub flags_mask: u32,
    }

    pub struct ibv_rwq_ind_table {
        pub context: *mut ibv_context,
        pub ind_tbl_handle: c_int,
        pub ind_tbl_num: c_int,
        pub comp_mask: u32,
    }

    pub struct ibv_rwq_ind_table_init_attr {
        pub log_ind_tbl_size: u32,
        pub ind_tbl: *const Option<Of<ibv_wq>>,
        pub comp_mask: u32,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_qp_attr {
        pub qp_state: c_uint,
        pub cur_qp_state: c_uint,
        pub path_mtu: c_uint,
        pub path_mig_state: c_uint,
        pub qkey: u32,
        pub rq_psn: u32,
        pub sq_psn: u32,
        pub dest_qp_num: u32,
        pub qp_access_flags: c_uint,
        pub cap: ibv_qp_cap,
        pub ah_attr: ibv_ah_attr,
        pub alt_ah_attr: ibv_ah_attr,
        pub pkey_index: u16,
        pub alt_pkey_index: u16,
        pub en_sqd_async_notify: u8,
        pub sq_draining: u8,
        pub max_rd_atomic: u8,
        pub max_dest_rd_atomic: u8,
        pub min_rnr_timer: u8,
        pub port_num: u8,
        pub timeout: u8,
        pub retry_cnt: u8,
        pub rnr_retry: u8,
        pub alt_port_num: u8,
        pub alt_timeout: u8,
        pub rate_limit: u32,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_sge {
        pub addr: u64,
        pub length: u32,
        pub lkey: u32,
    }

    pub struct ibv_data_buf {
        pub addr: *mut c_void,
        pub length: size_t,
    }

    pub struct ibv_send_wr {
        pub wr_id: u64,
        pub next: *const ibv_send_wr,
        pub sg_list: *const ibv_sge,
        pub num_sge: c_int,
        pub opcode: c_uint,
        pub send_flags: c_uint,
        /// Network order for immediate data, host order for an rkey to invalidate.
        pub imm_data: u32,
        pub wr: ibv_wr_body,
        pub remote_srqn: u32,
        pub extra: ibv_wr_extra,
    }

    pub struct ibv_recv_wr {
        pub wr_id: u64,
        pub next: *const ibv_recv_wr,
        pub sg_list: *const ibv_sge,
        pub num_sge: c_int,
    }

    pub struct ibv_wc {
        pub wr_id: u64,
        pub status: c_uint,
        pub opcode: c_uint,
        pub vendor_err: u32,
        pub byte_len: u32,
        pub imm_data: u32,
        pub qp_num: u32,
        pub src_qp: u32,
        pub wc_flags: c_uint,
        pub pkey_index: u16,
        pub slid: u16,
        pub sl: u8,
        pub dlid_path_bits: u8,
    }

    pub struct ibv_comp_channel {
        pub context: *mut ibv_context,
        pub fd: c_int,
        pub refcnt: AtomicI32,
    }

    pub struct ibv_cq {
        pub context: *mut ibv_context,
        pub channel: *mut ibv_comp_channel,
        pub cq_context: *mut c_void,
        pub handle: u32,
        pub cqe: c_int,
        pub mutex: pthread_mutex_t,
        pub cond: pthread_cond_t,
        pub comp_events_completed: u32,
        pub async_events_completed: u32,
    }

    pub struct ibv_cq_init_attr_ex {
        pub cqe: u32,
        pub cq_context: *mut c_void,
        pub channel: Option<&'static ibv_comp_channel>,
        pub comp_vector: u32,
        pub wc_flags: u64,
        pub comp_mask: u32,
        pub flags: u32,
        pub parent_domain: Option<Of<ibv_pd>>,
    }

    /// A function pointer is `None` unless its field was requested (`wc_flags`).
    pub struct ibv_cq_ex {
        pub base: ibv_cq,
        pub comp_mask: u32,
        pub status: c_uint,
        pub wr_id: u64,
        pub start_poll: Option<StartPoll>,
        pub next_poll: Option<extern "C" fn(Polled) -> c_int>,
        pub end_poll: Option<extern "C" fn(Polled)>,
        pub read_opcode: Option<extern "C" fn(Polled) -> c_uint>,
        pub read_vendor_err: Option<extern "C" fn(Polled) -> u32>,
        pub read_byte_len: Option<extern "C" fn(Polled) -> u32>,
        pub read_imm_data: Option<extern "C" fn(Polled) -> u32>,
        pub read_qp_num: Option<extern "C" fn(Polled) -> u32>,
        pub read_src_qp: Option<extern "C" fn(Polled) -> u32>,
        pub read_wc_flags: Option<extern "C" fn(Polled) -> c_uint>,
        pub read_slid: Option<extern "C" fn(Polled) -> u32>,
        pub read_sl: Option<extern "C" fn(Polled) -> u8>,
        pub read_dlid_path_bits: Option<extern "C" fn(Polled) -> u8>,
        pub read_completion_ts: Option<extern "C" fn(Polled) -> u64>,
        pub read_cvlan: Option<extern "C" fn(Polled) -> u16>,
        pub read_flow_tag: Slot,
        pub read_tm_info: Slot,
        pub read_completion_wallclock_ns: Option<extern "C" fn(Polled) -> u64>,
    }

    pub struct ibv_srq {
        pub context: *mut ibv_context,
        pub srq_context: *mut c_void,
        pub pd: Option<Of<ibv_pd>>,
        pub handle: u32,
        pub mutex: pthread_mutex_t,
        pub cond: pthread_cond_t,
        pub events_completed: u32,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_srq_attr {
        pub max_wr: u32,
        pub max_sge: u32,
        pub srq_limit: u32,
    }

    pub struct ibv_srq_init_attr {
        pub srq_context: *mut c_void,
        pub attr: ibv_srq_attr,
    }

    /// Without the fields of tag matching.
    pub struct ibv_srq_init_attr_ex {
        pub srq_context: *mut c_void,
        pub attr: ibv_srq_attr,
        pub comp_mask: u32,
        pub srq_type: c_uint,
        pub pd: Option<Of<ibv_pd>>,
        pub xrcd: Option<Of<ibv_xrcd>>,
        pub cq: Option<Of<ibv_cq>>,
    }

    pub struct ibv_xrcd {
        pub context: *mut ibv_context,
    }

    pub struct ibv_xrcd_init_attr {
        pub comp_mask: u32,
        pub fd: c_int,
        pub oflags: c_int,
    }

    pub struct ibv_qp_open_attr {
        pub comp_mask: u32,
        pub qp_num: u32,
        pub xrcd: Option<Of<ibv_xrcd>>,
        pub qp_context: *mut c_void,
        pub qp_type: c_uint,
    }

    pub struct ibv_qp {
        pub context: *mut ibv_context,
        pub qp_context: *mut c_void,
        pub pd: Option<Of<ibv_pd>>,
        pub send_cq: Option<Of<ibv_cq>>,
        pub recv_cq: Option<Of<ibv_cq>>,
        pub srq: Option<Of<ibv_srq>>,
        pub handle: u32,
        pub qp_num: u32,
        pub state: c_uint,
        pub qp_type: c_uint,
        pub mutex: pthread_mutex_t,
        pub cond: pthread_cond_t,
        pub events_completed: u32,
    }

    pub struct ibv_qp_ex {
        pub base: ibv_qp,
        pub comp_mask: u64,
        pub wr_id: u64,
        pub wr_flags: c_uint,
        pub wr_atomic_cmp_swp: Option<extern "C" fn(Posted, u32, u64, u64, u64)>,
        pub wr_atomic_fetch_add: Option<extern "C" fn(Posted, u32, u64, u64)>,
        pub wr_bind_mw: Option<extern "C" fn(Posted, Option<Of<ibv_mw>>, u32, &ibv_mw_bind_info)>,
        pub wr_local_inv: Option<extern "C" fn(Posted, u32)>,
        pub wr_rdma_read: Option<extern "C" fn(Posted, u32, u64)>,
        pub wr_rdma_write: Option<extern "C" fn(Posted, u32, u64)>,
        pub wr_rdma_write_imm: Option<extern "C" fn(Posted, u32, u64, u32)>,
        pub wr_send: Option<extern "C" fn(Posted)>,
        pub wr_send_imm: Option<extern "C" fn(Posted, u32)>,
        pub wr_send_inv: Option<extern "C" fn(Posted, u32)>,
        pub wr_send_tso: Slot,
        pub wr_set_ud_addr: Option<extern "C" fn(Posted, Option<Of<ibv_ah>>, u32, u32)>,
        pub wr_set_xrc_srqn: Option<extern "C" fn(Posted, u32)>,
        pub wr_set_inline_data: Option<extern "C" fn(Posted, *mut c_void, size_t)>,
        pub wr_set_inline_data_list: Option<unsafe extern "C" fn(Posted, size_t, *const ibv_data_buf)>,
        pub wr_set_sge: Option<extern "C" fn(Posted, u32, u64, u32)>,
        pub wr_set_sge_list: Option<unsafe extern "C" fn(Posted, size_t, *const ibv_sge)>,
        pub wr_start: Option<extern "C" fn(Posted)>,
        pub wr_complete: Option<extern "C" fn(Posted) -> c_int>,
        pub wr_abort: Option<extern "C" fn(Posted)>,
        pub wr_atomic_write: Slot,
        /// In v45 and later; before that, `verbs_qp.comp_mask` begins here.
        pub wr_flush: Slot,
    }
}
