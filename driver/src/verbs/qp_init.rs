//! Attributes of new queue pairs.

use super::{Cq, Service, Srq};
use std::sync::Arc;

/// The attributes of a new QP.
#[derive(Clone)]
pub struct QpInit {
    /// CQ for send work requests.
    pub send_cq: Arc<Cq>,
    /// CQ for receive work requests.
    pub recv_cq: Arc<Cq>,
    /// Transport service.
    pub service: Service,
    /// Minimum number of outstanding sends.
    pub max_send_wr: u32,
    /// Minimum number of outstanding receives.
    pub max_recv_wr: u32,
    /// SGEs per send.
    pub max_send_sge: u32,
    /// SGEs per receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// Blocks loopback of multicasts sent by this QP, or, for a raw packet QP, by the function.
    pub block_multicast_loopback: bool,
    /// VLAN tags are stripped from raw packets and reported in `vlan_info` of the CQE.
    pub strip_vlan: bool,
    /// The shared receive queue, instead of its own.
    pub srq: Option<Arc<Srq>>,
    /// Returned in the QP's events.
    pub cookie: u64,
}

impl QpInit {
    /// Attributes of a queue pair without room for work requests; the caller fills in the rest.
    pub fn new(service: Service, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> Self {
        Self {
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            service,
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
            sq_sig_all: false,
            block_multicast_loopback: false,
            strip_vlan: false,
            srq: None,
            cookie: 0,
        }
    }

    /// A copy with the receive queue removed where the QP cannot have one.
    pub(super) fn without_unused_receives(&self) -> QpInit {
        match self.srq.is_some() || self.service == Service::XrcIni {
            true => QpInit { max_recv_wr: 0, max_recv_sge: 0, ..self.clone() },
            false => self.clone(),
        }
    }
}
