//! Reasons for the end of a session, or the refusal of a request.

use crate::Command;
use std::io;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The errors of a session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other end closed the connection between two messages.
    #[error("the other end closed the connection")]
    Closed,
    /// The other end did not finish sending or receiving a message in time; or no answer came.
    #[error("the other end was silent: waited {0} ms for {1}")]
    Silent(u128, &'static str),
    /// The bytes are not a message, so the session cannot go on.
    #[error("{0}")]
    Malformed(String),
    /// The other end refused a request.
    #[error("{command:?} was refused: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The command.
        command: Command,
        /// The errno in the reply, EIO if it had none.
        errno: i32,
    },
    /// A system call failed.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

impl Error {
    /// The closest errno.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Closed => libc::ENOTCONN,
            Self::Silent(..) => libc::ETIMEDOUT,
            Self::Malformed(_) => libc::EPROTO,
            Self::Refused { errno, .. } => *errno,
            Self::System(_, e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { errno, .. } => Self::from_raw_os_error(errno),
            Error::System(_, e) => e,
            Error::Silent(..) => Self::new(io::ErrorKind::TimedOut, error.to_string()),
            Error::Closed => Self::new(io::ErrorKind::UnexpectedEof, error.to_string()),
            Error::Malformed(_) => Self::new(io::ErrorKind::InvalidData, error.to_string()),
        }
    }
}
