//! RDMA for Rust: buffers that requests take and give back, connections by address, and a simulated machine for tests.
//!
//! ```
//! use ironverbs::{Error, Pool, block_on, sim};
//!
//! let (a, b) = sim::pair()?; // on a card: `Device::open("vfio=0000:c1:00.2")`, then `connect`
//! let (ours, theirs) = (Pool::new(a.device(), 8, 4096)?, Pool::new(b.device(), 8, 4096)?);
//! block_on(async {
//!     let message = b.recv(theirs.empty()?);
//!     let buffer = a.send(ours.take(b"hello")?).await?; // ours again
//!     assert_eq!(&*buffer, b"hello");
//!     assert_eq!(&*message.await?, b"hello");
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! There are three layers:
//!
//! 1. [`verbs`]: the driver, with work requests, completions and `unsafe` where a raw address goes in.
//! 2. [`Pool`] and [`Region`] for memory; [`Qp`], [`Datagrams`] and [`SharedReceives`] for requests. A request owns its buffer until it has
//!    completed, so dropping a future is safe. A full queue makes requests wait.
//! 3. [`Listener`] and [`connect`]: connections by IP address and port, as librdmacm makes them.
//!
//! Futures run under any executor. [`block_on`] is a small one that polls before it sleeps; with the feature `tokio` and within its runtime,
//! tokio's reactor wakes futures instead of a thread of this crate.
#![deny(unsafe_code)]

mod address;
mod channel;
mod cm;
mod datagram;
mod device;
mod error;
mod inbox;
mod pool;
mod qp;
mod reactor;
mod region;
mod requests;
mod runtime;
pub mod sim;
mod source;

pub use address::{Address, Source};
pub use cm::{Connection, Incoming, Listener, connect};
pub use datagram::Datagrams;
pub use device::Device;
#[doc(inline)]
pub use driver as verbs;
pub use error::{Error, Result};
pub use inbox::{Message, Recv};
pub use node::place::Place;
pub use pool::{Acquire, Buf, Pool};
pub use qp::{ConnectTo, Qp, QpBuilder, SharedReceives};
pub use region::{Region, Remote, Window};
pub use requests::Request;
pub use runtime::{block_on, join};

/// Runs the programs of the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Page;
