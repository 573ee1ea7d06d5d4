//! Loading: look at the libibverbs that loads us, and offer our devices to it if its layout is known.

use crate::abi::got;
use crate::abi::probe::{Layout, Library};
use crate::abi::verbs_types::{verbs_device_ops, verbs_match_ent};
use crate::{channel, context, device, guard, import, mlx5dv, rdma_cm};
use std::ptr::null;
use std::sync::OnceLock;

static LAYOUT: OnceLock<Layout> = OnceLock::new();

/// The layout of the library, known once it has accepted us.
pub fn layout() -> Option<&'static Layout> {
    LAYOUT.get()
}

/// The sentinel that ends a match table.
static NO_TABLE_MATCH: verbs_match_ent =
    verbs_match_ent { driver_data: std::ptr::null_mut(), pattern: 0, vendor: 0, device: 0, kind: 0 };

static DEVICE_OPS: verbs_device_ops = verbs_device_ops {
    name: c"ironverbs".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: u32::MAX,
    match_table: &NO_TABLE_MATCH,
    static_providers: null(),
    match_device: Some(device::match_device),
    alloc_context: Some(context::alloc_context),
    import_context: Some(context::import_context),
    alloc_device: Some(device::alloc_device),
    uninit_device: Some(device::uninit_device),
};

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    guard::guard((), || match Library::loaded() {
        Ok(None) => {}
        Ok(Some(library)) => {
            if let Err(what) = join(library) {
                refuse(&what);
            }
        }
        Err(what) => refuse(&what),
    });
}

fn join(library: Library) -> Result<(), String> {
    let layout = Layout::probe(library)?;
    // SAFETY: the function has the type of write(2).
    unsafe { got::replace_import(library.inside, c"write", channel::write_command as *const _) }?;
    // SAFETY: the library calls ioctl(2) with one argument, a pointer.
    let imports = unsafe { got::replace_import(library.inside, c"ioctl", import::ioctl as *const _) };
    if imports.is_err() {
        // Without it contexts cannot be imported, and all else works.
    }
    guard::watch_forks();
    mlx5dv::answer_program();
    rdma_cm::hooks::watch(library.inside);
    if LAYOUT.set(layout).is_ok() {
        // SAFETY: the layout is a known one.
        unsafe { library.register(&DEVICE_OPS) };
    }
    Ok(())
}

fn refuse(what: &str) {
    eprintln!("ironverbs: this libibverbs is of an unknown layout, its devices are not offered: {what}");
}
