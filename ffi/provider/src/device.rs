//! The provider's part of a device.

use crate::abi::verbs_types::verbs_device;
use crate::ours::Object;
use node::place::Place;
use std::ptr::NonNull;

/// The provider's device. libibverbs sees its first member.
#[repr(C)]
pub struct IronDevice {
    pub device: verbs_device,
    /// The place of the simulated function.
    pub place: Place,
}

const _: () = assert!(std::mem::offset_of!(IronDevice, device) == 0);

// SAFETY: asserted above: the pointer to the first member is one to the device (repr(C)).
unsafe impl Object for IronDevice {
    type Public = verbs_device;

    unsafe fn behind(public: NonNull<verbs_device>) -> NonNull<Self> {
        public.cast()
    }
}
