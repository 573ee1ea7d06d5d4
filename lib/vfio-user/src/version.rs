//! The message that opens a session: version and limits of each end.

use crate::{Error, MAX_DMA_MAPS, MAX_FDS, MAX_TRANSFER, Result, message::read};
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u16 = 0;
/// Minor version of the protocol.
pub const MINOR: u16 = 1;

/// Limits of one end. Limits that it does not send have these defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Maximum number of descriptors in one message.
    pub max_msg_fds: u64,
    /// Maximum bytes of data in one read or write.
    pub max_data_xfer_size: u64,
    /// Maximum number of DMA windows.
    pub max_dma_maps: u64,
    /// Bit mask of page sizes of DMA windows.
    pub pgsizes: u64,
    /// True if `REGION_WRITE_MULTI` is supported.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            max_dma_maps: 65_535,
            pgsizes: 4096,
            write_multiple: false,
        }
    }
}

impl Capabilities {
    /// The limits of this crate.
    pub fn ours() -> Self {
        Self {
            max_msg_fds: MAX_FDS as u64,
            max_data_xfer_size: MAX_TRANSFER as u64,
            max_dma_maps: MAX_DMA_MAPS as u64,
            write_multiple: true,
            ..Self::default()
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Data {
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Fixed {
    major: u16,
    minor: u16,
}

/// Payload of `VERSION` and of its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major version, the same on both ends.
    pub major: u16,
    /// Minor version; in the reply at most that of the request.
    pub minor: u16,
    /// The limits of the sender.
    pub capabilities: Capabilities,
}

impl Version {
    /// The version of this crate.
    pub fn ours() -> Self {
        Self { major: MAJOR, minor: MINOR, capabilities: Capabilities::ours() }
    }

    /// The payload: NUL-terminated JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Fixed { major: self.major, minor: self.minor }.as_bytes().to_vec();
        let data = Data { capabilities: self.capabilities.clone() };
        // A structure of numbers always serialises.
        bytes.extend(serde_json::to_vec(&data).unwrap_or_default());
        bytes.push(0);
        bytes
    }

    /// Decodes a payload. The JSON may be missing.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let (fixed, rest): (Fixed, _) = read(payload)?;
        let json = rest.split(|b| *b == 0).next().unwrap_or_default();
        let data = match json {
            [] => Data { capabilities: Capabilities::default() },
            json => serde_json::from_slice(json).map_err(|e| {
                Error::Malformed(format!("the version data are no JSON of capabilities: {e}"))
            })?,
        };
        Ok(Self { major: fixed.major, minor: fixed.minor, capabilities: data.capabilities })
    }

    /// A server's answer to this proposal. Fails if they have no version in common.
    pub fn answer(&self) -> Result<Self> {
        if self.major != MAJOR {
            return Err(Error::Malformed(format!(
                "vfio-user version {}.{} was proposed, expected {MAJOR}.x",
                self.major, self.minor
            )));
        }
        let mut ours = Self::ours();
        ours.minor = ours.minor.min(self.minor);
        ours.capabilities.write_multiple &= self.capabilities.write_multiple;
        Ok(ours)
    }
}
