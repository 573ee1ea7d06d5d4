//! One connection.
use crate::{Address, Mad, Path, Service, Time};

/// The state of a connection (IBTA 12.9.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// Initial state, and the final one.
    #[default]
    Idle,
    /// Listens for REQs and SIDR_REQs.
    Listen,
    /// Active: REQ sent.
    ReqSent,
    /// Active: the peer needs more time for its REP.
    MraReqReceived,
    /// Passive: REQ received.
    ReqReceived,
    /// Passive: repeated REQs are answered with an MRA.
    MraReqSent,
    /// Passive: REP sent.
    RepSent,
    /// Passive: the peer needs more time for its RTU.
    MraRepReceived,
    /// Active: REP received.
    RepReceived,
    /// Active: repeated REPs are answered with an MRA.
    MraRepSent,
    /// Connected.
    Established,
    /// DREQ sent.
    DreqSent,
    /// DREQ received.
    DreqReceived,
    /// Ended; packets of the connection may still be in flight.
    Timewait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received.
    SidrReqReceived,
}

/// Parameters for the QP of a connection, on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParameters {
    /// The transport.
    pub service: Service,
    /// True on the active side (for XRC, the side of the initiator).
    pub active: bool,
    /// Path of the packets.
    pub path: Path,
    /// This side's QP.
    pub local_qpn: u32,
    /// The peer's QP; 0 while it is unknown.
    pub remote_qpn: u32,
    /// First PSN to receive, chosen by this side.
    pub rq_psn: u32,
    /// First PSN to send, chosen by the peer.
    pub sq_psn: u32,
    /// READs and atomics that this side must serve.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Acknowledge timeout: 4.096 us x 2^n.
    pub ack_timeout: u8,
}

/// A message that is repeated until it is answered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub mad: Box<Mad>,
    pub timeout: Time,
    pub left: u8,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub state: State,
    /// The program has destroyed the connection: it has no more events, and is removed once idle.
    pub abandoned: bool,
    pub remote_id: u32,
    pub remote_ca_guid: u64,
    pub transaction: u64,
    pub service_id: u64,
    /// Destination of its MADs.
    pub address: Address,
    pub qp: QpParameters,
    /// Timeout for answers of the peer.
    pub timeout: Time,
    pub max_retries: u8,
    pub pending: Option<Pending>,
    /// Expiry of the connection's timer.
    pub deadline: Option<Time>,
    /// Private data of the answer, for repetition to duplicates.
    pub answer: Vec<u8>,
    pub service_timeout: u8,
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            state: State::Idle,
            abandoned: false,
            remote_id: 0,
            remote_ca_guid: 0,
            transaction: 0,
            service_id: 0,
            address: Address::default(),
            qp: QpParameters {
                service: Service::Rc,
                active: true,
                path: Path::default(),
                local_qpn: 0,
                remote_qpn: 0,
                rq_psn: 0,
                sq_psn: 0,
                responder_resources: 0,
                initiator_depth: 0,
                retry_count: 0,
                rnr_retry_count: 0,
                ack_timeout: 0,
            },
            timeout: Time::ZERO,
            max_retries: 0,
            pending: None,
            deadline: None,
            answer: Vec::new(),
            service_timeout: 0,
        }
    }
}
