//! Defines functions that replace libc's in programs, and finds libc's originals.

use libc::c_void;
use std::{
    ffi::CStr,
    sync::atomic::{AtomicPtr, Ordering::*},
};

/// Symbol versions of the functions used here, newest first. If there are several, `dlsym` returns the oldest.
const VERSIONS: [&CStr; 4] = [c"GLIBC_2.34", c"GLIBC_2.15", c"GLIBC_2.3.3", c"GLIBC_2.3.2"];

/// Returns the address of libc's function `name`, or null if it has none. `known` caches it.
pub fn find(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    if known.load(Relaxed).is_null() {
        let (name, next) = (name.as_ptr(), libc::RTLD_NEXT);
        // SAFETY: the name and the versions are C strings.
        let newest = VERSIONS.iter().map(|version| unsafe { libc::dlvsym(next, name, version.as_ptr()) });
        // SAFETY: the name is a C string.
        let found =
            newest.into_iter().find(|at| !at.is_null()).unwrap_or_else(|| unsafe { libc::dlsym(next, name) });
        known.store(found, Relaxed);
    }
    known.load(Relaxed)
}

/// Defines `own`, which calls libc's own function of this name, or returns the value after `or` if this libc has none.
macro_rules! own {
    ($name:ident($($arg:ident: $kind:ty),*) -> $result:ty, or $none:expr) => {
        unsafe fn own($($arg: $kind),*) -> $result {
            static KNOWN: std::sync::atomic::AtomicPtr<libc::c_void> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
            let name = const {
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                }
            };
            let found = $crate::own::find(name, &KNOWN);
            if found.is_null() {
                return $none;
            }
            // SAFETY: libc's function of this name has this type, and the caller keeps to its contract.
            unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn($($kind),*) -> $result>(found)($($arg),*) }
        }
    };
}
pub(crate) use own;

/// Defines functions that programs call instead of libc's of the same names. The body of one with a value after `or` may call [`own`].
macro_rules! instead {
    () => {};
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $result:ty, or $none:expr; $body:block $($more:tt)*) => {
        $crate::own::instead! {
            $(#[$doc])*
            fn $name($($arg: $kind),*) -> $result {
                $crate::own::own!($name($($arg: $kind),*) -> $result, or $none);
                $body
            }
            $($more)*
        }
    };
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $result:ty $body:block $($more:tt)*) => {
        $(#[$doc])*
        /// # Safety
        /// As of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: the caller keeps to the contract of libc's function: a pointer is null where that is permitted, or valid as long as
            // the function requires. The kernel checks what system calls are given, and libc's own function gets what it would have got.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
        $crate::own::instead! { $($more)* }
    };
}
pub(crate) use instead;
