//! The provider's part of a device.

use crate::abi::verbs_types::verbs_device;
use node::place::Place;

/// The provider's device. libibverbs sees its first member.
#[repr(C)]
pub struct IronDevice {
    pub device: verbs_device,
    /// The place of the simulated function.
    pub place: Place,
}
