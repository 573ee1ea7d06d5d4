//! Capabilities: PCI Express (7.5.3), MSI-X (7.7.2), ARI (7.8.8), SR-IOV (9.3.3); sections of PCI Express Base 5.0.
use super::*;
use crate::hw_layout;

hw_layout! {
    /// PCI Express capability, version 2. Slot and root registers, which an endpoint lacks, are unnamed.
    pub struct ExpressCap: 0x3c {
        0x00 [29:25] interrupt_message: u8,
        0x00 [24:24] slot_implemented: bool,
        0x00 [23:20] port_type: u8,
        0x00 [19:16] version: u8,
        0x00 [15: 8] next: u8,
        0x00 [ 7: 0] id: u8,
        // Device capabilities.
        0x04 [28:28] flr_capable: bool,
        0x04 [15:15] role_based_errors: bool,
        0x04 [11: 9] l1_latency: u8,
        0x04 [ 8: 6] l0s_latency: u8,
        0x04 [ 5: 5] extended_tag: bool,
        0x04 [ 4: 3] phantom_functions: u8,
        /// 128 bytes shifted left by this value.
        0x04 [ 2: 0] max_payload_supported: u8,
        // Device status and control.
        0x08 [21:21] transactions_pending: bool,
        0x08 [20:20] aux_power: bool,
        0x08 [19:19] unsupported_request: bool,
        0x08 [18:18] fatal_error: bool,
        0x08 [17:17] non_fatal_error: bool,
        0x08 [16:16] correctable_error: bool,
        /// Writing 1 resets the function; reads as 0.
        0x08 [15:15] initiate_flr: bool,
        0x08 [14:12] max_read_request: u8,
        0x08 [11:11] no_snoop: bool,
        0x08 [10:10] aux_power_enable: bool,
        0x08 [ 9: 9] phantom_enable: bool,
        0x08 [ 8: 8] extended_tag_enable: bool,
        0x08 [ 7: 5] max_payload: u8,
        0x08 [ 4: 4] relaxed_ordering: bool,
        0x08 [ 3: 3] unsupported_request_reporting: bool,
        0x08 [ 2: 2] fatal_reporting: bool,
        0x08 [ 1: 1] non_fatal_reporting: bool,
        0x08 [ 0: 0] correctable_reporting: bool,
        // Link capabilities.
        0x0c [31:24] port_number: u8,
        0x0c [11:10] aspm_support: u8,
        0x0c [ 9: 4] max_link_width: u8,
        0x0c [ 3: 0] max_link_speed: u8,
        // Link status and control.
        0x10 [28:28] slot_clock: bool,
        0x10 [25:20] link_width: u8,
        0x10 [19:16] link_speed: u8,
        0x10 [15: 0] link_control: u16,
        // Device capabilities 2, status and control 2.
        0x24 [ 4: 4] completion_timeout_disable_supported: bool,
        0x24 [ 3: 0] completion_timeout_ranges: u8,
        0x28 [15: 0] device_control2: u16,
        // Link capabilities 2, status and control 2.
        0x2c [ 7: 1] link_speeds: u8,
        0x30 [ 3: 0] target_link_speed: u8,
    }
}

impl ExpressCap {
    /// The capability of an endpoint with function level reset, on a 16-lane link of 8 GT/s.
    pub fn new(next: u8) -> Self {
        let mut c = Self::zeroed();
        c.set().id(CAP_ID_EXPRESS).next(next).version(2).port_type(0);
        c.set().flr_capable(true).role_based_errors(true).extended_tag(true).max_payload_supported(2);
        c.set().max_read_request(2).relaxed_ordering(true).no_snoop(true);
        c.set().max_link_speed(3).max_link_width(16).link_speed(3).link_width(16);
        c.set().completion_timeout_disable_supported(true).completion_timeout_ranges(0xf);
        c.set().link_speeds(0b111).target_link_speed(3);
        c
    }
}

hw_layout! {
    /// MSI-X capability.
    pub struct MsixCap: 0xc {
        0x00 [31:31] enable: bool,
        0x00 [30:30] function_mask: bool,
        /// Number of vectors minus 1.
        0x00 [26:16] table_size: u16,
        0x00 [15: 8] next: u8,
        0x00 [ 7: 0] id: u8,
        /// Offset of the table in its BAR, in units of 8 bytes.
        0x04 [31: 3] table_offset_8: u32,
        0x04 [ 2: 0] table_bir: u8,
        /// Offset of the pending bits in their BAR, in units of 8 bytes.
        0x08 [31: 3] pba_offset_8: u32,
        0x08 [ 2: 0] pba_bir: u8,
    }
}

impl MsixCap {
    /// The capability of a function with [`MSIX_VECTORS`] vectors, table and pending bits in BAR0.
    pub fn new(next: u8) -> Self {
        let mut c = Self::zeroed();
        c.set().id(CAP_ID_MSIX).next(next).table_size(MSIX_VECTORS as u16 - 1);
        c.set().table_offset_8(MSIX_TABLE as u32 >> 3).pba_offset_8(MSIX_PBA as u32 >> 3);
        c
    }
}

hw_layout! {
    /// Vendor-specific capability of a physical function: a gateway to register spaces behind the interface, with a
    /// semaphore that is taken by writing back the last value read from the counter.
    pub struct VendorCap: 0x18 {
        0x00 [31:24] kind: u8,
        0x00 [23:16] length: u8,
        0x00 [15: 8] next: u8,
        0x00 [ 7: 0] id: u8,
        /// 0: the space does not exist.
        0x04 [31:29] status: u8,
        0x04 [28:28] size_valid: bool,
        0x04 [15: 0] space: u16,
        0x08 [31: 0] counter: u32,
        0x0c [31: 0] semaphore: u32,
        0x10 [31:31] flag: bool,
        0x10 [30:30] syndrome: bool,
        0x10 [29: 0] address: u32,
        0x14 [31: 0] data: u32,
    }
}

impl VendorCap {
    /// The capability of a function without accessible spaces.
    pub fn new(next: u8) -> Self {
        let mut c = Self::zeroed();
        c.set().id(CAP_ID_VENDOR).next(next).length(Self::SIZE as u8);
        c
    }
}

hw_layout! {
    /// MSI-X table entry. Masked after reset.
    pub struct MsixEntry: 0x10 {
        0x00 [31: 0] address_low: u32,
        0x04 [31: 0] address_high: u32,
        0x08 [31: 0] data: u32,
        0x0c [ 0: 0] masked: bool,
    }

    /// Alternative routing IDs: more than 8 functions on one bus.
    pub struct AriCap: 0x8 {
        0x00 [31:20] next: u16,
        0x00 [19:16] version: u8,
        0x00 [15: 0] id: u16,
        0x04 [22:20] function_group: u8,
        0x04 [15: 8] next_function: u8,
    }
}

impl AriCap {
    /// The capability of the last physical function.
    pub fn new(next: u16) -> Self {
        let mut c = Self::zeroed();
        c.set().id(EXT_CAP_ID_ARI).version(1).next(next);
        c
    }
}

hw_layout! {
    /// SR-IOV capability of the physical function.
    pub struct SriovCap: 0x40 {
        0x00 [31:20] next: u16,
        0x00 [19:16] version: u8,
        0x00 [15: 0] id: u16,
        0x04 [31:21] migration_message: u16,
        /// VF offset and stride stay the same when `ari_hierarchy` changes.
        0x04 [ 1: 1] ari_preserved: bool,
        0x04 [ 0: 0] migration_capable: bool,
        0x08 [16:16] migration_status: bool,
        0x08 [ 4: 4] ari_hierarchy: bool,
        0x08 [ 3: 3] vf_memory_space: bool,
        0x08 [ 2: 2] migration_interrupt: bool,
        0x08 [ 1: 1] migration_enable: bool,
        0x08 [ 0: 0] vf_enable: bool,
        0x0c [31:16] total_vfs: u16,
        0x0c [15: 0] initial_vfs: u16,
        0x10 [23:16] dependency_link: u8,
        0x10 [15: 0] num_vfs: u16,
        0x14 [31:16] vf_stride: u16,
        0x14 [15: 0] first_vf_offset: u16,
        0x18 [31:16] vf_device_id: u16,
        /// Bit n: pages of 2^(n+12) bytes.
        0x1c [31: 0] supported_page_sizes: u32,
        0x20 [31: 0] system_page_size: u32,
        0x24 [31: 0] vf_bar0: u32,
        0x28 [31: 0] vf_bar1: u32,
        0x2c [31: 0] vf_bar2: u32,
        0x30 [31: 0] vf_bar3: u32,
        0x34 [31: 0] vf_bar4: u32,
        0x38 [31: 0] vf_bar5: u32,
        0x3c [31: 0] migration_state_offset: u32,
    }
}

impl SriovCap {
    /// The capability of a physical function with `total_vfs` VFs, all disabled.
    pub fn new(total_vfs: u16) -> Self {
        let mut c = Self::zeroed();
        c.set().id(EXT_CAP_ID_SRIOV).version(1).ari_preserved(true);
        c.set().total_vfs(total_vfs).initial_vfs(total_vfs);
        c.set().first_vf_offset(FIRST_VF_OFFSET).vf_stride(VF_STRIDE).vf_device_id(VF_DEVICE_ID);
        c.set().supported_page_sizes(SRIOV_PAGE_SIZES).system_page_size(1).vf_bar0(BAR_MEM64_PREFETCH);
        c
    }
}
