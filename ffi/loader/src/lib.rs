//! The object that every libibverbs loads as the driver of our devices: it loads the provider, and tells it that a libibverbs came.
//!
//! A process may hold several libibverbs: its system's, and those that Python wheels bring along under names of their own.
//! All of them load drivers by the same path, and the dynamic linker runs the constructor of an object only when it loads
//! it, so a provider named there would hear of the first libibverbs and of no other. This object is therefore apart from
//! the provider, and the provider unloads it as soon as the libibverbs that loaded it is served (`register.rs` there). The
//! next one loads it anew.
//!
//! There is nothing to call, so there is no example: an object whose only interface is to be loaded. A program sees it at work by
//! `ironverbs run -- env LD_DEBUG=files ibv_devices`.
#![allow(unsafe_code)]

use libc::{c_char, c_void};
use std::ffi::CStr;

/// The provider's file beside this one; the launcher makes both links.
const PROVIDER: &[u8] = b"libironverbs.so\0";
/// The function that the provider exports; its argument is the path of this object.
const JOIN: &CStr = c"ironverbs_join";

type Join = unsafe extern "C" fn(*const c_char);

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Nothing here may use what leaves something behind for the end of a thread or of the process (thread-locals with
/// destructors, exit handlers): the code is gone by then.
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
            // Nobody unloads us then.
            eprintln!("ironverbs: the provider was not loaded: {}", why.to_string_lossy());
            return;
        }
        std::mem::transmute::<*mut c_void, Join>(join)(own.as_ptr());
    }
}

/// The path by which this object was loaded.
fn own_path() -> Option<&'static CStr> {
    // SAFETY: all-zero is a valid record, and the address is one of this object. The dynamic linker keeps the name as long
    // as the object is loaded, which it is while this function's caller runs.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr((&raw const ON_LOAD).cast(), &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}
