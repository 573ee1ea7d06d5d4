//! The roles of a server's threads, and what the server needs.

use std::fmt;

/// The purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Starts the others, waits for a signal, and removes the sockets at the end.
    Main,
    /// Serves the client of a vfio-user socket.
    Client,
    /// Does pending work: timers, frames left for us, cleaning up after dead parties.
    Parked,
    /// Carries frames between the node and a link.
    Link,
    /// A process of its own that looks at other processes.
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

/// The needs of a server beyond those of every server. Crate `link` knows what its links need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// It copies to and from the memory of programs.
    pub copies: bool,
    /// A link finds its peer by the path of a unix socket.
    pub unix_peer: bool,
    /// A link connects to unix streams.
    pub unix_stream: bool,
    /// A link binds UDP sockets as functions come to have addresses.
    pub udp: bool,
}
