//! Reasons of refusals.
use crate::hw_layout;

hw_layout! {
    /// `reason` of a REJ (IBTA 12.6.7.2, table 108).
    pub enum RejectReason: u16, 16 bits {
        NoQp = 1,
        NoEec = 2,
        NoResources = 3,
        Timeout = 4,
        UnsupportedRequest = 5,
        InvalidCommId = 6,
        InvalidCommInstance = 7,
        InvalidServiceId = 8,
        InvalidTransportType = 9,
        StaleConnection = 10,
        RdcDoesNotExist = 11,
        InvalidGid = 12,
        InvalidLid = 13,
        InvalidSl = 14,
        InvalidTrafficClass = 15,
        InvalidHopLimit = 16,
        InvalidPacketRate = 17,
        InvalidAlternateGid = 18,
        InvalidAlternateLid = 19,
        InvalidAlternateSl = 20,
        InvalidAlternateTrafficClass = 21,
        InvalidAlternateHopLimit = 22,
        InvalidAlternatePacketRate = 23,
        PortAndCmRedirect = 24,
        PortRedirect = 25,
        InvalidMtu = 26,
        InsufficientResponderResources = 27,
        ConsumerDefined = 28,
        InvalidRnrRetry = 29,
        DuplicateLocalCommId = 30,
        InvalidClassVersion = 31,
        InvalidFlowLabel = 32,
        InvalidAlternateFlowLabel = 33,
        VendorOptionNotSupported = 35,
    }

    /// `status` of a SIDR_REP (IBTA 12.11.2.1).
    pub enum SidrStatus: u8, 8 bits {
        Valid = 0,
        /// The service id is not supported.
        Unsupported = 1,
        /// The service provider rejects the request.
        Rejected = 2,
        NoQp = 3,
        Redirect = 4,
        UnsupportedVersion = 5,
    }

    /// `status` of an APR (IBTA 12.8.2.1).
    pub enum ApStatus: u8, 8 bits {
        Loaded = 0,
        InvalidCommInstance = 1,
        Unsupported = 2,
        Rejected = 3,
        Redirect = 4,
        IsCurrent = 5,
        InvalidQpn = 6,
        InvalidLid = 7,
        InvalidGid = 8,
        InvalidFlowLabel = 9,
        InvalidTrafficClass = 10,
        InvalidHopLimit = 11,
        InvalidPacketRate = 12,
        InvalidSl = 13,
    }
}
