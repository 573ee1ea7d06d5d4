//! Queries of the device and its port.

use crate::abi::memory::{
    IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_ODP_SUPPORT,
    IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE,
};
use crate::abi::public::{self as abi, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr};
use crate::convert::mtu_code;
use crate::guard::{answer, verb};
use crate::ours::Of;
use driver::{DeviceAttr, LinkLayer, RxHashFields};
use libc::{c_int, size_t};
use std::mem::MaybeUninit;

/// `ibv_query_device`, `ibv_query_device_ex`. Fills at most `size` bytes. The attributes were read when the device was opened, so a forked
/// child may query them too.
///
/// # Safety
/// Called by libibverbs with `size` writable bytes (V4).
pub unsafe extern "C" fn query_device_ex(
    context: Of<ibv_context>,
    input: Option<&u32>,
    out: *mut u8,
    size: size_t,
) -> c_int {
    answer(|| {
        // The input begins with its mask of extensions; there are none.
        if input.is_some_and(|mask| *mask != 0) || size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        let full = describe(context.device.attr());
        // SAFETY: guaranteed by the caller; a longer structure of a newer release ends in zeros.
        unsafe {
            out.write_bytes(0, size);
            out.copy_from_nonoverlapping((&raw const full).cast(), size.min(size_of_val(&full)));
        }
        Ok(())
    })
}

/// Clamps a count to the range of a C int.
fn int(value: u32) -> c_int {
    value.min(c_int::MAX as u32) as c_int
}

/// The operations with on-demand paging support, for RC, UC and UD, and for XRC. Every operation supports it, because the software handles
/// page faults on access, not the device.
fn odp() -> [[u32; 3]; 2] {
    const UD: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const UC: u32 = UD | IBV_ODP_SUPPORT_WRITE;
    const RC: u32 = UC | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    const XRC: u32 = RC & !IBV_ODP_SUPPORT_RECV;
    [[RC, UC, UD], [XRC; 3]]
}

fn describe(attr: &DeviceAttr) -> ibv_device_attr_ex {
    // SAFETY: all-zero is a valid answer: nothing offered.
    let mut all: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    let (major, minor, sub) = attr.fw_ver;
    let out = &mut all.orig_attr;
    for (to, from) in out.fw_ver.iter_mut().take(63).zip(format!("{major}.{minor}.{sub:04}").bytes()) {
        *to = from as _;
    }
    out.node_guid = u64::from_ne_bytes(attr.node_guid);
    out.sys_image_guid = u64::from_ne_bytes(attr.sys_image_guid);
    out.max_mr_size = attr.max_mr_size;
    out.page_size_cap = attr.page_size_cap;
    // Linux reports the IEEE ID here, and programs compare it.
    out.vendor_id = if attr.ieee_vendor_id == 0 { attr.vendor_id } else { attr.ieee_vendor_id };
    out.vendor_part_id = attr.vendor_part_id;
    out.hw_ver = attr.hw_ver;
    out.max_qp = int(attr.max_qp);
    out.max_qp_wr = int(attr.max_qp_wr);
    out.device_cap_flags = abi::IBV_DEVICE_CURR_QP_STATE_MOD
        | abi::IBV_DEVICE_PORT_ACTIVE_EVENT
        | abi::IBV_DEVICE_SYS_IMAGE_GUID
        | abi::IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    out.max_sge = int(attr.max_sge);
    out.max_sge_rd = int(attr.max_sge_rd);
    out.max_cq = int(attr.max_cq);
    out.max_cqe = int(attr.max_cqe);
    out.max_mr = int(attr.max_mr);
    out.max_mw = int(attr.max_mr);
    all.max_dm_size = attr.max_dm_size;
    if attr.on_demand {
        let [all_services, xrc] = odp();
        all.odp_general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
        all.odp_transport_caps = all_services;
        all.xrc_odp_caps = xrc[0];
    }
    out.max_pd = int(attr.max_pd);
    out.max_qp_rd_atom = int(attr.max_qp_rd_atom);
    out.max_res_rd_atom = int(attr.max_res_rd_atom);
    out.max_qp_init_rd_atom = int(attr.max_qp_init_rd_atom);
    out.atomic_cap = attr.atomic_cap as u32;
    out.max_mcast_grp = int(attr.max_mcast_grp);
    out.max_mcast_qp_attach = int(attr.max_mcast_qp_attach);
    out.max_total_mcast_qp_attach = int(attr.max_mcast_grp.saturating_mul(attr.max_mcast_qp_attach));
    // Address handles are in program memory, so their number is not limited.
    out.max_ah = c_int::MAX;
    out.max_srq = int(attr.max_srq);
    out.max_srq_wr = int(attr.max_srq_wr);
    out.max_srq_sge = int(attr.max_srq_sge);
    if attr.xrc {
        out.device_cap_flags |= abi::IBV_DEVICE_XRC;
    }
    if attr.raw_checksums {
        out.device_cap_flags |= abi::IBV_DEVICE_RAW_IP_CSUM;
        all.raw_packet_caps |= abi::IBV_RAW_PACKET_CAP_IP_CSUM;
    }
    if attr.raw_vlan_stripping {
        all.raw_packet_caps |= abi::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING;
    }
    if attr.max_rwq_tables != 0 {
        all.rss_caps = abi::ibv_rss_caps {
            supported_qpts: 1 << abi::IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: attr.max_rwq_tables,
            max_rwq_indirection_table_size: attr.max_rwq_table_size,
            rx_hash_fields_mask: RxHashFields::all().bits(),
            rx_hash_function: abi::IBV_RX_HASH_FUNC_TOEPLITZ,
        };
    }
    all.max_wq_type_rq = attr.max_wq;
    out.max_pkeys = attr.max_pkeys;
    out.local_ca_ack_delay = attr.local_ca_ack_delay;
    out.phys_port_cnt = attr.phys_port_cnt;
    if attr.clock_khz != 0 {
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = u64::from(attr.clock_khz);
    }
    all.cq_mod_caps = abi::ibv_moderate_cq { cq_count: attr.max_cq_count, cq_period: attr.max_cq_period };
    all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags);
    all.phys_port_cnt_ex = u32::from(attr.phys_port_cnt);
    all
}

/// `ibv_query_port`. The library has zeroed `out`; its newer members stay zero.
pub extern "C" fn query_port(
    context: Of<ibv_context>,
    port: u8,
    out: &mut MaybeUninit<ibv_port_attr>,
) -> c_int {
    /// Physical state 5 is LinkUp, 3 is Disabled (IBTA 14.2.5.6).
    const PHYS: [u8; 2] = [3, 5];
    verb(context, || {
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let found = context.device.port()?;
        out.write(ibv_port_attr {
            state: if found.active { abi::IBV_PORT_ACTIVE } else { abi::IBV_PORT_DOWN },
            max_mtu: mtu_code(found.max_mtu),
            active_mtu: mtu_code(found.active_mtu),
            gid_tbl_len: int(found.gid_tbl_len),
            port_cap_flags: found.port_cap_flags,
            max_msg_sz: found.max_msg_sz,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: found.pkey_tbl_len,
            lid: found.lid,
            sm_lid: found.sm_lid,
            lmc: 0,
            max_vl_num: found.max_vl_num,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: found.active_width,
            active_speed: found.active_speed,
            phys_state: PHYS[usize::from(found.active)],
            link_layer: match found.link_layer {
                LinkLayer::Ethernet => abi::IBV_LINK_LAYER_ETHERNET,
                LinkLayer::InfiniBand => abi::IBV_LINK_LAYER_INFINIBAND,
            },
            flags: 0,
            port_cap_flags2: 0,
        });
        Ok(())
    })
}

/// `ibv_query_port_speed` (v62 and later), in units of 100 Mb/s.
pub extern "C" fn query_port_speed(context: Of<ibv_context>, port: u32, out: &mut MaybeUninit<u64>) -> c_int {
    verb(context, || {
        if port != 1 {
            return Err(libc::EINVAL);
        }
        out.write(context.device.port()?.speed().into());
        Ok(())
    })
}
