//! Our part of a device.

use crate::abi::verbs_types::verbs_device;
use node::place::Place;

/// Our device; libibverbs sees the first member.
#[repr(C)]
pub struct IronDevice {
    pub device: verbs_device,
    /// Where it is.
    pub place: Place,
}
