//! Command-line syntax of links.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// Where an uplink leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkSpec {
    /// Raw frames on a unix datagram socket: `dgram:LOCAL,PEER`. The format of QEMU's `-netdev dgram`.
    Dgram {
        /// The local socket: created, and removed at the end.
        local: PathBuf,
        /// The peer's socket.
        peer: PathBuf,
    },
    /// Frames on a stream, each preceded by its length (32 bits, big-endian): `stream:listen:PATH` or `stream:connect:PATH`. The format of
    /// QEMU's `-netdev stream`.
    Stream {
        /// True to wait for the peer, false to connect to it.
        listen: bool,
        /// The socket's path.
        path: PathBuf,
    },
    /// RoCE v2 over the host's own UDP: `udp:[ADDRESS[,ADDRESS...]][,peer=ADDRESS...]`.
    Udp {
        /// Addresses of the host that functions have; empty for all that both the functions and the host have.
        local: Vec<IpAddr>,
        /// The permitted peers; empty for any.
        peers: Vec<IpAddr>,
    },
    /// A TAP device of this host: `tap:NAME`.
    Tap(
        /// Its name.
        String,
    ),
    /// Another node of this host: `node:DIR`.
    Node(
        /// Its directory.
        PathBuf,
    ),
}

/// A link with invalid syntax.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a link like dgram:LOCAL,PEER, stream:listen:PATH, stream:connect:PATH, udp:10.0.0.5,peer=10.0.0.6, \
     tap:NAME or node:DIR, found '{0}'"
)]
pub struct LinkSpecError(String);

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let wrong = || LinkSpecError(text.into());
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        let path = |path: &str| match path {
            "" => Err(wrong()),
            path => Ok(PathBuf::from(path)),
        };
        match kind {
            "dgram" => {
                let (local, peer) = rest.split_once(',').ok_or_else(wrong)?;
                Ok(Self::Dgram { local: path(local)?, peer: path(peer)? })
            }
            "stream" => match rest.split_once(':') {
                Some(("listen", at)) => Ok(Self::Stream { listen: true, path: path(at)? }),
                Some(("connect", at)) => Ok(Self::Stream { listen: false, path: path(at)? }),
                _ => Err(wrong()),
            },
            "udp" => {
                let (mut local, mut peers) = (Vec::new(), Vec::new());
                for part in rest.split(',').filter(|part| !part.is_empty()) {
                    let (list, address) = match part.strip_prefix("peer=") {
                        Some(address) => (&mut peers, address),
                        None => (&mut local, part),
                    };
                    list.push(address.parse().map_err(|_| wrong())?);
                }
                Ok(Self::Udp { local, peers })
            }
            "tap" if !rest.is_empty() => Ok(Self::Tap(rest.into())),
            "node" => Ok(Self::Node(path(rest)?)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dgram { local, peer } => write!(f, "dgram:{},{}", local.display(), peer.display()),
            Self::Stream { listen: true, path } => write!(f, "stream:listen:{}", path.display()),
            Self::Stream { listen: false, path } => write!(f, "stream:connect:{}", path.display()),
            Self::Udp { local, peers } => {
                let local = local.iter().map(IpAddr::to_string);
                let peers = peers.iter().map(|peer| format!("peer={peer}"));
                write!(f, "udp:{}", local.chain(peers).collect::<Vec<_>>().join(","))
            }
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Node(dir) => write!(f, "node:{}", dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_written() {
        for text in [
            "dgram:/tmp/a,/tmp/b",
            "stream:listen:/tmp/a",
            "stream:connect:/tmp/a",
            "udp:",
            "udp:10.0.0.5",
            "udp:10.0.0.5,fd00::5,peer=10.0.0.6,peer=fd00::6",
            "tap:wire0",
            "node:/dev/shm/other",
        ] {
            assert_eq!(text.parse::<LinkSpec>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "dgram",
            "dgram:/a",
            "dgram:,/b",
            "stream:/a",
            "udp:x",
            "udp:peer=",
            "tap:",
            "node:",
            "tcp:1",
        ] {
            assert!(
                wrong.parse::<LinkSpec>().unwrap_err().to_string().contains("dgram:LOCAL,PEER"),
                "{wrong}"
            );
        }
    }
}
