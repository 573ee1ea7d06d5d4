//! Initial attributes of queue pairs.

use super::{Cq, Service, Srq};
use std::sync::Arc;

/// Attributes that a QP is created with.
#[derive(Clone)]
pub struct QpInit {
    /// Completions of send work requests.
    pub send_cq: Arc<Cq>,
    /// Completions of receive work requests.
    pub recv_cq: Arc<Cq>,
    /// Transport service.
    pub service: Service,
    /// Work requests that fit at once.
    pub max_send_wr: u32,
    /// As `max_send_wr`, receives.
    pub max_recv_wr: u32,
    /// Pieces per work request.
    pub max_send_sge: u32,
    /// As `max_send_sge`, receives.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// Blocks the loopback of multicasts that it sends, or, of a raw packet QP, that the function sends.
    pub block_multicast_loopback: bool,
    /// VLAN tags are stripped from raw packets and reported in `vlan_info` of the CQE.
    pub strip_vlan: bool,
    /// Receives come from here instead of a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Comes back in this QP's events.
    pub cookie: u64,
}

impl QpInit {
    /// A queue pair without room for work requests. The caller fills in the rest.
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

    /// As asked for, without receives of its own where the QP cannot have any.
    pub(super) fn without_unused_receives(&self) -> QpInit {
        match self.srq.is_some() || self.service == Service::XrcIni {
            true => QpInit { max_recv_wr: 0, max_recv_sge: 0, ..self.clone() },
            false => self.clone(),
        }
    }
}
