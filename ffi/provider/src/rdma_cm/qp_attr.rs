//! INIT_QP_ATTR: what a QP needs to be parameters on its way, from where the connection stands.

use super::cm_events::address_vector;
use super::commands::{Answer, Step};
use super::id::Id;
use super::manager::Manager;
use super::ports::PORT;
use super::uapi::{Plain, QpAttr, qp_type};
use cm::{QpParameters, State};
use libc::c_int;

/// `enum ib_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERR: u32 = 6;

/// `enum ib_qp_attr_mask`.
mod mask {
    pub const STATE: u32 = 1;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// `IB_ACCESS_*`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;

impl Manager {
    /// Answers what a QP in the state `qp_state` is to be given.
    ///
    /// # Errors
    /// EINVAL: no such state, or the connection is not that far.
    pub fn init_qp_attr(&mut self, number: u32, qp_state: u32, answer: Answer) -> Result<Step, c_int> {
        if qp_state > ERR {
            return Err(libc::EINVAL);
        }
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        let mut attr = QpAttr { qp_state, qp_attr_mask: mask::STATE, ..QpAttr::zero() };
        match id.conn.filter(|_| !id.is_datagram()) {
            None => unconnected(id, &mut attr),
            Some(conn) => {
                let id = self.ids.get(number).ok_or(libc::ENOENT)?;
                let line = self.lines.get(&conn.0).ok_or(libc::ENODEV)?;
                let state = line.agent.state(conn.1).ok_or(libc::EINVAL)?;
                let parameters = line.agent.qp_parameters(conn.1).ok_or(libc::EINVAL)?;
                connected(id, state, &parameters, &mut attr)?;
            }
        }
        answer.put(attr.bytes()).map(|()| Step::Done)
    }
}

/// Nobody has been asked yet, or nobody will be: what the port and the port space tell.
fn unconnected(id: &mut Id, attr: &mut QpAttr) {
    attr.qp_attr_mask |= mask::PKEY_INDEX | mask::PORT;
    attr.port_num = PORT;
    if id.is_datagram() {
        attr.qp_attr_mask |= mask::QKEY;
        attr.qkey = id.q_key();
    } else {
        attr.qp_attr_mask |= mask::ACCESS_FLAGS;
    }
    if attr.qp_state == RTR {
        attr.rq_psn = id.psn;
    }
}

fn connected(id: &Id, state: State, parameters: &QpParameters, attr: &mut QpAttr) -> Result<(), c_int> {
    use State::*;
    let asked = matches!(state, ReqSent | MraReqReceived);
    let answered = matches!(
        state,
        ReqReceived | MraReqSent | RepReceived | MraRepSent | RepSent | MraRepReceived | Established
    );
    let (responds, requests) = (
        matches!(id.qp_type, qp_type::RC | qp_type::XRC_TGT),
        matches!(id.qp_type, qp_type::RC | qp_type::XRC_INI),
    );
    match attr.qp_state {
        INIT if asked || answered => {
            attr.qp_attr_mask |= mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
            attr.qp_access_flags = REMOTE_WRITE;
            if parameters.responder_resources != 0 {
                attr.qp_access_flags |= REMOTE_READ | REMOTE_ATOMIC;
            }
            attr.port_num = PORT;
        }
        RTR if answered => {
            attr.qp_attr_mask |= mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
            attr.ah_attr = address_vector(&parameters.path, id.at.ok_or(libc::EINVAL)?);
            attr.path_mtu = parameters.path.mtu.into();
            attr.dest_qp_num = parameters.remote_qpn;
            attr.rq_psn = id.psn;
            if responds {
                attr.qp_attr_mask |= mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = parameters.responder_resources;
            }
        }
        RTS if answered => {
            attr.qp_attr_mask |= mask::SQ_PSN;
            attr.sq_psn = parameters.sq_psn;
            if requests {
                attr.qp_attr_mask |= mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
                attr.retry_cnt = parameters.retry_count;
                attr.rnr_retry = parameters.rnr_retry_count;
                attr.max_rd_atomic = parameters.initiator_depth;
            }
            if requests || responds {
                attr.qp_attr_mask |= mask::TIMEOUT;
                attr.timeout = id.timeout.unwrap_or(parameters.ack_timeout);
            }
        }
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}
