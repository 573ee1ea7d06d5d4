//! Checks `abi/public.rs`: sizes and offsets as the C compiler sees them in the installed `<infiniband/verbs.h>`.
//!
//! `IRONVERBS_VERBS_INCLUDE` selects another include directory, to check against the header of another release.

use ironverbs_provider::abi::public::*;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// A line of C, and the number it must print.
struct Layout {
    c: String,
    ours: usize,
}

macro_rules! sizes {
    ($layouts:ident: $($name:ident)*) => {
        $($layouts.push(Layout { c: format!("sizeof(struct {})", stringify!($name)), ours: size_of::<$name>() });)*
    };
}

/// `ours.field` or `ours.field = "field in C"`.
macro_rules! offsets {
    ($layouts:ident: $name:ident { $($($field:ident).+ $(= $c:literal)?),* $(,)? }) => {
        $({
            #[allow(unused_mut, unused_assignments)]
            let mut field = stringify!($($field).+).replace(' ', "");
            $(field = $c.to_owned();)?
            $layouts.push(Layout {
                c: format!("offsetof(struct {}, {field})", stringify!($name)),
                ours: offset_of!($name, $($field).+),
            });
        })*
    };
}

fn layouts() -> Vec<Layout> {
    let mut c = Vec::new();
    sizes!(c: ibv_device ibv_context ibv_device_attr ibv_device_attr_ex ibv_pd ibv_mr ibv_global_route ibv_ah_attr
        ibv_qp_cap ibv_qp_init_attr ibv_qp_init_attr_ex ibv_qp_attr ibv_sge ibv_data_buf ibv_send_wr ibv_recv_wr ibv_wc
        ibv_comp_channel ibv_cq ibv_cq_init_attr_ex ibv_cq_ex ibv_qp ibv_srq ibv_srq_attr ibv_srq_init_attr
        ibv_xrcd ibv_xrcd_init_attr ibv_qp_open_attr
        ibv_wq ibv_wq_init_attr ibv_wq_attr ibv_rwq_ind_table ibv_rwq_ind_table_init_attr ibv_rx_hash_conf ibv_rss_caps
        ibv_moderate_cq ibv_ece ibv_modify_cq_attr ibv_values_ex ibv_td ibv_parent_domain_init_attr);
    offsets!(c: ibv_device { node_type, name, dev_name, dev_path, ibdev_path });
    offsets!(c: ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat });
    offsets!(c: ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
        vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_srq, max_pkeys,
        local_ca_ack_delay, phys_port_cnt });
    offsets!(c: ibv_device_attr_ex { comp_mask, odp_general_caps = "odp_caps.general_caps",
        completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps,
        max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps,
        xrc_odp_caps, phys_port_cnt_ex });
    offsets!(c: ibv_rss_caps { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
        rx_hash_fields_mask, rx_hash_function });
    offsets!(c: ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask });
    offsets!(c: ibv_wq { context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
        events_completed, comp_mask });
    offsets!(c: ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags });
    offsets!(c: ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask });
    offsets!(c: ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask });
    offsets!(c: ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask });
    offsets!(c: ibv_moderate_cq { cq_count, cq_period });
    offsets!(c: ibv_ece { vendor_id, options, comp_mask });
    offsets!(c: ibv_modify_cq_attr { attr_mask, moderate });
    offsets!(c: ibv_values_ex { comp_mask, raw_clock });
    offsets!(c: ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context });
    offsets!(c: ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply,
        active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 });
    offsets!(c: ibv_mr { context, pd, addr, length, handle, lkey, rkey });
    offsets!(c: ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    offsets!(c: ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    offsets!(c: ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    offsets!(c: ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header,
        rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags });
    offsets!(c: ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
        alt_timeout, rate_limit });
    offsets!(c: ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
        wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap,
        wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey, remote_srqn = "qp_type.xrc.remote_srqn", extra = "bind_mw" });
    offsets!(c: ibv_recv_wr { wr_id, next, sg_list, num_sge });
    offsets!(c: ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
        slid, sl, dlid_path_bits });
    offsets!(c: ibv_ah { context, pd, handle });
    offsets!(c: ibv_flow { comp_mask, context, handle });
    offsets!(c: ibv_flow_attr { comp_mask, kind = "type", size, priority, num_of_specs, port, flags });
    for (name, at, mask, members) in SPECS {
        for (member, offset) in members {
            for (half, from) in [("val", at), ("mask", mask)] {
                c.push(Layout {
                    c: format!("offsetof(struct {name}, {half}.{member})"),
                    ours: from + offset,
                });
            }
        }
    }
    offsets!(c: ibv_comp_channel { context, fd, refcnt });
    offsets!(c: ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed });
    offsets!(c: ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
        parent_domain });
    offsets!(c: ibv_cq_ex { base = "context", comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
        read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl,
        read_dlid_path_bits, read_completion_ts, read_completion_wallclock_ns });
    offsets!(c: ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed });
    offsets!(c: ibv_srq_attr { max_wr, max_sge, srq_limit });
    offsets!(c: ibv_srq_init_attr { srq_context, attr });
    offsets!(c: ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq });
    offsets!(c: ibv_xrcd_init_attr { comp_mask, fd, oflags });
    offsets!(c: ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type });
    offsets!(c: ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed });
    offsets!(c: ibv_qp_ex { base = "qp_base", comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
        wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv,
        wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
        wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write });
    macro_rules! values {
        ($($name:ident)*) => { $(c.push(Layout { c: format!("(size_t){}", stringify!($name)), ours: $name as usize });)* };
    }
    values!(IBV_ACCESS_OPTIONAL_RANGE
        IBV_REREG_MR_CHANGE_TRANSLATION IBV_REREG_MR_CHANGE_PD IBV_REREG_MR_CHANGE_ACCESS
        IBV_REREG_MR_FLAGS_SUPPORTED IBV_DEVICE_CURR_QP_STATE_MOD IBV_DEVICE_PORT_ACTIVE_EVENT IBV_DEVICE_SYS_IMAGE_GUID IBV_DEVICE_RC_RNR_NAK_GEN
        IBV_PORT_DOWN IBV_PORT_ACTIVE IBV_LINK_LAYER_ETHERNET IBV_LINK_LAYER_INFINIBAND IBV_QPT_RC
        IBV_FLOW_ATTR_NORMAL IBV_FLOW_ATTR_ALL_DEFAULT IBV_FLOW_ATTR_MC_DEFAULT IBV_FLOW_SPEC_ETH IBV_FLOW_SPEC_IPV4
        IBV_FLOW_SPEC_IPV6 IBV_FLOW_SPEC_IPV4_EXT IBV_FLOW_SPEC_TCP IBV_FLOW_SPEC_UDP IBV_FLOW_SPEC_ACTION_DROP
        IBV_QPT_UC IBV_QPT_UD IBV_QPT_RAW_PACKET IBV_QPT_XRC_SEND IBV_QPT_XRC_RECV IBV_QPT_DRIVER IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
        IBV_QP_STATE IBV_QP_PATH_MTU IBV_QP_RQ_PSN IBV_QPS_RESET IBV_MIG_MIGRATED
        IBV_QP_INIT_ATTR_PD IBV_QP_INIT_ATTR_XRCD IBV_QP_INIT_ATTR_CREATE_FLAGS IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        IBV_QP_INIT_ATTR_IND_TABLE IBV_QP_INIT_ATTR_RX_HASH IBV_WQT_RQ IBV_WQ_INIT_ATTR_FLAGS
        IBV_WQ_FLAGS_CVLAN_STRIPPING IBV_WQ_ATTR_STATE IBV_WQ_ATTR_CURR_STATE IBV_WQ_ATTR_FLAGS IBV_RX_HASH_FUNC_TOEPLITZ
        IBV_QP_EX_WITH_RDMA_WRITE IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM IBV_QP_EX_WITH_SEND IBV_QP_EX_WITH_SEND_WITH_IMM
        IBV_QP_EX_WITH_RDMA_READ IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        IBV_QP_EX_WITH_LOCAL_INV IBV_QP_EX_WITH_SEND_WITH_INV
        IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ
        IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_WR_LOCAL_INV IBV_WR_SEND_WITH_INV
        IBV_WC_STANDARD_FLAGS IBV_CQ_INIT_ATTR_MASK_FLAGS IBV_CQ_INIT_ATTR_MASK_PD
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN IBV_CQ_ATTR_MODERATE IBV_VALUES_MASK_RAW_CLOCK
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT IBV_ALLOCATOR_USE_DEFAULT
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_DEVICE_XRC IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_SRQT_BASIC IBV_SRQT_XRC IBV_SRQ_MAX_WR
        IBV_SRQ_LIMIT IBV_SRQ_INIT_ATTR_TYPE IBV_SRQ_INIT_ATTR_PD IBV_SRQ_INIT_ATTR_XRCD IBV_SRQ_INIT_ATTR_CQ
        IBV_XRCD_INIT_ATTR_FD IBV_XRCD_INIT_ATTR_OFLAGS IBV_QP_OPEN_ATTR_NUM IBV_QP_OPEN_ATTR_XRCD
        IBV_QP_OPEN_ATTR_CONTEXT IBV_QP_OPEN_ATTR_TYPE
        IBV_EVENT_SQ_DRAINED IBV_EVENT_PATH_MIG IBV_EVENT_PATH_MIG_ERR IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR IBV_EVENT_QP_LAST_WQE_REACHED IBV_EVENT_LID_CHANGE IBV_EVENT_PKEY_CHANGE
        IBV_EVENT_CLIENT_REREGISTER IBV_EVENT_GID_CHANGE);
    c
}

/// Structure, offsets of values and masks, members: as `flow.rs` reads them.
type Spec = (&'static str, usize, usize, &'static [(&'static str, usize)]);
const SPECS: [Spec; 5] = [
    ("ibv_flow_spec_eth", 6, 22, &[("dst_mac", 0), ("src_mac", 6), ("ether_type", 12), ("vlan_tag", 14)]),
    ("ibv_flow_spec_ipv4", 8, 16, &[("src_ip", 0), ("dst_ip", 4)]),
    (
        "ibv_flow_spec_ipv4_ext",
        8,
        20,
        &[("src_ip", 0), ("dst_ip", 4), ("proto", 8), ("tos", 9), ("ttl", 10), ("flags", 11)],
    ),
    ("ibv_flow_spec_ipv6", 8, 48, &[("src_ip", 0), ("dst_ip", 16), ("flow_label", 32), ("hop_limit", 38)]),
    ("ibv_flow_spec_tcp_udp", 6, 10, &[("dst_port", 0), ("src_port", 2)]),
];

/// The driver numbers its flags, states and codes as verbs does, so the provider passes them through.
fn driver_layouts() -> Vec<Layout> {
    use driver::{
        AccessFlags, QpAttrMask, QpState, RxHashFields, SendFlags, WcFlags, WcOpcode, WcStatus, WqState,
    };
    let mut c = Vec::new();
    macro_rules! bits {
        ($flags:ident $prefix:literal: $($name:ident)*) => {
            $(c.push(Layout {
                c: format!(concat!("(size_t)", $prefix, "{}"), stringify!($name)),
                ours: $flags::$name.bits() as usize,
            });)*
        };
    }
    macro_rules! codes {
        ($kind:ident: $($name:ident = $theirs:ident)*) => {
            $(c.push(Layout { c: format!("(size_t){}", stringify!($theirs)), ours: $kind::$name as usize });)*
        };
    }
    bits!(AccessFlags "IBV_ACCESS_": LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND
        HUGETLB RELAXED_ORDERING);
    bits!(SendFlags "IBV_SEND_": FENCE SIGNALED SOLICITED INLINE);
    bits!(WcFlags "IBV_WC_": GRH WITH_IMM WITH_INV);
    bits!(QpAttrMask "IBV_QP_": STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT
        RETRY_CNT RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP
        DEST_QPN RATE_LIMIT);
    bits!(RxHashFields "IBV_RX_HASH_": SRC_IPV4 DST_IPV4 SRC_IPV6 DST_IPV6 SRC_PORT_TCP DST_PORT_TCP SRC_PORT_UDP
        DST_PORT_UDP);
    codes!(WqState: Reset = IBV_WQS_RESET Rdy = IBV_WQS_RDY Err = IBV_WQS_ERR);
    codes!(QpState: Reset = IBV_QPS_RESET Init = IBV_QPS_INIT Rtr = IBV_QPS_RTR Rts = IBV_QPS_RTS Sqd = IBV_QPS_SQD
        Sqe = IBV_QPS_SQE Err = IBV_QPS_ERR);
    codes!(WcStatus: Success = IBV_WC_SUCCESS LocLenErr = IBV_WC_LOC_LEN_ERR LocQpOpErr = IBV_WC_LOC_QP_OP_ERR
        LocProtErr = IBV_WC_LOC_PROT_ERR WrFlushErr = IBV_WC_WR_FLUSH_ERR MwBindErr = IBV_WC_MW_BIND_ERR
        BadRespErr = IBV_WC_BAD_RESP_ERR LocAccessErr = IBV_WC_LOC_ACCESS_ERR RemInvReqErr = IBV_WC_REM_INV_REQ_ERR
        RemAccessErr = IBV_WC_REM_ACCESS_ERR RemOpErr = IBV_WC_REM_OP_ERR RetryExcErr = IBV_WC_RETRY_EXC_ERR
        RnrRetryExcErr = IBV_WC_RNR_RETRY_EXC_ERR RemAbortErr = IBV_WC_REM_ABORT_ERR GeneralErr = IBV_WC_GENERAL_ERR);
    codes!(WcOpcode: Send = IBV_WC_SEND RdmaWrite = IBV_WC_RDMA_WRITE RdmaRead = IBV_WC_RDMA_READ
        CompSwap = IBV_WC_COMP_SWAP FetchAdd = IBV_WC_FETCH_ADD BindMw = IBV_WC_BIND_MW LocalInv = IBV_WC_LOCAL_INV
        Recv = IBV_WC_RECV RecvRdmaWithImm = IBV_WC_RECV_RDMA_WITH_IMM);
    c
}

/// Compiles the layouts and returns those that contradict the header.
fn contradicted(name: &str, layouts: &[Layout]) -> String {
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for layout in layouts {
        writeln!(source, "  printf(\"%zu\\n\", {});", layout.c).expect("a String takes all");
    }
    source.push_str("  return 0;\n}\n");
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&file, source).expect("writing into the target directory");
    let mut cc = Command::new("cc");
    if let Some(include) = std::env::var_os("IRONVERBS_VERBS_INCLUDE") {
        cc.arg("-I").arg(include);
    }
    let compiled =
        cc.arg(&file).arg("-o").arg(&program).output().expect("a C compiler (apt-get install gcc)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "needs libibverbs-dev: {said}");
    let answer = Command::new(&program).output().expect("running the judge");
    let answer = String::from_utf8(answer.stdout).expect("numbers");
    let theirs: Vec<usize> = answer.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), layouts.len());
    let wrong = layouts.iter().zip(&theirs).filter(|(layout, theirs)| layout.ours != **theirs);
    let lines =
        wrong.map(|(layout, theirs)| format!("{}: {theirs} in the header, {} here", layout.c, layout.ours));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn public_types_are_those_of_the_installed_header() {
    assert_eq!(contradicted("public_layout", &layouts()), "");
}

#[test]
fn the_driver_numbers_its_codes_as_the_header_does() {
    assert_eq!(contradicted("driver_codes", &driver_layouts()), "");
}
