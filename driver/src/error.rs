//! The errors of the driver, each displayed in one line.

use hwspec::cmd::{DeliveryStatus, Opcode, Status};
use std::{io, time::Duration};

/// Reason of a failed call. [`Error::errno`] is the return value of the verbs call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused memory, configuration space or an interrupt.
    #[error("{what}: {source}")]
    Io {
        /// The operation attempted.
        what: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The device refused a command.
    #[error("{op:?} was refused: status {status:?} ({:#04x}), syndrome {syndrome:#x}", status.raw())]
    Command {
        /// The command.
        op: Opcode,
        /// Its status.
        status: Status,
        /// The device's own reason code.
        syndrome: u32,
    },
    /// A command never reached the firmware.
    #[error("{op:?} was not delivered: {status:?}")]
    Delivery {
        /// The command.
        op: Opcode,
        /// Delivery status of the command queue entry.
        status: DeliveryStatus,
    },
    /// An event did not happen in time.
    #[error("{what} did not finish within {waited:?}")]
    Timeout {
        /// The event.
        what: String,
        /// The time waited.
        waited: Duration,
    },
    /// A device that acts at once ([`acts_at_once`](crate::transport::Transport::acts_at_once)) left an operation
    /// undone.
    #[error("{what} was never carried out")]
    Unanswered {
        /// The operation.
        what: String,
    },
    /// The device or its answer violates the interface.
    #[error("expected {expected}, found {found}")]
    Device {
        /// The value or behaviour required by the interface.
        expected: String,
        /// The value or behaviour found.
        found: String,
    },
    /// The function no longer responds: it is unplugged, or belongs to the parent process (this one being a child of
    /// fork).
    #[error("the function is gone: its registers read as all ones, or it was given up")]
    Gone,
    /// The caller's request is impossible.
    #[error("{what}")]
    Invalid {
        /// The fault in the request.
        what: String,
        /// The errno that the verbs call returns for it.
        errno: i32,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    pub(crate) fn refused(errno: i32, what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), errno }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::refused(libc::EINVAL, what)
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::refused(libc::EOPNOTSUPP, what)
    }

    pub(crate) fn no_memory(what: impl Into<String>) -> Self {
        Self::refused(libc::ENOMEM, what)
    }

    pub(crate) fn busy(what: impl Into<String>) -> Self {
        Self::refused(libc::EBUSY, what)
    }

    pub(crate) fn device(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Device { expected: expected.into(), found: found.into() }
    }

    /// True if the device may still carry out the failed command, so that memory passed to it must stay allocated.
    pub(crate) fn is_uncertain(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Gone)
    }

    /// Handles the outcome of a command that creates an object in `memory`. If the device may still create the object,
    /// the memory is kept forever.
    pub(crate) fn or_keep<T, M>(created: Result<T, Self>, memory: M) -> Result<(T, M), Self> {
        match created {
            Ok(made) => Ok((made, memory)),
            Err(error) => {
                if error.is_uncertain() {
                    std::mem::forget(memory);
                }
                Err(error)
            }
        }
    }

    /// The errno that a verbs call returns, mapped from the command status as in the Linux driver.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(match source.kind() {
                io::ErrorKind::OutOfMemory => libc::ENOMEM,
                io::ErrorKind::PermissionDenied => libc::EPERM,
                io::ErrorKind::InvalidInput => libc::EINVAL,
                io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
                io::ErrorKind::ResourceBusy => libc::EBUSY,
                io::ErrorKind::NotFound => libc::ENODEV,
                _ => libc::EIO,
            }),
            Self::Command { status, .. } => match *status {
                Status::BadOp
                | Status::BadParam
                | Status::BadResource
                | Status::BadResState
                | Status::BadIndex
                | Status::BadQpState
                | Status::BadPkt
                | Status::BadSizeOutsCqes => libc::EINVAL,
                Status::ResBusy => libc::EBUSY,
                Status::Lim => libc::ENOMEM,
                Status::NoResources => libc::EAGAIN,
                _ => libc::EIO,
            },
            Self::Delivery { .. } | Self::Device { .. } | Self::Unanswered { .. } => libc::EIO,
            Self::Timeout { .. } => libc::ETIMEDOUT,
            Self::Gone => libc::ENODEV,
            Self::Invalid { errno, .. } => *errno,
        }
    }
}

/// [`Error::errno`], for callers that return one.
impl From<Error> for i32 {
    fn from(error: Error) -> Self {
        error.errno()
    }
}

/// A list of work requests was posted up to `index`; the request there was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} was refused: {}", io::Error::from_raw_os_error(*errno))]
pub struct PostError {
    /// Position of the refused work request in the list; all requests before it are posted.
    pub index: usize,
    /// EINVAL: not valid for this QP or its state; ENOMEM: the queue is full.
    pub errno: i32,
}
