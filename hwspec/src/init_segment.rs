//! The initialization segment at the start of BAR0.
use crate::hw_layout;

hw_layout! {
    /// Health buffer: the device's own report of failures.
    pub struct HealthBuffer: 0x40 {
        0x020 [31: 0] assert_existptr: u32,
        0x024 [31: 0] assert_callra: u32,
        0x02c [31: 0] time: u32,
        0x030 [31: 0] fw_version: u32,
        0x034 [31: 0] hw_id: u32,
        0x038 [31:31] rfr: bool,
        0x038 [27:27] valid: bool,
        0x038 [26:24] severity: u8,
        0x03c [31:24] irisc_index: u8,
        0x03c [23:16] synd: u8,
        0x03c [15: 0] ext_synd: u16,
    }

    /// Initialization segment, including the health buffer and the fields after it.
    pub struct InitSegment: 0x1014 {
        0x000 [31:16] fw_rev_minor: u16,
        0x000 [15: 0] fw_rev_major: u16,
        0x004 [31:16] cmd_interface_rev: u16,
        0x004 [15: 0] fw_rev_subminor: u16,
        0x010 [31: 0] cmdq_phy_addr_63_32: u32,
        0x014 [31:12] cmdq_phy_addr_31_12: u32,
        0x014 [ 9: 8] nic_interface: u8,
        0x014 [ 7: 4] log_cmdq_size: u8,
        0x014 [ 3: 0] log_cmdq_stride: u8,
        0x018 [31: 0] command_doorbell_vector: u32,
        0x1fc [31:31] initializing: bool,
        0x1fc [26:24] nic_interface_supported: u8,
        0x1fc [23:23] embedded_cpu: bool,
        0x200         health_buffer: HealthBuffer,
        0x240 [31: 0] no_dram_nic_offset: u32,
        0x100c [ 0: 0] clear_int: bool,
        0x1010 [31:24] health_syndrome: u8,
        0x1010 [23: 0] health_counter: u32,
    }
}
