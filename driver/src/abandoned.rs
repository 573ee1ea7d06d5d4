//! Objects of XRC that outlive their openers: they belong to the function, and are destroyed when no living opener holds them.

use crate::{
    error::Error,
    function::Function,
    shared_area::{FunctionLock, XrcObject},
};
use hwspec::cmd::{Opcode, Status};

/// Destroys an object.
pub fn destroy(function: &Function, held: XrcObject) -> Result<(), Error> {
    match held {
        XrcObject::Target(qpn) => function.destroy_object(Opcode::DestroyQp, 0, qpn),
        XrcObject::Domain(xrcdn) => function.destroy_object(Opcode::DeallocXrcd, 0, xrcdn),
    }
}

/// Ends what nobody holds, whatever the device says.
pub fn destroy_unheld(function: &Function, lock: &FunctionLock<'_>, held: XrcObject) {
    if let Err(error) = destroy(function, held) {
        tracing::warn!(?held, %error, "what nobody holds could not be ended");
    }
    unname(lock, held);
}

/// Whoever opens the file from now on gets another domain.
pub fn unname(lock: &FunctionLock<'_>, held: XrcObject) {
    if let XrcObject::Domain(xrcdn) = held {
        lock.unname_domain(xrcdn);
    }
}

/// Whether the device refused because others refer to it.
pub fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Command { status: Status::BadResState | Status::ResBusy, .. })
}

/// Ends what only the dead hold. A domain in which they had more stays until that is gone.
pub fn sweep(function: &Function, lock: &FunctionLock<'_>) {
    // Without stand-ins nobody has had any.
    if lock.placeholders()[0] == 0 {
        return;
    }
    for held in lock.abandoned() {
        unname(lock, held);
        match destroy(function, held) {
            Err(error) if is_busy(&error) => continue,
            Err(error) => tracing::debug!(?held, %error, "what the dead held was gone already"),
            Ok(()) => {}
        }
        lock.remove_holders(held);
    }
}
