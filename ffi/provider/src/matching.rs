//! Recognizes this provider's devices in libibverbs' device list.

use crate::abi::verbs_types::{verbs_device, verbs_sysfs_dev};
use crate::device::IronDevice;
use crate::guard::guard;
use crate::{register, registration};
use node::place::Place;
use std::ffi::CStr;
use std::path::Path;
use zerocopy::IntoBytes;

/// Reads the marker file. `None` if the device belongs to another provider.
fn place_of(sysfs: &verbs_sysfs_dev) -> Option<Place> {
    let name = CStr::from_bytes_until_nul(sysfs.sysfs_name.as_bytes()).ok()?.to_str().ok()?;
    if !name.starts_with("uverbs") {
        return None;
    }
    let marker =
        Path::new(&registration::sysfs()?).join("class/infiniband_verbs").join(name).join("ironverbs");
    let text = std::fs::read(&marker).ok()?;
    Place::parse(&text).map_err(|what| eprintln!("ironverbs: {}: {what}", marker.display())).ok()
}

/// True if the device belongs to this provider.
pub extern "C" fn match_device(sysfs: &verbs_sysfs_dev) -> bool {
    guard(false, || {
        register::unload_loaders();
        place_of(sysfs).is_some()
    })
}

/// Allocates the provider's part of a matched device.
pub extern "C" fn alloc_device(sysfs: &verbs_sysfs_dev) -> Option<Box<IronDevice>> {
    guard(None, || {
        let place = place_of(sysfs)?;
        // SAFETY: all-zero is a valid device.
        let mut device: verbs_device = unsafe { std::mem::zeroed() };
        device.core_support = crate::abi::public::IBV_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
        Some(Box::new(IronDevice { device, place }))
    })
}

/// Frees a device that libibverbs no longer uses.
pub extern "C" fn uninit_device(device: Box<IronDevice>) {
    guard((), || drop(device));
}
