//! Recognizes this provider's devices in libibverbs' device list.

use crate::abi::verbs_types::{verbs_device, verbs_sysfs_dev};
use crate::device::IronDevice;
use crate::guard::guard;
use crate::{register, registration};
use node::place::Place;
use std::ffi::CStr;
use std::path::Path;

/// Reads the marker file. `None` if the device belongs to another provider.
fn place_of(sysfs: *const verbs_sysfs_dev) -> Option<Place> {
    // SAFETY: libibverbs passes its own record; the name is a terminated array within it.
    let name = unsafe { CStr::from_ptr((&raw const (*sysfs).sysfs_name).cast()) }.to_str().ok()?;
    if !name.starts_with("uverbs") {
        return None;
    }
    let marker =
        Path::new(&registration::sysfs()?).join("class/infiniband_verbs").join(name).join("ironverbs");
    let text = std::fs::read(&marker).ok()?;
    Place::parse(&text).map_err(|what| eprintln!("ironverbs: {}: {what}", marker.display())).ok()
}

/// True if the device belongs to this provider.
///
/// # Safety
/// Called by libibverbs with its own record of a device.
pub unsafe extern "C" fn match_device(sysfs: *mut verbs_sysfs_dev) -> bool {
    guard(false, || {
        register::unload_loaders();
        place_of(sysfs).is_some()
    })
}

/// Allocates the provider's part of a matched device.
///
/// # Safety
/// Called by libibverbs with its own record of a device.
pub unsafe extern "C" fn alloc_device(sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    guard(std::ptr::null_mut(), || {
        let Some(place) = place_of(sysfs) else { return std::ptr::null_mut() };
        // SAFETY: all-zero is a valid device.
        let mut device: verbs_device = unsafe { std::mem::zeroed() };
        device.core_support = crate::abi::public::IBV_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
        Box::into_raw(Box::new(IronDevice { device, place })).cast()
    })
}

/// Frees a device that libibverbs no longer uses.
///
/// # Safety
/// Called by libibverbs with a device that [`alloc_device`] returned.
pub unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: from Box::into_raw in alloc_device.
    guard((), || drop(unsafe { Box::from_raw(device.cast::<IronDevice>()) }));
}
