//! The provider's part of a device.

use crate::abi::public::ibv_device;
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

const _: () = assert!(std::mem::offset_of!(IronDevice, device.device) == 0);

// SAFETY: asserted above: the pointer to the structure is one to the device, which begins with it (repr(C)).
unsafe impl Object for ibv_device {
    type Behind = IronDevice;

    unsafe fn behind(public: NonNull<Self>) -> NonNull<IronDevice> {
        public.cast()
    }
}
