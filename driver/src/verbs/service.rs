//! Transport services of queue pairs, and the features of each.

use super::QpAttrMask;
use crate::error::Error;
use hwspec::context::ServiceType;

/// Transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// XRC initiator: the sending side of an extended reliable connection.
    XrcIni,
    /// XRC target: the receiving side of an extended reliable connection.
    XrcTgt,
    /// Raw Ethernet frames.
    RawPacket,
    /// General services: queue pair 1 (IBTA 13.5.1).
    Gsi,
    /// The driver's own queue for key changes.
    #[doc(hidden)]
    Keys,
}

impl Service {
    /// The code of the service in a QP context.
    pub(crate) fn context(self) -> ServiceType {
        match self {
            Self::Rc => ServiceType::Rc,
            Self::Uc => ServiceType::Uc,
            Self::Ud => ServiceType::Ud,
            Self::XrcIni | Self::XrcTgt => ServiceType::Xrc,
            Self::RawPacket => ServiceType::RawEth,
            Self::Gsi => ServiceType::Qp1,
            Self::Keys => ServiceType::RegUmr,
        }
    }

    /// True if each work request has its own destination.
    #[inline]
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// True if a QP is connected to one peer.
    #[inline]
    pub fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Gsi | Self::RawPacket | Self::Keys)
    }

    /// True for either side of XRC.
    #[inline]
    pub fn is_xrc(self) -> bool {
        matches!(self, Self::XrcIni | Self::XrcTgt)
    }

    /// Attributes that only the other side of XRC has. Programs set them on both sides; they are ignored here, as in
    /// Linux.
    pub(crate) fn of_other_side(self) -> QpAttrMask {
        match self {
            Self::XrcIni => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
            Self::XrcTgt => QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY,
            _ => QpAttrMask::empty(),
        }
    }

    /// True if the service supports atomics (IBTA table 46).
    #[inline]
    pub fn has_atomics(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni)
    }

    /// True if the service can have a send queue.
    #[inline]
    pub fn sends(self) -> bool {
        self != Self::XrcTgt
    }

    /// True if the service can have receives, of its own or shared.
    #[inline]
    pub fn receives(self) -> bool {
        !self.is_xrc() && self != Self::Keys
    }

    /// Checks that the driver supports the service.
    pub(crate) fn offered(self) -> Result<(), Error> {
        match self {
            Self::Rc | Self::Uc | Self::Ud | Self::XrcIni | Self::RawPacket | Self::Gsi | Self::Keys => {
                Ok(())
            }
            _ => Err(Error::unsupported(format!("{self:?} queue pairs are not offered"))),
        }
    }
}
