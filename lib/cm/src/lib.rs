//! Communication management (IBTA vol. 1 ch. 12): how two programs come to a connection between their queue pairs, or one
//! learns the other's datagram queue pair. A state machine without I/O and clock: MADs, commands and the time go in, MADs
//! and events come out.
//!
//! ```
//! use cm::{Agent, Command, Config, Connect, Input, Output, Path, Service};
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
//! # Ok::<(), cm::Refused>(())
//! ```
//!
//! Where the architecture leaves a choice it does what Linux' ib_cm does, its most frequent peer.
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

/// A connection or listener of one [`Agent`]: its local communication id. Upper half: the agent's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// The transport a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: the active side has the initiator, the passive side the target.
    Xrc,
}

/// The protocol's own limits for retries and timeouts, as Linux' rdma_cm sets them.
pub mod default {
    /// `remote_cm_response_timeout` and `local_cm_response_timeout`: 4.096 us x 2^20, about 4 s.
    pub const RESPONSE_TIMEOUT: u8 = 20;
    /// `max_cm_retries`.
    pub const MAX_RETRIES: u8 = 15;
    /// Service timeout of the MRA that answers duplicates: about a minute.
    pub const MRA_TIMEOUT: u8 = 24;
    /// `packet_life_time` of a path on Ethernet.
    pub const ETHERNET_PACKET_LIFE_TIME: u8 = 18;
}
