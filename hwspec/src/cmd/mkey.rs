//! Memory key commands.
use super::CmdOut;
use crate::context::mkey::MkeyContext;

commands! {
    0x200 CreateMkey
        in CreateMkeyIn: 0x110, uid {
            0x00c [31:31] pg_access: bool,
            0x00c [30:30] mkey_umem_valid: bool,
            0x010         memory_key_mkey_entry: MkeyContext,
            0x060 [31: 0] translations_octword_actual_size: u32,
        } then Translations
        out CreateMkeyOut: 0x10 { 0x008 [23: 0] mkey_index: u32 }

    0x201 QueryMkey
        in QueryMkeyIn: 0x10, uid {
            0x008 [23: 0] mkey_index: u32,
            0x00c [31:31] pg_access: bool,
        }
        out QueryMkeyOut: 0x130 {
            0x010         memory_key_mkey_entry: MkeyContext,
            0x110         bsf0_klm0_pas_mtt0_1: [u8; 0x10],
            0x120         bsf1_klm1_pas_mtt2_3: [u8; 0x10],
        }

    0x202 DestroyMkey in DestroyMkeyIn: 0x10, uid { 0x008 [23: 0] mkey_index: u32 } out CmdOut
}
