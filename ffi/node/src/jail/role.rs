//! The roles of a server's threads, and the server's needs.

use std::fmt;

/// The purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Starts the others, waits for a signal, and finally removes the sockets.
    Main,
    /// Serves the client of a vfio-user socket.
    Client,
    /// Does pending work: timers, frames left for this process, cleanup after dead parties.
    Parked,
    /// Carries frames between the node and a link.
    Link,
    /// A separate process that looks at other processes.
    Asker,
}

impl Role {
    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Client => "vfio-user",
            Self::Parked => "parked",
            Self::Link => "link",
            Self::Asker => "asker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The needs of a server beyond those that all servers have. Crate `link` knows those of its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It copies to and from the memory of programs.
    pub copies: bool,
    /// A link finds its peer by the path of a unix socket.
    pub unix_peer: bool,
    /// A link connects to unix stream sockets.
    pub unix_stream: bool,
    /// A link binds UDP sockets when functions get addresses.
    pub udp: bool,
}
