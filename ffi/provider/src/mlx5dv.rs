//! Handles programs that call mlx5's direct verbs on ironverbs devices.
//!
//! From release 25.01 on, perftest calls `mlx5dv_query_device` for every RC device with this vendor ID and gives up if it fails, which it
//! must for a device that libmlx5 does not drive. The program's import of that one function is therefore replaced: for an ironverbs device
//! it reports success with no extensions. Calls for other devices go to libmlx5 as before.

use crate::abi::got;
use crate::abi::public::ibv_context;
use crate::channel;
use crate::guard::guard;
use libc::{c_int, c_void};

/// The head of `struct mlx5dv_context`: all that is filled in when no extension is supported.
#[repr(C)]
pub struct Answer {
    version: u8,
    flags: u64,
    /// On input the requested fields, on output the filled ones.
    comp_mask: u64,
}

type QueryDevice = unsafe extern "C" fn(*mut ibv_context, *mut Answer) -> c_int;

/// Replaces the main program's import of the function, if there is one.
pub fn answer_program() {
    // SAFETY: reads the auxiliary vector; the program headers are in the program's first segment.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    if program != 0 {
        // SAFETY: the replacement has the type of the original. A program without this import is not an error.
        let _ =
            unsafe { got::replace_import(program, c"mlx5dv_query_device", query_device as *const c_void) };
    }
}

/// # Safety
/// As for `mlx5dv_query_device`: an open context of any provider, and a whole `struct mlx5dv_context`.
unsafe extern "C" fn query_device(context: *mut ibv_context, answer: *mut Answer) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: guaranteed by the caller: V1 for the context. Its provider is not known yet, but libibverbs sets `cmd_fd` for all
        // providers.
        if !channel::is_ours(unsafe { (*context).cmd_fd }) {
            // SAFETY: looked up by the name and with the type it has in libmlx5.
            return unsafe {
                let real = libc::dlsym(libc::RTLD_DEFAULT, c"mlx5dv_query_device".as_ptr());
                if real.is_null() {
                    return libc::EOPNOTSUPP;
                }
                std::mem::transmute::<*mut c_void, QueryDevice>(real)(context, answer)
            };
        }
        // SAFETY: V4: the program's structure is a whole `struct mlx5dv_context`, which begins with these members.
        unsafe { answer.write(Answer { version: 0, flags: 0, comp_mask: 0 }) };
        0
    })
}
