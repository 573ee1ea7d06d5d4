//! WQE segments, CQEs and events, checked against the driver's plain C structures: each field inside the corresponding
//! member.

use super::cases::all;
use testkit::linux::{Header, dirs, read};

/// Our layout, their structure, byte offset of ours relative to theirs, (our field, their member).
type Row = (&'static str, &'static str, usize, &'static [(&'static str, &'static str)]);

const SEGMENTS: &[Row] = &[
    (
        "CtrlSeg",
        "mlx5_wqe_ctrl_seg",
        0,
        &[
            ("opmod", "opmod_idx_opcode"),
            ("wqe_idx", "opmod_idx_opcode"),
            ("opcode", "opmod_idx_opcode"),
            ("qpn", "qpn_ds"),
            ("ds", "qpn_ds"),
            ("signature", "signature"),
            ("fm", "fm_ce_se"),
            ("ce", "fm_ce_se"),
            ("se", "fm_ce_se"),
            ("imm", "imm"),
        ],
    ),
    ("RaddrSeg", "mlx5_wqe_raddr_seg", 0, &[("raddr", "raddr"), ("rkey", "rkey")]),
    (
        "DataSeg",
        "mlx5_wqe_data_seg",
        0,
        &[("inline_data", "byte_count"), ("byte_count", "byte_count"), ("lkey", "lkey"), ("addr", "addr")],
    ),
    ("InlineSeg", "mlx5_wqe_inline_seg", 0, &[("inline_data", "byte_count"), ("byte_count", "byte_count")]),
    ("AtomicSeg", "mlx5_wqe_atomic_seg", 0, &[("swap_add", "swap_add"), ("compare", "compare")]),
    ("XrcSeg", "mlx5_wqe_xrc_seg", 0, &[("xrc_srqn", "xrc_srqn")]),
    ("KlmSeg", "mlx5_klm", 0, &[("byte_count", "bcount"), ("mkey", "key"), ("address", "va")]),
    (
        "AvSeg",
        "mlx5_av",
        0,
        &[
            ("qkey", "qkey"),
            ("ext", "dqp_dct"),
            ("destination_qp_dct", "dqp_dct"),
            ("static_rate", "stat_rate_sl"),
            ("sl_eth_prio", "stat_rate_sl"),
            ("fl", "fl_mlid"),
            ("mlid", "fl_mlid"),
            ("rlid_udp_sport", "udp_sport"),
            ("rmac_47_16", "rmac"),
            ("rmac_15_0", "rmac"),
            ("tclass", "tclass"),
            ("hop_limit", "hop_limit"),
            ("grh", "grh_gid_fl"),
            ("src_addr_index", "grh_gid_fl"),
            ("flow_label", "grh_gid_fl"),
            ("rgid_rip", "rgid"),
        ],
    ),
    (
        "UmrCtrlSeg",
        "mlx5_wqe_umr_ctrl_seg",
        0,
        &[
            ("inline_data", "flags"),
            ("check_free", "flags"),
            ("translation_offset_en", "flags"),
            ("check_qpn", "flags"),
            ("xlt_octowords", "xlt_octowords"),
            ("xlt_offset", "xlt_offset"),
            ("mkey_mask", "mkey_mask"),
            ("xlt_offset_47_16", "xlt_offset_47_16"),
        ],
    ),
    (
        "EthSeg",
        "mlx5_wqe_eth_seg",
        0,
        &[
            ("swp_outer_l4_offset", "swp_outer_l4_offset"),
            ("swp_outer_l3_offset", "swp_outer_l3_offset"),
            ("swp_inner_l4_offset", "swp_inner_l4_offset"),
            ("swp_inner_l3_offset", "swp_inner_l3_offset"),
            ("l4_csum", "cs_flags"),
            ("l3_csum", "cs_flags"),
            ("l4_inner_csum", "cs_flags"),
            ("l3_inner_csum", "cs_flags"),
            ("swp_flags", "swp_flags"),
            ("mss", "mss"),
            ("flow_table_metadata", "flow_table_metadata"),
            ("insert_vlan", "type"),
            ("inline_hdr_sz", "sz"),
            ("vlan_tci", "vlan_tci"),
        ],
    ),
    (
        "NextSeg",
        "mlx5_wqe_srq_next_seg",
        0,
        &[("next_wqe_index", "next_wqe_index"), ("signature", "signature")],
    ),
    (
        "Cqe64",
        "mlx5_cqe64",
        0,
        &[
            ("wqe_id", "wqe_id"),
            ("rx_hash_result", "rss_hash_result"),
            ("rx_hash_type", "rss_hash_type"),
            ("ml_path", "ml_path"),
            ("check_sum", "check_sum"),
            ("slid", "slid"),
            ("grh", "flags_rqpn"),
            ("sl", "flags_rqpn"),
            ("rqpn", "flags_rqpn"),
            ("hds_ip_ext", "hds_ip_ext"),
            ("l4_hdr_type", "l4_l3_hdr_type"),
            ("l3_hdr_type", "l4_l3_hdr_type"),
            ("ip_frag", "l4_l3_hdr_type"),
            ("cv", "l4_l3_hdr_type"),
            ("vlan_info", "vlan_info"),
            ("lro_num_seg", "srqn"),
            ("srqn_uidx", "srqn"),
            ("imm_inval_pkey", "immediate"),
            ("byte_cnt", "byte_cnt"),
            ("timestamp", "timestamp_h timestamp_l"),
            ("sop", "sop_drop_qpn"),
            ("qpn", "sop_drop_qpn"),
            ("wqe_counter", "wqe_counter"),
            ("signature", "signature"),
            ("opcode", "op_own"),
            ("cqe_format", "op_own"),
            ("se", "op_own"),
            ("owner", "op_own"),
        ],
    ),
    (
        "CqeError",
        "mlx5_err_cqe",
        0,
        &[
            ("srqn", "srqn"),
            ("vendor_err_synd", "vendor_err_synd"),
            ("syndrome", "syndrome"),
            ("s_wqe_opcode", "s_wqe_opcode_qpn"),
            ("qpn", "s_wqe_opcode_qpn"),
            ("wqe_counter", "wqe_counter"),
            ("signature", "signature"),
            ("opcode", "op_own"),
            ("cqe_format", "op_own"),
            ("se", "op_own"),
            ("owner", "op_own"),
        ],
    ),
    (
        "PagesEvent",
        "mlx5_eqe_page_req",
        0,
        &[("ec_function", "ec_function"), ("function_id", "func_id"), ("num_pages", "num_pages")],
    ),
    ("VportEvent", "mlx5_eqe_vport_change", 0, &[("vport_num", "vport_num")]),
    (
        "SqDoorbell",
        "mlx5_wqe_ctrl_seg",
        8,
        &[
            ("opmod", "opmod_idx_opcode"),
            ("wqe_idx", "opmod_idx_opcode"),
            ("opcode", "opmod_idx_opcode"),
            ("qpn", "qpn_ds"),
            ("ds", "qpn_ds"),
        ],
    ),
];

#[test]
fn every_segment_agrees_with_the_drivers_structures() {
    let cases = all();
    for dir in dirs() {
        let header = Header::parse(&(read(&dir, "device.h") + &read(&dir, "qp.h")));
        let mut wrong = Vec::new();
        for (ours, theirs, shorter, rows) in SEGMENTS {
            let case = cases.iter().find(|c| c.ours == *ours).expect(ours);
            let structure = header.structure(theirs);
            if structure.size != case.size + shorter {
                wrong.push(format!("{theirs}: {} bytes, {ours} has {}", structure.size, case.size));
            }
            for field in case.fields {
                let members = rows.iter().find(|(f, _)| *f == field.name).map_or("", |(_, m)| m);
                let places = members.split(' ').map(|m| structure.members.get(m).copied());
                let Some(places) = places.collect::<Option<Vec<_>>>() else {
                    wrong.push(format!("{ours}.{}: {theirs} has no {members:?}", field.name));
                    continue;
                };
                let (start, len) = (places[0].0 * 8, places.iter().map(|p| p.1 * 8).sum::<usize>());
                if field.offset < start || field.offset + field.width > start + len {
                    wrong.push(format!("{ours}.{} lies outside {theirs}.{members}", field.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", dir.display(), wrong.join("\n"));
    }
}

#[test]
fn packed_words_split_where_the_driver_masks_them() {
    let cases = all();
    let mask = |layout: &str, field: &str| {
        let case = cases.iter().find(|c| c.ours == layout).expect(layout);
        let f = case.fields.iter().find(|f| f.name == field).expect(field);
        (u64::MAX >> (64 - f.width)) << (32 - f.offset % 32 - f.width)
    };
    for dir in dirs() {
        let header = Header::parse(&["device.h", "qp.h", "cq.h"].map(|f| read(&dir, f)).join("\n"));
        for (ours, theirs) in [
            (mask("CtrlSeg", "ds"), "MLX5_WQE_CTRL_DS_MASK"),
            (mask("CtrlSeg", "qpn"), "MLX5_WQE_CTRL_QPN_MASK"),
            (mask("CtrlSeg", "opcode"), "MLX5_WQE_CTRL_OPCODE_MASK"),
            (mask("CtrlSeg", "wqe_idx"), "MLX5_WQE_CTRL_WQE_INDEX_MASK"),
            (mask("CtrlSeg", "se"), "MLX5_WQE_CTRL_SOLICITED"),
            (mask("CtrlSeg", "ce"), "MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE"),
            (mask("DataSeg", "inline_data"), "MLX5_INLINE_SEG"),
            (mask("InlineSeg", "inline_data"), "MLX5_INLINE_SEG"),
            (mask("InlineSeg", "byte_count"), "MLX5_WQE_INLINE_SEG_BYTE_COUNT_MASK"),
            (mask("AvSeg", "ext"), "MLX5_EXTENDED_UD_AV"),
            (mask("UmrCtrlSeg", "inline_data") >> 24, "MLX5_UMR_INLINE"),
            (mask("UmrCtrlSeg", "translation_offset_en") >> 24, "MLX5_UMR_TRANSLATION_OFFSET_EN"),
            (mask("Cqe64", "owner"), "MLX5_CQE_OWNER_MASK"),
            (mask("CqArm", "solicited"), "MLX5_CQ_DB_REQ_NOT_SOL"),
            (mask("CqRecord", "arm_solicited"), "MLX5_CQ_DB_REQ_NOT_SOL"),
        ] {
            assert_eq!(header.value(theirs), Some(ours), "{theirs} in {}", dir.display());
        }
    }
}
