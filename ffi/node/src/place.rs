//! The place of a device, as stated in the file `ironverbs` next to a verbs device, and how it is opened.
//!
//! The launcher writes that file and the provider reads it; only this module knows its format and opens a device from it.

use driver::pci::Address;
use std::{
    fmt,
    net::IpAddr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    str::FromStr,
};

/// The place of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a node.
    Node {
        /// The node's directory, absolute.
        dir: PathBuf,
        /// Function: 0 is the PF.
        fid: u8,
    },
    /// A PCI function bound to vfio-pci.
    Vfio(Address, Addresses),
    /// Behind a vfio-user socket.
    VfioUser(PathBuf, Addresses),
}

/// Addresses of a function that belongs to no node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Its own addresses, besides the link-local one.
    pub ips: Vec<IpAddr>,
    /// Addresses of peers, with their MACs.
    pub neighbours: Vec<Neighbour>,
}

/// A peer's address, written as `IP=MAC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its MAC address.
    pub mac: [u8; 6],
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.mac;
        write!(f, "{}={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}", self.ip)
    }
}

/// Parses a MAC address: six bytes in hex, separated by colons.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let byte = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2);
    text.split(':').map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (ip, mac) = text.split_once('=')?;
            Some(Self { ip: ip.parse().ok()?, mac: parse_mac(mac)? })
        };
        parse().ok_or_else(|| format!("expected IP=MAC like 10.0.0.1=02:1b:56:00:00:01, found {text:?}"))
    }
}

impl Addresses {
    fn lines(&self, out: &mut Vec<u8>) {
        self.ips.iter().for_each(|ip| out.extend(format!("address={ip}\n").bytes()));
        self.neighbours.iter().for_each(|n| out.extend(format!("neighbour={n}\n").bytes()));
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { dir, fid } => write!(f, "iron{fid} of the adapter in {}", dir.display()),
            Self::Vfio(address, _) => address.fmt(f),
            Self::VfioUser(socket, _) => socket.display().fmt(f),
        }
    }
}

impl Place {
    /// The directory of the device's node; `None` if it is not on a node.
    pub fn node(&self) -> Option<&Path> {
        match self {
            Self::Node { dir, .. } => Some(dir),
            Self::Vfio(..) | Self::VfioUser(..) => None,
        }
    }

    /// The device's addresses; `None` for a device on a node, which manages them.
    pub fn addresses(&self) -> Option<&Addresses> {
        match self {
            Self::Node { .. } => None,
            Self::Vfio(_, addresses) | Self::VfioUser(_, addresses) => Some(addresses),
        }
    }

    /// Mutable access to the device's addresses.
    pub fn addresses_mut(&mut self) -> Option<&mut Addresses> {
        match self {
            Self::Node { .. } => None,
            Self::Vfio(_, addresses) | Self::VfioUser(_, addresses) => Some(addresses),
        }
    }

    /// The contents of the file: one line `KEY=VALUE` each.
    pub fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut path = |key: &str, path: &Path| {
            out.extend_from_slice(key.as_bytes());
            out.push(b'=');
            out.extend_from_slice(path.as_os_str().as_bytes());
            out.push(b'\n');
        };
        match self {
            Self::Node { dir, fid } => {
                path("node", dir);
                out.extend(format!("fid={fid}\n").bytes());
            }
            Self::Vfio(address, addresses) => {
                out.extend(format!("vfio={address}\n").bytes());
                addresses.lines(&mut out);
            }
            Self::VfioUser(socket, addresses) => {
                path("vfio-user", socket);
                addresses.lines(&mut out);
            }
        }
        out
    }

    /// Parses the contents of the file.
    ///
    /// # Errors
    /// A line is missing or invalid.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let lines = || text.split(|byte| *byte == b'\n');
        let values = |key: &'static str| {
            lines().filter_map(move |line| line.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
        };
        let found = || String::from_utf8_lossy(text).into_owned();
        let word = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
        let path = |key: &'static str| match values(key).next() {
            None => Ok(None),
            Some(value) => {
                let path = PathBuf::from(std::ffi::OsString::from_vec(value.to_vec()));
                match path.is_absolute() {
                    true => Ok(Some(path)),
                    false => {
                        Err(format!("expected {key}=PATH with an absolute path, found {}", path.display()))
                    }
                }
            }
        };
        let mut addresses = Addresses::default();
        for value in values("address").map(word) {
            let ip = value.parse().map_err(|_| format!("expected address=IP, found {value:?}"))?;
            addresses.ips.push(ip);
        }
        for value in values("neighbour").map(word) {
            addresses.neighbours.push(value.parse()?);
        }
        if let Some(address) = values("vfio").next().map(word) {
            return Ok(Self::Vfio(address.parse()?, addresses));
        }
        if let Some(socket) = path("vfio-user")? {
            return Ok(Self::VfioUser(socket, addresses));
        }
        let Some(dir) = path("node")? else {
            return Err(format!("expected a line node=, vfio= or vfio-user=, found {:?}", found()));
        };
        let fid = values("fid").next().map(word).ok_or_else(|| {
            let found = found();
            format!("expected a line fid=NUMBER, found {found:?}")
        })?;
        let fid = fid.parse().map_err(|_| format!("expected fid=NUMBER, found {fid:?}"))?;
        Ok(Self::Node { dir, fid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> Addresses {
        Addresses {
            ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            neighbours: vec!["10.0.0.1=02:1b:56:00:00:01".parse().unwrap()],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for place in [
            Place::Node { dir: "/run/iron verbs/n=0".into(), fid: 12 },
            Place::Vfio("0000:c1:00.2".parse().unwrap(), addresses()),
            Place::Vfio("0000:c1:00.2".parse().unwrap(), Addresses::default()),
            Place::VfioUser("/tmp/vf 1".into(), addresses()),
            Place::VfioUser(std::ffi::OsString::from_vec(b"/tmp/\xff".to_vec()).into(), Addresses::default()),
        ] {
            assert_eq!(Place::parse(&place.text()).as_ref(), Ok(&place));
        }
    }

    #[test]
    fn a_bad_file_is_an_error_that_says_what_was_found() {
        for text in [
            "",
            "node=/n",
            "fid=1",
            "node=n\nfid=1",
            "node=/n\nfid=x",
            "node=/n\nfid=256",
            "vfio=nowhere",
            "vfio-user=relative",
            "vfio=0000:c1:00.2\naddress=10.0.0",
            "vfio=0000:c1:00.2\nneighbour=10.0.0.1",
            "vfio=0000:c1:00.2\nneighbour=10.0.0.1=02:1b:56:00:00",
        ] {
            let what = Place::parse(text.as_bytes()).expect_err(text);
            assert!(what.contains("expected"), "{what}");
        }
    }
}
