//! The objects loaded into this process, and which of them define a function.
//!
//! A library is looked for by what it defines, for its name says little: Python wheels bring a libibverbs or a librdmacm
//! under a name of their own, beside the system's.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::ffi::{CStr, CString};
use std::slice;

/// A loaded object that defines a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    handle: usize,
    /// Where the function is.
    pub at: usize,
}

impl Object {
    /// The address of `name` in this object or in those it is linked with; null if they do not define it.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a handle that is never closed, and a terminated name.
        unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) }
    }
}

/// Name and mapped ranges of a loaded object.
struct Mapped {
    name: CString,
    ranges: Vec<(usize, usize)>,
}

/// All objects that define `name` themselves, in the order in which they were loaded. They stay loaded from now on.
pub fn defining(name: &CStr) -> Vec<Object> {
    mapped().iter().filter_map(|object| definition(object, name)).collect()
}

/// How many objects have been loaded so far into this process; unloading does not lessen it.
pub fn loaded_so_far() -> u64 {
    let mut count = 0u64;
    // SAFETY: the callback gets its data pointer back during this call only.
    unsafe { libc::dl_iterate_phdr(Some(read_adds), (&raw mut count).cast()) };
    count
}

unsafe extern "C" fn read_adds(info: *mut dl_phdr_info, _size: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader's record, of the size it has in every C library since 2005, and our own counter.
    unsafe { *data.cast::<u64>() = (*info).dlpi_adds };
    1
}

fn definition(object: &Mapped, name: &CStr) -> Option<Object> {
    // The program itself is nameless.
    let path = if object.name.is_empty() { std::ptr::null() } else { object.name.as_ptr() };
    // SAFETY: RTLD_NOLOAD only looks up an object that is there already; terminated names. The handle is closed at most once.
    unsafe {
        let handle = libc::dlopen(path, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if handle.is_null() {
            return None;
        }
        // This also finds what the object is linked with.
        let at = libc::dlsym(handle, name.as_ptr()) as usize;
        if !object.ranges.iter().any(|(low, high)| (*low..*high).contains(&at)) {
            libc::dlclose(handle);
            return None;
        }
        Some(Object { handle: handle as usize, at })
    }
}

fn mapped() -> Vec<Mapped> {
    let mut all: Vec<Mapped> = Vec::new();
    // SAFETY: the callback gets its data pointer back during this call only.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut all).cast()) };
    all
}

unsafe extern "C" fn note(info: *mut dl_phdr_info, _size: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader's record with its own count of headers, and our own list, all valid during the call.
    unsafe {
        let (info, all) = (&*info, &mut *data.cast::<Vec<Mapped>>());
        let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let base = info.dlpi_addr as usize;
        let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let range =
            |h: &libc::Elf64_Phdr| (base + h.p_vaddr as usize, base + (h.p_vaddr + h.p_memsz) as usize);
        let name =
            if info.dlpi_name.is_null() { CString::default() } else { CStr::from_ptr(info.dlpi_name).into() };
        all.push(Mapped { name, ranges: loads.map(range).collect() });
    }
    0
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
