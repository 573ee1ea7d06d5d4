//! Initialization, capabilities, pages and identification.
use super::{CmdIn, CmdOut, Opcode, Page, Status};
use crate::hw_layout;

/// `op_mod` of `MANAGE_PAGES`: the driver has no pages.
pub const CANT_GIVE: u16 = 0;
/// `op_mod` of `MANAGE_PAGES`: pages for the device.
pub const GIVE: u16 = 1;
/// `op_mod` of `MANAGE_PAGES`: the driver wants pages back.
pub const TAKE: u16 = 2;
/// `op_mod` of `ACCESS_REG`: write.
pub const WRITE: u16 = 0;
/// `op_mod` of `ACCESS_REG`: read.
pub const READ: u16 = 1;

commands! {
    // Capability pages are decoded by their kind; in QueryHcaCapOut and SetHcaCapIn they are plain bytes.
    0x100 QueryHcaCap
        in QueryHcaCapIn: 0x10, uid {
            0x008 [31:31] other_function: bool,
            0x008 [15: 0] function_id: u16,
        }
        out CmdOut then Capability

    0x109 SetHcaCap in QueryHcaCapIn then Capability out CmdOut

    0x102 InitHca
        in InitHcaIn: 0x20 {
            0x00c [29:16] sw_vhca_id: u16,
            0x010         sw_owner_id: [u8; 0x10],
        }
        out CmdOut

    0x103 TeardownHca
        in TeardownHcaIn: 0x10 { 0x008 [15: 0] profile: u16 }
        out TeardownHcaOut: 0x10 { 0x00c [ 0: 0] state: bool }

    0x104 EnableHca
        in EnableHcaIn: 0x10 {
            0x008 [31:31] embedded_cpu_function: bool,
            0x008 [15: 0] function_id: u16,
        }
        out EnableHcaOut: 0xc {}

    0x105 DisableHca
        in DisableHcaIn: 0x10 {
            0x008 [31:31] embedded_cpu_function: bool,
            0x008 [15: 0] function_id: u16,
        }
        out DisableHcaOut: 0xc {}

    0x107 QueryPages
        in QueryPagesIn: 0x10 {
            0x008 [31:31] embedded_cpu_function: bool,
            0x008 [15: 0] function_id: u16,
        }
        out QueryPagesOut: 0x10 {
            0x008 [31:31] embedded_cpu_function: bool,
            0x008 [15: 0] function_id: u16,
            0x00c [31: 0] num_pages: u32,
        }

    0x108 ManagePages
        in ManagePagesIn: 0x10 {
            0x008 [31:31] embedded_cpu_function: bool,
            0x008 [15: 0] function_id: u16,
            0x00c [31: 0] input_num_entries: u32,
        } then pas: [Page]
        out ManagePagesOut: 0x10 { 0x008 [31: 0] output_num_entries: u32 } then pas: [Page]

    0x10a QueryIssi
        in CmdIn
        out QueryIssiOut: 0x70 {
            0x008 [15: 0] current_issi: u16,
            0x06c [31: 0] supported_issi_dw0: u32,
        }

    0x10b SetIssi in SetIssiIn: 0x10 { 0x008 [15: 0] current_issi: u16 } out CmdOut
    0x10d SetDriverVersion in SetDriverVersionIn: 0x50 { 0x010 driver_version: [u8; 0x40] } out CmdOut

    0x203 QuerySpecialContexts
        in QuerySpecialContextsIn: 0x10 {}
        out QuerySpecialContextsOut: 0x20 {
            0x008 [31: 0] dump_fill_mkey: u32,
            0x00c [31: 0] resd_lkey: u32,
            0x010 [31: 0] null_mkey: u32,
        }

    0x80d Nop in CmdIn out CmdOut

    0x805 AccessReg
        in AccessRegisterIn: 0x10 {
            0x008 [15: 0] register_id: u16,
            0x00c [31: 0] argument: u32,
        } then Register
        out CmdOut then Register
}

hw_layout! {
    /// Output of [`QueryHcaCap`](Opcode::QueryHcaCap) with its page.
    pub struct QueryHcaCapOut: 0x1010 {
        0x000 [31:24] status: Status,
        0x004 [31: 0] syndrome: u32,
        0x010         capability: [u8; 0x1000],
    }

    /// Input of [`SetHcaCap`](Opcode::SetHcaCap) with its page.
    pub struct SetHcaCapIn: 0x1010 {
        0x000 [31:16] opcode: Opcode,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] other_function: bool,
        0x008 [15: 0] function_id: u16,
        0x010         capability: [u8; 0x1000],
    }
}
