//! Type 0 configuration header (PCI Local Bus 3.0, 6.1).
use super::*;
use crate::hw_layout;

hw_layout! {
    /// Command and status registers, the dword at 4.
    pub struct StatusCommand: 4 {
        0x00 [31:31] detected_parity_error: bool,
        0x00 [30:30] signaled_system_error: bool,
        0x00 [29:29] received_master_abort: bool,
        0x00 [28:28] received_target_abort: bool,
        0x00 [27:27] signaled_target_abort: bool,
        0x00 [24:24] master_data_parity_error: bool,
        0x00 [20:20] capabilities_list: bool,
        0x00 [19:19] interrupt_status: bool,
        0x00 [10:10] interrupt_disable: bool,
        0x00 [ 8: 8] serr_enable: bool,
        0x00 [ 6: 6] parity_error_response: bool,
        0x00 [ 2: 2] bus_master: bool,
        0x00 [ 1: 1] memory_space: bool,
        0x00 [ 0: 0] io_space: bool,
    }

    /// Type 0 configuration header.
    pub struct ConfigHeader: 0x40 {
        0x00 [31:16] device_id: u16,
        0x00 [15: 0] vendor_id: u16,
        0x04         status_command: StatusCommand,
        0x08 [31: 8] class_code: u32,
        0x08 [ 7: 0] revision_id: u8,
        0x0c [31:24] bist: u8,
        0x0c [23:23] multi_function: bool,
        0x0c [22:16] header_type: u8,
        0x0c [15: 8] latency_timer: u8,
        0x0c [ 7: 0] cache_line_size: u8,
        0x10 [31: 0] bar0: u32,
        0x14 [31: 0] bar1: u32,
        0x18 [31: 0] bar2: u32,
        0x1c [31: 0] bar3: u32,
        0x20 [31: 0] bar4: u32,
        0x24 [31: 0] bar5: u32,
        0x28 [31: 0] cardbus_cis: u32,
        0x2c [31:16] subsystem_id: u16,
        0x2c [15: 0] subsystem_vendor_id: u16,
        0x30 [31: 0] expansion_rom: u32,
        0x34 [ 7: 0] capabilities: u8,
        0x3c [31:24] max_lat: u8,
        0x3c [23:16] min_gnt: u8,
        0x3c [15: 8] interrupt_pin: u8,
        0x3c [ 7: 0] interrupt_line: u8,
    }
}

impl ConfigHeader {
    /// The header of our functions after reset: one 64-bit prefetchable BAR, capabilities starting at
    /// [`EXPRESS_CAP`]. The vendor and device ID of a VF read as all ones; software takes them from the
    /// SR-IOV capability.
    pub fn new(device_id: u16) -> Self {
        let mut status = StatusCommand::zeroed();
        status.set().capabilities_list(true);
        let mut h = Self::zeroed();
        h.set().device_id(device_id).vendor_id(VENDOR_ID).status_command(status).class_code(CLASS_CODE);
        h.set().bar0(BAR_MEM64_PREFETCH).subsystem_vendor_id(VENDOR_ID).capabilities(EXPRESS_CAP as u8);
        h
    }
}
