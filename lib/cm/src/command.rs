//! Inputs of an agent.
use crate::{Address, ConnId, Path, RejectReason, Service, SidrStatus, State};

/// An input of an agent.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A MAD arrived on QP1.
    Mad {
        /// The path it arrived on.
        from: Address,
        /// Its bytes. Ignored unless they are a complete MAD of communication management.
        bytes: &'a [u8],
    },
    /// A program's command.
    Command(ConnId, Command),
    /// Time has passed.
    Tick,
}

/// A program's command for a connection. Private data may be shorter than its field, but not longer.
#[derive(Clone, Debug)]
pub enum Command {
    /// From idle to listening for REQs and SIDR_REQs with this service id. Two ids of one agent may not listen to
    /// the same service id.
    Listen {
        /// The service.
        service_id: u64,
    },
    /// Idle: sends a REQ.
    Connect(Box<Connect>),
    /// After `Event::Request`: sends a REP.
    Accept(Box<Accept>),
    /// After `Event::Reply`: sends an RTU; the active side is then connected.
    Ready {
        /// At most 224 bytes.
        private_data: Vec<u8>,
    },
    /// Before the connection is established, on either side: sends a REJ. The connection is then idle, or in
    /// timewait if a REP had been sent.
    Reject {
        /// The reason.
        reason: RejectReason,
        /// At most 72 bytes.
        info: Vec<u8>,
        /// At most 148 bytes.
        private_data: Vec<u8>,
    },
    /// After `Event::Request` or `Event::Reply`: sends an MRA, now or when the peer repeats its message.
    Delay {
        /// 4.096 us x 2^n.
        service_timeout: u8,
        /// Send the MRA only when the peer repeats its message.
        if_repeated: bool,
        /// At most 222 bytes.
        private_data: Vec<u8>,
    },
    /// The passive side's QP has received a packet: connected, even without an RTU.
    Established,
    /// Connected: sends a DREQ.
    Disconnect {
        /// At most 220 bytes.
        private_data: Vec<u8>,
    },
    /// After `Event::Disconnect`: sends a DREP and enters timewait.
    DisconnectReply {
        /// At most 224 bytes.
        private_data: Vec<u8>,
    },
    /// Connected, REP or DREQ sent: the peer's process is known to have died, which counts as the DREQ or DREP that
    /// it cannot send.
    PeerGone,
    /// Idle: sends a SIDR_REQ.
    SidrRequest(Box<SidrRequest>),
    /// After `Event::SidrRequest`: sends a SIDR_REP. The id is then idle.
    SidrReply(Box<SidrReply>),
    /// Any state: the id becomes invalid and has no more events. The peer still gets any message due to it.
    Destroy,
}

/// Parameters of a REQ.
#[derive(Clone, Debug, PartialEq)]
pub struct Connect {
    /// The service.
    pub service_id: u64,
    /// The transport.
    pub service: Service,
    /// Path of the connection and of its MADs.
    pub path: Path,
    /// This side's QP: 24 bits.
    pub qpn: u32,
    /// Its first PSN, 24 bits.
    pub starting_psn: u32,
    /// READs and atomics that this side can serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side wants to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries for the peer's QP, 0 to 7.
    pub rnr_retry_count: u8,
    /// Use of end-to-end flow control.
    pub flow_control: bool,
    /// This side receives from an SRQ.
    pub srq: bool,
    /// Timeout for answers of the peer: 4.096 us x 2^n, n up to 31.
    pub remote_response_timeout: u8,
    /// Timeout for answers of this side.
    pub local_response_timeout: u8,
    /// Repetitions of a message by either side, 0 to 15.
    pub max_retries: u8,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// At most 92 bytes.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A REQ with the timeouts and retries of Linux's rdma_cm.
    pub fn new(service_id: u64, service: Service, path: Path) -> Self {
        Self {
            service_id,
            service,
            path,
            qpn: 0,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            remote_response_timeout: crate::default::RESPONSE_TIMEOUT,
            local_response_timeout: crate::default::RESPONSE_TIMEOUT,
            max_retries: crate::default::MAX_RETRIES,
            ece: (0, 0),
            private_data: Vec::new(),
        }
    }
}

/// Parameters of a REP.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accept {
    /// This side's QP: 24 bits.
    pub qpn: u32,
    /// Its first PSN: 24 bits.
    pub starting_psn: u32,
    /// READs and atomics that this side can serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that this side wants to have outstanding.
    pub initiator_depth: u8,
    /// RNR retries for the peer's QP, 0 to 7.
    pub rnr_retry_count: u8,
    /// Use of end-to-end flow control.
    pub flow_control: bool,
    /// This side receives from an SRQ.
    pub srq: bool,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
}

/// Parameters of a SIDR_REQ.
#[derive(Clone, Debug, PartialEq)]
pub struct SidrRequest {
    /// The service.
    pub service_id: u64,
    /// Path of the MAD.
    pub path: Path,
    /// Timeout of the answer.
    pub timeout: crate::Time,
    /// Number of retries.
    pub max_retries: u8,
    /// At most 216 bytes.
    pub private_data: Vec<u8>,
}

/// Parameters of a SIDR_REP, sent or received.
#[derive(Clone, Debug, PartialEq)]
pub struct SidrReply {
    /// `Valid`, with QP number and Q_Key, or the reason of the refusal.
    pub status: SidrStatus,
    /// The datagram QP: 24 bits.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Vendor id and options of enhanced connection establishment; zero if none.
    pub ece: (u32, u32),
    /// Additional information on `status`, at most 72 bytes.
    pub info: Vec<u8>,
    /// At most 136 bytes; always 136 when received.
    pub private_data: Vec<u8>,
}

/// Reason why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such id (or it was destroyed).
    #[error("no such connection")]
    NoSuchId,
    /// Not allowed in this state: EINVAL in Linux.
    #[error("not possible in state {0:?}")]
    State(State),
    /// Another id of this agent already listens to this service id: EBUSY in Linux.
    #[error("another id listens to this service")]
    InUse,
    /// Private data or additional information does not fit into the message.
    #[error("{0} bytes do not fit into {1}")]
    TooLong(usize, usize),
    /// All ids are in use.
    #[error("no more communication ids")]
    Full,
}
