//! Outputs of an agent.
use crate::{Address, ConnId, Mad, Path, RejectReason, Service, SidrReply};
use hwspec::wire::mad::cm::Concerning;

/// An output, for the caller to act on.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a MAD from QP1.
    Send {
        /// The destination.
        to: Address,
        /// The MAD.
        mad: Box<Mad>,
    },
    /// An event for the owner of a connection.
    Event(ConnId, Event),
    /// A MAD that nobody in this agent claims. If no other agent of this function does either, and this is its elder,
    /// the caller passes it to [`Agent::refuse`](crate::Agent::refuse). Otherwise it drops it. Only elders have this
    /// output.
    Unclaimed(Unclaimed),
}

/// A MAD that nobody in this agent claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Unclaimed {
    /// Where it came from.
    pub from: Address,
    /// The listener or connection it asks for.
    pub wanted: Wanted,
    pub(crate) mad: Box<Mad>,
}

/// The listener or connection that an unclaimed MAD asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A listener for this service id (REQ, SIDR_REQ).
    Service(u64),
    /// The connection with this communication id (DREQ). Its upper half is the tag of the agent it was of.
    Connection(u32),
}

/// An event of a connection. Private data has the length of its field, however much of it the peer filled.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// REQ: the id of the event is a new one, to be accepted, rejected or destroyed.
    Request(Box<Request>),
    /// REP: bring the QP to RTS, then `Ready` or `Reject`.
    Reply(Box<Reply>),
    /// RTU: the passive side is connected.
    Established {
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// REJ.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// Which message was rejected.
        message: Concerning,
        /// Further information on `reason`, at most 72 bytes.
        info: Vec<u8>,
        /// 148 bytes.
        private_data: Vec<u8>,
    },
    /// MRA: the peer needs this much longer to answer.
    Delayed {
        /// 4.096 us x 2^n.
        service_timeout: u8,
        /// 222 bytes.
        private_data: Vec<u8>,
    },
    /// DREQ, which may come right after `Reply`: answer with `DisconnectReply`, unless this side had sent a DREQ itself and [`State`](crate::State) is timewait.
    Disconnect {
        /// 220 bytes.
        private_data: Vec<u8>,
    },
    /// DREP: the peer agrees to the end.
    Disconnected {
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// No answer in spite of all retries.
    Failed(Failure),
    /// The QP's number may be used again.
    TimewaitOver,
    /// SIDR_REQ: the id of the event is a new one, to be answered by `SidrReply` or destroyed.
    SidrRequest(Box<SidrQuery>),
    /// SIDR_REP.
    SidrReply(Box<SidrReply>),
}

/// The message that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// REQ. The connection is idle.
    Request,
    /// REP. The connection is idle.
    Reply,
    /// DREQ. The connection is in timewait.
    Disconnect,
    /// SIDR_REQ. The connection is idle.
    Sidr,
}

/// A REQ, from the side of its receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The connection that listened.
    pub listener: ConnId,
    /// How it came.
    pub from: Address,
    /// The service asked for.
    pub service_id: u64,
    /// The transport.
    pub service: Service,
    /// Path of the connection.
    pub path: Path,
    /// GUID of the sender's channel adapter.
    pub remote_ca_guid: u64,
    /// The sender's QP.
    pub remote_qpn: u32,
    /// Its first PSN.
    pub starting_psn: u32,
    /// Reads and atomics the sender wants to have under way: what this side must answer.
    pub responder_resources: u8,
    /// Reads and atomics the sender can answer: what this side may have under way.
    pub initiator_depth: u8,
    /// Retries of the transport.
    pub retry_count: u8,
    /// RNR retries this side's QP shall make.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The sender receives from an SRQ.
    pub srq: bool,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// 92 bytes.
    pub private_data: Vec<u8>,
}

/// A REP, from the side of its receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The peer's QP.
    pub remote_qpn: u32,
    /// Its first PSN.
    pub starting_psn: u32,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: u64,
    /// Reads and atomics this side must answer.
    pub responder_resources: u8,
    /// Reads and atomics this side may have under way.
    pub initiator_depth: u8,
    /// The peer's delay of acknowledgements: 4.096 us x 2^n.
    pub target_ack_delay: u8,
    /// RNR retries this side's QP shall make.
    pub rnr_retry_count: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// The peer receives from an SRQ.
    pub srq: bool,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// 196 bytes.
    pub private_data: Vec<u8>,
}

/// A SIDR_REQ.
#[derive(Clone, Debug, PartialEq)]
pub struct SidrQuery {
    /// The connection that listened.
    pub listener: ConnId,
    /// How it came, and how the answer goes.
    pub from: Address,
    /// The service asked for.
    pub service_id: u64,
    /// Partition asked for.
    pub pkey: u16,
    /// 216 bytes.
    pub private_data: Vec<u8>,
}
