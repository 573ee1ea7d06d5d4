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
    /// A MAD that this agent does not claim. The caller passes it to [`Agent::refuse`](crate::Agent::refuse) if no
    /// other agent of this function claims it and this one is the elder; otherwise it drops the MAD. Only elders have
    /// this output.
    Unclaimed(Unclaimed),
}

/// A MAD without a listener or connection in this agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Unclaimed {
    /// Its source.
    pub from: Address,
    /// The listener or connection addressed.
    pub wanted: Wanted,
    pub(crate) mad: Box<Mad>,
}

/// The listener or connection addressed by an unclaimed MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A listener for this service id (REQ, SIDR_REQ).
    Service(u64),
    /// The connection with this communication id (DREQ). The upper half is the tag of its agent.
    Connection(u32),
}

/// An event of a connection. Private data has the full length of its field, regardless of how much the peer filled.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// REQ: the id of the event is new, to be accepted, rejected or destroyed.
    Request(Box<Request>),
    /// REP: take the QP to RTS, then `Ready` or `Reject`.
    Reply(Box<Reply>),
    /// RTU: the passive side is connected.
    Established {
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// REJ.
    Rejected {
        /// The reason.
        reason: RejectReason,
        /// The rejected message.
        message: Concerning,
        /// Additional information on `reason`, at most 72 bytes.
        info: Vec<u8>,
        /// 148 bytes.
        private_data: Vec<u8>,
    },
    /// MRA: the peer needs this much more time to answer.
    Delayed {
        /// 4.096 us x 2^n.
        service_timeout: u8,
        /// 222 bytes.
        private_data: Vec<u8>,
    },
    /// DREQ, which may come right after `Reply`: answer with `DisconnectReply`, unless this side sent a DREQ itself and
    /// [`State`](crate::State) is timewait.
    Disconnect {
        /// 220 bytes.
        private_data: Vec<u8>,
    },
    /// DREP: the peer confirms the end.
    Disconnected {
        /// 224 bytes.
        private_data: Vec<u8>,
    },
    /// No answer after all retries.
    Failed(Failure),
    /// The QP number may be reused.
    TimewaitOver,
    /// SIDR_REQ: the id of the event is new, to be answered with `SidrReply` or destroyed.
    SidrRequest(Box<SidrQuery>),
    /// SIDR_REP.
    SidrReply(Box<SidrReply>),
}

/// The message that was not answered.
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

/// A received REQ.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The listening connection.
    pub listener: ConnId,
    /// The path it arrived on.
    pub from: Address,
    /// The requested service.
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
    /// READs and atomics that the sender wants to have outstanding, which this side must serve.
    pub responder_resources: u8,
    /// READs and atomics that the sender can serve, which this side may have outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries for this side's QP.
    pub rnr_retry_count: u8,
    /// Use of end-to-end flow control.
    pub flow_control: bool,
    /// The sender receives from an SRQ.
    pub srq: bool,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// 92 bytes.
    pub private_data: Vec<u8>,
}

/// A received REP.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The peer's QP.
    pub remote_qpn: u32,
    /// Its first PSN.
    pub starting_psn: u32,
    /// GUID of the peer's channel adapter.
    pub remote_ca_guid: u64,
    /// READs and atomics that this side must serve.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// The peer's acknowledge delay: 4.096 us x 2^n.
    pub target_ack_delay: u8,
    /// RNR retries for this side's QP.
    pub rnr_retry_count: u8,
    /// Use of end-to-end flow control.
    pub flow_control: bool,
    /// The peer receives from an SRQ.
    pub srq: bool,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// 196 bytes.
    pub private_data: Vec<u8>,
}

/// A received SIDR_REQ.
#[derive(Clone, Debug, PartialEq)]
pub struct SidrQuery {
    /// The listening connection.
    pub listener: ConnId,
    /// The path it arrived on, and for the answer.
    pub from: Address,
    /// The requested service.
    pub service_id: u64,
    /// The requested partition.
    pub pkey: u16,
    /// 216 bytes.
    pub private_data: Vec<u8>,
}
