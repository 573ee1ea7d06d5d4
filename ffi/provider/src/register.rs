//! Loading: examines every libibverbs in this process, and registers the provider with those that have a known layout.
//!
//! A process may have several, the system's and those bundled with Python wheels, each with its own devices, contexts and private
//! interface. So each gets its own [`Registration`], which the devices created for it refer to.

use crate::abi::got;
use crate::abi::probe::{Layout, Library};
use crate::abi::verbs_types::{verbs_device_ops, verbs_match_ent};
use crate::registration::{Registration, process};
use crate::{channel, guard, import, matching, mlx5dv, open, rdma_cm};
use libc::c_char;
use std::ffi::CStr;
use std::ptr::null;

/// The sentinel that ends a match table.
static NO_TABLE_MATCH: verbs_match_ent =
    verbs_match_ent { driver_data: std::ptr::null_mut(), pattern: 0, vendor: 0, device: 0, kind: 0 };

const DEVICE_OPS: verbs_device_ops = verbs_device_ops {
    name: c"ironverbs".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: u32::MAX,
    match_table: &raw const NO_TABLE_MATCH,
    static_providers: null(),
    match_device: Some(matching::match_device),
    alloc_context: Some(open::alloc_context),
    import_context: Some(open::import_context),
    alloc_device: Some(matching::alloc_device),
    uninit_device: Some(matching::uninit_device),
};

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Called by a libibverbs that loads this shared object directly.
extern "C" fn on_load() {
    node::accept_barriers();
    guard::guard((), look);
}

/// Called by the loader once a libibverbs has loaded it.
///
/// # Safety
/// Called by the constructor of the loader at `path`, a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ironverbs_join(path: *const c_char) {
    // SAFETY: the loader's constructor passes a terminated string.
    let path = unsafe { CStr::from_ptr(path) }.to_owned();
    guard::guard((), || {
        look();
        let mut process = process();
        if !process.loaders.contains(&path) {
            process.loaders.push(path);
        }
    });
}

/// Unloads the loaders, so that the next libibverbs that loads one runs its constructor. The libraries neither use nor close the handles
/// they got, since drivers stay loaded. Called by a libibverbs that has finished loading.
pub fn unload_loaders() {
    let loaders = std::mem::take(&mut process().loaders);
    let mut unheard = false;
    for path in loaders {
        let mut handles = 0;
        // SAFETY: terminated names. No code or data of a loader is used after its constructor has run; dlclose waits for the dynamic
        // linker's lock, which is held while a constructor runs.
        unsafe {
            loop {
                let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if handle.is_null() {
                    break;
                }
                // Closes this handle, and one that a libibverbs has.
                if libc::dlclose(handle) != 0 || libc::dlclose(handle) != 0 {
                    break;
                }
                handles += 1;
            }
        }
        unheard |= handles > 1;
    }
    // Another thread's libibverbs loaded a loader that was already loaded.
    if unheard {
        look();
    }
}

/// Registers the provider with every libibverbs that does not have it yet.
fn look() {
    for library in Library::loaded() {
        let inside = match &library {
            Ok(library) => library.inside,
            Err((inside, _)) => *inside,
        };
        {
            let mut process = process();
            if process.seen.contains(&inside) {
                continue;
            }
            process.seen.push(inside);
        }
        if let Err(what) = library.map_err(|(_, what)| what).and_then(join) {
            eprintln!(
                "ironverbs: this libibverbs is of an unknown layout, its devices are not offered: {what}"
            );
        }
    }
}

fn join(library: Library) -> Result<(), String> {
    let layout = Layout::probe(library)?;
    // SAFETY: the function has the type of write(2).
    unsafe { got::replace_import(library.inside, c"write", channel::write_command as *const _) }?;
    // SAFETY: the library calls ioctl(2) with one argument, a pointer.
    let imports = unsafe { got::replace_import(library.inside, c"ioctl", import::ioctl as *const _) };
    if imports.is_err() {
        // Without this, contexts cannot be imported; everything else works.
    }
    guard::watch_forks();
    mlx5dv::answer_program();
    rdma_cm::hooks::watch(&library);
    let registration: &'static Registration = Box::leak(Box::new(Registration { ops: DEVICE_OPS, layout }));
    process().registrations.push(registration);
    // SAFETY: the layout is a known one.
    unsafe { library.register(&registration.ops) };
    Ok(())
}
