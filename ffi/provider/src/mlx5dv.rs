//! The answer to a program that asks mlx5's own interface about our devices.
//!
//! perftest from 25.01 on calls `mlx5dv_query_device` for every RC device that reports this vendor, and gives up when it
//! fails, as it must for a device libmlx5 does not drive. So the program's own import of that one function is answered for
//! our devices: the question is understood, none of what it offers is there. Everybody else's go to libmlx5 as before.

use crate::abi::got;
use crate::abi::public::ibv_context;
use crate::channel;
use crate::guard::guard;
use libc::{c_int, c_void};

/// The head of `struct mlx5dv_context`, all that may be filled when no extension is granted.
#[repr(C)]
pub struct Answer {
    version: u8,
    flags: u64,
    /// On input what is requested, on output what was filled.
    comp_mask: u64,
}

type QueryDevice = unsafe extern "C" fn(*mut ibv_context, *mut Answer) -> c_int;

/// Answers the main program, if it calls the function at all.
pub fn answer_program() {
    // SAFETY: reads the auxiliary vector; the program headers lie in the program's first segment.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    if program != 0 {
        // SAFETY: the function has the type of the one it replaces. A program that does not import it is no error.
        let _ =
            unsafe { got::replace_import(program, c"mlx5dv_query_device", query_device as *const c_void) };
    }
}

/// # Safety
/// As `mlx5dv_query_device`: an open context of any provider, and a whole `struct mlx5dv_context`.
unsafe extern "C" fn query_device(context: *mut ibv_context, answer: *mut Answer) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: the caller's promise: V1 for the context, whose provider is not known yet; libibverbs fills
        // `cmd_fd` for all.
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
