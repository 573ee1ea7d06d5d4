//! The choices a user has of an adapter's behaviour.

use serde::Deserialize;

use crate::{strict::Strict, transport::Dcqcn, wire::Faults};

/// Where the specification leaves room, or the hardware differs from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The letter of the InfiniBand architecture specification.
    Ibta,
    /// As measured on ConnectX-5.
    #[default]
    Cx5,
}

/// The link layer of the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// Ethernet, with RoCE v2.
    #[default]
    Ethernet,
    /// InfiniBand.
    Infiniband,
}

impl std::fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "ethernet",
            Self::Infiniband => "infiniband",
        })
    }
}

/// Behaviour of an adapter; the same for all parties of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// See [`Profile`].
    pub profile: Profile,
    /// Least exponent of the acknowledgement timeout (4.096 us x 2^T); ConnectX-5 uses 16 by default.
    pub min_ack_timeout: u8,
    /// Hundredths of the acknowledgement timeout after which nothing is waited for any more: the first time, the second, and from then on, if
    /// there was no progress. Of [`Profile::Cx5`].
    pub ack_timeouts: [u16; 3],
    /// Requests between two that ask for an acknowledgement, within a message of several packets.
    pub ack_every: u32,
    /// Frames travel as bytes with pad and ICRC, which the receiver checks; else the payload of a frame that stays
    /// within the region is passed by reference and the ICRC, which nothing could have damaged, is left out.
    pub sealed: bool,
    /// Frames a function may process in one go before others get their turn.
    pub budget: u32,
    /// The link layer of the ports.
    pub link_layer: LinkLayer,
    /// Tells the adapters of several nodes on one wire apart: part of every MAC and GUID, see [`identity`](crate::identity).
    pub node_id: u16,
    /// The faults that befall frames on the wire between functions; a delay does not.
    pub faults: Faults,
    /// How much of a card's strictness the adapter has.
    pub strict: Strict,
    /// How senders slow down when they are notified of congestion.
    pub dcqcn: Dcqcn,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Profile::Cx5,
            min_ack_timeout: 0,
            // Together what a ConnectX-5 takes for seven retries (docs/time.md, row 16), and each at least what IBTA 9.7.6.1.3 asks for.
            ack_timeouts: [172; 3],
            ack_every: 32,
            sealed: false,
            budget: 512,
            link_layer: LinkLayer::Ethernet,
            node_id: 0,
            faults: Faults::default(),
            strict: Strict::default(),
            dcqcn: Dcqcn::default(),
        }
    }
}
