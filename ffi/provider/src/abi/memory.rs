//! Public types for memory windows and device memory.

#![allow(missing_docs, non_camel_case_types)]

use super::layout::{c_codes, c_structs};
use super::public::{ibv_context, ibv_mr, ibv_pd};
use crate::ours::Of;
use libc::{c_int, c_uint, size_t};

c_codes! {
    pub const IBV_MW_TYPE_1: u32 = 1;
    pub const IBV_MW_TYPE_2: u32 = 2;

    pub const IBV_DEVICE_MEM_WINDOW: u32 = 1 << 17;
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    /// Extended capability: local invalidation, remote invalidation, and the rest of IBTA 10.6's extensions.
    pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;

    pub const IBV_ODP_SUPPORT: u64 = 1;
    pub const IBV_ODP_SUPPORT_IMPLICIT: u64 = 2;
    pub const IBV_ODP_SUPPORT_SEND: u32 = 1;
    pub const IBV_ODP_SUPPORT_RECV: u32 = 1 << 1;
    pub const IBV_ODP_SUPPORT_WRITE: u32 = 1 << 2;
    pub const IBV_ODP_SUPPORT_READ: u32 = 1 << 3;
    pub const IBV_ODP_SUPPORT_ATOMIC: u32 = 1 << 4;
    pub const IBV_ODP_SUPPORT_SRQ_RECV: u32 = 1 << 5;

    pub const IBV_ADVISE_MR_ADVICE_PREFETCH: u32 = 0;
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: u32 = 1;
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: u32 = 2;
    pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;
}

/// `ibv_send_wr.bind_mw`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_bind_mw {
    pub mw: Option<Of<ibv_mw>>,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

c_structs! {
    pub struct ibv_mw {
        pub context: *mut ibv_context,
        pub pd: Option<Of<ibv_pd>>,
        pub rkey: u32,
        pub handle: u32,
        pub kind: c_uint,
    }

    #[derive(Clone, Copy)]
    pub struct ibv_mw_bind_info {
        pub mr: Option<Of<ibv_mr>>,
        pub addr: u64,
        pub length: u64,
        pub mw_access_flags: c_uint,
    }

    pub struct ibv_mw_bind {
        pub wr_id: u64,
        pub send_flags: c_uint,
        pub bind_info: ibv_mw_bind_info,
    }

    pub struct ibv_alloc_dm_attr {
        pub length: size_t,
        pub log_align_req: u32,
        pub comp_mask: u32,
    }

    pub struct ibv_dm {
        pub context: *mut ibv_context,
        pub memcpy_to_dm: Option<unsafe extern "C" fn(Of<ibv_dm>, u64, *const u8, size_t) -> c_int>,
        pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut u8, Of<ibv_dm>, u64, size_t) -> c_int>,
        pub comp_mask: u32,
        pub handle: u32,
    }
}
