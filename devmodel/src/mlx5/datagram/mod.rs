//! Datagrams: UD queue pairs and the port's special ones, QP0 and QP1 (IBTA 9.8.3, 13.5.1).

mod address;
mod groups;
mod multicast;
mod receive;
mod send;
mod special;

pub(crate) use address::{GENERAL, GROUP, MULTICAST_QPN};
pub(crate) use multicast::deliver;
pub(crate) use receive::arrive;
pub(crate) use send::next;
pub(crate) use special::special_qps;
