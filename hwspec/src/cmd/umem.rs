//! User memory objects: a page list by itself, to which queues refer instead of bringing their own.
use crate::hw_layout;

hw_layout! {
    /// User memory object, before its page list.
    pub struct UserMemory: 0x20 {
        0x010 [31:31] ats: bool,
        0x010 [ 4: 0] log_page_size: u8,
        0x014 [31: 0] page_offset: u32,
        0x018 [63: 0] num_of_mtt: u64,
    }
}

hw_layout! {
    /// `CREATE_UMEM` input; the page list follows.
    pub struct CreateUmemIn: 0x30 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         umem: UserMemory,
    }
}

hw_layout! {
    /// `CREATE_UMEM` output.
    pub struct CreateUmemOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] umem_id: u32,
    }
}

hw_layout! {
    /// `DESTROY_UMEM` input.
    pub struct DestroyUmemIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] umem_id: u32,
    }
}

hw_layout! {
    /// `DESTROY_UMEM` output.
    pub struct DestroyUmemOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
