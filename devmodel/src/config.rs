//! The user's choices about an adapter's behaviour.

use serde::Deserialize;

use crate::{strict::Strict, transport::Dcqcn, wire::Faults};

/// The behaviour where the specification leaves room, or where the hardware differs from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conformance {
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
    /// Conformance to the specification or to the hardware.
    pub profile: Conformance,
    /// Least exponent of the acknowledgement timeout (4.096 us x 2^T); ConnectX-5 uses 16 by default.
    pub min_ack_timeout: u8,
    /// Time without progress after which the requester stops waiting, in hundredths of the acknowledgement timeout: for the first timeout,
    /// the second, and all later ones. Used by [`Conformance::Cx5`].
    pub ack_timeouts: [u16; 3],
    /// Number of request packets from one with AckReq set to the next, within a message of several packets.
    pub ack_every: u32,
    /// Frames travel as bytes with pad and ICRC, which the receiver checks. Otherwise the payload of a frame that stays within the region
    /// is passed by reference and the ICRC, which nothing could corrupt, is left out.
    pub sealed: bool,
    /// Number of frames that a function may process in one go before other functions get their turn.
    pub budget: u32,
    /// The link layer of the ports.
    pub link_layer: LinkLayer,
    /// Tells apart the adapters of several nodes on one wire: part of every MAC and GUID of [`identity`](crate::identity).
    pub node_id: u16,
    /// The faults injected into frames on the wire between functions, except for delays.
    pub faults: Faults,
    /// The adapter's strictness, compared with a card.
    pub strict: Strict,
    /// How senders slow down after a congestion notification.
    pub dcqcn: Dcqcn,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Conformance::Cx5,
            min_ack_timeout: 0,
            // Together, the time that a ConnectX-5 takes for seven retries (docs/time.md, row 16); each is at least the minimum of IBTA
            // 9.7.6.1.3.
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
