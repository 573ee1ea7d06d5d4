//! The object that every libibverbs loads as the driver of ironverbs devices: it loads the provider, and notifies it of the libibverbs.
//!
//! A process may contain several libibverbs: the system's, and those bundled with Python wheels under other names. All of them load drivers
//! from the same path, and the dynamic linker runs the constructor of an object only when it loads it, so a provider at that path would be
//! notified of the first libibverbs only. This object is therefore separate from the provider, and the provider unloads it once it has
//! served the libibverbs that loaded it (`register.rs` there). The next libibverbs loads it again.
//!
//! It has no API and therefore no example: its only interface is being loaded. `ironverbs run -- env LD_DEBUG=files ibv_devices` shows it
//! at work.
#![allow(unsafe_code)]

use libc::{c_char, c_void};
use std::ffi::CStr;

/// The provider's file in the same directory; the launcher creates both links.
const PROVIDER: &[u8] = b"libironverbs.so\0";
/// The function that the provider exports; its argument is the path of this object.
const JOIN: &CStr = c"ironverbs_join";

type Join = unsafe extern "C" fn(*const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// This code must not leave anything behind for the exit of a thread or of the process (thread-locals with destructors, exit handlers): it
/// is unloaded by then.
extern "C" fn on_load() {
    let Some(own) = own_path() else { return };
    let directory = own.to_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let provider = [&own.to_bytes()[..directory], PROVIDER].concat();
    // SAFETY: terminated names. The provider is never unloaded, and exports the function with this type.
    unsafe {
        let handle = libc::dlopen(provider.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_NODELETE);
        let join = if handle.is_null() { handle } else { libc::dlsym(handle, JOIN.as_ptr()) };
        if join.is_null() {
            let why = libc::dlerror();
            let why = if why.is_null() { c"unknown error" } else { CStr::from_ptr(why) };
            // Without the provider, this object stays loaded.
            eprintln!("ironverbs: the provider was not loaded: {}", why.to_string_lossy());
            return;
        }
        std::mem::transmute::<*mut c_void, Join>(join)(own.as_ptr());
    }
}

/// The path by which this object was loaded.
fn own_path() -> Option<&'static CStr> {
    // SAFETY: all-zero is a valid record, and the address is within this object. The dynamic linker keeps the name as long as the object is
    // loaded, which it is while the caller of this function runs.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr((&raw const ON_LOAD).cast(), &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}
