//! Communication management (IBTA vol. 1 ch. 12): establishes a connection between the queue pairs of two programs, or
//! tells one the datagram queue pair of the other. A state machine without I/O or clock: MADs, commands and time are
//! its inputs, MADs and events its outputs.
//!
//! ```
//! use ironverbs_cm::{Agent, Command, Config, Connect, Input, Output, Path, Service};
//! use hwspec::wire::mad::cm::{PortSpace, service_id};
//!
//! let now = std::time::Duration::ZERO;
//! let mut agent = Agent::new(Config { tag: 0x17a3, first: 0x200b, ca_guid: 0x1234, ack_delay: 16 });
//! let id = agent.open()?;
//! let connect = Connect::new(service_id(PortSpace::Tcp, 7471), Service::Rc, Path::default());
//! agent.handle(now, Input::Command(id, Command::Connect(Box::new(connect))))?;
//! while let Some(output) = agent.poll() {
//!     match output {
//!         Output::Send { to, mad } => println!("from QP1 to {to:?}: {mad:?}"),
//!         Output::Event(id, event) => println!("{id:?}: {event:?}"),
//!         Output::Unclaimed(unclaimed) => agent.refuse(&unclaimed),
//!     }
//! }
//! assert!(agent.deadline().is_some(), "until then MADs are waited for, and then it is time for `Input::Tick`");
//! # Ok::<(), ironverbs_cm::Refused>(())
//! ```
//!
//! If the specification leaves a choice, this crate follows Linux's ib_cm, its most frequent peer.
#![forbid(unsafe_code)]

mod accept;
mod agent;
mod command;
mod conn;
mod connect;
mod event;
mod format;
mod path;
mod receive;
mod sidr;
mod stale;
mod time;

pub use agent::{Agent, Config};
pub use command::{Accept, Command, Connect, Input, Refused, SidrReply, SidrRequest};
pub use conn::{QpParameters, State};
pub use event::{Event, Failure, Output, Reply, Request, SidrQuery, Unclaimed, Wanted};
pub use hwspec::wire::mad::{
    Mad,
    cm::{RejectReason, SidrStatus},
};
pub use path::{Address, Gid, Path};
pub use time::{Time, ack_timeout, duration};

/// A connection or listener of one [`Agent`]: its local communication id. The upper half is the agent's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the active side has the initiator, the passive side the target.
    Xrc,
}

/// The protocol's own limits for retries and timeouts, as set by Linux's rdma_cm.
pub mod default {
    /// `remote_cm_response_timeout` and `local_cm_response_timeout`: 4.096 us x 2^20, about 4 s.
    pub const RESPONSE_TIMEOUT: u8 = 20;
    /// `max_cm_retries`.
    pub const MAX_RETRIES: u8 = 15;
    /// Service timeout of the MRA in answer to duplicates: about a minute.
    pub const MRA_TIMEOUT: u8 = 24;
    /// `packet_life_time` of a path on Ethernet.
    pub const ETHERNET_PACKET_LIFE_TIME: u8 = 18;
}
