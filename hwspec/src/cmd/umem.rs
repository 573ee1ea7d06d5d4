//! User memory objects: separate page lists, referenced by queues instead of including their own.
use super::CmdOut;
use crate::{context::mkey::Mtt, hw_layout};

hw_layout! {
    /// User memory object, without its page list.
    pub struct UserMemory: 0x20 {
        0x010 [31:31] ats: bool,
        0x010 [ 4: 0] log_page_size: u8,
        0x014 [31: 0] page_offset: u32,
        0x018 [63: 0] num_of_mtt: u64,
    }
}

commands! {
    0xa08 CreateUmem
        in CreateUmemIn: 0x30, uid { 0x010 umem: UserMemory } then mtt: [Mtt]
        out CreateUmemOut: 0x10 { 0x008 [23: 0] umem_id: u32 }

    0xa0a DestroyUmem in DestroyUmemIn: 0x10, uid { 0x008 [23: 0] umem_id: u32 } out CmdOut
}
