//! Opens devices at any kind of place.

use super::{
    NodeError,
    damage::sane,
    node::Node,
    place::{Addresses, Place},
    transport::NodeTransport,
};
use crate::gid::gid_of_ip;
use driver::{
    Device, OpenOptions, open_resolving,
    transport::{
        Transport, VfioUserTransport,
        vfio::{VfioError, VfioTransport},
    },
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The node failed to provide it.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Kernel VFIO failed to provide it.
    #[error(transparent)]
    Vfio(#[from] VfioError),
    /// The vfio-user server failed to provide it.
    #[error("{}: {}", socket.display(), match source.raw_os_error() {
        Some(libc::EBUSY) =>
            "the server does not answer: it has another client (a function behind vfio-user has one at a time)".into(),
        _ => source.to_string(),
    })]
    Socket {
        /// The server's socket.
        socket: PathBuf,
        /// The error of the connection.
        source: io::Error,
    },
    /// The device exists but cannot be brought up.
    #[error("{place}: {source}")]
    Device {
        /// Its place.
        place: String,
        /// The driver's error.
        source: driver::Error,
    },
}

impl PlaceError {
    /// The errno for verbs calls.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Node(error) => error.errno(),
            Self::Vfio(error) => error.errno(),
            Self::Socket { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Device { source, .. } => source.errno(),
        }
    }
}

/// Opens device `iron<fid>` of the adapter in `dir`.
pub fn open_device(dir: &Path, fid: u8) -> Result<Arc<Device>, NodeError> {
    open_device_of(&Node::open(dir)?, fid)
}

/// Opens device `iron<fid>` of `node`.
pub fn open_device_of(node: &Arc<Node>, fid: u8) -> Result<Arc<Device>, NodeError> {
    sane(node.dir(), || {
        let transport = Arc::new(NodeTransport::open(node, fid)?);
        // Unless a MAC was assigned to the function, uses the one that the node's other functions know.
        let device = node.core().device(fid);
        let gids = device.gids.to_vec();
        let options = OpenOptions { gids, own_mac: Some(device.mac), ..OpenOptions::default() };
        Device::open(transport, options).map_err(|source| match source {
            // The model is sound, so its data must be damaged.
            driver::Error::Unanswered { .. } => {
                NodeError::Damaged { dir: node.dir().into(), what: format!("iron{fid}: {source}") }
            }
            source => NodeError::Device { fid, source },
        })
    })
}

impl Place {
    /// Opens the device. A device that belongs to no node responds for its addresses from now on, and resolves those of its peers.
    pub fn open(&self) -> Result<Arc<Device>, PlaceError> {
        self.open_by(open_resolving)
    }

    /// Opens the device for a short query, without announcing its addresses.
    pub fn open_silently(&self) -> Result<Arc<Device>, PlaceError> {
        self.open_by(Device::open)
    }

    fn open_by(
        &self,
        open: impl FnOnce(Arc<dyn Transport>, OpenOptions) -> Result<Arc<Device>, driver::Error>,
    ) -> Result<Arc<Device>, PlaceError> {
        let (transport, addresses): (Arc<dyn Transport>, _) = match self {
            Self::Node { dir, fid } => return Ok(open_device(dir, *fid)?),
            Self::Vfio(address, addresses) => {
                let open =
                    if wants_blueflame() { VfioTransport::open_combining } else { VfioTransport::open };
                (open(*address)?, addresses)
            }
            Self::VfioUser(socket, addresses) => {
                let refused = |source| PlaceError::Socket { socket: socket.clone(), source };
                (VfioUserTransport::open(socket).map_err(refused)?, addresses)
            }
        };
        open(transport, options_of(addresses))
            .map_err(|source| PlaceError::Device { place: self.to_string(), source })
    }
}

/// True if work requests are to be written to doorbell pages (BlueFlame), according to the variable that disables it in libmlx5. It must be
/// requested: BAR0 accesses then bypass VFIO, and it has not been tested with a physical adapter.
fn wants_blueflame() -> bool {
    std::env::var_os("MLX5_SHUT_UP_BF").is_some_and(|value| value == "0")
}

fn options_of(addresses: &Addresses) -> OpenOptions {
    OpenOptions {
        link_local: true,
        gids: addresses.ips.iter().map(|ip| gid_of_ip(*ip)).collect(),
        neighbours: addresses.neighbours.iter().map(|n| (gid_of_ip(n.ip), n.mac)).collect(),
        ..OpenOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_not_there_is_said_to_be_missing() {
        let place = Place::Vfio("ffff:ff:1f.7".parse().unwrap(), Addresses::default());
        let error = place.open().err().unwrap();
        assert!(error.to_string().contains("ffff:ff:1f.7") && error.errno() == libc::ENODEV, "{error}");
        let place = Place::VfioUser("/nowhere/socket".into(), Addresses::default());
        let error = place.open().err().unwrap();
        assert!(error.to_string().starts_with("/nowhere/socket") && error.errno() == libc::ENOENT, "{error}");
    }
}
