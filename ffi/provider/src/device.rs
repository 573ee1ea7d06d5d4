//! Which devices of the library's list are ours, and our part of each.

use crate::abi::verbs_types::{verbs_device, verbs_sysfs_dev};
use crate::guard::guard;
use crate::register::layout;
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// Where a device is: the node's directory and the function in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Directory of the node.
    pub node: PathBuf,
    /// Function: 0 is the PF.
    pub fid: u8,
}

/// Our device; libibverbs sees the first member.
#[repr(C)]
pub struct IronDevice {
    device: verbs_device,
    /// Where it is.
    pub place: Place,
}

impl Place {
    /// From the text of the file `ironverbs` in the device's sysfs directory: `node=DIR` and `fid=N`, one per line.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = |key: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.ok_or_else(|| format!("expected a line {key}=..., found {text:?}"))
        };
        let node = PathBuf::from(value("node")?);
        if !node.is_absolute() {
            return Err(format!("expected an absolute node directory, found {}", node.display()));
        }
        let fid = value("fid")?;
        let fid = fid.trim().parse().map_err(|_| format!("expected fid=NUMBER, found {fid:?}"))?;
        Ok(Self { node, fid })
    }
}

/// Looks for the marker file; `None` for other people's devices.
fn place_of(sysfs: *const verbs_sysfs_dev) -> Option<Place> {
    // SAFETY: libibverbs passes its own record; the name is a terminated array within it.
    let name = unsafe { CStr::from_ptr((&raw const (*sysfs).sysfs_name).cast()) }.to_str().ok()?;
    if !name.starts_with("uverbs") {
        return None;
    }
    let marker =
        Path::new(&layout()?.library.sysfs()).join("class/infiniband_verbs").join(name).join("ironverbs");
    let text = std::fs::read_to_string(&marker).ok()?;
    Place::parse(&text).map_err(|what| eprintln!("ironverbs: {}: {what}", marker.display())).ok()
}

/// Is this device ours?
///
/// # Safety
/// Called by libibverbs with a record of its own.
pub unsafe extern "C" fn match_device(sysfs: *mut verbs_sysfs_dev) -> bool {
    guard(false, || place_of(sysfs).is_some())
}

/// Makes our part of a device that matched.
///
/// # Safety
/// Called by libibverbs with a record of its own.
pub unsafe extern "C" fn alloc_device(sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    guard(std::ptr::null_mut(), || {
        let Some(place) = place_of(sysfs) else { return std::ptr::null_mut() };
        // SAFETY: all-zero is a valid device.
        let mut device: verbs_device = unsafe { std::mem::zeroed() };
        device.core_support = crate::abi::public::IBV_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
        Box::into_raw(Box::new(IronDevice { device, place })).cast()
    })
}

/// The library's last use of a device is over.
///
/// # Safety
/// Called by libibverbs with what [`alloc_device`] returned.
pub unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: from Box::into_raw in alloc_device.
    guard((), || drop(unsafe { Box::from_raw(device.cast::<IronDevice>()) }));
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_marker_names_node_and_function() {
        let place = Place::parse("node=/run/iron verbs/n0\nfid=12\n").expect("a good marker");
        assert_eq!((place.node.to_str(), place.fid), (Some("/run/iron verbs/n0"), 12));
    }

    #[test]
    fn a_bad_marker_is_an_error_that_says_what_was_found() {
        for text in ["", "node=/n", "fid=1", "node=n\nfid=1", "node=/n\nfid=x", "node=/n\nfid=256"] {
            let what = Place::parse(text).expect_err(text);
            assert!(what.contains("expected"), "{what}");
        }
    }
}
