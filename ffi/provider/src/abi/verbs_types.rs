//! The private structures between libibverbs and its providers, unchanged from rdma-core 35 to 65.
//!
//! The structures that did change (the operations table, `struct verbs_context`, `struct verbs_qp`) are not declared here: [`super::probe`]
//! detects their layout at load time.

#![allow(missing_docs, non_camel_case_types)]

use super::public::{ibv_device, ibv_mr};
use crate::device::IronDevice;
use crate::ours::Of;
use libc::{c_char, c_int, c_void};
use std::ptr::NonNull;

/// Intrusive doubly linked list.
#[repr(C)]
pub struct list_node {
    pub next: *mut list_node,
    pub prev: *mut list_node,
}

/// A match table with only a sentinel: the library reads the table even if a match function decides.
#[repr(C)]
pub struct verbs_match_ent {
    pub driver_data: *mut c_void,
    pub pattern: u64,
    pub vendor: u16,
    pub device: u16,
    pub kind: u8,
}

/// A device that libibverbs found in sysfs. Only the beginning is declared.
#[repr(C)]
pub struct verbs_sysfs_dev {
    pub entry: list_node,
    pub provider_data: *mut c_void,
    pub matched: *const verbs_match_ent,
    pub flags: u32,
    pub sysfs_name: [c_char; 64],
}

/// The operations that a provider registers.
#[repr(C)]
pub struct verbs_device_ops {
    pub name: *const c_char,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const verbs_match_ent,
    pub static_providers: *const c_void,
    pub match_device: Option<extern "C" fn(&verbs_sysfs_dev) -> bool>,
    pub alloc_context:
        Option<extern "C" fn(Of<ibv_device>, c_int, *mut c_void) -> Option<NonNull<verbs_context>>>,
    pub import_context: Option<extern "C" fn(Of<ibv_device>, c_int) -> Option<NonNull<verbs_context>>>,
    pub alloc_device: Option<extern "C" fn(&verbs_sysfs_dev) -> Option<Box<IronDevice>>>,
    pub uninit_device: Option<extern "C" fn(Box<IronDevice>)>,
}

// SAFETY: the table is constant; its pointers refer to constants and functions.
unsafe impl Sync for verbs_device_ops {}
// SAFETY: a constant without interior mutability.
unsafe impl Sync for verbs_match_ent {}

/// A libibverbs device, allocated by the provider.
#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const verbs_device_ops,
    pub refcount: c_int,
    pub entry: list_node,
    pub sysfs: *mut verbs_sysfs_dev,
    pub core_support: u64,
}

/// Opaque: its size depends on the release, and `ibv_context` is its last member.
#[repr(C)]
pub struct verbs_context {
    _opaque: [u8; 0],
}

/// `struct verbs_mr`: the library reads type and access on deregistration.
#[repr(C)]
pub struct verbs_mr {
    pub mr: ibv_mr,
    pub mr_type: c_int,
    pub access: c_int,
}

/// Flag of `verbs_qp.comp_mask`: the QP has the extended post interface.
pub const VERBS_QP_EX: u32 = 1 << 1;
