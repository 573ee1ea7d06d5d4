//! Prints the private layout of this machine's libibverbs; used to find out the layout of an unknown rdma-core.
#![allow(unsafe_code)]

use ironverbs_provider::abi::probe::{Layout, Library};
use std::process::ExitCode;

fn main() -> ExitCode {
    let found = load().and_then(Layout::probe);
    match found {
        Ok(layout) => {
            println!(
                "operations {} (since v{}), verbs_context {} bytes, comp_mask of verbs_qp at {}",
                layout.ops.len(),
                layout.ops.since,
                layout.context_size,
                layout.qp_comp_mask
            );
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("probe: libibverbs: {what}");
            ExitCode::FAILURE
        }
    }
}

fn load() -> Result<Library, String> {
    // SAFETY: loads the library that every verbs program loads.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err("not installed".into());
    }
    let mut all = Library::loaded();
    let found = all.pop().ok_or("loaded, but not found again")?;
    found.map_err(|(_, what)| what)
}
