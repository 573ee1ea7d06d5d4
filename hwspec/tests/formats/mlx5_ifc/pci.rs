//! PCI layouts, checked against `pci_regs.h`, which is in the same package.

use super::cases::all;
use ironverbs_hwspec::pcie;
use testkit::linux::{Header, dirs, read};

/// Layout, field, register, mask within it (empty: the whole register of the field's width).
const FIELDS: &[(&str, &str, &str, &str)] = &[
    ("ConfigHeader", "vendor_id", "PCI_VENDOR_ID", ""),
    ("ConfigHeader", "device_id", "PCI_DEVICE_ID", ""),
    ("ConfigHeader", "status_command", "PCI_COMMAND", ""),
    ("ConfigHeader", "revision_id", "PCI_REVISION_ID", ""),
    ("ConfigHeader", "class_code", "PCI_CLASS_PROG", ""),
    ("ConfigHeader", "cache_line_size", "PCI_CACHE_LINE_SIZE", ""),
    ("ConfigHeader", "latency_timer", "PCI_LATENCY_TIMER", ""),
    ("ConfigHeader", "header_type", "PCI_HEADER_TYPE", "PCI_HEADER_TYPE_MASK"),
    ("ConfigHeader", "bist", "PCI_BIST", ""),
    ("ConfigHeader", "bar0", "PCI_BASE_ADDRESS_0", ""),
    ("ConfigHeader", "bar5", "PCI_BASE_ADDRESS_5", ""),
    ("ConfigHeader", "subsystem_vendor_id", "PCI_SUBSYSTEM_VENDOR_ID", ""),
    ("ConfigHeader", "subsystem_id", "PCI_SUBSYSTEM_ID", ""),
    ("ConfigHeader", "expansion_rom", "PCI_ROM_ADDRESS", ""),
    ("ConfigHeader", "capabilities", "PCI_CAPABILITY_LIST", ""),
    ("ConfigHeader", "interrupt_line", "PCI_INTERRUPT_LINE", ""),
    ("ConfigHeader", "interrupt_pin", "PCI_INTERRUPT_PIN", ""),
    ("ExpressCap", "id", "PCI_CAP_LIST_ID", ""),
    ("ExpressCap", "next", "PCI_CAP_LIST_NEXT", ""),
    ("ExpressCap", "version", "PCI_EXP_FLAGS", "PCI_EXP_FLAGS_VERS"),
    ("ExpressCap", "port_type", "PCI_EXP_FLAGS", "PCI_EXP_FLAGS_TYPE"),
    ("ExpressCap", "slot_implemented", "PCI_EXP_FLAGS", "PCI_EXP_FLAGS_SLOT"),
    ("ExpressCap", "interrupt_message", "PCI_EXP_FLAGS", "PCI_EXP_FLAGS_IRQ"),
    ("ExpressCap", "max_payload_supported", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_PAYLOAD"),
    ("ExpressCap", "phantom_functions", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_PHANTOM"),
    ("ExpressCap", "extended_tag", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_EXT_TAG"),
    ("ExpressCap", "l0s_latency", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_L0S"),
    ("ExpressCap", "l1_latency", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_L1"),
    ("ExpressCap", "role_based_errors", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_RBER"),
    ("ExpressCap", "flr_capable", "PCI_EXP_DEVCAP", "PCI_EXP_DEVCAP_FLR"),
    ("ExpressCap", "correctable_reporting", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_CERE"),
    ("ExpressCap", "non_fatal_reporting", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_NFERE"),
    ("ExpressCap", "fatal_reporting", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_FERE"),
    ("ExpressCap", "unsupported_request_reporting", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_URRE"),
    ("ExpressCap", "relaxed_ordering", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_RELAX_EN"),
    ("ExpressCap", "max_payload", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_PAYLOAD"),
    ("ExpressCap", "extended_tag_enable", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_EXT_TAG"),
    ("ExpressCap", "phantom_enable", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_PHANTOM"),
    ("ExpressCap", "aux_power_enable", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_AUX_PME"),
    ("ExpressCap", "no_snoop", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_NOSNOOP_EN"),
    ("ExpressCap", "max_read_request", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_READRQ"),
    ("ExpressCap", "initiate_flr", "PCI_EXP_DEVCTL", "PCI_EXP_DEVCTL_BCR_FLR"),
    ("ExpressCap", "correctable_error", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_CED"),
    ("ExpressCap", "non_fatal_error", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_NFED"),
    ("ExpressCap", "fatal_error", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_FED"),
    ("ExpressCap", "unsupported_request", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_URD"),
    ("ExpressCap", "aux_power", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_AUXPD"),
    ("ExpressCap", "transactions_pending", "PCI_EXP_DEVSTA", "PCI_EXP_DEVSTA_TRPND"),
    ("ExpressCap", "max_link_speed", "PCI_EXP_LNKCAP", "PCI_EXP_LNKCAP_SLS"),
    ("ExpressCap", "max_link_width", "PCI_EXP_LNKCAP", "PCI_EXP_LNKCAP_MLW"),
    ("ExpressCap", "aspm_support", "PCI_EXP_LNKCAP", "PCI_EXP_LNKCAP_ASPMS"),
    ("ExpressCap", "port_number", "PCI_EXP_LNKCAP", "PCI_EXP_LNKCAP_PN"),
    ("ExpressCap", "link_control", "PCI_EXP_LNKCTL", ""),
    ("ExpressCap", "link_speed", "PCI_EXP_LNKSTA", "PCI_EXP_LNKSTA_CLS"),
    ("ExpressCap", "link_width", "PCI_EXP_LNKSTA", "PCI_EXP_LNKSTA_NLW"),
    ("ExpressCap", "slot_clock", "PCI_EXP_LNKSTA", "PCI_EXP_LNKSTA_SLC"),
    (
        "ExpressCap",
        "completion_timeout_disable_supported",
        "PCI_EXP_DEVCAP2",
        "PCI_EXP_DEVCAP2_COMP_TMOUT_DIS",
    ),
    ("ExpressCap", "device_control2", "PCI_EXP_DEVCTL2", ""),
    ("ExpressCap", "target_link_speed", "PCI_EXP_LNKCTL2", "PCI_EXP_LNKCTL2_TLS"),
    ("MsixCap", "table_size", "PCI_MSIX_FLAGS", "PCI_MSIX_FLAGS_QSIZE"),
    ("MsixCap", "function_mask", "PCI_MSIX_FLAGS", "PCI_MSIX_FLAGS_MASKALL"),
    ("MsixCap", "enable", "PCI_MSIX_FLAGS", "PCI_MSIX_FLAGS_ENABLE"),
    ("MsixCap", "table_bir", "PCI_MSIX_TABLE", "PCI_MSIX_TABLE_BIR"),
    ("MsixCap", "table_offset_8", "PCI_MSIX_TABLE", "PCI_MSIX_TABLE_OFFSET"),
    ("MsixCap", "pba_bir", "PCI_MSIX_PBA", "PCI_MSIX_PBA_BIR"),
    ("MsixCap", "pba_offset_8", "PCI_MSIX_PBA", "PCI_MSIX_PBA_OFFSET"),
    ("MsixEntry", "address_low", "PCI_MSIX_ENTRY_LOWER_ADDR", ""),
    ("MsixEntry", "address_high", "PCI_MSIX_ENTRY_UPPER_ADDR", ""),
    ("MsixEntry", "data", "PCI_MSIX_ENTRY_DATA", ""),
    ("MsixEntry", "masked", "PCI_MSIX_ENTRY_VECTOR_CTRL", "PCI_MSIX_ENTRY_CTRL_MASKBIT"),
    ("SriovCap", "migration_capable", "PCI_SRIOV_CAP", "PCI_SRIOV_CAP_VFM"),
    ("SriovCap", "vf_enable", "PCI_SRIOV_CTRL", "PCI_SRIOV_CTRL_VFE"),
    ("SriovCap", "migration_enable", "PCI_SRIOV_CTRL", "PCI_SRIOV_CTRL_VFM"),
    ("SriovCap", "migration_interrupt", "PCI_SRIOV_CTRL", "PCI_SRIOV_CTRL_INTR"),
    ("SriovCap", "vf_memory_space", "PCI_SRIOV_CTRL", "PCI_SRIOV_CTRL_MSE"),
    ("SriovCap", "ari_hierarchy", "PCI_SRIOV_CTRL", "PCI_SRIOV_CTRL_ARI"),
    ("SriovCap", "migration_status", "PCI_SRIOV_STATUS", "PCI_SRIOV_STATUS_VFM"),
    ("SriovCap", "initial_vfs", "PCI_SRIOV_INITIAL_VF", ""),
    ("SriovCap", "total_vfs", "PCI_SRIOV_TOTAL_VF", ""),
    ("SriovCap", "num_vfs", "PCI_SRIOV_NUM_VF", ""),
    ("SriovCap", "dependency_link", "PCI_SRIOV_FUNC_LINK", ""),
    ("SriovCap", "first_vf_offset", "PCI_SRIOV_VF_OFFSET", ""),
    ("SriovCap", "vf_stride", "PCI_SRIOV_VF_STRIDE", ""),
    ("SriovCap", "vf_device_id", "PCI_SRIOV_VF_DID", ""),
    ("SriovCap", "supported_page_sizes", "PCI_SRIOV_SUP_PGSIZE", ""),
    ("SriovCap", "system_page_size", "PCI_SRIOV_SYS_PGSIZE", ""),
    ("SriovCap", "vf_bar0", "PCI_SRIOV_BAR", ""),
    ("SriovCap", "migration_state_offset", "PCI_SRIOV_VFM", ""),
];

/// Bits of the command and status registers; the layout starts at the command register.
const COMMAND: &[(&str, &str, u32)] = &[
    ("io_space", "PCI_COMMAND_IO", 0),
    ("memory_space", "PCI_COMMAND_MEMORY", 0),
    ("bus_master", "PCI_COMMAND_MASTER", 0),
    ("parity_error_response", "PCI_COMMAND_PARITY", 0),
    ("serr_enable", "PCI_COMMAND_SERR", 0),
    ("interrupt_disable", "PCI_COMMAND_INTX_DISABLE", 0),
    ("interrupt_status", "PCI_STATUS_INTERRUPT", 16),
    ("capabilities_list", "PCI_STATUS_CAP_LIST", 16),
    ("master_data_parity_error", "PCI_STATUS_PARITY", 16),
    ("signaled_target_abort", "PCI_STATUS_SIG_TARGET_ABORT", 16),
    ("received_target_abort", "PCI_STATUS_REC_TARGET_ABORT", 16),
    ("received_master_abort", "PCI_STATUS_REC_MASTER_ABORT", 16),
    ("signaled_system_error", "PCI_STATUS_SIG_SYSTEM_ERROR", 16),
    ("detected_parity_error", "PCI_STATUS_DETECTED_PARITY", 16),
];

#[test]
fn pci_layouts_agree_with_pci_regs_h() {
    let cases = all();
    // A layout's dword has bit 31 first; its registers count bytes from the other end.
    let place = |layout: &str, field: &str| {
        let case = cases.iter().find(|c| c.ours == layout).expect(layout);
        let f = case.fields.iter().find(|f| f.name == field).expect(field);
        let low = 32 - f.offset % 32 - f.width;
        (f.offset / 32 * 4, (u64::MAX >> (64 - f.width)) << low)
    };
    for dir in dirs() {
        let header = Header::parse(&read(&dir, "../../uapi/linux/pci_regs.h"));
        let value = |name: &str| header.value(name).unwrap_or_else(|| panic!("pci_regs.h has no {name}"));
        let mut wrong = Vec::new();
        for &(layout, field, register, mask) in FIELDS {
            let (dword, ours) = place(layout, field);
            let register_at = value(register) as usize;
            let shift = register_at % 4 * 8;
            let width = ours.count_ones();
            let theirs = if mask.is_empty() { u64::MAX >> (64 - width) } else { value(mask) } << shift;
            if (dword, ours) != (register_at / 4 * 4, theirs) {
                wrong.push(format!(
                    "{layout}.{field}: {ours:#x} at {dword:#x}, {register} {theirs:#x} at {register_at:#x}"
                ));
            }
        }
        for &(field, bit, shift) in COMMAND {
            let ours = place("StatusCommand", field).1;
            if ours != value(bit) << shift {
                wrong.push(format!("StatusCommand.{field}: {ours:#x}, {bit} {:#x}", value(bit) << shift));
            }
        }
        for (name, ours) in [
            ("PCI_CAP_ID_EXP", pcie::CAP_ID_EXPRESS.into()),
            ("PCI_CAP_ID_MSIX", pcie::CAP_ID_MSIX.into()),
            ("PCI_EXT_CAP_ID_ARI", pcie::EXT_CAP_ID_ARI.into()),
            ("PCI_EXT_CAP_ID_SRIOV", pcie::EXT_CAP_ID_SRIOV.into()),
            ("PCI_MSIX_ENTRY_SIZE", pcie::MsixEntry::SIZE as u64),
            ("PCI_EXT_CAP_SRIOV_SIZEOF", pcie::SriovCap::SIZE as u64),
        ] {
            if value(name) != ours {
                wrong.push(format!("{name}: {:#x}, ours {ours:#x}", value(name)));
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", dir.display(), wrong.join("\n"));
    }
}
