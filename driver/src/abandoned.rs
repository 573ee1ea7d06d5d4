//! XRC objects that outlive their openers: they belong to the function, and are destroyed when no living opener
//! holds them.

use crate::{
    error::Error,
    function::Function,
    shared_area::{FunctionLock, XrcObject},
    verbs::OF_FUNCTION,
};
use hwspec::cmd::{Opcode, Status};

/// Destroys an object.
pub fn destroy(function: &Function, object: XrcObject) -> Result<(), Error> {
    match object {
        XrcObject::Target(qpn) => function.destroy_object(Opcode::DestroyQp, OF_FUNCTION, qpn),
        XrcObject::Domain(xrcdn) => function.destroy_object(Opcode::DeallocXrcd, OF_FUNCTION, xrcdn),
    }
}

/// Destroys an object that no opener holds. A refusal is logged and changes nothing.
pub fn destroy_unheld(function: &Function, lock: &FunctionLock<'_>, object: XrcObject) {
    if let Err(error) = destroy(function, object) {
        tracing::warn!(?object, %error, "an object that no opener holds could not be destroyed");
    }
    unname(lock, object);
}

/// Forgets the file of a domain, so that the next opener of the file gets another domain.
pub fn unname(lock: &FunctionLock<'_>, object: XrcObject) {
    if let XrcObject::Domain(xrcdn) = object {
        lock.unname_domain(xrcdn);
    }
}

/// True if the device refused because other objects refer to this one.
pub fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Command { status: Status::BadResState | Status::ResBusy, .. })
}

/// Destroys objects that only dead openers hold. A domain stays as long as it contains objects.
pub fn sweep(function: &Function, lock: &FunctionLock<'_>) {
    // Placeholders are created before the first XRC object: without them there are none.
    if lock.placeholders()[0] == 0 {
        return;
    }
    for object in lock.abandoned() {
        unname(lock, object);
        match destroy(function, object) {
            Err(error) if is_busy(&error) => continue,
            Err(error) => tracing::debug!(?object, %error, "an object of a dead opener was gone already"),
            Ok(()) => {}
        }
        lock.remove_holders(object);
    }
}
