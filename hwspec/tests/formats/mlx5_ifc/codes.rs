//! Opcodes, statuses, events and constants, checked against the enumerators of the headers.

use ironverbs_hwspec::cmd::{Opcode, Status};
use ironverbs_hwspec::context::{
    AccessMode, ArmState, CapType, CqStatus, PathMigState, QpState, ServiceType,
};
use ironverbs_hwspec::cqe::{CqeFormat, CqeOpcode, CqeSyndrome, RoceL3Type};
use ironverbs_hwspec::eqe::{EventType, PortChange, QueueKind};
use ironverbs_hwspec::wqe::{FenceMode, MkeyMask, UmrCheck, WqeOpcode};
use ironverbs_hwspec::{doorbell, pcie, wqe};
use testkit::linux::{Header, dirs, is_reference, read};

/// Header names that are not the prefix plus our name in capitals; `-` if no kernel header has the value.
const NAMES: &[(&str, &str)] = &[
    ("MLX5_CMD_OP_QP2_ERR", "MLX5_CMD_OP_2ERR_QP"),
    ("MLX5_CMD_OP_QP2_RST", "MLX5_CMD_OP_2RST_QP"),
    ("MLX5_CMD_STAT_INTERNAL_ERR", "MLX5_CMD_STAT_INT_ERR"),
    ("MLX5_CMD_STAT_BAD_OP", "MLX5_CMD_STAT_BAD_OP_ERR"),
    ("MLX5_CMD_STAT_BAD_PARAM", "MLX5_CMD_STAT_BAD_PARAM_ERR"),
    ("MLX5_CMD_STAT_BAD_SYS_STATE", "MLX5_CMD_STAT_BAD_SYS_STATE_ERR"),
    ("MLX5_CMD_STAT_BAD_RESOURCE", "MLX5_CMD_STAT_BAD_RES_ERR"),
    ("MLX5_CMD_STAT_LIM", "MLX5_CMD_STAT_LIM_ERR"),
    ("MLX5_CMD_STAT_BAD_RES_STATE", "MLX5_CMD_STAT_BAD_RES_STATE_ERR"),
    ("MLX5_CMD_STAT_BAD_INDEX", "MLX5_CMD_STAT_IX_ERR"),
    ("MLX5_CMD_STAT_NO_RESOURCES", "MLX5_CMD_STAT_NO_RES_ERR"),
    ("MLX5_CMD_STAT_BAD_INPUT_LEN", "MLX5_CMD_STAT_BAD_INP_LEN_ERR"),
    ("MLX5_CMD_STAT_BAD_OUTPUT_LEN", "MLX5_CMD_STAT_BAD_OUTP_LEN_ERR"),
    ("MLX5_CMD_STAT_BAD_QP_STATE", "MLX5_CMD_STAT_BAD_QP_STATE_ERR"),
    ("MLX5_CMD_STAT_BAD_PKT", "MLX5_CMD_STAT_BAD_PKT_ERR"),
    ("MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES", "MLX5_CMD_STAT_BAD_SIZE_OUTS_CQES_ERR"),
    ("MLX5_QP_STATE_RESET", "MLX5_QP_STATE_RST"),
    ("MLX5_QP_STATE_SQ_ERR", "MLX5_QP_STATE_SQER"),
    ("MLX5_QP_STATE_SQ_DRAINED", "MLX5_QP_STATE_SQD"),
    ("MLX5_QP_ST_RAW_ETH", "MLX5_QP_ST_RAW_ETHERTYPE"),
    ("MLX5_MKC_ACCESS_MODE_KLM", "MLX5_MKC_ACCESS_MODE_KLMS"),
    ("MLX5_CAP_IPOIB_ENHANCED", "MLX5_CAP_IPOIB_ENHANCED_OFFLOADS"),
    ("MLX5_CAP_DEVICE_MEM", "MLX5_CAP_DEV_MEM"),
    ("MLX5_CAP_GENERAL2", "MLX5_CAP_GENERAL_2"),
    ("MLX5_CQC_STATUS_OVERFLOW", "MLX5_CQC_STATUS_CQ_OVERFLOW"),
    ("MLX5_CQC_STATUS_WRITE_FAIL", "MLX5_CQC_STATUS_CQ_WRITE_FAIL"),
    ("MLX5_CQC_ST_SOLICITED_ARMED", "MLX5_CQC_ST_SOLICITED_NOTIFICATION_REQUEST_ARMED"),
    ("MLX5_CQC_ST_ARMED", "MLX5_CQC_ST_NOTIFICATION_REQUEST_ARMED"),
    ("MLX5_NO_INLINE", "MLX5_NO_INLINE_DATA"),
    ("MLX5_INLINE32", "MLX5_INLINE_DATA32_SEG"),
    ("MLX5_INLINE64", "MLX5_INLINE_DATA64_SEG"),
    // From the first Linux driver (3.11); later ones have no transition to SQD.
    ("MLX5_CMD_OP_RTS2SQD_QP", "-"),
    ("MLX5_CMD_OP_SQD2SQD_QP", "-"),
    ("MLX5_CQE_NO_PACKET", "-"),
    ("MLX5_OPCODE_LOCAL_INVAL", "-"),
    ("MLX5_UMR_CHECK_NONE", "-"),
];

/// Names that newer headers no longer have.
const GONE: &[&str] = &["MLX5_CAP_VECTOR_CALC", "MLX5_INVALID_LKEY"];

/// `CamelCase` to `CAMEL_CASE`; a digit stays with the preceding character.
pub fn capitals(name: &str) -> String {
    let mut out = String::new();
    for (i, c) in name.chars().enumerate() {
        if i > 0 && c.is_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[test]
fn every_code_agrees_with_the_headers() {
    for dir in dirs() {
        let files = ["mlx5_ifc.h", "device.h", "qp.h", "cq.h", "doorbell.h"].map(|f| read(&dir, f));
        let header = Header::parse(&files.join("\n"));
        let reference = is_reference(&dir);
        let mut wrong = Vec::new();
        let mut check = |name: String, ours: u64| {
            let name = NAMES.iter().find(|(n, _)| *n == name).map_or(&name[..], |(_, theirs)| theirs);
            let theirs = header.value(name);
            let absent = name == "-" || (theirs.is_none() && !reference && GONE.contains(&name));
            if !absent && theirs != Some(ours) {
                wrong.push(format!("{name}: {theirs:x?}, ours {ours:#x}"));
            }
        };
        macro_rules! hold { ($($E:ident $prefix:literal << $shift:literal;)*) => { $(
            for (name, value) in $E::NAMED {
                check(format!(concat!($prefix, "{}"), capitals(name)), u64::from(*value) << $shift);
            }
        )* } }
        hold! {
            Opcode "MLX5_CMD_OP_" << 0;
            Status "MLX5_CMD_STAT_" << 0;
            QpState "MLX5_QP_STATE_" << 0;
            ServiceType "MLX5_QP_ST_" << 0;
            PathMigState "MLX5_QP_PM_" << 0;
            AccessMode "MLX5_MKC_ACCESS_MODE_" << 0;
            CapType "MLX5_CAP_" << 0;
            CqStatus "MLX5_CQC_STATUS_" << 0;
            ArmState "MLX5_CQC_ST_" << 0;
            WqeOpcode "MLX5_OPCODE_" << 0;
            FenceMode "MLX5_FENCE_MODE_" << 5;
            UmrCheck "MLX5_UMR_CHECK_" << 5;
            CqeOpcode "MLX5_CQE_" << 0;
            CqeFormat "MLX5_" << 0;
            CqeSyndrome "MLX5_CQE_SYNDROME_" << 0;
            RoceL3Type "MLX5_CQE_ROCE_L3_HEADER_TYPE_" << 0;
            EventType "MLX5_EVENT_TYPE_" << 0;
            PortChange "MLX5_PORT_CHANGE_SUBTYPE_" << 0;
            QueueKind "MLX5_EVENT_QUEUE_TYPE_" << 0;
        }
        for (name, bit) in MkeyMask::all().iter_names() {
            check(format!("MLX5_MKEY_MASK_{name}"), bit.bits());
        }
        for (name, ours) in [
            ("MLX5_SEND_WQE_BB", wqe::WQE_BB as u64),
            ("MLX5_SEND_WQE_DS", wqe::WQE_DS as u64),
            ("MLX5_SEND_WQE_MAX_WQEBBS", wqe::MAX_WQE_BBS as u64),
            ("MLX5_WQE_CTRL_DS_MASK", wqe::MAX_DS as u64),
            ("MLX5_INLINE_SEG", wqe::INLINE_BIT.into()),
            ("MLX5_INVALID_LKEY", wqe::INVALID_LKEY.into()),
            ("MLX5_EXTENDED_UD_AV", wqe::EXTENDED_UD_AV.into()),
            ("MLX5_BF_OFFSET", doorbell::BF_OFFSET as u64),
            ("MLX5_CQ_DOORBELL", doorbell::CQ_DOORBELL as u64),
            ("MLX5_BFREGS_PER_UAR", doorbell::BF_REGS_PER_UAR as u64),
            ("MLX5_ADAPTER_PAGE_SHIFT", doorbell::UAR_SHIFT.into()),
            ("MLX5_RCV_DBR", doorbell::RCV_DBR as u64),
            ("MLX5_SND_DBR", doorbell::SND_DBR as u64),
        ] {
            check(name.into(), ours);
        }
        assert!(wrong.is_empty(), "{}:\n{}", dir.display(), wrong.join("\n"));
    }
    assert_eq!(pcie::FIRST_UAR as usize * doorbell::UAR_SIZE, pcie::MSIX_PBA + doorbell::UAR_SIZE);
}
