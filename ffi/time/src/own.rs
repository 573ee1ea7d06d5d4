//! Looks up libc's own functions, which this library's functions of the same names hide.

use libc::c_void;
use std::{
    ffi::CStr,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering::*},
};

/// Symbol versions of the functions used here, newest first. If there are several, `dlsym` returns the oldest.
const VERSIONS: [&CStr; 4] = [c"GLIBC_2.34", c"GLIBC_2.15", c"GLIBC_2.3.3", c"GLIBC_2.3.2"];

/// Returns the address of libc's function `name`, or null if it has none. `known` caches it.
pub fn find(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = known.load(Relaxed);
    if found.is_null() {
        // SAFETY: the name and the versions are C strings.
        found = unsafe {
            let newest =
                VERSIONS.iter().map(|version| libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()));
            newest.into_iter().find(|at| !at.is_null()).unwrap_or(null_mut())
        };
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        }
        known.store(found, Relaxed);
    }
    found
}

/// Calls libc's own function of this name and type, or evaluates to the value after `else` if there is none. The caller upholds that
/// function's contract.
macro_rules! own {
    ($name:ident($($arg:expr => $kind:ty),*) -> $result:ty, else $none:expr) => {{
        static KNOWN: std::sync::atomic::AtomicPtr<libc::c_void> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        };
        match $crate::own::find(name, &KNOWN) {
            found if found.is_null() => $none,
            found => {
                let call: unsafe extern "C" fn($($kind),*) -> $result = std::mem::transmute(found);
                call($($arg),*)
            }
        }
    }};
}
pub(crate) use own;
