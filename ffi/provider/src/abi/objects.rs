//! The objects loaded into this process that define a given function.
//!
//! A library is identified by the functions it defines, because its name is not reliable: Python wheels bundle a libibverbs or a librdmacm
//! under another name, in addition to the system's.

use libc::{Elf64_Phdr, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::slice;

/// A loaded object that defines a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    handle: usize,
    /// Address of the function.
    pub at: usize,
}

impl Object {
    /// The address of `name` in this object or in those it is linked with; null if none defines it.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a handle that is never closed, and a terminated name.
        unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) }
    }
}

/// Name and mapped ranges of a loaded object.
struct Mapped {
    name: CString,
    ranges: Vec<Range<usize>>,
}

/// All objects that define `name` themselves, in load order. They are kept loaded from now on.
pub fn defining(name: &CStr) -> Vec<Object> {
    mapped().iter().filter_map(|object| definition(object, name)).collect()
}

/// Total number of objects ever loaded into this process; unloading does not decrease it.
pub fn loaded_so_far() -> u64 {
    let mut count = 0;
    each(|info, _| {
        count = info.dlpi_adds;
        true
    });
    count
}

/// Calls `visit` with each loaded object and its program headers, until it returns true.
pub fn each<F: FnMut(&dl_phdr_info, &[Elf64_Phdr]) -> bool>(mut visit: F) {
    unsafe extern "C" fn call<F: FnMut(&dl_phdr_info, &[Elf64_Phdr]) -> bool>(
        info: *mut dl_phdr_info,
        _size: size_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's record, which has had this size in every C library since 2005, with its own header count, and the closure of
        // this call, all valid during the call.
        unsafe {
            let headers = slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
            (*data.cast::<F>())(&*info, headers).into()
        }
    }
    // SAFETY: the callback uses its data pointer only during this call.
    unsafe { libc::dl_iterate_phdr(Some(call::<F>), (&raw mut visit).cast()) };
}

/// The addresses of a segment.
pub fn range(info: &dl_phdr_info, header: &Elf64_Phdr) -> Range<usize> {
    let start = (info.dlpi_addr + header.p_vaddr) as usize;
    start..start + header.p_memsz as usize
}

fn definition(object: &Mapped, name: &CStr) -> Option<Object> {
    // The main program has no name.
    let path = if object.name.is_empty() { std::ptr::null() } else { object.name.as_ptr() };
    // SAFETY: RTLD_NOLOAD only looks up objects that are already loaded; terminated names. The handle is closed at most once.
    unsafe {
        let handle = libc::dlopen(path, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if handle.is_null() {
            return None;
        }
        // This also searches the objects that the object is linked with.
        let at = libc::dlsym(handle, name.as_ptr()) as usize;
        if !object.ranges.iter().any(|range| range.contains(&at)) {
            libc::dlclose(handle);
            return None;
        }
        Some(Object { handle: handle as usize, at })
    }
}

fn mapped() -> Vec<Mapped> {
    let mut all = Vec::new();
    each(|info, headers| {
        let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let ranges = loads.map(|header| range(info, header)).collect();
        let name = match info.dlpi_name.is_null() {
            true => CString::default(),
            // SAFETY: the loader's own terminated string.
            false => unsafe { CStr::from_ptr(info.dlpi_name) }.into(),
        };
        all.push(Mapped { name, ranges });
        false
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_where_it_is_defined_and_not_where_it_is_imported() {
        // The program and most of its libraries import it.
        let found = defining(c"getpid");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].at, libc::getpid as *const () as usize);
        assert!(!found[0].find(c"getppid").is_null());
        assert_eq!(defining(c"ironverbs_no_such_function"), []);
    }
}
